"""What a policy trains on in one stage, and its progress in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spag_ray.errors import RunFolderError
from spag_ray.stages import Stage
from spag_ray.training_data.samples import GameSample, Sample


@dataclass(frozen=True)
class TrainingStage:
    """What one stage trains on, and how: one pass over `games` in the given order, `batch_games` per step. Games with
    only listening turns are spread over these steps."""

    stage: Stage
    method: str
    games: Sequence[GameSample]
    sft: Sequence[Sample]
    batch_games: int
    learning_rate: float
    kl_coeff: float
    temperature: float = 1.0
    listening_coeff: float = 0.0
    # For a stream, which comes in parts: its name, the steps of all parts, how many parts of this stage were trained on
    # before this one, and the stage whose weights this stage started with (None: the run's base model).
    part_of: str | None = None
    stage_steps: int | None = None
    part: int = 0
    after: Stage | None = None


@dataclass
class StageProgress:
    """A stage under way: its games, with the log-probabilities of its start, and the number of steps done. The scores
    of the start cannot be computed again later, so a checkpoint saves them. A stream is saved between its parts, never
    inside one. So the old log-probabilities of saved turns are the reference too, unless it is the start of self-play
    (objective.kl_reference), which is computed again."""

    stage: str
    games: list[GameSample]
    num_steps_done: int = 0

    def save(self, folder: Path) -> None:
        """stage.json, and the log-probabilities of all turns in one array, with the length of each (0: none yet)."""
        turns = [turn for game in self.games for turn in game.turns]
        logprobs = [turn.old_logprobs or () for turn in turns]
        values = np.fromiter((value for each in logprobs for value in each), np.float64)
        np.savez(folder / "references.npz", values=values, lengths=np.array([len(each) for each in logprobs], np.int64))
        found = {"stage": self.stage, "num_steps_done": self.num_steps_done}
        (folder / "stage.json").write_text(json.dumps(found), encoding="utf-8")


@dataclass(frozen=True)
class Saved:
    """A StageProgress as `StageProgress.save` wrote it."""

    stage: str
    num_steps_done: int
    logprobs: list[tuple[float, ...]]

    def of(self, games: Sequence[GameSample]) -> StageProgress:
        """Raises RunFolderError when these are not the games it was saved with."""
        if sum(len(game.turns) for game in games) != len(self.logprobs):
            raise RunFolderError(
                f"{self.stage} was being trained on {len(self.logprobs)} turns, but its log now has others: the log "
                "was changed or damaged; remove the newest folder of checkpoints/ to train the stage from its beginning"
            )
        logprobs = iter(self.logprobs)
        return StageProgress(self.stage, [_with(game, logprobs) for game in games], self.num_steps_done)


def saved_in(folder: Path) -> Saved | None:
    """What `StageProgress.save` wrote there, if it did."""
    path = folder / "stage.json"
    if not path.exists():
        return None
    with np.load(folder / "references.npz", allow_pickle=False) as arrays:
        lengths = arrays["lengths"]
        parts = np.split(arrays["values"], np.cumsum(lengths)[:-1]) if len(lengths) else []
    found = json.loads(path.read_text(encoding="utf-8"))
    return Saved(found["stage"], found["num_steps_done"], [tuple(part.tolist()) for part in parts])


def _with(game: GameSample, logprobs: Iterator[tuple[float, ...]]) -> GameSample:
    turns = tuple(replace(turn, old_logprobs=next(logprobs) or None) for turn in game.turns)
    return replace(game, turns=turns)
