"""What a learner trains on: samples in arrays, by game.

Made of judged games by game_samples.py, of files by replay.py, of other places of games by listened_turns.py and
unsaid_words.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.game.turn import check_forced, num_forced

# What is stored: arrays. What a caller may give: any sequence of numbers.
Ids: TypeAlias = NDArray[np.int32] | Sequence[int]
Logprobs: TypeAlias = NDArray[np.float32] | Sequence[float]
_LOGPROBS = ("sampler_logprobs", "old_logprobs", "ref_logprobs")
_DTYPES: dict[str, Any] = {"prompt_ids": np.int32, "target_ids": np.int32, **dict.fromkeys(_LOGPROBS, np.float32)}


@dataclass(frozen=True)
class Claiming:
    """Marks a sample that trains when to claim. Its first `num_opening` targets are the claim's opening, the others are
    the word. The first `num_deciding` targets make the reply a claim. `temperature`: of the softmax that claims are
    sampled with. `share`: of `objective.claiming_coeff`."""

    num_deciding: int
    num_opening: int
    temperature: float = 1.0
    share: float = 1.0


@dataclass(frozen=True, eq=False)
class Sample:
    """One text to train on, in arrays; sequences of numbers are converted. `role` is the speaker's (None for SFT rows).

    `prompt_ids` [P], `target_ids` [L]: int32 token ids; the targets are trained. `advantage`: the turn's decayed share
    of the game's reward. `claiming`: set for listened turns that train when to claim (listened_turns.py).

    Log-probabilities [L] float32 of the targets under policies of earlier: `sampler_logprobs` under the one that
    sampled them (None if they were not sampled: imitation, files, re-rendered prompts); `old_logprobs` under the
    learner's weights when it took the games, filled in by `Learner.score`; `ref_logprobs` under its weights at the
    stage's start, filled in by `Learner.score_reference` (None if the learner took the games with those weights).

    `forced`: [start, end) of targets that are read and not trained (game/turn.py).
    """

    prompt_ids: Ids
    target_ids: Ids
    advantage: float = 1.0
    sampler_logprobs: Logprobs | None = None
    old_logprobs: Logprobs | None = None
    ref_logprobs: Logprobs | None = None
    role: Role | None = None
    claiming: Claiming | None = None
    forced: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name, dtype in _DTYPES.items():
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, _as_array(name, values, dtype))
        if not len(self.target_ids):
            raise InputError("a sample has no target token: there is nothing to learn from it")
        if not math.isfinite(self.advantage):
            raise InputError(f"a sample's reward is {self.advantage}, which is not a finite number")
        for name in _LOGPROBS:
            if (values := getattr(self, name)) is not None and len(values) != len(self.target_ids):
                raise InputError(f"a sample has {len(self.target_ids)} target tokens and {len(values)} {name}")
        if self.forced is not None:
            check_forced(self.forced, len(self.target_ids), "a sample")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sample):
            return NotImplemented
        return all(np.array_equal(getattr(self, each.name), getattr(other, each.name)) for each in fields(self))

    @property
    def num_trained(self) -> int:
        """The targets that are trained: all but the forced ones."""
        return len(self.target_ids) - num_forced(self.forced)

    @property
    def num_tokens(self) -> int:
        """Tokens that a learner reads for this sample if no prefix is shared."""
        return len(self.prompt_ids) + len(self.target_ids)


def _as_array(name: str, values: Any, dtype: type) -> NDArray[Any]:
    """Raises InputError for token ids that are no integers, or too large to be ids."""
    found = np.asarray(values)
    if dtype is np.int32 and found.dtype != np.int32 and found.size:
        limits = np.iinfo(np.int32)
        if found.dtype.kind not in "iu" or found.min() < limits.min or found.max() > limits.max:
            raise InputError(f"a sample's {name} are not all token ids: {found.dtype} up to {found.max()}")
    return found.astype(dtype, copy=False)


@dataclass(frozen=True)
class GameSample:
    """The trained turns of one game, never split over batches. `role` decided the game (None if no role did); `weight`
    is that role's. `listening`: positions that train the defender to name the word (listened_turns.py); a game may have
    only these. `unsaid`: for each of a seat's turns, the words that it must not say (unsaid_words.py)."""

    episode_id: str
    role: Role | None
    weight: float
    turns: tuple[Sample, ...] = field(default_factory=tuple)
    listening: tuple[Sample, ...] = ()
    unsaid: tuple[tuple[Sample, ...], ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise InputError(f"episode {self.episode_id}: its weight is {self.weight}, which is not a finite number")
        if not self.turns and not self.listening:
            raise InputError(f"episode {self.episode_id}: no turn to learn from")

    @property
    def num_tokens(self) -> int:
        """Tokens that a learner reads for this game if no prefix is shared; `unsaid` adds none to its turns' own."""
        return sum(sample.num_tokens for sample in (*self.turns, *self.listening))


def with_column(games: Sequence[GameSample], name: str, values: Iterable[Logprobs | None]) -> list[GameSample]:
    """The games, with the log-probabilities `name` of their turns, one after the other."""
    of_turns = iter(values)

    def filled(turn: Sample) -> Sample:
        column: dict[str, Any] = {name: next(of_turns)}
        return replace(turn, **column)

    return [replace(game, turns=tuple(map(filled, game.turns))) for game in games]


def turns_of(games: Sequence[GameSample], role: Role) -> list[GameSample]:
    """Samples of one seat's own policy: its turns of the games, and instruction data, which has no role. All games
    have weight 1, because its loss has no other role to balance. The seat that guesses also gets the listened turns."""
    own = []
    for game in games:
        turns = tuple(turn for turn in game.turns if turn.role in (role, None))
        listening = tuple(position for position in game.listening if position.role is role)
        unsaid = tuple(places for places in game.unsaid if places[0].role is role)
        if turns or listening:
            own.append(replace(game, weight=1.0, turns=turns, listening=listening, unsaid=unsaid))
    return own
