"""What is learned from judged games.

    games = game_samples(episodes, ObjectiveConfig(), Payoffs())

Made where a batch is put together (cluster/learning/stage_samples.py), read by the learner group (learners/batch.py).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spag_ray.config.parts import ObjectiveConfig, Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.errors import InputError
from spag_ray.game.end_reason import EndReason
from spag_ray.game.rules import Outcome, Role, Verdict, next_role
from spag_ray.training_data.rewards import (
    Results,
    RoleBaselines,
    RoleWindow,
    decayed_shares,
    mean_results,
    paid,
    role_weights,
)

PAPERS = Payoffs()


@dataclass(frozen=True)
class Claiming:
    """Of a sample that teaches when to claim: its first `num_opening` targets begin the claim, the others are the word.
    The first `num_deciding` make it a claim. `temperature` of the softmax that claims are sampled with; `share` of
    `objective.claiming_coeff` that it is learned with."""

    num_deciding: int
    num_opening: int
    temperature: float = 1.0
    share: float = 1.0


@dataclass(frozen=True)
class TurnSample:
    """One turn to learn from: `prompt_ids` [P], `target_ids` [L] and `advantage`, the turn's decayed share of the
    game's reward. `role` is who said it (None for SFT rows).

    `behaviour_logprobs` [L] are those of the policy that sampled the tokens, None where nobody did (imitation, files,
    re-rendered prompts); `old_logprobs` [L] those of the learner's own weights when it took the games, filled in by
    `Learner.score`; `reference_logprobs` [L] those of its weights when the stage began, filled in by
    `Learner.score_reference` (None where these are the weights that it took the games with). `claiming`: of
    listened turns that teach when to claim (listened_turns.py).
    """

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]
    advantage: float
    behaviour_logprobs: tuple[float, ...] | None = None
    old_logprobs: tuple[float, ...] | None = None
    reference_logprobs: tuple[float, ...] | None = None
    role: Role | None = None
    claiming: Claiming | None = None

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
    """The learned turns of one game and the weight of the role that decided it (None where nobody did); they are never
    split over batches. `listening`: positions that teach the defender the word (listened_turns.py); a game may have
    these alone. `unsaid`: of each of a seat's turns, the words that it is not to say (unsaid_words.py)."""

    episode_id: str
    role: Role | None
    weight: float
    turns: tuple[TurnSample, ...] = field(default_factory=tuple)
    listening: tuple[TurnSample, ...] = ()
    unsaid: tuple[tuple[TurnSample, ...], ...] = ()

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise InputError(f"episode {self.episode_id}: its weight is {self.weight}, which is not a finite number")
        if not self.turns and not self.listening:
            raise InputError(f"episode {self.episode_id}: no turn to learn from")

    @property
    def teaches_when(self) -> bool:
        """Whether its listened turns teach when to claim, not what."""
        return any(position.claiming is not None for position in self.listening)

    @property
    def num_tokens(self) -> int:
        """Tokens that a learner reads for this game when nothing is shared; `unsaid` reads its turns' own."""
        return sum(sample.num_tokens for sample in (*self.turns, *self.listening))


def game_samples(
    episodes: Sequence[Episode],
    objective: ObjectiveConfig,
    payoffs: Payoffs = PAPERS,
    baselines: RoleBaselines | None = None,
    sampled: bool = True,
    learning: Container[str] | None = None,
    window: RoleWindow | None = None,
) -> list[GameSample]:
    """Games -> what is learned from each, in the order given (docs/learning.md, "Payoffs").

    What a game pays a seat, less the seat's baseline, is shared out over its turns: a winner's always, a loser's and
    those of a tie with `learn_from: both`. With `loser_turns: deciding` all of a loser's goes to the turn that lost the
    game; with `trap_credit: trap` all that a trap pays goes to the turn before the word was said. Of a breach, the
    breaker's payoff goes to the turn that broke the rules, without a baseline. A game's weight is decided / (2 * games
    its winner's role won) over the episodes given, or over the last decided games in `window`; of ties and breaches 1.

    Games that a full context ended are always left out. `sampled=False` leaves out the turns' log-probabilities: their
    tokens are not those that were sampled. Of a game between policies only the turns of those in `learning` are learned
    (of all, if it is None).
    """
    counted = [
        episode.verdict
        for episode in episodes
        if _counts(episode.verdict, objective, payoffs)
        and _is_learned(episode, episode.verdict.outcome.winner, objective, learning)
    ]
    winners = [verdict.outcome.winner for verdict in counted]
    results = [paid(payoffs, verdict) for verdict in counted]
    weights = dict.fromkeys(Role, 1.0)
    if objective.role_weights == "balanced":
        wins = winners.count(Role.ATTACKER), winners.count(Role.DEFENDER)
        cap = objective.role_weight_cap
        weights = role_weights(*wins, cap=cap) if window is None else window.weights(winners, cap)
    expected = dict.fromkeys(Role, 0.0)
    if objective.baseline == "mean":
        expected = mean_results(results)
    elif baselines is not None:
        expected = dict(baselines.values)
    games = []
    for episode in episodes:
        outcome = episode.verdict.outcome
        learned = advantages(episode.verdict, objective, payoffs, expected)
        weight = 1.0 if outcome.winner is None else weights[outcome.winner]
        turns = tuple(
            TurnSample(turn.prompt_ids, turn.token_ids, advantage, turn.logprobs if sampled else None, role=turn.role)
            for turn, advantage in ((episode.turns[index], learned[index]) for index in sorted(learned))
            if turn.token_ids and (learning is None or turn.policy in learning)
        )
        if turns:
            games.append(GameSample(episode.episode_id, outcome.winner or outcome.breaker, weight, turns))
    if baselines is not None:
        baselines.update(results)
    return games


