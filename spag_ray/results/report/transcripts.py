"""Reads episodes/*.log: counts every game and passes it on for packing. Logs are read one episode at a time."""

from __future__ import annotations

import heapq
import math
import zlib
from collections import Counter
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from spag_ray.episodes.episode import Episode, GameCount
from spag_ray.episodes.log import LogFaults, read_stage, stage_logs, stage_records
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.could_have_known import Knowledge
from spag_ray.results.report.packing import Packer
from spag_ray.stages import STREAM
from spag_ray.training_data.game_samples import early_guesses_of

FEWEST_GAMES = 5  # for an interval


@dataclass
class Payoffs:
    """What games paid a seat: their number, sum and sum of squares."""

    num_games: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, payoff: float) -> None:
        self.num_games += 1
        self.total += payoff
        self.squares += payoff * payoff

    @property
    def mean(self) -> float:
        return self.total / self.num_games

    @property
    def margin(self) -> float | None:
        """Half the width of the mean's 95% interval, Student's; None of fewer than FEWEST_GAMES games, or if all were
        paid the same."""
        from scipy.special import stdtrit

        squares = self.squares - self.num_games * self.mean**2
        if self.num_games < FEWEST_GAMES or squares <= 1e-9 * self.squares:
            return None
        error = math.sqrt(squares / (self.num_games - 1) / self.num_games)
        return error * float(stdtrit(self.num_games - 1, 0.975))


@dataclass
class Transcripts:
    """Counts of all games. `counts`: by stage. `payoffs`: by stage and seat, of games in which the game itself says
    what it pays. `by_version`: games of a stream, by the newest version that played in them. `known`: for stages whose
    games were scored. `num_early`: wrong guesses that did not end their games, by stage. `num_sampled`: tokens sampled
    from weights, neither scripted nor forced. `faults`: {log: what is wrong with it}. `of_games`: {game: its counts}.
    """

    counts: dict[str, GameCount] = field(default_factory=dict)
    payoffs: dict[str, dict[Role, Payoffs]] = field(default_factory=dict)
    by_version: dict[int, Counter[Outcome]] = field(default_factory=dict)
    known: dict[str, Knowledge] = field(default_factory=dict)
    num_early: Counter[str] = field(default_factory=Counter)
    num_sampled: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    of_games: dict[str, Transcripts] = field(default_factory=dict)

    def of_game(self, name: str) -> Transcripts:
        """The counts of one game."""
        return self.of_games.get(name, Transcripts())

    @property
    def num_games(self) -> int:
        return sum(count.num_games for count in self.counts.values())

    @property
    def num_tokens(self) -> int:
        return sum(count.num_tokens for count in self.counts.values())

    def count(self, stage: str, episode: Episode, has_several_guesses: bool) -> None:
        early = early_guesses_of(episode) if has_several_guesses else []
        self.num_early[stage] += len(early)
        self.counts.setdefault(stage, GameCount()).add(episode)
        self.num_sampled += sum(turn.num_sampled for turn in episode.turns if turn.is_sampled)
        for role, payoff in zip(Role, episode.verdict.payoffs or (), strict=False):
            if payoff is not None:
                self.payoffs.setdefault(stage, {}).setdefault(role, Payoffs()).add(payoff)
        if any(turn.word_logprob is not None for turn in episode.turns):
            self.known.setdefault(stage, Knowledge()).add_episode(episode, early)
        if stage == str(STREAM) and episode.turns:
            version = max(turn.last_version for turn in episode.turns)
            self.by_version.setdefault(version, Counter())[episode.verdict.outcome] += 1


def read_transcripts(folder: Path, packer: Packer, max_games: int, several_guesses: Container[str] = ()) -> Transcripts:
    """Reads every log of `folder`. If there are more than `max_games` games, a sample is packed: the same share of each
    stage, and at least one game of each. `several_guesses`: names of games with game.max_guesses above 1."""
    found = Transcripts()
    logs = stage_logs(folder)
    chosen = _sample(
        {stage: sum(1 for _ in stage_records(path, LogFaults())) for stage, path in logs.items()}, max_games
    )
    for stage, path in logs.items():
        faults = LogFaults()
        for place, episode in read_stage(path, faults):
            has_several = episode.game in several_guesses
            found.count(stage, episode, has_several)
            found.of_games.setdefault(episode.game, Transcripts()).count(stage, episode, has_several)
            if chosen is None or place in chosen[stage]:
                packer.add(stage, episode)
        if faults:
            found.faults[path.name] = str(faults)
    packer.close()
    return found


def _sample(sizes: Mapping[str, int], max_games: int) -> dict[str, Collection[int]] | None:
    """{stage: places in its log} of the sampled games; None if all games fit. As a run grows, most stay in the
    sample."""
    total = sum(sizes.values())
    if total <= max_games:
        return None

    def drawn(stage: str, size: int) -> set[int]:
        count = min(size, max(1, size * max_games // total))
        return set(heapq.nsmallest(count, range(size), key=lambda place: zlib.crc32(f"{stage}/{place}".encode())))

    return {stage: drawn(stage, size) for stage, size in sizes.items()}
