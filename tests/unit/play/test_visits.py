"""The server of `spag-ray serve`, with a real model in this process: games, who may ask, what is refused and kept."""

import math
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from actors.arena import GameTask, Rules
from actors.models import load_tokenizer
from cluster.serve import guard, visits
from cluster.serve.app import _add_table
from cluster.serve.kept_games import keeping
from cluster.serve.opponents import MAX_LOADED, opponents_of_run
from cluster.serve.visits import Hindsight
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.errors import (
    ConfigError,
    EngineError,
    EngineGoneError,
    GameError,
    InputError,
    ModelError,
    RunFolderError,
    SpagError,
)
from spag_ray.game.rules import Outcome, Role
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.openspiel_game import OpenSpielGame
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.prompt_file import PromptTemplate, load_template
from spag_ray.results.game_names import plain_names
from tests.support.episodes import game as game_of
from tests.support.not_here import needs_openspiel
from tests.support.runs import tiny_run
from tests.support.served import HERE, TOKEN, Server, begun, refused, settled, step


@pytest.fixture
def server(tiny_model: Path, words: Path, tmp_path: Path) -> Iterator[Server]:
    made = Server(tiny_model, tiny_run(tiny_model, words, game={"max_turns": 3}), tmp_path / "kept")
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[TestClient]:
    with TestClient(server.app, base_url=HERE, client=("127.0.0.1", 50000)) as client:
        yield client


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


def test_a_model_that_dies_gets_a_message_and_is_started_when_asked_again(client: TestClient, server: Server) -> None:
    game = begun(client, 0, scenario="castle")
    server.fails_with = EngineGoneError("the process of spag-1 has ended")
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


