"""Judged games -> training samples.

    games = game_samples(episodes, ObjectiveConfig(), Payoffs())

Made where a batch is put together (cluster/learning/stage_samples.py), read by a learner (learners/step_sums.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from itertools import compress
from operator import not_
from statistics import fmean, pvariance
from typing import NamedTuple, TypeAlias

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.game.protocol import seat_of
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn, num_forced
from spag_ray.games.taboo.referee.judge import early_guesses
from spag_ray.training_data.estimators import Trajectory, agreeing, applied, estimator_of
from spag_ray.training_data.information_gain import gain_advantages
from spag_ray.training_data.rewards import (
    MeanPayoffs,
    Results,
    RoleBaselines,
    RoleWindow,
    decayed_shares,
    deviations,
    paid,
    role_weights,
)
from spag_ray.training_data.samples import GameSample, Sample

PAPERS = Payoffs()
UNDIVIDED: Mapping[Role, float] = dict.fromkeys(Role, 1.0)


def game_samples(
    episodes: Sequence[Episode],
    objective: ObjectiveConfig,
    payoffs: Payoffs = PAPERS,
    baselines: RoleBaselines | None = None,
    sampled: bool = True,
    learning: Container[str] | None = None,
    window: RoleWindow | None = None,
    repeated: Container[int] = (),
) -> list[GameSample]:
    """Games -> training samples, in the order given. docs/learning.md ("Advantages and losses by name", "Payoffs",
    "Information gain") says which turns are trained, and with what.

    Roles are weighed over the episodes given, or over the last decided games in `window`. `baselines` and `window` are
    updated with the games, except those whose numbers are `repeated`: these were trained on, and counted, before. With
    `objective.drop_agreeing` seats whose group was paid alike are left out first: nothing else, such as a mean, counts
    them.

    Games that a full context ended are always left out. `sampled=False` leaves out the turns' log-probabilities, for
    tokens that were not sampled. In games between policies only the turns of policies in `learning` are trained on
    (all, if it is None).
    """
    if objective.advantage == "spag":
        learned = _of_shares(episodes, objective, payoffs, baselines, learning, window=window, repeated=repeated)
    else:
        learned = _estimated(episodes, objective, payoffs, baselines=baselines, learning=learning, repeated=repeated)
    if objective.information_gain:
        for (*_, own), added in zip(learned, gain_advantages(episodes, objective, learning), strict=True):
            for index, value in added.items():
                own[index] = own.get(index, 0.0) + value
    games = []
    for episode, (role, weight, own) in zip(episodes, learned, strict=True):
        turns = tuple(
            _sample(turn, own[index], sampled)
            for index in sorted(own)
            if (turn := episode.turns[index]).token_ids and _is_of(turn, learning)
        )
        if turns:
            games.append(GameSample(episode.episode_id, role, weight, turns))
    return games


def _sample(turn: Turn, advantage: float, sampled: bool) -> Sample:
    logprobs = turn.logprobs if sampled else None
    return Sample(turn.prompt_ids, turn.token_ids, advantage, logprobs, role=turn.role, forced=turn.forced)


# (the role whose weight a game has, that weight, {index of a turn: its advantage}) of each game
_Learned: TypeAlias = list[tuple[Role | None, float, dict[int, float]]]


def _of_shares(
    episodes: Sequence[Episode],
    objective: ObjectiveConfig,
    payoffs: Payoffs,
    baselines: RoleBaselines | None,
    learning: Container[str] | None,
    window: RoleWindow | None,
    repeated: Container[int],
) -> _Learned:
    """`advantage: spag`."""
    played = _played(episodes, payoffs, learning) if objective.drop_agreeing else []
    left_out = {(each.place, each.role): each.turns for each in compress(played, _agree(played))}
    compared = {
        place: {role: None if (place, role) in left_out else value for role, value in own.items()}
        for place, episode in enumerate(episodes)
        if (own := compared_results(episode, objective, payoffs, learning)) is not None
    }
    means = MeanPayoffs(by_scenario=objective.baseline == "scenario")
    if objective.baseline in ("mean", "scenario"):
        for place, result in compared.items():
            means.add(episodes[place].scenario, result)
    moving = None if baselines is None else dict(baselines.values)

    def expected(episode: Episode) -> Mapping[Role, float]:
        return means.expected(episode.scenario) if moving is None else moving

    divisors = UNDIVIDED
    if objective.baseline_std == "batch":
        divisors = deviations((result, expected(episodes[place])) for place, result in compared.items())
    found = [advantages(episode, objective, payoffs, expected(episode), divisors) for episode in episodes]
    for (place, _), turns in left_out.items():
        for index in turns:
            found[place].pop(index, None)
    # A game outside, which only information gain may train, won nothing that roles are balanced by.
    counted = [
        place for place in compared if any(_is_of(episodes[place].turns[index], learning) for index in found[place])
    ]
    winners = [episodes[place].verdict.outcome.winner for place in counted]
    weights, cap = UNDIVIDED, objective.role_weight_cap
    if objective.role_weights == "balanced":
        if window is None:
            weights = role_weights(winners.count(Role.ATTACKER), winners.count(Role.DEFENDER), cap)
        else:
            weights = window.weights(winners, cap, [episodes[place].number not in repeated for place in counted])
    role_of = dict(zip(counted, winners, strict=True))
    if baselines is not None:
        baselines.update([own for place, own in compared.items() if episodes[place].number not in repeated])
    return [
        (role, 1.0 if role is None else weights[role], own)
        for place, own in enumerate(found)
        for role in (role_of.get(place),)
    ]


def _is_of(turn: Turn, learning: Container[str] | None) -> bool:
    """Whether a policy that learns played it."""
    return learning is None or turn.policy in learning


class _Played(NamedTuple):
    """A seat's part in a game that is trained on: the place of the game, its trained turns, what an estimator reads."""

    place: int
    role: Role
    turns: list[int]
    trajectory: Trajectory


