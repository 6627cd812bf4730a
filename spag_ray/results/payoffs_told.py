"""What is said of payoffs that differ by round, or that pay both seats if the word is found.

>>> from spag_ray.config.loading import parse_config
>>> helping = {"right_guess": [1, 1], "cooperative": True}
>>> phases = {"rounds": 6, "phases": [{"rounds": 2, "payoffs": helping}, {"rounds": 1}]}
>>> told = parse_config({"self_play": phases, "objective": {"learn_from": "both"}})
>>> payoffs_line(told)
'rounds 1 to 2: phase 1, cooperative; rounds 3 to 6: game.payoffs'
>>> cooperative_note(told)
'Trained with cooperative payoffs (rounds 1 to 2): a right guess paid the attacker at least as much as a tie. Scores, \
ratings and wins count it for the defender alone.'
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from spag_ray.config.parts import Payoffs
from spag_ray.config.run import RunConfig
from spag_ray.stages import Stage


def payoffs_line(config: RunConfig) -> str | None:
    """The payoffs of all rounds in one line, in a configuration of one game; None for `game.payoffs` in every round
    that pay nobody for helping."""
    told = [f"{rounds}: {name}{', cooperative' * payoffs.rewards_helping}" for rounds, name, payoffs in _spans(config)]
    is_usual = not config.self_play.phases and not config.game.payoffs.rewards_helping
    return None if is_usual or not told else "; ".join(told)


def cooperative_note(config: RunConfig | None) -> str | None:
    """A sentence beside scores of a run, in a configuration of one game; None if no round pays the attacker for
    helping, or nobody knows."""
    spans = [] if config is None else list(_spans(config))
    helping = [rounds for rounds, _, payoffs in spans if payoffs.rewards_helping]
    if not helping:
        return None
    which = "" if len(helping) == len(spans) else f" ({', '.join(helping)})"
    return (
        f"Trained with cooperative payoffs{which}: a right guess paid the attacker at least as much as a tie. Scores, "
        "ratings and wins count it for the defender alone."
    )


def _spans(config: RunConfig) -> Iterator[tuple[str, str, Payoffs]]:
    """(rounds, name of their payoffs, payoffs) of rounds in a row that have the same."""

    def named(number: int) -> tuple[str, Payoffs]:
        phase = config.self_play.phase_of(number)
        name = "game.payoffs"
        if phase is not None and phase.payoffs is not None:
            name = f"phase {next(place for place, each in enumerate(config.self_play.phases, 1) if each is phase)}"
        return name, config.payoffs_of(Stage.of_round(number))

    for (name, payoffs), found in groupby(range(1, config.self_play.rounds + 1), key=named):
        numbers = list(found)
        rounds = f"rounds {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"round {numbers[0]}"
        yield rounds, name, payoffs
