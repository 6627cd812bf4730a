"""A disk on which files can be opened but nothing can be written any more."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """In the block, files of this process cannot grow: writing raises OSError "File too large", after `open` has
    already emptied a file that is written in place."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
