"""What a policy learns in one stage, and how far it has come in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spag_ray.errors import RunFolderError
from spag_ray.samples import GameSample, TurnSample


@dataclass(frozen=True)
class Lesson:
    """What is learned in one stage, and how: one pass over `games` in the order given, `batch_games` a step."""

    stage: str
    method: str
    games: Sequence[GameSample]
    sft: Sequence[TurnSample]
    batch_games: int
    learning_rate: float
    kl_coeff: float
    temperature: float = 1.0
    # Of a stage that comes in parts: its name, and the steps of all of them.
    part_of: str | None = None
    stage_steps: int | None = None


@dataclass
class UnderWay:
    """A stage in the midst of being learned: its games, with the log-probabilities of its start, and the steps that are
    behind it. What was scored at the start cannot be scored again later, so it is saved with a checkpoint."""

    stage: str
    games: list[GameSample]
    num_steps_done: int = 0

    def save(self, folder: Path) -> None:
        """stage.json, and the log-probabilities of all turns in one array, with the length of each (0: none yet)."""
        logprobs = [turn.reference_logprobs or () for game in self.games for turn in game.turns]
        values = np.fromiter((value for each in logprobs for value in each), np.float64)
        np.savez(folder / "references.npz", values=values, lengths=np.array([len(each) for each in logprobs], np.int64))
        found = {"stage": self.stage, "num_steps_done": self.num_steps_done}
        (folder / "stage.json").write_text(json.dumps(found), encoding="utf-8")


@dataclass(frozen=True)
class Saved:
    """An UnderWay as `UnderWay.save` left it."""

    stage: str
    num_steps_done: int
    logprobs: list[tuple[float, ...]]

    def of(self, games: Sequence[GameSample]) -> UnderWay:
        """Raises RunFolderError when these are not the games it was saved with."""
        if sum(len(game.turns) for game in games) != len(self.logprobs):
            raise RunFolderError(
                f"{self.stage} was being learned from {len(self.logprobs)} turns, now its log holds others: the log "
                "was changed or damaged; remove the newest folder of checkpoints/ to learn the stage from its beginning"
            )
        logprobs = iter(self.logprobs)
        return UnderWay(self.stage, [_with(game, logprobs) for game in games], self.num_steps_done)


def saved_in(folder: Path) -> Saved | None:
    """What `UnderWay.save` wrote there, if it did."""
    path = folder / "stage.json"
    if not path.exists():
        return None
    with np.load(folder / "references.npz", allow_pickle=False) as arrays:
        parts = np.split(arrays["values"], np.cumsum(arrays["lengths"])[:-1])
    found = json.loads(path.read_text(encoding="utf-8"))
    return Saved(found["stage"], found["num_steps_done"], [tuple(part.tolist()) for part in parts])


def _with(game: GameSample, logprobs: Iterator[tuple[float, ...]]) -> GameSample:
    turns = tuple(replace(turn, reference_logprobs=next(logprobs) or None) for turn in game.turns)
    return replace(game, turns=turns)
