"""What a user is told of an error, and the exit code of a command."""

from __future__ import annotations

import sys
from collections.abc import Callable

from spag_ray.errors import SpagError, extra
from spag_ray.host.whole_files import REFUSED

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
    except OSError as error:
        if error.errno not in REFUSED or type(error).__module__ != OSError.__module__:  # Ray's are of other processes
            raise
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"spag-ray: {where}{error.strerror}; check the path, its permissions and its disk", file=sys.stderr)
        return 2
    except SystemExit as stop:
        if isinstance(stop.code, str):  # a library's, or a game's, as Python itself would print it
            print(f"spag-ray: {' '.join(stop.code.split())}", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
