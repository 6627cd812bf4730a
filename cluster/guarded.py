"""What a user is told of an error, and the exit code of a command."""

from __future__ import annotations

import sys
from collections.abc import Callable

from spag_ray.errors import SpagError, extra

FLOORS = ("spag_ray", "actors", "learners", "cluster")


def run_guarded(command: Callable[..., object]) -> int:
    """Run the app; a SpagError is one line on stderr and its exit code."""
    try:
        command(standalone_mode=True)
    except SpagError as error:
        print(f"spag-ray: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in FLOORS:
            raise
        print(
            f"spag-ray: {error.name} is not installed, which this command needs: {extra('cpu')}, or with `gpu`; the "
            "extra `client` alone attaches, launches, submits, watches, reports and exports",
            file=sys.stderr,
        )
        return 2
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0
