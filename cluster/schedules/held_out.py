"""Matches on held-out words: what a run's evaluation and `spag-ray match` play, kept in matches.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors.league import Opponents
from cluster.schedules.playground import Playground
from cluster.schedules.rounds import play_round
from cluster.types import Seat
from spag_ray.episodes.stage_logs import name_in
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.could_have_known import held_out_report
from spag_ray.results.lines import HeldOutLine
from spag_ray.results.matches import Match, others_in, write_matches
from spag_ray.stages import BASE, Stage


class HeldOutMatches:
    """The matches of one run; `results` are those played so far."""

    def __init__(self, ground: Playground, lease: FolderLease, held_out: Sequence[str]) -> None:
        self.results: list[Match] = []
        self._ground = ground
        self._lease = lease
        self._held_out = list(held_out)

    def of(self, stage: Stage) -> Match | None:
        """The match's result, if it has been played."""
        return next((done for done in self.results if (done.attacker, done.defender) == stage.seats), None)

    def play(self, attacker: Seat, defender: Seat, stage: Stage, num_games: int | None = None) -> Match:
        """Play `num_games` (default: `evaluation.games`, for the base model `base_games`), each word equally often, and
        write the result to matches.json. Games that a previous attempt has played are not played again."""
        if (done := self.of(stage)) is not None:
            return done
        config = self._ground.config
        if num_games is None:
            num_games = config.evaluation.games
            if stage == Stage.evaluation(str(BASE)):
                num_games = config.evaluation.base_games or num_games
        words = [self._held_out[index % len(self._held_out)] for index in range(num_games)]
        seats = {"attacker": attacker, "defender": defender}
        name = name_in(self._ground.folder / "episodes", stage)
        opponents, scored = Opponents(config.seed), config.evaluation.could_have_known and config.game.is_taboo
        episodes = play_round(self._ground, name, words, seats, opponents, scored)
        if config.game.is_taboo:  # guesses and traps
            self._ground.recorder.record(HeldOutLine(name, self._ground.version, held_out_report(episodes)))
        match = Match.of(*stage.seats, episodes)
        self.results.append(match)
        self._lease.check(now=True)
        path = self._ground.folder / "matches.json"
        write_matches(path, self.results + others_in(path, self.results))  # `match --stages` writes there, too
        return match

    def as_json(self) -> list[dict[str, Any]]:
        return [match.as_json() for match in self.results]

    def go_back_to(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Set the results to those of a checkpoint."""
        self.results = [Match.from_json(row) for row in rows]
