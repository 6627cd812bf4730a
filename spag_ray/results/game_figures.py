"""What games paid their seats, how they ended and how long the replies in them were, for lines of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from statistics import fmean, pstdev

from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.lines import GameFigures
from spag_ray.training_data.game_samples import early_guesses_of
from spag_ray.training_data.information_gain import gains, is_scored
from spag_ray.training_data.rewards import paid


def game_figures(
    episodes: Sequence[Episode],
    payoffs: Mapping[str, Payoffs],
    players: Container[str],
    several_guesses: Container[str] = (),
    heard: Container[str] = (),
) -> GameFigures:
    """`payoffs`: of each game, by its full name. `players`: those that engines play; replies of others have no lengths.
    `several_guesses`: names of games with game.max_guesses above 1; `heard`: of those whose fact a listener scores.
    Nothing is known of no games."""
    if not episodes:
        return GameFigures()
    outcomes = [episode.verdict.outcome for episode in episodes]
    results = [paid(payoffs[episode.game], episode.verdict) for episode in episodes]
    by_seat = {role: [value for each in results if (value := each[role]) is not None] for role in Role}
    turns = [turn for episode in episodes for turn in episode.turns if turn.policy in players]
    early = [len(early_guesses_of(episode)) for episode in episodes if episode.game in several_guesses]
    lengths = [turn.num_sampled for turn in turns]
    asked = [episode for episode in episodes if episode.game in heard and episode.turns]
    told = [found for episode in asked if (found := gains(episode))]
    return GameFigures(
        reward_mean={str(role): round(fmean(values), 4) for role, values in by_seat.items() if values},
        reward_std={str(role): round(pstdev(values), 4) for role, values in by_seat.items() if values},
        win_share={str(role): _share(outcome.winner is role for outcome in outcomes) for role in Role},
        tie_share=_share(outcome is Outcome.TIED for outcome in outcomes),
        breach_share=_share(outcome.breaker is not None for outcome in outcomes),
        reply_tokens_mean=round(fmean(lengths), 2) if lengths else None,
        reply_tokens_max=max(lengths, default=None),
        truncated_share=_share(turn.finish_reason == "length" for turn in turns) if turns else None,
        early_guesses_mean=round(fmean(early), 4) if early else None,
        listener_p=_small(own[-1].known for own in told) if told else None,
        gain_mean=_small(gain.value for own in told for gain in own) if told else None,
        num_unscored=sum(not is_scored(episode) for episode in asked) if asked else None,
    )


def _small(values: Iterable[float]) -> float:
    """Their mean, of which an untrained listener's is near 0, with four digits."""
    return float(f"{fmean(values):.4g}")


def _share(holds: Iterable[bool]) -> float:
    return round(fmean(holds), 4)