def test_a_game_has_its_id_while_its_tokenizer_is_read(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a shared disk that may take longer than a request is answered. The person may speak once it is read."""
    monkeypatch.setattr(guard, "ANSWER_S", 5.0)
    monkeypatch.setattr(visits, "READ_WAIT_S", 0.2)
    is_read = threading.Event()

    def load(folder: str, _: Any) -> Any:
        assert is_read.wait(30)
        return load_tokenizer(folder)

    monkeypatch.setattr("cluster.serve.opponents.load_tokenizer", load)
    asked = client.post("/api/games", json={"seat": 0, "stage": "spag-1", "scenario": "river"})
    assert asked.status_code == 201, asked.text
    game = asked.json()
    assert (game["isLoading"], game["fault"], game["turns"]) == (True, None, [])
    address = f"/api/games/{game['id']}"
    assert client.get(address).json()["id"] == game["id"]
    refusal = refused(client.post(f"{address}/turns", json={"text": "hint water"}), 429)
    assert refusal == "spag-1 is still read from the disk, so your turn was not taken; send it again in a moment"
    monkeypatch.setattr(guard, "ANSWER_S", 60.0)
    monkeypatch.setattr(visits, "READ_WAIT_S", 30.0)
    is_read.set()
    assert len(step(client, game, "turns", text="hint water")["turns"]) == 2


def test_a_tokenizer_that_cannot_be_read_is_a_fault_of_a_game_that_can_be_found(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(folder: str, _: Any) -> Any:
        raise ModelError(f"{folder}: no tokenizer")

    monkeypatch.setattr("cluster.serve.opponents.load_tokenizer", load)
    game = begun(client, 1)
    assert "no tokenizer" in game["fault"]
    monkeypatch.undo()
    assert len(step(client, game, "again")["turns"]) == 1


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


def test_a_key_that_was_sent_does_not_break_the_line(client: TestClient) -> None:
    body = {"seat": 0, "stage": "spag-1", "a\nb\u2028c": 1}
    assert refused(client.post("/api/games", json=body)) == "a b c: Extra inputs are not permitted"
    assert refused(client.post("/api/games", json="x")).startswith("body: ")
    for broken in ("[" * 60_000, '{"seat": ' + "9" * 5000 + "}", "\ud800".encode("utf-8", "surrogatepass")):
        sent = client.post("/api/games", content=broken, headers={"Content-Type": "application/json"})
        assert refused(sent)


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


@pytest.fixture
def guarded(tiny_model: Path, words: Path, tmp_path: Path) -> Iterator[Server]:
    """Asks for a token."""
    made = Server(tiny_model, tiny_run(tiny_model, words), tmp_path / "kept", TOKEN)
    yield made
    made.close()


def test_beyond_loopback_a_token_is_needed(guarded: Server) -> None:
    with TestClient(guarded.app, base_url="http://gpu-node:8400", follow_redirects=False) as client:
        assert "token" in refused(client.get("/"), 403)
        assert refused(client.get("/?token=wrong"), 403)
        moved = client.get("/", params={"token": TOKEN})
        assert (moved.status_code, moved.headers["location"]) == (303, "/")
        assert "HttpOnly" in moved.headers["set-cookie"]
        assert client.get("/").status_code == 200, "the cookie has it"
        assert refused(client.get("/api/table", headers={"Origin": "http://evil.example"}), 403)


def test_the_cookie_is_of_one_port_and_does_not_tell_the_token(guarded: Server) -> None:
    for port in (8400, 9000):
        base = f"http://gpu-node:{port}"
        with TestClient(guarded.app, base_url=base, follow_redirects=False) as client:
            client.get("/", params={"token": TOKEN})
            ((name, value),) = client.cookies.items()
            assert name == f"spag_ray_{port}"
            assert TOKEN not in value
            assert refused(client.get("/", params={"token": value}, headers={"Cookie": ""}), 403)
            for cookie in (f"{name}={TOKEN}", f"spag_ray_1={value}", f"{name}="):
                client.cookies.clear()
                assert refused(client.get("/", headers={"Cookie": cookie}), 403)
            assert client.get("/", headers={"Cookie": f"{name}={value}"}).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/%2e%2e", "/api/table", "/%0d%0aSet-Cookie: a=b"])
def test_a_link_with_the_token_leads_to_the_page_and_nowhere_else(guarded: Server, path: str) -> None:
    with TestClient(guarded.app, base_url="http://gpu-node:8400", follow_redirects=False) as client:
        moved = client.get(f"http://gpu-node:8400{path}", params={"token": TOKEN})
        assert (moved.status_code, moved.headers["location"]) == (303, "/")


def test_a_host_that_is_no_host_is_refused_and_no_error_of_the_server(client: TestClient) -> None:
    for host in ("[", "[::1", "", "a/b", "127.0.0.1\\@evil.example"):
        assert refused(client.get("/", headers={"Host": host}), 403)


def test_above_a_bound_of_waiting_games_another_game_and_a_turn_are_refused(client: TestClient, server: Server) -> None:
    own = begun(client, 0, scenario="castle")
    server.is_slow = True
    answers = [client.post("/api/games", json={"seat": 1, "stage": "spag-1"}) for _ in range(100)]
    codes = [answer.status_code for answer in answers]
    assert codes.count(201) == visits.MAX_PENDING
    assert codes.count(429) == 100 - visits.MAX_PENDING
    assert "too many games" in refused(answers[-1], 429)
    assert answers[-1].headers["retry-after"]
    turns = f"/api/games/{own['id']}/turns"
    assert refused(client.post(turns, json={"text": "old and big"}), 429)
    assert client.get(f"/api/games/{own['id']}").json()["turns"] == []
    server.is_slow = False
    for answer in answers[: visits.MAX_PENDING]:
        settled(client, answer.json())
    assert len(step(client, own, "turns", text="old and big")["turns"]) == 2


def test_one_visitor_cannot_take_all_of_a_model(server: Server) -> None:
    server.is_slow = True
    codes: dict[str, list[int]] = {}
    with TestClient(server.app, base_url=HERE, client=("10.0.0.1", 1)) as one:
        for host in ("10.0.0.1", "10.0.0.2"):
            one._transport.client = (host, 1)  # type: ignore[attr-defined]
            posts = (one.post("/api/games", json={"seat": 1, "stage": "spag-1"}) for _ in range(10))
            codes[host] = [answer.status_code for answer in posts]
    for each in codes.values():
        assert each == [201] * visits.MAX_PENDING_EACH + [429] * (10 - visits.MAX_PENDING_EACH)


def test_a_dropped_game_asks_no_model(client: TestClient, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_VISITS", 2)
    begun(client, 0)  # the model is loaded
    server.is_slow = True
    games = [client.post("/api/games", json={"seat": 1, "stage": "spag-1"}).json() for _ in range(10)]
    server.is_slow = False
    for game in games[-2:]:
        settled(client, game)
    assert refused(client.get(f"/api/games/{games[0]['id']}"), 404)
    assert server.num_asked <= 3, "the one that was being answered, and the two that are left"


def test_who_begins_many_games_drops_own_ones(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "MAX_VISITS", 4)
    with TestClient(server.app, base_url=HERE, client=("10.0.0.1", 1)) as client:
        mine = begun(client, 0)
        client._transport.client = ("10.0.0.2", 1)  # type: ignore[attr-defined]
        others = [begun(client, 0) for _ in range(10)]
        here = [client.get(f"/api/games/{game['id']}").status_code for game in (mine, *others)]
    assert here == [200] + [404] * 7 + [200] * 3


def test_no_model_is_asked_for_who_left(client: TestClient, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "AWAY_S", 0.2)
    server.loads_for_s = 0.5
    game = client.post("/api/games", json={"seat": 1, "stage": "spag-1"}).json()
    time.sleep(0.8)
    game = settled(client, game)
    assert game["fault"] == "the page was closed or asleep when its turn came"
    assert server.num_asked == 0
    monkeypatch.setattr(visits, "AWAY_S", 60)
    assert step(client, game, "again")["fault"] is None


def test_a_waiting_game_is_told_how_many_are_before_it(client: TestClient, server: Server) -> None:
    server.is_slow = True
    games = [client.post("/api/games", json={"seat": 1, "stage": "spag-1"}).json() for _ in range(3)]
    games = [client.get(f"/api/games/{game['id']}").json() for game in games]
    assert [game["numBefore"] for game in games] == [0, 1, 2]
    other = client.post("/api/games", json={"seat": 1, "stage": "spag-2"}).json()
    assert other["numBefore"] == 0
    server.is_slow = False
    for game in (*games, other):
        settled(client, game)


def test_a_model_that_refuses_one_turn_is_not_started_again(client: TestClient, server: Server) -> None:
    game = begun(client, 0, scenario="castle")
    server.fails_with = EngineError("a sequence of 9999 tokens cannot be scored")
    game = step(client, game, "turns", text="old and big")
    assert game["fault"] == "a sequence of 9999 tokens cannot be scored"
    assert len(step(client, game, "again")["turns"]) == 2
    assert server.started == ["spag-1"]


def test_a_game_of_a_model_that_diverged_is_shown_without_its_numbers(client: TestClient, server: Server) -> None:
    game = step(client, begun(client, 0, scenario="river"), "turns", text="it is a river")
    assert "mean" in game["turns"][0]
    visit = server.visits.find(game["id"])
    for logprob, known in ((-math.inf, {}), (math.nan, {}), (-1.0, {0: math.nan})):
        visit.hindsight = Hindsight(((logprob,) * len(visit.game.turns[0].token_ids),), known)
        (turn,) = client.get(f"/api/games/{game['id']}").json()["turns"]
        assert turn == {"text": "it is a river", "seat": 0, "finish": "stop"}


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
    assert [(each.number, each.scenario) for each in episodes] == [(0, "river"), (1, "piano")]
    with pytest.raises(RunFolderError), keeping(server.folder):
        pass


def test_a_game_is_not_kept_after_the_end_or_by_who_lost_the_folder(tmp_path: Path) -> None:
    with keeping(tmp_path / "kept") as kept:
        assert kept is not None
        shutil.rmtree(tmp_path / "kept" / "lease")
        with pytest.raises(SpagError, match="another server writes into the folder"):
            kept.add(lambda number: pytest.fail("it was made"))
    with pytest.raises(SpagError, match="the server stops"):
        kept.add(lambda number: pytest.fail("it was made"))


def test_kept_games_have_numbers_of_their_own_also_after_one_was_damaged(tmp_path: Path) -> None:
    numbers: list[int] = []

    def made(number: int) -> Episode:
        numbers.append(number)
        return game_of(number, Outcome.TIED)

    log = tmp_path / "kept" / "episodes" / "visit.log"
    for count in (3, 1):
        with keeping(tmp_path / "kept") as kept:
            assert kept is not None
            for _ in range(count):
                kept.add(made)
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1  # in the second of three
        log.write_bytes(bytes(data))
    assert numbers == [0, 1, 2, 3]


def test_a_folder_in_which_nothing_can_be_kept_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "episodes").write_text("a file")
    with pytest.raises(RunFolderError, match="games cannot be kept there: File exists"), keeping(tmp_path):
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
    for name in ("spag-10", "spag-2", "imitated", "spag-3-attacker", ".spag-11.partial"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    (tmp_path / "models" / "half-written").mkdir()
    found = opponents_of_run(tmp_path, RunConfig(model=str(tiny_model)))
    assert list(found) == ["base", "imitated", "spag-2", "spag-3-attacker", "spag-10"]
    assert found["spag-3-attacker"].seats == (Role.ATTACKER,)
    assert "base" not in opponents_of_run(tmp_path, RunConfig(model="/nowhere"))
    with pytest.raises(ConfigError, match="no stage's model"):
        opponents_of_run(tmp_path / "models", RunConfig(model="/nowhere"))


GOOFSPIEL = "goofspiel(num_cards=3,imp_info=True,returns_type=win_loss,points_order=random)"


def word_alone() -> PromptTemplate:
    """The word stands in a line of its own."""
    template = load_template("chat")
    wording = template.wordings[0]
    attacker = f"{wording.attacker.replace('{target_word}', 'a word')}\nThe word:\n{{target_word}}"
    return template.model_copy(update={"wordings": (wording.model_copy(update={"attacker": attacker}),)})


class Open(KuhnPoker):
    """Says nothing about what is hidden."""

    hidden: Any = None


@pytest.mark.parametrize(
    ("game", "sees"),
    [
        (TabooGame(), (True, False)),
        (TabooGame(word_alone()), (True, False)),
        (KuhnPoker(), (False, False)),
        (Open(), (False, False)),
    ],
    ids=["taboo", "word-alone", "kuhn", "open"],
)
def test_a_drawn_scenario_is_shown_to_a_seat_from_which_the_game_hides_nothing(game: Any, sees: Any) -> None:
    table = visits.Table(Rules(game, "own"), plain_names("own"), game.scenarios())
    assert tuple(table.may_see(role) for role in Role) == sees
    assert game.hidden is None or tuple(map(table.may_choose, Role)) == sees


@pytest.mark.parametrize("env", ["leduc_poker", GOOFSPIEL])
def test_what_is_hidden_in_other_deals_or_from_both_is_shown_to_nobody(env: str) -> None:
    """In a fifth of Leduc's deals both have the same rank; of goofspiel's prizes nobody knows the next one."""
    needs_openspiel()
    game = OpenSpielGame(env)
    table = visits.Table(Rules(game, "own"), plain_names("own"), game.scenarios())
    assert not any(table.may_see(role) or table.may_choose(role) for role in Role)
    moved = visits.Table(Rules(game, "own"), plain_names("own"), game.scenarios()[:1])
    assert not moved.tells(game.legal((), moved.given())[:1], 0, Role.DEFENDER, moved.given())


class RockPaper:
    """Both choose in secret. Messages are those of the seat to move, as the protocol says."""

    def scenarios(self) -> Sequence[str]:
        return ["one"]

    def messages(self, seat: int, history: Sequence[str], scenario: str) -> list[dict[str, str]]:
        assert len(history) % 2 == seat
        told = "".join(history[: len(history) // 2 * 2]) + ("The other has chosen." if seat else "")
        return [{"role": "user", "content": f"{told} rock or paper?"}]


class Chat(RockPaper):
    """One after the other."""

    def messages(self, seat: int, history: Sequence[str], scenario: str) -> list[dict[str, str]]:
        assert len(history) % 2 == seat
        return [{"role": "user", "content": " / ".join(history) or "Begin."}]


class Broken(Chat):
    def messages(self, seat: int, history: Sequence[str], scenario: str) -> list[dict[str, str]]:
        raise RuntimeError


def test_a_persons_seat_reads_no_move_that_is_made_at_the_same_time() -> None:
    for game, tells in ((RockPaper(), False), (Chat(), True), (Broken(), False)):
        table = visits.Table(Rules(cast(Any, game), "own"), plain_names("own"), ["one"])
        assert table.tells(["rock"], 0, Role.DEFENDER, "one") == tells
        assert table.tells(["rock", "paper", "rock"], 2, Role.DEFENDER, "one") == tells
    kuhn = visits.Table(Rules(KuhnPoker(), "kuhn"), plain_names("kuhn"), ["KQ"])
    assert kuhn.tells(["bet"], 0, Role.DEFENDER, "KQ"), "the other one has to answer it"
    taboo = visits.Table(Rules(TabooGame(), "taboo"), plain_names("taboo"), ["river"])
    assert taboo.tells(["It has a bed."], 0, Role.DEFENDER, "river")


def test_a_fault_of_a_game_shows_nothing_that_it_hides(
    client: TestClient, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the model's turn, and in it."""

    def fails(*_: Any) -> Any:
        raise KeyError("raise")

    # Random weights may break the rules in their first turn.
    game = next(game for _ in range(20) if (game := begun(client, 1))["toMove"] == "person")
    monkeypatch.setattr(TabooGame, "rule", fails)
    asked = client.post(f"/api/games/{game['id']}/turns", json={"text": "Is it big?"})
    told = refused(asked, 500) if asked.status_code != 200 else settled(client, asked.json())["fault"]
    assert told == visits.GAME_FAULT
    assert "scenario 'tiger'" in caplog.text


def test_what_a_game_raises_as_it_hides_or_tells_is_its_own_fault() -> None:
    class Fails(KuhnPoker):
        def hidden(self, seat: int, scenario: str) -> Sequence[str]:
            raise KeyError(scenario)

        def messages(self, seat: int, history: Sequence[str], scenario: str) -> Any:
            raise KeyError(scenario)

    table = visits.Table(Rules(Fails(), "own"), plain_names("own"), ["KJ"])
    with pytest.raises(GameError, match=r"Fails\.hidden: it raises KeyError: 'KJ'"):
        table.may_see(Role.ATTACKER)
    game = visits.PersonGame(GameTask(0, "KJ", "visit", seed=0), Role.ATTACKER, table.rules)
    with pytest.raises(GameError, match=r"Fails\.messages: it raises KeyError: 'KJ'"):
        visits.Visits(table, cast(Any, None))._reads(game)


def test_the_page_is_told_how_often_one_may_guess_and_whether_seat_0_begins() -> None:
    class SecondBegins(KuhnPoker):
        def to_move(self, history: Sequence[str], scenario: str) -> int:
            return 1 - len(history) % 2

    games = ((TabooGame(max_guesses=3), "cat", 3), (KuhnPoker(), "KJ", 1), (SecondBegins(), "KJ", 1))
    for game, scenario, number in games:
        app, opponents = FastAPI(), SimpleNamespace(named={})
        _add_table(app, "title", visits.Table(Rules(game, "own"), plain_names("own"), [scenario]), cast(Any, opponents))
        table = TestClient(app).get("/api/table").json()
        assert (table["maxGuesses"], table["saysWhoMoves"]) == (number, isinstance(game, SecondBegins))


def test_a_word_of_any_script_may_be_chosen() -> None:
    assert TabooGame().scenario_of(" किताब ") == "किताब", "its vowel signs are letters, as for the referee"
    assert TabooGame().scenario_of("merry-go-round") == "merry-go-round"
    with pytest.raises(InputError, match="choose one word"):
        TabooGame().scenario_of("c++")
