"""Frozen opponents: models of a run's early stages, which every later stage meets in both seats.

frozen.evaluate(Stage.of_round(2))     the newest weights meet all of evaluation.against, once each
frozen.seats(temperature)              their seats in self-play
"""

from __future__ import annotations

from actors.league import seat_of
from cluster.fleet.fleet import Fleet
from cluster.monitor.status_board import StatusBoard
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.seating import Seating
from cluster.types import Seat
from spag_ray.config.opponents import EvaluationConfig
from spag_ray.game.rules import Role
from spag_ray.stages import BASE, Stage


class FrozenOpponents:
    """The frozen opponents of one run. Each has one engine per policy, started when it first plays and then kept."""

    def __init__(
        self,
        config: EvaluationConfig,
        fleet: Fleet,
        seating: Seating,
        matches: HeldOutMatches,
        status: StatusBoard,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._seating = seating
        self._matches = matches
        self._status = status
        self._pools: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The opponents of every later stage."""
        return self._config.against

    def evaluate(self, stage: Stage) -> None:
        """The newest weights, those of `stage`, against every opponent of an earlier stage."""
        for name in self.names:
            if (opponent := Stage.parse(name)).order < stage.order:
                self.meet(stage, opponent, self._config.num_against_games)

    def meet(self, stage: Stage, opponent: Stage, num_games: int) -> None:
        """The newest weights, those of `stage`, against an earlier stage's, in both seats."""
        seats = (stage, opponent), (opponent, stage)
        for pair in seats:
            match = Stage.match(*map(str, pair))
            if not self._matches.of(match):
                players = zip(Role, pair, strict=True)
                attacker, defender = (self._seat(role, player, stage) for role, player in players)
                self._matches.play(attacker, defender, match, num_games)

    def seats(self, temperature: float) -> dict[str, Seat]:
        """The seats of all opponents, by the names that an arena uses."""
        return {
            seat_of(name, role): self._frozen(role, Stage.parse(name), temperature)
            for name in self.names
            for role in Role
        }

    def _seat(self, role: Role, player: Stage, newest: Stage) -> Seat:
        if player == newest:
            return self._seating.newest(role, self._config.temperature)
        return self._frozen(role, player, self._config.temperature)

    def _frozen(self, role: Role, stage: Stage, temperature: float) -> Seat:
        """The engines of the policy that learns to play `role`, with the weights of an earlier stage."""
        policy = self._seating.policy_of(role)
        pool = f"{stage}-{policy.name}"
        model = policy.model if stage == BASE else str(policy.saved(stage))
        if pool not in self._pools:
            self._status.set_status(f"starting an engine for {stage}")
            self._fleet.start(model, pool, pool, 1)
            self._pools.add(pool)
        return self._seating.engines_of(pool, pool, model, temperature)
