"""How threads of one process wait for each other."""

from __future__ import annotations

import os
from collections.abc import Mapping

# How often a CPU thread looks again before it sleeps, while it waits for the others (GNU OpenMP's GOMP_SPINCOUNT; by
# default it looks 300,000 times). See "Threads that wait" in docs/benchmarks.md.
SPINS = "1000"


def set_before_libraries(env: Mapping[str, str]) -> None:
    """The environment of a process that computes, before it loads its libraries: `env`, and threads that sleep while
    they wait. Two processes on the same cores, such as a player and a listener, would else take the time of each other.
    What `env` or the environment says of it comes first."""
    os.environ.update(env)
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
