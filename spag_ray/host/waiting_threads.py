"""How threads of one process wait for each other."""

from __future__ import annotations

import os

# How often a CPU thread looks again before it sleeps, while it waits for the others (GNU OpenMP's GOMP_SPINCOUNT; by
# default it looks 300,000 times). See "Threads that wait" in docs/benchmarks.md.
SPINS = "1000"


def let_them_sleep() -> None:
    """Before libraries are loaded, in a process that computes on CPUs: two of them on the same cores, such as a player
    and a listener, would else take the time of each other. What the environment says comes first."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