def _played(episodes: Sequence[Episode], payoffs: Payoffs, learning: Container[str] | None) -> list[_Played]:
    """Of every seat that was paid and has turns to train on."""
    found = []
    for place, episode in enumerate(episodes):
        for role, payoff in paid(payoffs, episode.verdict).items():
            tokens = {
                index: len(turn.token_ids) - num_forced(turn.forced)
                for index in episode.turns_of(role)
                if (turn := episode.turns[index]).token_ids and _is_of(turn, learning)
            }
            if payoff is not None and tokens:
                paid_to = Trajectory(episode.scenario, seat_of(role), payoff, tuple(tokens.values()))
                found.append(_Played(place, role, list(tokens), paid_to))
    return found


def _agree(played: Sequence[_Played]) -> list[bool]:
    return agreeing([each.trajectory for each in played])


def _estimated(
    episodes: Sequence[Episode],
    objective: ObjectiveConfig,
    payoffs: Payoffs,
    baselines: RoleBaselines | None,
    learning: Container[str] | None,
    repeated: Container[int],
) -> _Learned:
    """Advantages by a named estimator, or by a function of the user's own. Every game has weight 1."""
    played = _played(episodes, payoffs, learning)
    if objective.drop_agreeing:
        played = list(compress(played, map(not_, _agree(played))))
    is_new = [episodes[each.place].number not in repeated for each in played]
    policies = {episodes[each.place].turns[each.turns[0]].policy for each in played}
    estimator = estimator_of(objective, baselines, is_new, separate=len(policies) > 1)
    found = applied(estimator, objective.advantage, [each.trajectory for each in played])
    learned: _Learned = [(episode.verdict.outcome.winner, 1.0, {}) for episode in episodes]
    for each, values in zip(played, found, strict=True):
        learned[each.place][-1].update(zip(each.turns, values, strict=True))
    return learned


def num_dropped(episodes: Sequence[Episode], payoffs: Payoffs, learning: Container[str] | None = None) -> int:
    """How many of these games are about a scenario that teaches nothing: `objective.drop_agreeing` leaves every turn
    out, or no game paid."""
    played = _played(episodes, payoffs, learning)
    agrees = _agree(played)
    differing = {each.trajectory.scenario for each, alike in zip(played, agrees, strict=True) if not alike}
    asked = {episode.scenario for episode in episodes if any(_is_of(turn, learning) for turn in episode.turns)}
    return sum(episode.scenario in asked - differing for episode in episodes)


def spreads(episodes: Sequence[Episode], payoffs: Payoffs) -> dict[str, float]:
    """{scenario: the variance of what its games paid a seat, the mean over both seats}, of games that paid it. At most
    1 with payoffs from -1 to 1; 0 where all of them paid the same."""
    results: dict[str, list[Results]] = {}
    for episode in episodes:
        results.setdefault(episode.scenario, []).append(paid(payoffs, episode.verdict))
    return {
        scenario: fmean(
            pvariance(values) if (values := [value for each in own if (value := each[role]) is not None]) else 0.0
            for role in Role
        )
        for scenario, own in results.items()
    }


