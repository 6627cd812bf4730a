"""Finds the shipped configuration files: beside the packages in a checkout, inside `spag_ray` when installed."""

from __future__ import annotations

from pathlib import Path

from spag_ray.errors import ConfigError, meant_path

_PACKAGE = Path(__file__).resolve().parent.parent


def config_root() -> Path:
    """The folder that holds quickstart.yaml, prompts/ and deepspeed/."""
    for root in (_PACKAGE.parent / "configs", _PACKAGE / "_configs"):
        if (root / "prompts").is_dir():
            return root
    raise ConfigError("the shipped configs/ folder was not found: reinstall spag-ray, or run from a full checkout")


def find_config(name: str, folder: str = "") -> Path:
    """`name` as a path if there is such a file, else the shipped file of that name (`.yaml` may be left out).

    A path that starts with "configs/" also finds the shipped file, so the README's commands work when installed.
    """
    given = Path(name)
    if given.is_file():
        return given
    root = config_root() / folder
    relative = Path(*given.parts[1:]) if given.parts[:1] == ("configs",) else given
    if folder and relative.parts[:1] == (folder,):
        relative = Path(*relative.parts[1:])
    for candidate in (root / relative, root / f"{relative}.yaml", root / f"{relative}.json"):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.stem for path in root.iterdir() if path.is_file())
    if given.exists():
        told = f"{name} is no plain file; give the path of one, or a shipped one ({', '.join(shipped)})"
        of_run = given / "config.yaml"
        raise ConfigError(f"{told}; did you mean `{of_run}`?" if of_run.is_file() and not folder else told)
    told = f"{name}: no such file, and none of the shipped ones ({', '.join(shipped)}); check the path"
    raise ConfigError(told + meant_path(relative, shipped))
