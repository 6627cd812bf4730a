"""Optional packages that a library would import although this program never uses that part of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
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
