"""docs/modules.md: every module of the four packages, with the first sentence of its docstring.

python -m tests.support.modules_page > docs/modules.md
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("cluster", "actors", "learners", "spag_ray")
COMMAND = "python -m tests.support.modules_page > docs/modules.md"


def page() -> str:
    """The text of the page."""
    lines = ["# Every module", "", f"Made from the modules' docstrings by `{COMMAND}`.", ""]
    for floor in FLOORS:
        for folder in (ROOT / floor, *sorted(path.parent for path in (ROOT / floor).rglob("*/__init__.py"))):
            lines += [*_of(folder), ""]
    return "\n".join(lines[:-1]) + "\n"


def _of(folder: Path) -> Iterator[str]:
    name = folder.relative_to(ROOT).as_posix()
    yield f"{'##' if '/' not in name else '###'} {name}/"
    yield ""
    yield first_sentence(folder / "__init__.py")
    modules = [path for path in sorted(folder.glob("*.py")) if path.stem not in ("__init__", "__main__")]
    if modules:
        yield ""
    for path in modules:
        yield f"- `{path.name}`: {first_sentence(path)}"


def first_sentence(path: Path) -> str:
    """Of the module's docstring. Raises ValueError if it has none."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    told = " ".join(text.split("\n\n")[0].split())
    found = re.match(r".+?[.?!](?=\s|$)", told)
    if not told:
        raise ValueError(f"{path.relative_to(ROOT)}: no docstring")
    return found[0] if found else f"{told.rstrip(':')}."


if __name__ == "__main__":
    print(page(), end="")
