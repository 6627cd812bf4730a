"""An arena in an actor of its own: it plays over remote engines and sends episodes to the buffer as they finish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.arena import GameTask, Player, Rules, play_games
from actors.models import load_tokenizer
from actors.policy import Policy, Sampling
from actors.scripted_policy import ScriptedPolicy
from cluster.remote_policy import RemotePolicy
from cluster.runtime import redirect_output
from spag_ray.prompts import PromptTemplate, Renderer, make_renderer
from spag_ray.wire import encode


@dataclass(frozen=True)
class Engine:
    """An engine as others speak of it: its actor's handle and what it plays."""

    handle: Any
    name: str
    policy_name: str
    model: str


@dataclass(frozen=True)
class Seat:
    """Who plays a seat: engines that share the games among them, or the scripted expert (no engines, its cards)."""

    engines: tuple[Engine, ...]
    sampling: Sampling
    model: str
    cards: dict[str, tuple[str, ...]] | None = None


class ArenaActor:
    def __init__(self, log_path: str, template: PromptTemplate, rules: Rules) -> None:
        redirect_output(log_path)
        self._template = template
        self._rules = rules
        self._renderers: dict[str, Renderer] = {}

    async def play(
        self, tasks: list[GameTask], attacker: Seat, defender: Seat, games_in_flight: int, buffer: Any
    ) -> int:
        """Play all tasks; returns how many episodes the buffer acknowledged."""
        attackers = self._players(attacker)
        defenders = attackers if defender == attacker else self._players(defender)
        acknowledged = 0
        unsent: list[bytes] = []
        async for episode in play_games(tasks, attackers, defenders, self._rules, games_in_flight):
            unsent.append(encode(episode))
            if len(unsent) >= 8:
                acknowledged += await buffer.add.remote(unsent)
                unsent = []
        if unsent:
            acknowledged += await buffer.add.remote(unsent)
        return acknowledged

    def _players(self, seat: Seat) -> list[Player]:
        renderer = self._renderer(seat.model)
        policies: list[Policy]
        if seat.cards is not None:
            policies = [ScriptedPolicy(seat.cards, renderer.reply_ids)]
        else:
            policies = [RemotePolicy(engine.handle, engine.policy_name) for engine in seat.engines]
        return [Player(policy, renderer, seat.sampling) for policy in policies]

    def _renderer(self, model: str) -> Renderer:
        if model not in self._renderers:
            self._renderers[model] = make_renderer(self._template, load_tokenizer(model), self._rules.max_turns)
        return self._renderers[model]
