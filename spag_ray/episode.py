"""A judged game and the samples that are learned from it.

Made by an arena (actors/arena.py), carried by wire.py, kept by the replay buffer, learned from by a learner.

    >>> turn = Turn(Role.ATTACKER, "It purrs.", (1, 5), token_ids=(7, 2), logprobs=(-0.5, -0.1), policy="base")
    >>> turn.num_tokens
    2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from spag_ray.errors import InputError
from spag_ray.game import Role, Verdict, next_role
from spag_ray.rewards import decayed_shares, role_weights, winner_turns


@dataclass(frozen=True)
class Turn:
    """What one player read and said, token by token.

    `prompt_ids` [P] is what the policy read, `token_ids` [L] what it sampled (with the end token, if it sampled
    one), `logprobs` [L] their log-probabilities under the sampling distribution, temperature included.
    `first_version` and `last_version` are the weights that sampled the first and the last token.
    """

    role: Role
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy: str
    first_version: int = 0
    last_version: int = 0
    finish_reason: str = "stop"

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise InputError(
                f"a turn has {len(self.token_ids)} sampled tokens but {len(self.logprobs)} log-probabilities"
            )
        if not all(math.isfinite(value) for value in self.logprobs):
            raise InputError(f"a turn by policy {self.policy!r} has a log-probability that is not finite")

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Episode:
    """A finished game with its verdict. `stage` names the part of the run that played it; `number` is its place in
    the order in which words were given out, so a set of episodes sorts the same whatever finished first."""

    episode_id: str
    number: int
    stage: str
    target_word: str
    max_turns: int
    rules: str
    temperature: float
    turns: tuple[Turn, ...]
    verdict: Verdict

    def __post_init__(self) -> None:
        for index, turn in enumerate(self.turns):
            if turn.role is not next_role(index):
                raise InputError(
                    f"episode {self.episode_id}: turn {index} is by the {turn.role}, but turns alternate and it is "
                    f"the {next_role(index)}'s; check the source of this game"
                )
        if len(self.turns) > 2 * self.max_turns:
            raise InputError(
                f"episode {self.episode_id}: {len(self.turns)} turns, at most {2 * self.max_turns} allowed"
            )

    @property
    def history(self) -> list[dict[str, str]]:
        """The dialogue as the referee reads it: [{"role", "content"}, ...]."""
        return [{"role": str(turn.role), "content": turn.text} for turn in self.turns]

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of both seats."""
        return sum(turn.num_tokens for turn in self.turns)

    def as_published(self) -> dict:
        """The game as the published tools write it, with the verdict beside it."""
        return {
            "history": self.history,
            "target_word": self.target_word,
            "max_turns": self.max_turns,
            "outcome": str(self.verdict.outcome),
            "reason": self.verdict.reason,
        }


@dataclass(frozen=True)
class TurnSample:
    """One turn to learn from: `prompt_ids` [P], `target_ids` [L] and `advantage`, the turn's decayed share of the
    game's reward.

    `behaviour_logprobs` [L] are those of the policy that sampled the tokens, None where nobody did (imitation, files);
    `reference_logprobs` [L] those of the learner's own weights when the stage began, filled in by `Learner.score`.
    """

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    advantage: float
    behaviour_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.target_ids:
            raise InputError("a sample has no target token: there is nothing to learn from it")
        if not math.isfinite(self.advantage):
            raise InputError(f"a sample's reward is {self.advantage}, which is not a finite number")

    @property
    def num_tokens(self) -> int:
        """Tokens that a learner reads for this turn when nothing is shared."""
        return len(self.prompt_ids) + len(self.target_ids)


@dataclass(frozen=True)
class GameSample:
    """The winner's turns of one decided game; they are never split over batches."""

    episode_id: str
    role: Role
    weight: float
    turns: tuple[TurnSample, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise InputError(f"episode {self.episode_id}: its weight is {self.weight}, which is not a finite number")
        if not self.turns:
            raise InputError(f"episode {self.episode_id}: no turn to learn from")

    @property
    def num_tokens(self) -> int:
        """Tokens that a learner reads for this game when nothing is shared."""
        return sum(turn.num_tokens for turn in self.turns)


def game_samples(episodes: Sequence[Episode], decay: float = 0.8, weight_cap: float | None = None) -> list[GameSample]:
    """Decided games -> what is learned from each, in the order given; ties and breaches are left out.

    Shares follow g^-t / sum_i g^-i over the winner's turns; a game's weight is decided / (2 * games its role won)
    over the episodes given (method.md, "Rewards").
    """
    decided = [episode for episode in episodes if episode.verdict.outcome.is_decided]
    winners = [episode.verdict.outcome.winner for episode in decided]
    weights = role_weights(winners.count(Role.ATTACKER), winners.count(Role.DEFENDER), cap=weight_cap)
    games = []
    for episode, winner in zip(decided, winners, strict=True):
        assert winner is not None
        indices = winner_turns(episode.verdict.outcome, episode.verdict.length)
        shares = decayed_shares(len(indices), decay)
        turns = tuple(
            TurnSample(turn.prompt_ids, turn.token_ids, share, turn.logprobs)
            for turn, share in ((episode.turns[i], share) for i, share in zip(indices, shares, strict=True))
            if turn.token_ids
        )
        games.append(GameSample(episode.episode_id, winner, weights[winner], turns))
    return games
