"""What a policy trains on in one stage, and its progress in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spag_ray.errors import RunFolderError
from spag_ray.stages import Stage
from spag_ray.training_data.samples import GameSample, Logprobs, Sample, with_column
from spag_ray.training_data.stage_spec import StageSpec

_NONE = np.zeros(0, np.float32)


@dataclass(frozen=True)
class TrainingStage:
    """What one stage trains on: one pass over `games` in the given order, `batch_games` per step, and `sft` rows. Games
    with only listening turns are spread over these steps. `one_pass`: the rows are too, each taken once, at most
    `self_play.sft_rows_per_step` in a step, perhaps in more steps than the games need; otherwise
    every step takes the next `self_play.sft_rows_per_step` of endless passes. Of a stream: `part`, how many parts of
    this stage were trained on before this one; `part_steps`, the planned steps of each, which a seat's own policy takes
    with its own games, if it has as many; and `after`, the stage whose weights this one started with (None: the run's
    base model)."""

    stage: Stage
    spec: StageSpec
    games: Sequence[GameSample]
    sft: Sequence[Sample]
    batch_games: int
    one_pass: bool = False
    part: int = 0
    part_steps: int = 0
    after: Stage | None = None


@dataclass
class StageProgress:
    """A stage under way: the log-probabilities of its turns at its start ([L] each; None: not needed yet), and the
    number of steps done. The scores of the start cannot be computed again later, so a checkpoint saves them. A stream
    is saved between its parts, never inside one. So the old log-probabilities of saved turns are the reference too,
    unless it is the start of self-play (objective.kl_reference), which is computed again."""

    stage: str
    old_logprobs: Sequence[Logprobs | None]
    num_steps_done: int = 0

    @classmethod
    def of(cls, stage: str, games: Sequence[GameSample]) -> StageProgress:
        """A stage at its start."""
        return cls(stage, [turn.old_logprobs for game in games for turn in game.turns])

    def save(self, folder: Path) -> None:
        """stage.json, and the log-probabilities of all turns in one array, with the length of each (0: none yet)."""
        logprobs = [_NONE if each is None else each for each in self.old_logprobs]
        values = np.concatenate([_NONE, *logprobs])
        np.savez(folder / "references.npz", values=values, lengths=np.array([len(each) for each in logprobs], np.int64))
        found = {"stage": self.stage, "num_steps_done": self.num_steps_done}
        (folder / "stage.json").write_text(json.dumps(found), encoding="utf-8")

    @classmethod
    def saved_in(cls, folder: Path) -> StageProgress | None:
        """What `save` wrote there, if it did."""
        path = folder / "stage.json"
        if not path.exists():
            return None
        with np.load(folder / "references.npz", allow_pickle=False) as arrays:
            lengths = arrays["lengths"]
            parts = np.split(arrays["values"], np.cumsum(lengths)[:-1]) if len(lengths) else []
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = [part.astype(np.float32) if len(part) else None for part in parts]
        return cls(found["stage"], scores, found["num_steps_done"])

    def scored(self, games: Sequence[GameSample]) -> list[GameSample]:
        """The games with the log-probabilities of their start. Raises RunFolderError when these are not the games it
        was saved with."""
        if sum(len(game.turns) for game in games) != len(self.old_logprobs):
            raise RunFolderError(
                f"{self.stage} was being trained on {len(self.old_logprobs)} turns, but its log now has others: the "
                "log was changed or damaged; bring it back, or move every folder of checkpoints/ with -step- in its "
                "name away, to train the stage from its beginning; if none is left, start a new run with the newest "
                "folder of models/ as its model"
            )
        return with_column(games, "old_logprobs", self.old_logprobs)
