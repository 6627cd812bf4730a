"""Could have known: how probable the target word was to the defender, turn by turn, and whether its claims were right.

>>> known = Knowledge()
>>> known.add([math.log(0.2), math.log(0.65)], claim_is_right=True)     # its 1st and 2nd turn; the 2nd was a claim
>>> [(turn.number, round(turn.mean_p, 2)) for turn in known.turns()]
[(1, 0.2), (2, 0.65)]
>>> [(tenth.low, tenth.claims, tenth.right) for tenth in known.tenths() if tenth.claims]
[(0.6, 1, 1)]

A probability is that of the word and its closing mark, given the dialogue and the beginning of a claim
(Turn.word_logprob, scored after evaluation games). It is the chance that a guess at that turn would have been right.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.results.lines import HeldOutLine, HeldOutReport
from spag_ray.results.metric_lines import MetricLines
from spag_ray.training_data.game_samples import early_guesses_of

GUESSES = (EndReason.RIGHT_GUESS, EndReason.WRONG_GUESS)


@dataclass(frozen=True)
class KnownTurn:
    """The defender's turn `number` (from 1) over all games that reached it: mean p, mean and median log p in nats."""

    number: int
    games: int
    mean_p: float
    mean_logprob: float
    median_logprob: float


@dataclass(frozen=True)
class Tenth:
    """Claims for which the target word's p was at least `low` and less than `low` + 0.1, and how many were right. The
    last tenth includes p = 1."""

    low: float
    claims: int = 0
    right: int = 0

    @property
    def title(self) -> str:
        return f"{self.low:.1f} to {self.low + 0.1:.1f}"

    @property
    def share(self) -> float | None:
        return self.right / self.claims if self.claims else None


class Knowledge:
    """Probabilities from scored games; memory grows by 8 bytes per turn."""

    def __init__(self) -> None:
        self._logprobs: list[array[float]] = []
        self._last: array[float] = array("d")
        self._claims = [[0, 0] for _ in range(10)]

    @property
    def num_games(self) -> int:
        return len(self._last)

    def add(
        self, logprobs: Sequence[float | None], claim_is_right: bool | None = None, early: Container[int] = ()
    ) -> None:
        """Adds a game: log p at each of the defender's turns, None if a turn was not scored. `claim_is_right`: whether
        the last turn was a right claim; None if it was no claim. `early`: places in `logprobs` of wrong claims that
        did not end the game."""
        for place, value in enumerate(logprobs):
            if place == len(self._logprobs):
                self._logprobs.append(array("d"))
            if value is None:
                continue
            self._logprobs[place].append(value)
            is_last = place == len(logprobs) - 1 and claim_is_right is not None
            if is_last or place in early:
                tenth = self._claims[min(int(10 * math.exp(value)), 9)]
                tenth[0] += 1
                tenth[1] += is_last and bool(claim_is_right)
        self._last.extend([value for value in logprobs if value is not None][-1:])

    def add_episode(self, episode: Episode, early: Container[int] = ()) -> None:
        """Adds the turns of an episode, up to the one that decided it. `early`: the indices of its wrong guesses that
        did not end it."""
        read = episode.turns[: episode.verdict.length]
        guesser = next((turn.role for turn in read if turn.word_logprob is not None), Role.DEFENDER)
        is_claim = episode.verdict.end_reason in GUESSES and bool(read) and read[-1].role is guesser
        own = [index for index, turn in enumerate(read) if turn.role is guesser]
        self.add(
            [read[index].word_logprob for index in own],
            episode.verdict.end_reason == EndReason.RIGHT_GUESS if is_claim else None,
            [place for place, index in enumerate(own) if index in early],
        )

    def turns(self) -> list[KnownTurn]:
        return [_summary(number, values) for number, values in enumerate(self._logprobs, start=1) if values]

    def last_turn(self) -> KnownTurn | None:
        """The defender's last turn in each game; `number` is 0."""
        return _summary(0, self._last) if self._last else None

    def tenths(self) -> list[Tenth]:
        """All ten tenths, including those without a claim."""
        return [Tenth(place / 10, claims, right) for place, (claims, right) in enumerate(self._claims)]


def pooled(known: Iterable[Knowledge]) -> list[Tenth]:
    """The claims of several, summed by tenths."""
    columns = zip(*(each.tenths() for each in known), strict=True)
    return [Tenth(same[0].low, sum(each.claims for each in same), sum(each.right for each in same)) for same in columns]


def _summary(number: int, logprobs: Sequence[float]) -> KnownTurn:
    return KnownTurn(
        number,
        len(logprobs),
        statistics.fmean(map(math.exp, logprobs)),
        statistics.fmean(logprobs),
        statistics.median(logprobs),
    )


def held_out_report(episodes: Iterable[Episode], max_guesses: int = 1) -> HeldOutReport:
    """The report of games of one kind on held-out words: guesses, traps, and what the defender could have known.
    `max_guesses`: game.max_guesses; above 1, wrong guesses that did not end a game are counted too."""
    known = Knowledge()
    games = guesses = right = wins = traps = 0
    for episode in episodes:
        reason, is_win = episode.verdict.end_reason, episode.verdict.outcome is Outcome.ATTACKER_WINS
        early = early_guesses_of(episode) if max_guesses > 1 else []
        games += 1
        guesses += (reason in GUESSES) + len(early)
        right += reason == EndReason.RIGHT_GUESS
        wins += is_win
        traps += is_win and reason == EndReason.SAID_WORD
        known.add_episode(episode, early)
    last = known.last_turn()
    return HeldOutReport(
        games=games,
        guesses=guesses,
        right_guesses=right,
        attacker_wins=wins,
        traps=traps,
        right_share=round(right / guesses, 4) if guesses else None,
        trap_share=round(traps / wins, 4) if wins and (guesses or traps) else None,
        scored_games=known.num_games,
        could_have_known=None if last is None else float(f"{last.mean_p:.4g}"),
        could_have_known_nats=None if last is None else round(last.mean_logprob, 4),
    )


def read_held_out(metrics: Path) -> list[HeldOutLine]:
    """The newest `held_out` line of each stage and game in a run's metrics.jsonl, in the order of the stages. Damaged
    lines are left out."""
    return list({(line.stage, line.game): line for line in MetricLines(metrics).of(HeldOutLine)}.values())