def compared_results(
    episode: Episode, objective: ObjectiveConfig, payoffs: Payoffs, learning: Container[str] | None
) -> Results | None:
    """What a game paid the seats that learn, which enters their baselines, also where none of their turns is trained:
    of winners, the learner's defeats tell what its wins are worth. None of a game that a breach ended, or in which
    nobody learns. A frozen opponent's payoff is None: it says nothing of what the learner can expect."""
    verdict, results = episode.verdict, paid(payoffs, episode.verdict)
    own = set(Role) if learning is None else {turn.role for turn in episode.turns if turn.policy in learning}
    is_trained = any(results[role] is not None for role in _trained_seats(verdict, objective))
    if not own or verdict.outcome.breaker is not None or not is_trained:
        return None
    return {role: value if role in own else None for role, value in results.items()}


def advantages(
    episode: Episode,
    objective: ObjectiveConfig,
    payoffs: Payoffs,
    expected: Mapping[Role, float],
    divisors: Mapping[Role, float] = UNDIVIDED,
) -> dict[int, float]:
    """{index of a trained turn of a game: its advantage}, for both seats (see `game_samples`); `expected`: each role's
    baseline; `divisors`: what a result above it is divided by. With a named estimator it is what the game paid the
    turn's seat."""
    results = paid(payoffs, episode.verdict)
    if objective.advantage != "spag":  # the other games of the batch decide
        of_seats = [(value, episode.turns_of(role)) for role, value in results.items() if value is not None]
        learned = {index: value for value, turns in of_seats for index in turns}
    elif episode.verdict.outcome.breaker is None:
        learned = _of_result(episode, objective, results, expected, divisors)
    else:
        learned = _of_breach(episode, episode.verdict.outcome.breaker, results, objective)
    trained = {episode.turns[index].role for index in learned}
    # What each wrong guess paid that did not end the game: to the guess, and to the turn before it, of the seats that
    # are trained in this game. That turn may have no share of the end's payoff.
    for guess in early_guesses_of(episode) if any(payoffs.early_guess) else ():
        for index, value in zip((guess - 1, guess), payoffs.early_guess, strict=True):
            if value and episode.turns[index].role in trained:
                learned[index] = learned.get(index, 0.0) + value
    return learned


def early_guesses_of(episode: Episode) -> list[int]:
    """Indices of the wrong guesses that did not end a game of Adversarial Taboo."""
    texts = [turn.text for turn in episode.turns[: episode.verdict.length]]
    return [index for index in early_guesses(texts, episode.scenario, episode.rules) if index != episode.verdict.turn]


def _of_breach(episode: Episode, breaker: Role, results: Results, objective: ObjectiveConfig) -> dict[int, float]:
    """`advantages` of a game that broke the rules."""
    learned: dict[int, float] = {}
    if (penalty := results[breaker]) is not None:
        assert episode.verdict.turn is not None
        learned[episode.verdict.turn] = penalty
    if objective.learn_from == "both" and (value := results[breaker.other]) is not None:
        learned |= _shares(episode, breaker.other, value, objective.decay)
    return learned


def _of_result(
    episode: Episode,
    objective: ObjectiveConfig,
    results: Results,
    expected: Mapping[Role, float],
    divisors: Mapping[Role, float],
) -> dict[int, float]:
    """`advantages` of a decided or tied game."""
    verdict, winner = episode.verdict, episode.verdict.outcome.winner
    learned: dict[int, float] = {}
    for role in _trained_seats(verdict, objective):
        paid_to = results[role]
        if paid_to is None:
            continue
        value = (paid_to - expected[role]) / divisors[role]
        if winner is role.other and objective.loser_turns == "deciding":
            if verdict.turn is not None and episode.turns[verdict.turn].role is role:
                learned[verdict.turn] = value
        elif role is winner and (turn := _credited_turn(verdict, objective)) is not None:
            learned[turn] = value
        else:
            learned |= _shares(episode, role, value, objective.decay)
    return learned


def _trained_seats(verdict: Verdict, objective: ObjectiveConfig) -> list[Role]:
    """The seats that a result without a breach trains, if it pays them."""
    if objective.learn_from == "winners":
        return [role for role in Role if role is verdict.outcome.winner]
    return list(Role)


def _credited_turn(verdict: Verdict, objective: ObjectiveConfig) -> int | None:
    """The turn that gets the winner's whole payoff, if one does: the one before the word was said, or a right guess."""
    if verdict.turn is None:
        return None
    if verdict.outcome is Outcome.ATTACKER_WINS and verdict.end_reason is EndReason.SAID_WORD:
        return verdict.turn - 1 if objective.trap_credit == "trap" else None
    is_guess = verdict.end_reason is EndReason.RIGHT_GUESS and objective.guess_credit == "guess"
    return verdict.turn if is_guess else None


def _shares(episode: Episode, role: Role, value: float, decay: float) -> dict[int, float]:
    """{index of a turn of this role: its decayed share of the value}"""
    indices = episode.turns_of(role)
    shares = decayed_shares(len(indices), decay)
    return {index: value * share for index, share in zip(indices, shares, strict=True)}
