"""A Python that has some of this one's packages, and what they require, and nothing else."""

from __future__ import annotations

import re
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path


def python_with(packages: Sequence[str], folder: Path) -> Path:
    """The interpreter of a new environment in `folder`; its packages are links to those installed here."""
    venv.create(folder, symlinks=True, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name in with_requirements(packages):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = site / top
            if not link.is_symlink():
                link.symlink_to(str(found.locate_file(top)))
    return folder / "bin" / "python"


def with_requirements(packages: Sequence[str]) -> set[str]:
    """These packages and all that they require, but for extras; those that are not installed here are left out."""
    found: set[str] = set()
    left = list(packages)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue
        if name not in found:
            found.add(name)
            left += [re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need]
    return found
