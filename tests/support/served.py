"""The server of `spag-ray serve` with a real model in this process, and what a visitor does there."""

import asyncio
import time
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from actors.arena import Rules
from actors.policy import Completion, LoadedPolicy
from actors.transformers_policy import TransformersPolicy
from cluster.serve.app import make_app
from cluster.serve.guard import Guard
from cluster.serve.kept_games import keeping
from cluster.serve.opponents import Opponent, Opponents
from cluster.serve.visits import Table, Visits
from spag_ray.config.engine import EngineConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.results.game_names import GameNames, names_of
from tests.support.taboo import taboo_rules

TOKEN = "t" * 20
HERE = "http://127.0.0.1:8400"


class Server:
    """`fails_with`: of the next turn, once. `is_slow`: no turn ends while it is set. `num_asked`: turns that models
    were asked for."""

    def __init__(self, model: Path, config: RunConfig, folder: Path, token: str | None = None) -> None:
        self.folder = folder
        self.fails_with: EngineError | None = None
        self.loads_for_s = 0.0
        self.is_slow = False
        self.num_asked = 0
        self.started: list[str] = []
        names = {"spag-1": Opponent(str(model)), "spag-2": Opponent(str(model)), "spag-3": Opponent(str(model))}
        self.opponents = Opponents(config, names, start=self._start)
        rules, table_names = taboo_rules(config.game.max_turns), GameNames()
        scenarios = ["tiger"]
        if config.game.name == "kuhn":
            kuhn = KuhnPoker()
            rules, table_names, scenarios = Rules(kuhn, "kuhn", "lines"), names_of(config), ["KJ"]
        self._keeping = keeping(folder)
        self.visits = Visits(Table(rules, table_names, scenarios), self.opponents, keeps=True)
        self.app = make_app("tiny", self.visits, self.opponents, self._keeping.__enter__(), Guard(token))

    async def _start(self, model: str, config: EngineConfig, name: str) -> LoadedPolicy:
        server = self

        class Mortal(TransformersPolicy):
            async def generate(self, requests: Any) -> list[Completion]:
                server.num_asked += 1
                while server.is_slow:
                    await asyncio.sleep(0.02)
                if server.fails_with is not None:
                    error, server.fails_with = server.fails_with, None
                    raise error
                return await super().generate(requests)

        await asyncio.sleep(self.loads_for_s)
        self.started.append(name)
        return Mortal(model, config.dtype, config.max_model_len)

    def close(self) -> None:
        self._keeping.__exit__(None, None, None)


def begun(client: TestClient, seat: int = 0, stage: str = "spag-1", **more: Any) -> dict[str, Any]:
    answer = client.post("/api/games", json={"seat": seat, "stage": stage, **more})
    assert answer.status_code == 201, answer.text
    return settled(client, answer.json())


def settled(client: TestClient, game: dict[str, Any]) -> dict[str, Any]:
    """Its state when nothing more happens by itself."""
    deadline = time.monotonic() + 20
    while (game["toMove"] == "model" and game["fault"] is None) or game["looksBack"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        game = client.get(f"/api/games/{game['id']}").json()
    return game


def step(client: TestClient, game: dict[str, Any], what: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/api/games/{game['id']}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    return settled(client, answer.json())


def refused(answer: Any, code: int = 400) -> str:
    assert answer.status_code == code, answer.text
    error: str = answer.json()["error"]
    assert "\n" not in error
    return error
