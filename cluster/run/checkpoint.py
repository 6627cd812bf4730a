"""Checkpoints: everything a run needs to resume, written atomically.

    checkpoints/NAME/   state.json    the loop's place, words, league, baselines, results (RunState)
                        POLICY/       DeepSpeed's own files, one folder a policy
                        COMPLETE      last: the size of every other file, and the seconds that writing took

A checkpoint is written under a temporary name, synced, renamed, and then marked. One without its mark, or with a file
whose size differs from the mark, is incomplete: it is ignored, and may be removed. One that is marked but cannot be
read, because of the disk or of another version's format, is never removed, and no run resumes beside it. A checkpoint
that is written again is kept as .NAME.replaced until the new one is marked, so one complete checkpoint always remains.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from cluster.fleet.publisher import published_in
from cluster.runtime.output_files import free_name
from spag_ray.config.parts import CheckpointConfig
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import stage_of
from spag_ray.errors import LeaseLostError, RunFolderError
from spag_ray.game.rules import Role
from spag_ray.games.registry import Scenarios
from spag_ray.host.whole_files import open_as_folder, sync_file, sync_folder, write_atomically
from spag_ray.results.former_records import named_state
from spag_ray.results.matches import Match, change_matches
from spag_ray.stages import Stage, StageKind
from spag_ray.training_data.rewards import RoleBaselines, RoleWindow

FORMAT = 1
_MARK = "COMPLETE"
_STATE = "state.json"
_REPLACED = ".replaced"
_MID_STAGE = "-step-"


@dataclass
class RunState:
    """Where the loop is, as plain JSON. `order` counts checkpoints. `stage` is the last stage that was trained on (""
    for none). `rounds` and `parts` count finished rounds and versions of a stream. `baselines` and `role_wins` are
    those of RoleAverages: {game: {role: value}} and {game: RoleWindow's text}."""

    order: int = 0
    stage: str = ""
    rounds: int = 0
    parts: int = 0
    words: dict[str, Any] | None = None
    baselines: dict[str, Any] | None = None
    role_wins: dict[str, str] = field(default_factory=dict)
    league: dict[str, Any] | None = None
    stream: dict[str, Any] | None = None
    results: list[dict[str, Any]] = field(default_factory=list)

    def is_mid_round(self, config: RunConfig) -> bool:
        """Whether it is of a stream, between two versions of one round."""
        return config.schedule == "stream" and self.parts != self.rounds * config.versions_per_round


@dataclass(frozen=True)
class RoleAverages:
    """What the rewards of a game depend on beside its own result, by the game's full name. `baselines`: each role's
    moving average, of games with `baseline: moving` or `advantage: rae`. `windows`: the last wins, for the role weights
    of a stream. They are in every checkpoint, so a resumed run has them as they were."""

    baselines: dict[str, RoleBaselines]
    windows: dict[str, RoleWindow]

    @classmethod
    def saved_in(cls, state: RunState, config: RunConfig) -> RoleAverages:
        """Those of a checkpoint's state, or of a new run."""
        baselines, windows = {}, {}
        for each in config.each_game:
            name, objective = each.game.full_name, each.objective
            if objective.has_moving_baseline:
                baselines[name] = RoleBaselines(objective.baseline_decay)
                if (values := (state.baselines or {}).get(name)) is not None:
                    baselines[name].values = {role: values[str(role)] for role in Role}
            windows[name] = RoleWindow(config.stream.role_weight_window, state.role_wins.get(name, ""))
        return cls(baselines, windows)

    def added_to(self, state: RunState) -> RunState:
        """The state with these."""
        values = {
            name: {str(role): value for role, value in each.values.items()} for name, each in self.baselines.items()
        }
        wins = {name: window.winners for name, window in self.windows.items()}
        return replace(state, baselines=values or None, role_wins=wins if any(wins.values()) else {})


class Checkpoints:
    """The checkpoints of one run folder. `check` raises LeaseLostError when another run has taken the folder; then
    nothing is marked or removed."""

    def __init__(self, folder: Path, config: CheckpointConfig, check: Callable[[], None] = lambda: None) -> None:
        self._folder = folder / "checkpoints"
        self._check = check
        self._keep_last = config.keep_last
        self._max_bytes = None if config.max_gib is None else int(config.max_gib * 2**30)

    def to_resume(self) -> tuple[Path, RunState] | None:
        """The newest complete one, or None. Raises RunFolderError if a checkpoint is complete but cannot be read: an
        older one must not take its place in silence."""
        complete = []  # read once: a disk that fails the second time must not hide the newest one
        for path, state in self._marked():
            if isinstance(state, str):
                raise RunFolderError(
                    f"{self._folder}: checkpoint {path.name} is complete but cannot be read: {state}. Nothing "
                    "was removed. Resume with the version that wrote it, or when the disk is back; to continue from an "
                    "older checkpoint, move it away"
                )
            complete.append((path, state))
        return _newest(complete)

    def newest(self) -> tuple[Path, RunState] | None:
        """The newest complete one that can be read, or None."""
        return _newest(self._complete())

    def newest_bytes(self) -> int:
        """The size of the newest complete one; 0 if there is none."""
        found = self.newest()
        return sum(file.stat().st_size for file in _files(found[0])) if found else 0

    def newest_seconds(self) -> float:
        """How long the newest complete one took to write; 0 if there is none."""
        found = self.newest()
        return float(json.loads((found[0] / _MARK).read_text(encoding="utf-8"))["seconds"]) if found else 0.0

    @contextlib.contextmanager
    def writing(self, name: str, state: RunState) -> Iterator[Path]:
        """A folder for the block to write into; when the block ends, it becomes the checkpoint `name`.

        Raises RunFolderError when the disk or the budget has no room; earlier checkpoints are kept.
        """
        self._check()
        partial = self._folder / f".{name}.{uuid.uuid4().hex[:8]}.partial"  # a run that lost the folder may still write
        target = self._folder / name
        began = time.perf_counter()
        try:
            self._folder.mkdir(exist_ok=True)
            self.settle()
            partial.mkdir()
            self._make_room()
            yield partial
            (partial / _STATE).write_text(json.dumps({"format": FORMAT, **asdict(state)}, indent=1), encoding="utf-8")
            sizes = {path.relative_to(partial).as_posix(): path.stat().st_size for path in _files(partial)}
            if self._max_bytes is not None and (size := sum(sizes.values())) > self._max_bytes:
                told = f"it is {size / 2**30:.3f} GiB, checkpoint.max_gib allows {self._max_bytes / 2**30:.3f}"
                raise OSError(errno.EDQUOT, told)
            open_as_folder(partial)
            for path in _files(partial):
                sync_file(path)
            for path in [partial, *(path for path in partial.rglob("*") if path.is_dir())]:
                sync_folder(path)
            self._check()
            if target.exists():
                target.rename(self._folder / f".{name}{_REPLACED}")
            partial.rename(target)
            sync_folder(self._folder)
            self._check()
            mark = {"seconds": round(time.perf_counter() - began, 3), "sizes": sizes}
            write_atomically(target / _MARK, json.dumps(mark, indent=1))
        except LeaseLostError:
            raise
        except (OSError, RunFolderError) as error:
            self._check()  # a lost lease is the real cause
            self.settle()
            last, reason = self.newest(), getattr(error, "strerror", None) or str(error)
            left = f"the newest complete one is {last[0].name}" if last else "there is none before it"
            raise RunFolderError(
                f"{self._folder}: checkpoint {name} could not be written ({reason}); {left}; "
                "make room and continue with --resume"
            ) from error
        except BaseException:
            with contextlib.suppress(LeaseLostError):
                self._check()
                self.settle()
            raise
        self._prune(keep=target)

    def settle(self) -> None:
        """Clean up after a writer that was killed or failed. A replaced checkpoint gets its name back if the new one
        is not complete; incomplete checkpoints are removed."""
        found = dict(self._marked())
        for path, state in found.items():
            if path.name.endswith(_REPLACED) and isinstance(state, RunState):
                target = self._folder / path.name[1:].removesuffix(_REPLACED)
                if isinstance(found.get(target), RunState):
                    _remove(path)
                elif target not in found:
                    shutil.rmtree(target, ignore_errors=True)
                    path.rename(target)
        kept = {path for path, _ in self._marked()}
        for path in self._folder.iterdir() if self._folder.is_dir() else []:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _make_room(self) -> None:
        """Fail before writing if the disk has less space left than the newest checkpoint takes."""
        free, needed = shutil.disk_usage(self._folder).free, self.newest_bytes()
        if free < needed:
            raise OSError(errno.ENOSPC, f"it needs {needed / 2**30:.2f} GiB, the disk has {free / 2**30:.2f} GiB left")

    def _prune(self, keep: Path) -> None:
        """Remove old checkpoints beyond `keep_last` and the budget."""
        self.settle()
        complete = sorted(self._complete(), key=lambda each: -each[1].order)
        total = 0
        for place, (path, _) in enumerate(complete):
            total += sum(file.stat().st_size for file in _files(path))
            over_budget = self._max_bytes is not None and total > self._max_bytes
            if path != keep and (place >= self._keep_last or over_budget):
                _remove(path)

    def _complete(self) -> list[tuple[Path, RunState]]:
        return [(path, state) for path, state in self._marked() if isinstance(state, RunState)]

    def _marked(self) -> Iterator[tuple[Path, RunState | str]]:
        """Every checkpoint but the incomplete ones; in place of a state that cannot be read, the reason."""
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else []:
            try:
                if path.is_symlink() and not path.exists():
                    state: RunState | str | None = "it is a link to a folder that is not there"
                else:
                    state = _read(path)
            except (FileNotFoundError, NotADirectoryError):  # the mark, or a file that it names; or no checkpoint
                continue
            except OSError as error:
                state = error.strerror or type(error).__name__
            if state is not None:
                yield path, state


def _read(path: Path) -> RunState | str | None:
    """The state of a marked checkpoint, or why it cannot be read; None if a file has another size than its mark says.
    Raises OSError."""
    found: dict[str, Any] = {}
    for name in (_MARK, _STATE):
        try:
            found[name] = json.loads((path / name).read_text(encoding="utf-8"))
        except ValueError as error:
            return f"its {name} is not JSON ({error})"
        if not isinstance(found[name], dict):
            return f"its {name} is no mapping"
        if name == _MARK:
            if not isinstance(sizes := found[_MARK].get("sizes"), dict):
                return f"its {_MARK} has no sizes"
            if any((path / file).stat().st_size != size for file, size in sizes.items()):
                return None
    state = found[_STATE]
    if (written := state.pop("format", None)) != FORMAT:
        return f"its format is {written}, this version reads {FORMAT}"
    if unknown := sorted(state.keys() - {each.name for each in fields(RunState)}):
        return f"its {_STATE} has the unknown key {unknown[0]!r}"
    return RunState(**named_state(state, path.parent.parent))


def to_resume(folder: Path, config: CheckpointConfig) -> tuple[Path, RunState] | None:
    """The checkpoint to resume from; None to begin. Raises RunFolderError if one cannot be read, or if weights were
    published but no checkpoint is left and `checkpoint.may_begin_again` is false: a run must not begin again in
    silence."""
    found = Checkpoints(folder, config).to_resume()
    newest_version = max(published_in(folder).values(), default=0)
    if config.enabled and newest_version and found is None and not config.may_begin_again:
        raise RunFolderError(
            f"{folder}: this run has published version {newest_version}, but {folder}/checkpoints has no complete "
            "checkpoint, so it would begin again from its first model; bring the checkpoint back, or say "
            "-o checkpoint.may_begin_again=true"
        )
    return found


def check_can_resume(
    checkpoint: Path, state: RunState, config: RunConfig, words: Scenarios, held_out: Scenarios
) -> None:
    """Raises RunFolderError if a run of this configuration, with these words, cannot resume from a checkpoint: its
    learners would have weights of a later round than the last, whose results these would be called, or words that are
    trained on would be held out now. A game that plays all its scenarios in both has none held out."""
    begun = max(state.rounds, Stage.parse(checkpoint.name.lstrip(".").partition(_MID_STAGE)[0]).round)
    if config.schedule == "stream":
        begun = -(-state.parts // config.versions_per_round)
    if config.self_play.rounds < begun:
        raise RunFolderError(
            f"{checkpoint}: round {begun} has begun, but self_play.rounds is {config.self_play.rounds}; set it to at "
            f"least {begun}, or move the checkpoints of later rounds away"
        )
    for game, _, before in (state.words or {}).get("games", ()):
        both = set(before) & (set(held_out.get(game, ())) - set(words.get(game, ())))
        if both:
            raise RunFolderError(
                f"{checkpoint}: the words of {game} are not those that the run was started with, so {len(both)} that "
                f"it trains on ({min(both)!r:.40}) would be held out now; bring the former ones back (words.source, "
                "words.deck, or the game's own, in the same order; versions.json has the packages), or start another "
                "run"
            )


def mid_stage(stage: str, num_steps_done: int) -> str:
    """The name of a checkpoint that is saved between two steps of a stage."""
    return f"{stage}{_MID_STAGE}{num_steps_done}"


def set_aside(episodes: Path, state: RunState, config: RunConfig) -> list[str]:
    """Rename the logs of stages after `state`, except the next one: their games were played by weights of an abandoned
    attempt. Returns their names."""
    moved = []
    for path in sorted(episodes.glob("*.log")) if episodes.is_dir() else []:
        if not belongs(stage_of(path), state, config):
            path.replace(free_name(path.with_name(f"{path.name}.given-up-{state.order}")))
            moved.append(path.name)
    return moved


def keep_matches(path: Path, state: RunState, config: RunConfig) -> None:
    """Remove from a run's matches.json the matches of stages after `state`; those of guests stay. Raises InputError for
    an invalid file."""

    def kept(matches: list[Match]) -> list[Match]:
        return [
            match
            for match in matches
            if all(has_weights_of(name, state, config) for name in (match.attacker, match.defender))
        ]

    change_matches(path, kept)


def belongs(stage: Stage, state: RunState, config: RunConfig) -> bool:
    """Whether a run at `state` has played the games of this stage, or plays them next."""
    match stage.kind:
        case StageKind.MATCH:
            return all(has_weights_of(player, state, config) for player in stage.players)
        case StageKind.EVALUATION:
            return has_weights_of(stage.players[0], state, config)
        case StageKind.ROUND:
            return has_weights_of(str(stage), replace(state, rounds=state.rounds + 1), config)
    return True


def has_weights_of(player: str, state: RunState, config: RunConfig) -> bool:
    """Whether a run at `state` has trained this player's weights, or got them from elsewhere."""
    stage = Stage.parse(player)
    match stage.kind:
        case StageKind.ROUND:
            return stage.round <= state.rounds and (bool(state.stage) or not config.imitation.enabled)
        case StageKind.IMITATED:
            return bool(state.stage)
    return True


def _remove(path: Path) -> None:
    (path / _MARK).unlink()  # from here on it is incomplete
    shutil.rmtree(path, ignore_errors=True)


def _newest(checkpoints: Iterable[tuple[Path, RunState]]) -> tuple[Path, RunState] | None:
    return max(checkpoints, key=lambda each: each[1].order, default=None)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _MARK)
