"""A path for libraries that take it for a pattern: DeepSpeed finds no checkpoint in `runs/x[1]`, and vLLM no weights.

with plain_path("runs/x[1]/models/imitated") as path:        # /tmp/spag_ray-path-.../folder, a link
    ...
"""

from __future__ import annotations

import contextlib
import glob
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def plain_path(folder: str) -> Iterator[str]:
    """The folder's own path if it is no pattern, else that of a link to it, which is there during the block."""
    if glob.escape(folder) == folder:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="spag_ray-path-") as aside:
        link = Path(aside) / "folder"
        link.symlink_to(Path(folder).resolve(), target_is_directory=True)
        yield str(link)
