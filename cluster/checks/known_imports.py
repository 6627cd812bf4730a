"""What an earlier command on this machine could import, and which checks found nothing. To import it again for the
check takes 12 s of CPU time, and until the installed packages change the answer is the same.

known = KnownImports(environment)
if "vllm" not in known:
    ...
    known.add(["vllm"])

The checks of a run's model, prompts and words are not made again either, where they read the same as in an earlier
start and found nothing: they take 11 s of CPU time, most of it imports of torch and transformers. `mark_of` says what
they read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from actors.models import cache_folder
from spag_ray.config.loading import find_config
from spag_ray.config.run import RunConfig
from spag_ray.host.whole_files import write_atomically

FILE = "importable.json"
CHECK = "check:"
MAX_PLACES = 8  # environments and versions that are remembered, those added to last
MAX_CHECKS = 32  # per place: configurations of this machine's recent runs
_OWN = Path(__file__).resolve().parents[2]
_FLOORS = ("actors", "learners", "cluster", "spag_ray")
_MODULES = (".py", ".so", ".pth", ".dist-info", ".egg-info", ".egg-link")
_HEEDED = ("LD_", "PYTHON", "CUDA", "NVIDIA", "VLLM_", "DS_", "HF_")  # variables that decide whether an import succeeds
_GAMES = ("taboo", "kuhn")  # whose files are this program's own
_TASKS = ("spag_reasoning",)  # generated from files of this program; others read data that may be gone or changed


class KnownImports:
    """Of this Python, with `environment` beside its own. What is known holds for the same packages (names and times of
    change of what can be imported from the folders of sys.path, and of this program's modules), the same variables, and
    the same boot, because a driver may change with it. A file that cannot be read or written is no error: everything is
    then imported."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._file = cache_folder() / FILE
        self._place = _place(environment)

    def __contains__(self, module: str) -> bool:
        return module in self._read().get(self._place, [])

    def add(self, modules: Iterable[str]) -> None:
        """`modules`: also marks of checks that found nothing (mark_of); the oldest of these are forgotten."""
        places = self._read()
        known = list(dict.fromkeys([*places.pop(self._place, []), *modules]))
        forgotten = set([each for each in known if each.startswith(CHECK)][:-MAX_CHECKS])
        places[self._place] = [each for each in known if each not in forgotten]
        kept = dict(list(places.items())[-MAX_PLACES:])
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps(kept))

    def _read(self) -> dict[str, list[str]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {place: [str(each) for each in known] for place, known in found.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):  # absent, or not as it is written here
            return {}


def mark_of(config: RunConfig, model: str, *others: Any) -> str | None:
    """Of everything that the checks read besides packages and this program, which KnownImports heeds: the whole
    configuration, `others` (JSON), the files of prompts, the names, sizes and times of change of the model's files and
    of the games and rows of files. None if they read more than that: a game of the user's, another model, tasks whose
    data is elsewhere."""
    evaluation = config.evaluation
    are_ours = {game.name for game in config.games} <= {*_GAMES} and {*evaluation.tasks} <= {*_TASKS}
    reads_others = config.own_listener is not None or config.seat_models or evaluation.include_path is not None
    if not are_ours or reads_others:
        return None
    files = [find_config(each.prompts, "prompts") for each in config.each_game]
    if config.render == "varied":
        files.append(find_config(config.varied_prompts, "prompts"))
    files += [find_config(f"{name}{suffix}", "tasks") for name in evaluation.tasks for suffix in (".yaml", ".json")]
    read = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    data = [config.self_play.sft_file, config.imitation.sft_file, config.imitation.source]
    read += [str(_state(Path(path))) for path in data if path and path != "scripted"]
    files_of_model = [(str(path), *_state(path)) for path in sorted(Path(model).rglob("*"))]
    what = [config.model_dump(mode="json"), model, files_of_model, read, others]
    return CHECK + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _place(environment: Mapping[str, str]) -> str:
    every = {**os.environ, **environment}
    heeded = {name: value for name, value in every.items() if name.startswith(_HEEDED) or name in environment}
    modules = [path for floor in _FLOORS for path in sorted((_OWN / floor).rglob("*.py"))]
    own = [(str(path), path.stat().st_mtime_ns) for path in modules]
    of = [sys.version, sys.executable, sorted(heeded.items()), _boot(), [list(_look(path)) for path in sys.path], own]
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()  # values may be secrets


def _boot() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return ""


def _look(path: str) -> Iterator[tuple[str, int]]:
    """(name, time of the last change) of what can be imported from a folder of sys.path, or of the archive that it is.
    An installation also writes a folder *.dist-info."""
    folder = Path(path or ".")
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            yield path, folder.stat().st_mtime_ns
            return
        for name in sorted(os.listdir(folder)):
            if name.endswith(_MODULES) or (folder / name / "__init__.py").is_file():
                yield name, (folder / name).stat().st_mtime_ns


def _state(path: Path) -> tuple[int, int]:
    """Size, time of the last change; of a link that leads nowhere, neither."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
