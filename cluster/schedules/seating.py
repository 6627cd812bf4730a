"""Makes every Seat of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from actors.endpoint_policy import Endpoint
from actors.policy import Sampling
from cluster.learning.learning_policy import LearningPolicy
from cluster.types import Seat
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.games.taboo.decks import Deck


@dataclass(eq=False)
class Seating:
    """`model`: the folder whose tokenizer serves players without a model; `cards`: the deck of the scripted expert."""

    config: RunConfig
    policies: Sequence[LearningPolicy]
    model: str
    cards: Deck

    def policy_of(self, role: Role) -> LearningPolicy:
        """The policy that learns to play `role`."""
        return next(policy for policy in self.policies if role in policy.roles)

    def engines_of(self, pool: str, policy: str, model: str, temperature: float, adapter: str | None = None) -> Seat:
        """The engines of a pool, whose turns are stamped with `policy`, or a player that they hold."""
        return Seat(pool, policy, Sampling.of(self.config.sampling, temperature), model, adapter=adapter)

    def newest(self, role: Role, temperature: float) -> Seat:
        """The newest weights of the policy that learns to play `role`."""
        policy = self.policy_of(role)
        return self.engines_of(policy.name, policy.name, policy.model, temperature)

    def self_play(self, opponents: Mapping[str, Seat]) -> dict[str, Seat]:
        """The newest weights in both seats, and the opponents that may be drawn."""
        temperature = self.config.sampling.temperature
        return {str(role): self.newest(role, temperature) for role in Role} | dict(opponents)

    def expert(self) -> Seat:
        """The scripted expert, as imitation uses it."""
        return Seat("expert", "scripted", Sampling(seed=self.config.seed), self.model, self.cards)

    def guest(
        self, name: str, endpoint: Endpoint | None, temperature: float, policy: str | None = None, script: str = ""
    ) -> Seat:
        """A chat endpoint, or the scripted expert with a strategy. `policy` stamps its turns, by default its name."""
        # An endpoint answers each request anew, so its thought cannot be ended and continued.
        sampling = replace(
            Sampling.of(self.config.sampling, temperature),
            max_thought_tokens=None,
            seed=None if endpoint else self.config.seed,
        )
        cards = None if endpoint else self.cards
        return Seat(name, policy or name, sampling, model=self.model, cards=cards, endpoint=endpoint, script=script)
