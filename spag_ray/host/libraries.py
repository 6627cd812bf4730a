"""What libraries need before they are imported or called: settings of their threads, packages that they shall not
find, paths that they do not take for a pattern.
"""

from __future__ import annotations

import contextlib
import glob
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

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


@contextlib.contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """In this block these packages look as if they were not installed, unless they have been imported before. A library
    that looks for them in the block works without them from then on; others may import them afterwards."""
    absent = [each for each in packages if each not in sys.modules]
    for each in absent:
        sys.modules[each] = None  # type: ignore[assignment]  # `import` and find_spec know this as "there is none"
    try:
        yield
    finally:
        for each in absent:
            del sys.modules[each]


@contextlib.contextmanager
def plain_path(folder: str) -> Iterator[str]:
    """A path for libraries that take it for a pattern: DeepSpeed finds no checkpoint in `runs/x[1]`, and vLLM no
    weights. The folder's own path if it is no pattern, else that of a link to it, which is there during the block.

    with plain_path("runs/x[1]/models/imitated") as path:        # /tmp/spag_ray-path-.../folder, a link
        ...
    """
    if glob.escape(folder) == folder:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="spag_ray-path-") as aside:
        link = Path(aside) / "folder"
        link.symlink_to(Path(folder).resolve(), target_is_directory=True)
        yield str(link)
