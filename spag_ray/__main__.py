"""`python -m spag_ray` and `spag-ray`: the command line. Only here this floor calls a higher one."""

import sys


def main() -> None:
    """The console script."""
    try:
        from cluster.cli import main as command_line
    except KeyboardInterrupt:  # imports take seconds, on a slow disk a minute
        print("Aborted.", file=sys.stderr)
        sys.exit(130)  # as a command's own import, or its work
    command_line()


if __name__ == "__main__":
    main()
