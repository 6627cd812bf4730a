"""A Python that has some of this one's packages, and what they require, and nothing else."""

import sys
import venv
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def python_with(packages: Sequence[str], folder: Path) -> Path:
    """The interpreter of a new environment in `folder`; its packages are links to those installed here. A package may
    be named with extras: `ray[client]`."""
    venv.create(folder, symlinks=True, with_pip=False)
    site = site_packages(folder)
    for name in with_requirements(packages):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.is_symlink():
                link.symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def with_requirements(packages: Sequence[str]) -> set[str]:
    """These packages and all that they require; those that are not installed here are left out."""
    found: set[str] = set()
    seen: set[str] = set()
    left = list(packages)
    while left:
        wanted = Requirement(text := left.pop())
        if text in seen:
            continue
        seen.add(text)
        try:
            needs = map(Requirement, distribution(wanted.name).requires or [])
        except PackageNotFoundError:
            continue
        found.add(wanted.name.replace("_", "-").lower())
        extras = wanted.extras or {""}
        for need in needs:
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(_without_marker(need))
    return found


def of_extra(requirements: Iterable[str], extra: str) -> list[str]:
    """Of the lines `Requires-Dist` of a package, what it requires with an extra."""
    needs = map(Requirement, requirements)
    return [_without_marker(need) for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]


def _without_marker(need: Requirement) -> str:
    need.marker = None
    return str(need)
