"""`spag-ray attach`: a Python session with a run."""

from __future__ import annotations

import code

from cluster.console import attach, session


def run_attach(address: str, run: str | None) -> None:
    """`spag-ray attach`: returns when the session is closed; the run continues."""
    with session(address):
        attached = attach(run=run)
        _interact({"run": attached}, f"run = {attached}\nhelp(run) says what it can do")


def _interact(names: dict[str, object], banner: str) -> None:
    """IPython if it is installed, else Python's own prompt."""
    try:
        from IPython import start_ipython
    except ImportError:
        code.interact(banner, local=names, exitmsg="")
        return
    print(banner)
    start_ipython(argv=["--no-banner"], user_ns=names)
