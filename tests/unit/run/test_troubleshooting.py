"""docs/troubleshooting.md quotes messages that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("spag_ray", "actors", "learners", "cluster")
PAGE = ROOT / "docs" / "troubleshooting.md"
# The first cell of a row, if it is one quoted text of several words; a sign such as `kl` is none.
QUOTED = [m[1] for m in re.finditer(r"^\| `([^`|]+ [^`|]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]


@pytest.fixture(scope="module")
def sources() -> str:
    files = [path for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in [ROOT / "Makefile", *files])


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_of_the_page_is_one_of_the_code(message: str, sources: str) -> None:
    assert message in sources


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 40
