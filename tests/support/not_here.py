"""What a test needs and the machine lacks."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def not_here(what: str) -> NoReturn:
    """Skips the test with a line that says what is missing; in CI, which has to have it, the test fails."""
    if os.environ.get("CI_SKIPS_NOTHING") == "1":
        pytest.fail(what)
    pytest.skip(what)