def advantages(
    verdict: Verdict, objective: ObjectiveConfig, payoffs: Payoffs, expected: Mapping[Role, float]
) -> dict[int, float]:
    """{index of a turn that a game with this verdict teaches: its advantage}, whoever said it (`game_samples`);
    `expected`: each role's baseline."""
    if _counts(verdict, objective, payoffs):
        return _shared_out(verdict, objective, paid(payoffs, verdict), expected)
    breaker = verdict.outcome.breaker
    if breaker is None:
        return {}
    results = paid(payoffs, verdict)
    learned: dict[int, float] = {}
    if (penalty := results[breaker]) is not None:
        assert verdict.turn is not None
        learned[verdict.turn] = penalty
    if objective.learn_from == "both" and (value := results[breaker.other]) is not None:
        learned |= _shares(verdict, breaker.other, value, objective.decay)
    return learned


def _counts(verdict: Verdict, objective: ObjectiveConfig, payoffs: Payoffs) -> bool:
    """Whether the result of such a game is trained on: won or tied by play, and paid to a seat that learns."""
    if verdict.outcome.breaker is not None:
        return False
    results, winner = paid(payoffs, verdict), verdict.outcome.winner
    if objective.learn_from == "winners":
        return winner is not None and results[winner] is not None
    return any(value is not None for value in results.values())


def _is_learned(
    episode: Episode, winner: Role | None, objective: ObjectiveConfig, learning: Container[str] | None
) -> bool:
    """Whether a game that `winner` (None: nobody) won trains anything."""
    if learning is None:
        return True
    roles = [winner] if objective.learn_from == "winners" else list(Role)
    return any(turn.policy in learning and turn.role in roles for turn in episode.turns)


def turns_of(games: Sequence[GameSample], role: Role) -> list[GameSample]:
    """What one seat's own policy learns: its turns of the games (and instruction data, which nobody said), all games
    counting the same. There is no other role in its loss to be balanced against. The defender listens too."""
    own = []
    for game in games:
        turns = tuple(turn for turn in game.turns if turn.role in (role, None))
        listening = game.listening if role is Role.DEFENDER else ()
        unsaid = tuple(places for places in game.unsaid if places[0].role is role)
        if turns or listening:
            own.append(replace(game, weight=1.0, turns=turns, listening=listening, unsaid=unsaid))
    return own


def _shared_out(
    verdict: Verdict, objective: ObjectiveConfig, results: Results, expected: Mapping[Role, float]
) -> dict[int, float]:
    """{index of a learned turn: its advantage} of a decided or a tied game; `expected`: the role's baseline."""
    winner = verdict.outcome.winner
    advantages: dict[int, float] = {}
    for role in [winner] if winner is not None and objective.learn_from == "winners" else list(Role):
        paid_to = results[role]
        if paid_to is None:
            continue
        value = paid_to - expected[role]
        if winner is role.other and objective.loser_turns == "deciding":
            if verdict.turn is not None and next_role(verdict.turn) is role:
                advantages[verdict.turn] = value
        elif _is_trap(verdict) and role is winner and objective.trap_credit == "trap":
            assert verdict.turn is not None
            advantages[verdict.turn - 1] = value
        else:
            advantages |= _shares(verdict, role, value, objective.decay)
    return advantages


def _is_trap(verdict: Verdict) -> bool:
    """Whether the defender said the word unawares, and it is known when."""
    said = verdict.end_reason is EndReason.SAID_WORD and verdict.turn is not None
    return said and verdict.outcome is Outcome.ATTACKER_WINS


def _shares(verdict: Verdict, role: Role, value: float, decay: float) -> dict[int, float]:
    """{index of a turn of this role: its decayed share of the value}"""
    indices = [index for index in range(verdict.length) if next_role(index) is role]
    shares = decayed_shares(len(indices), decay)
    return {index: value * share for index, share in zip(indices, shares, strict=True)}
