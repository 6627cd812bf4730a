"""Frozen opponents: models of a run's early stages, which every later stage meets in both seats.

frozen.evaluate(Stage.of_round(2))     the newest weights meet all of evaluation.against, once each
frozen.seats(temperature)              their seats in self-play

They play on engines of their own, or the run's engines take their weights and the newest in turn (evaluation.engines).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from actors.league import seat_of
from actors.models import resolve_model
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.monitor.status_board import StatusBoard
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.seating import Seating
from cluster.types import Seat
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.stages import BASE, IMITATED, Stage


@dataclass(eq=False)
class FrozenOpponents:
    """The frozen opponents of one run, and its listener, which has no seat; `guesser`: the seat that guesses. One that
    has engines of its own has one per policy, started when it first plays and then kept."""

    config: RunConfig
    publisher: Publisher
    seating: Seating
    matches: HeldOutMatches
    status: StatusBoard
    guesser: Role = Role.DEFENDER
    _pools: set[str] = field(default_factory=set)

    def evaluate(self, stage: Stage) -> None:
        """The newest weights, those of `stage`, against every opponent of an earlier stage."""
        every = map(Stage.parse, self.config.evaluation.against)
        opponents = [opponent for opponent in every if opponent.order < stage.order]
        self.meet(stage, opponents, self.config.evaluation.num_against_games)

    def meet(self, stage: Stage, opponents: Sequence[Stage], num_games: int) -> None:
        """The newest weights, those of `stage`, against those of earlier stages, in both seats."""
        pairs = [pair for opponent in opponents for pair in ((stage, opponent), (opponent, stage))]
        left = [pair for pair in pairs if not self.matches.of(Stage.match(*map(str, pair)))]
        if not left:
            return
        with self._all_in_turn(stage, opponents) if self.config.plays_in_turn else contextlib.nullcontext():
            for pair in left:
                attacker, defender = (self._seat(*player, stage) for player in zip(Role, pair, strict=True))
                self.matches.play(attacker, defender, Stage.match(*map(str, pair)), num_games)

    @contextlib.contextmanager
    def _all_in_turn(self, newest: Stage, opponents: Sequence[Stage]) -> Iterator[None]:
        """In this block the engines of every policy play all of these stages. After an error they play only when they
        have new weights from the learners, unless the run ends."""
        policies = {policy.name: policy for policy in map(self.seating.policy_of, Role)}
        of_newest = {name: (str(policy.saved(newest)), policy.version) for name, policy in policies.items()}
        self.status.set_status(f"engines take the weights of {newest} and {', '.join(map(str, opponents))} in turn")
        try:
            for name, policy in policies.items():
                players: dict[str | None, tuple[str, int]] = {None: of_newest[name]}
                players |= {str(opponent): (_model_of(policy, opponent), 0) for opponent in opponents}
                self.publisher.give(name, players)
            yield
        except BaseException:
            for name in policies:
                self.publisher.forget(name)
            raise
        for name, saved in of_newest.items():
            self.publisher.give(name, {None: saved})
            self.publisher.forget(name)  # replacements get it from the learner, as before

    def seats(self, temperature: float) -> dict[str, Seat]:
        """The seats of all opponents, by the names that an arena uses."""
        return {
            seat_of(name, role): self._frozen(role, Stage.parse(name), temperature)
            for name in self.config.evaluation.against
            for role in Role
        }

    def listener(self) -> Seat:
        """Who scores the fact after each hint (objective.information_gain). It is never sampled from."""
        if self.config.listener in map(str, (BASE, IMITATED)):
            return self._frozen(self.guesser, Stage.parse(self.config.listener), 1.0)
        return self._of_own("the listener", "listener", resolve_model(self.config.listener), 1.0)

    def _seat(self, role: Role, player: Stage, newest: Stage) -> Seat:
        if player == newest:
            return self.seating.newest(role, self.config.evaluation.temperature)
        return self._frozen(role, player, self.config.evaluation.temperature)

    def _frozen(self, role: Role, stage: Stage, temperature: float) -> Seat:
        """The policy that learns to play `role`, with the weights of an earlier stage."""
        policy = self.seating.policy_of(role)
        name, model = f"{stage}-{policy.name}", _model_of(policy, stage)
        if self.config.plays_in_turn:
            return self.seating.engines_of(policy.name, name, model, temperature, str(stage))
        return self._of_own(str(stage), name, model, temperature)

    def _of_own(self, what: str, name: str, model: str, temperature: float) -> Seat:
        """A player with an engine of its own, which is started once."""
        if name not in self._pools:
            self.status.set_status(f"starting an engine for {what}")
            self.publisher.fleet.start(model, name, name, 1)
            self._pools.add(name)
        return self.seating.engines_of(name, name, model, temperature)


def _model_of(policy: LearningPolicy, stage: Stage) -> str:
    """The folder of a policy's model after a stage."""
    return policy.model if stage == BASE else str(policy.saved(stage))
