"""The steps of a Dockerfile, and the files that a .dockerignore leaves."""

import fnmatch
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """`steps`: (instruction, arguments) in their order, comments and line breaks removed."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def of(self, instruction: str) -> list[str]:
        return [arguments for each, arguments in self.steps if each == instruction]


def stages_of(path: Path) -> list[Stage]:
    """Every stage of a Dockerfile."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[Stage] = []
    for line in filter(None, re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()):
        instruction, _, arguments = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            found.append(Stage(base, name))
        else:
            found[-1].steps.append((instruction, arguments))
    return found


def sent_files(root: Path, ignore: Path, names: list[str]) -> list[str]:
    """Those of `names`, paths below `root`, that a build is given. The last pattern that matches a path, or a folder
    above it, decides; `!` sends it."""
    patterns = [line for line in ignore.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return [name for name in names if (root / name).is_file() and not _is_ignored(name, patterns)]


def _is_ignored(name: str, patterns: list[str]) -> bool:
    above = [name, *(str(parent) for parent in Path(name).parents if str(parent) != ".")]
    is_ignored = False
    for pattern in patterns:
        glob = pattern.removeprefix("!")
        variants = (glob, glob.removeprefix("**/"))  # `**/` also stands for no folder
        if any(fnmatch.fnmatchcase(each, variant) for each in above for variant in variants):
            is_ignored = not pattern.startswith("!")
    return is_ignored
