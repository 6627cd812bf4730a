"""The server of `spag-ray serve`, with a real model in this process: games, who may ask, what is refused and kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from actors.arena import Rules
from actors.policy import Completion, Policy
from actors.transformers_policy import TransformersPolicy
from cluster.serve.app import make_app
from cluster.serve.guard import Guard
from cluster.serve.kept_games import keeping
from cluster.serve.opponents import MAX_LOADED, Opponent, Opponents, opponents_of_run
from cluster.serve.visits import Table, Visits
from spag_ray.config.engine import EngineConfig
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import ConfigError, EngineGoneError, RunFolderError
from spag_ray.game.rules import Role
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.results.game_names import TABOO_NAMES, names_of
from tests.support.runs import tiny_run

TOKEN = "t" * 20
HERE = "http://127.0.0.1:8400"


class Server:
    """`dies`: the next turn kills the model, once."""

    def __init__(self, model: Path, config: RunConfig, folder: Path, token: str | None = None) -> None:
        self.folder = folder
        self.dies = False
        self.loads_for_s = 0.0
        self.started: list[str] = []
        names = {"spag-1": Opponent(str(model)), "spag-2": Opponent(str(model)), "spag-3": Opponent(str(model))}
        self.opponents = Opponents(config, names, start=self._start)
        rules, table_names = Rules(config.game.max_turns), TABOO_NAMES
        scenarios = ["tiger"]
        if config.game.name == "kuhn":
            kuhn = KuhnPoker()
            rules, table_names, scenarios = Rules(2, "", kuhn, "kuhn", "lines"), names_of(config), ["KJ"]
        self._keeping = keeping(folder)
        visits = Visits(Table(rules, table_names, scenarios, "It is `{word}`"), self.opponents, keeps=True)
        self.app = make_app("tiny", visits, self.opponents, self._keeping.__enter__(), Guard(token))

    async def _start(self, model: str, config: EngineConfig, name: str) -> Policy:
        server = self

        class Mortal(TransformersPolicy):
            async def generate(self, requests: Any) -> list[Completion]:
                if server.dies:
                    server.dies = False
                    raise EngineGoneError(f"the process of {name} has ended")
                return await super().generate(requests)

        await asyncio.sleep(self.loads_for_s)
        self.started.append(name)
        return Mortal(model, config.dtype, config.max_model_len)

    def close(self) -> None:
        self._keeping.__exit__(None, None, None)


@pytest.fixture
def server(tiny_model: Path, words: Path, tmp_path: Path) -> Iterator[Server]:
    made = Server(tiny_model, tiny_run(tiny_model, words, game={"max_turns": 3}), tmp_path / "kept")
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[TestClient]:
    with TestClient(server.app, base_url=HERE) as client:
        yield client


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


def test_the_word_is_shown_to_the_seat_that_knows_it_and_to_the_other_after_the_game(client: TestClient) -> None:
    assert begun(client, 0)["scenario"] == "tiger"
    assert begun(client, 0, scenario=" River ")["scenario"] == "river"
    game = begun(client, 1)
    while game["over"] is None:
        assert game["scenario"] is None
        assert "tiger" not in str({**game, "turns": []})
        game = step(client, game, "turns", text="I know the word! It is `tiger`")
    assert game["scenario"] == "tiger"
    assert game["over"]["score"] == 1.0
    assert all(turn["mean"] <= 0 for turn in game["turns"])
    assert 0 <= game["turns"][-1].get("known", 0) <= 1


def test_two_persons_have_games_of_their_own(client: TestClient) -> None:
    one, other = begun(client, 0, scenario="river"), begun(client, 0, stage="spag-2", scenario="piano")
    one = step(client, one, "turns", text="hint water")
    other = step(client, other, "turns", text="music and piano")
    assert other["over"]["decided"] == 0
    assert one["turns"][0]["text"] == "hint water"
    assert other["turns"][0]["text"] == "music and piano"


def test_a_model_that_dies_gets_a_message_and_is_started_again_when_it_is_asked_again(
    client: TestClient, server: Server
) -> None:
    game = begun(client, 0, scenario="castle")
    server.dies = True
    game = step(client, game, "turns", text="old and big")
    assert game["fault"] == "the process of spag-1 has ended"
    assert game["toMove"] == "model"
    game = step(client, game, "again")
    assert game["fault"] is None
    assert len(game["turns"]) == 2
    assert server.started == ["spag-1", "spag-1"]


def test_a_person_who_speaks_while_the_model_is_loaded_is_answered(client: TestClient, server: Server) -> None:
    server.loads_for_s = 0.5
    game = begun(client, 0, scenario="castle")
    assert game["isLoading"]
    game = step(client, game, "turns", text="old and big")
    assert len(game["turns"]) == 2
    assert server.started == ["spag-1"]


def test_few_models_are_in_memory_at_a_time(client: TestClient, server: Server) -> None:
    for stage in ("spag-1", "spag-2", "spag-3", "spag-1"):
        begun(client, 1, stage)
        assert sum(map(server.opponents.is_loaded, server.opponents.named)) <= MAX_LOADED
    assert server.started == ["spag-1", "spag-2", "spag-3", "spag-1"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"seat": 0, "stage": "spag-9"}, "there is no 'spag-9' to play against; there are spag-1, spag-2, spag-3"),
        ({"seat": 2, "stage": "spag-1"}, "there are two seats, 0 and 1"),
        ({"seat": 0, "stage": "spag-1", "scenario": "two words"}, "choose one word of letters"),
        ({"seat": 0, "stage": "spag-1", "scenario": "<b>"}, "choose one word of letters"),
        ({"seat": 0, "stage": "spag-1", "scenario": "the"}, "'the' is said in almost every sentence"),
        ({"seat": 1, "stage": "spag-1", "scenario": "river"}, "the defender may not know the word"),
        ({"seat": "left", "stage": "spag-1"}, "seat: "),
        ({"seat": 0, "stage": "spag-1", "more": 1}, "more: "),
    ],
)
def test_a_game_that_cannot_be_is_refused_in_one_line(client: TestClient, body: Any, why: str) -> None:
    assert refused(client.post("/api/games", json=body)).startswith(why)


def test_a_turn_that_cannot_be_is_refused_in_one_line(client: TestClient) -> None:
    game = begun(client, 0, scenario="river")
    turns = f"/api/games/{game['id']}/turns"
    assert refused(client.post(turns, json={"text": " "})).startswith("say something")
    assert refused(client.post(turns, json={"text": "a" * 501})).startswith("a turn has at most 500")
    assert refused(client.post("/api/games/none/turns", json={"text": "hint"}), 404).startswith("this game is not here")
    assert refused(client.get("/nothing"), 404) == "Not Found"


def test_other_sites_and_other_names_of_this_server_are_refused(client: TestClient) -> None:
    body = {"seat": 0, "stage": "spag-1"}
    for headers in (
        {"Host": "evil.example"},  # a name that was made to point here
        {"Host": "127.0.0.1.evil.example:8400"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert refused(client.post("/api/games", json=body, headers=headers), 403)
        assert refused(client.get("/api/table", headers=headers), 403)
    form = client.post("/api/games", content='{"seat": 0, "stage": "spag-1"}', headers={"Content-Type": "text/plain"})
    assert refused(form, 415)
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200, "a link"
    for host in ("localhost:8400", "[::1]:8400"):
        own = {"Host": host, "Origin": f"http://{host}"}
        assert client.post("/api/games", json=body, headers=own).status_code == 201


def test_every_answer_forbids_scripts_and_requests_to_elsewhere(client: TestClient) -> None:
    for answer in (client.get("/"), client.get("/play.js"), client.get("/api/table"), client.get("/none")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = client.get("/").text
    assert "<script>" not in page
    assert "style=" not in page
    assert " on" + "click" not in page


def test_beyond_loopback_a_token_is_needed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    server = Server(tiny_model, tiny_run(tiny_model, words), tmp_path / "kept", TOKEN)
    with TestClient(server.app, base_url="http://gpu-node:8400", follow_redirects=False) as client:
        assert "token" in refused(client.get("/"), 403)
        assert refused(client.get("/?token=wrong"), 403)
        moved = client.get("/", params={"token": TOKEN})
        assert (moved.status_code, moved.headers["location"]) == (303, "/")
        assert "HttpOnly" in moved.headers["set-cookie"]
        assert client.get("/").status_code == 200, "the cookie has it"
        assert refused(client.get("/api/table", headers={"Origin": "http://evil.example"}), 403)
    server.close()


def test_a_game_is_kept_when_the_person_agrees_and_once(client: TestClient, server: Server) -> None:
    game = begun(client, 0, scenario="river")
    keep = f"/api/games/{game['id']}/keep"
    assert refused(client.post(keep, json={})) == "a game is kept after its end"
    game = step(client, game, "turns", text="it is a river")
    assert (game["mayKeep"], game["isKept"]) == (True, False)
    assert list(read_log(server.folder / "episodes" / "visit.log")) == []
    for _ in range(2):
        game = step(client, game, "keep")
    assert game["isKept"]
    step(client, step(client, begun(client, 0, scenario="piano"), "turns", text="a piano"), "keep")
    episodes = list(read_log(server.folder / "episodes" / "visit.log"))
    assert [(each.number, each.target_word) for each in episodes] == [(0, "river"), (1, "piano")]
    with pytest.raises(RunFolderError), keeping(server.folder):
        pass


def test_kuhn_poker_shows_a_seat_its_own_card_alone(tiny_model: Path, tmp_path: Path) -> None:
    kuhn = {"game": {"name": "kuhn"}, "prompts": "lines", "imitation": {"enabled": False}}
    config = parse_config({**kuhn, "engine": {"dtype": "float32", "max_model_len": 512}})
    server = Server(tiny_model, config, tmp_path / "kept")
    with TestClient(server.app, base_url=HERE) as client:
        table = client.get("/api/table").json()
        assert (table["seats"], table["scenario"], table["mayChoose"]) == (["first", "second"], "scenario", [False] * 2)
        game = begun(client, 0)
        assert game["scenario"] is None
        assert game["reads"].endswith("You have the King: check or bet?")
        assert "Jack:" not in game["reads"]
        game = step(client, game, "turns", text="bet")
        assert game["over"] is not None
        assert game["scenario"] == "KJ"
    server.close()


def test_the_stages_of_a_run_are_its_models_and_its_base(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("spag-10", "spag-2", "imitated", "spag-3-attacker"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    (tmp_path / "models" / "half-written").mkdir()
    found = opponents_of_run(tmp_path, RunConfig(model=str(tiny_model)))
    assert list(found) == ["base", "imitated", "spag-2", "spag-3-attacker", "spag-10"]
    assert found["spag-3-attacker"].seats == (Role.ATTACKER,)
    assert "base" not in opponents_of_run(tmp_path, RunConfig(model="/nowhere"))
    with pytest.raises(ConfigError, match="no stage's model"):
        opponents_of_run(tmp_path / "models", RunConfig(model="/nowhere"))
