"""Matches on held-out words: what a run's evaluation and `spag-ray match` play, kept in matches.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.league import Opponents
from cluster.schedules.playground import Playground
from cluster.schedules.rounds import play_round
from cluster.types import Seat
from spag_ray.episodes.episode import Episode
from spag_ray.game.protocol import SEATS, seat_to_move
from spag_ray.game.rules import EndReason, Role
from spag_ray.game.words import Scenario
from spag_ray.games.registry import Scenarios, game_of
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.could_have_known import held_out_report
from spag_ray.results.lines import HeldOutLine
from spag_ray.results.matches import Match, change_matches, others
from spag_ray.stages import BASE, Stage


@dataclass(eq=False)
class HeldOutMatches:
    """The matches of one run; `results` are those played so far. Each game plays every match with its own scenarios in
    `held_out`, and has its own result."""

    ground: Playground
    lease: FolderLease
    held_out: Scenarios
    results: list[Match] = field(default_factory=list)

    def of(self, stage: Stage) -> list[Match]:
        """The match's results, one for each game; none if it has not been played with every game."""
        names = self.ground.config.game_names
        found = {done.game: done for done in self.results if (done.attacker, done.defender) == stage.seats}
        return [found[name] for name in names] if all(name in found for name in names) else []

    def play(self, attacker: Seat, defender: Seat, stage: Stage, num_games: int | None = None) -> list[Match]:
        """Play `num_games` of every game (default: `evaluation.games`, for the base model `base_games`), each word
        equally often, and write the results to matches.json. Games that a previous attempt has played are not played
        again."""
        if done := self.of(stage):
            return done
        config = self.ground.config
        if num_games is None:
            num_games = config.evaluation.games
            if stage == Stage.evaluation(str(BASE)):
                num_games = config.evaluation.base_games or num_games
        scenarios = [
            Scenario(own[index % len(own)], game) for game, own in self.held_out.items() for index in range(num_games)
        ]
        seats = {"attacker": attacker, "defender": defender}
        log = str(stage)
        opponents, scored = Opponents(config.seed), config.evaluation.could_have_known
        episodes = play_round(self.ground, log, scenarios, seats=seats, opponents=opponents, could_have_known=scored)
        new = []
        for game in config.games:
            own = [episode for episode in episodes if episode.game == game.full_name]
            if game.guesses or any(turn.word_logprob is not None for each in own for turn in each.turns):
                report = held_out_report(own, game.max_guesses)
                self.ground.recorder.record(HeldOutLine(log, game.full_name, self.ground.version, report))
            new.append(Match.of(*stage.seats, own, game.full_name))
        for role, name, seat in zip(Role, stage.seats, (attacker, defender), strict=True):
            self._warn_of_unsaid(episodes, role, name, stage.seats[role is Role.ATTACKER], seat)
        self.results += new
        self.lease.check(now=True)
        # `match --stages` may add the matches of guests to this file at any time.
        change_matches(self.ground.folder / "matches.json", lambda found: self.results + others(found, self.results))
        return new

    def _warn_of_unsaid(self, episodes: Sequence[Episode], role: Role, name: str, other: str, seat: Seat) -> None:
        """Ties that a served player's cut answers made (endpoint_policy.py) say nothing about how well it plays."""
        full = [each for each in episodes if each.verdict.end_reason is EndReason.CONTEXT_FULL]
        if not full or seat.endpoint is None:
            return
        games = {each.game.full_name: game_of(each) for each in self.ground.config.each_game}
        movers = [seat_to_move(games[each.game], [turn.text for turn in each.turns], each.scenario) for each in full]
        if count := sum(SEATS[mover] is role for mover in movers):
            self.ground.status.note(
                f"warning: {name} gave no text in {count} of {len(episodes)} games against {other} as {role}; they are "
                "ties: raise sampling.max_new_tokens, which its thoughts use up, or switch its thinking off"
            )

    def as_json(self) -> list[dict[str, Any]]:
        return [match.as_json() for match in self.results]

    def go_back_to(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Set the results to those of a checkpoint."""
        self.results = [Match.from_json(row) for row in rows]
