"""Players behind a chat endpoint: whatever they say, the game stays a game. The server is of these tests; the other
seat is a model."""

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from actors.arena import GameTask, Player, Rules, TaskList, answer
from actors.endpoint_policy import Endpoint, EndpointPolicy, check_endpoint
from actors.models import load_tokenizer
from actors.policy import GameView, Request, Sampling
from actors.pool import EnginePool
from actors.transformers_policy import TransformersPolicy
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import MAX_RECORD_BYTES, decode, encode
from spag_ray.errors import EngineError, ModelError
from spag_ray.game.rules import EndReason, Outcome, Role, end_of
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import TabooGame, taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.loop import collect, play_games
from tests.support.taboo import taboo_rules

SAMPLING = Sampling(temperature=1.0, max_new_tokens=24)


class Server(ThreadingHTTPServer):
    """Answers every chat request with `reply`, as JSON has it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.message: dict[str, Any] | None = None
        self.finish: str | None = "stop"
        self.garbled = b""  # sent in place of an answer, as JSON
        self.num_away = 0  # the next requests that are told to come again
        self.num_asked = 0
        self.asked: list[dict[str, str]] = []  # the messages of the last request

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.server_port}/v1", "talker")

    def says(self, text: str) -> None:
        self.message, self.finish = {"role": "assistant", "content": text}, "stop"

    def is_cut(self, content: str | None = None, finish: str | None = "length", **more: Any) -> None:
        """From now on, with nothing that is said."""
        self.message, self.finish = {"role": "assistant", "content": content, **more}, finish


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert request["max_tokens"] == SAMPLING.max_new_tokens
        self.server.asked = request["messages"]
        self.server.num_asked += 1
        if self.server.num_away:
            self.server.num_away -= 1
            self.send_response(503)
            self.send_header("retry-after-ms", "10")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        choice = {"index": 0, "finish_reason": self.server.finish, "message": self.server.message}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "talker", "choices": [choice]}
        body = self.server.garbled or json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.server.garbled.startswith(b"<") else "application/json")
        self.send_header("Content-Length", str(len(self.server.garbled)))
        self.end_headers()
        self.wfile.write(self.server.garbled)

    def log_message(self, *_: Any) -> None:
        """Nothing to the terminal."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(str(tiny_model))


def seat(policy: Any, renderer: Any) -> Player:
    pool = EnginePool(policy.name, turn_timeout_s=60.0)
    pool.join("only", policy)
    return Player(pool, renderer, SAMPLING)


@pytest.fixture
def played(server: Server, tiny_model: Path, tokenizer: Any) -> Any:
    """Plays a game of six turns on `river`: the endpoint attacks, the model defends with a context of `room` tokens."""
    renderer = taboo_renderer(load_template("chat"), tokenizer, 3)

    async def play(room: int = 512, rules: str = "strict") -> Episode:
        far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids)
        near = TransformersPolicy(str(tiny_model), max_model_len=room)
        players = {"attacker": seat(far, renderer), "defender": seat(near, renderer)}
        (episode,) = await collect(play_games(TaskList([GameTask(0, "river", "m")]), players, taboo_rules(3, rules), 1))
        await far.close()
        return episode

    return play


async def test_an_endpoints_reply_has_a_models_length(server: Server, played: Any) -> None:
    server.says("do you like music ? " * 40)
    episode = await played()
    said = [turn for turn in episode.turns if turn.role is Role.ATTACKER]
    assert [len(turn.token_ids) for turn in said] == [24] * len(said)
    assert {turn.finish_reason for turn in said} == {"length"}
    assert said[0].text.startswith("do you like music ?")
    assert len(said[0].text.split()) == 24
    server.says("do you like music ?")
    short = (await played()).turns[0]
    assert (short.text, short.finish_reason, len(short.token_ids)) == ("do you like music ?", "stop", 6)


async def test_a_reply_that_fits_exactly_is_whole(server: Server, played: Any) -> None:
    server.says(" ".join(["music"] * 23))  # and the token that ends it
    first = (await played()).turns[0]
    assert (len(first.token_ids), first.finish_reason) == (24, "stop")


@pytest.mark.timeout(120)
async def test_a_reply_over_a_records_size_ends_no_match(server: Server, played: Any) -> None:
    server.says("music " * (MAX_RECORD_BYTES // 6 + 1))
    episode = await played()
    assert decode(encode(episode)) == episode
    assert len(episode.turns[0].token_ids) == 24


async def test_half_a_character_in_a_reply_ends_no_match(server: Server, played: Any) -> None:
    server.says("do you like \ud83d music ?")
    episode = await played()
    assert decode(encode(episode)) == episode
    assert episode.turns[0].text.startswith("do you like")


@pytest.mark.parametrize("message", [None, {"role": "assistant", "content": ["do", "you"]}])
async def test_a_textless_answer_loses_its_turn(message: dict[str, Any] | None, server: Server, played: Any) -> None:
    server.message = message
    with pytest.raises(EngineError, match="answer without a text"):
        await played()


async def test_a_server_that_is_away_is_asked_again_until_the_turns_time_is_up(server: Server, tokenizer: Any) -> None:
    renderer = taboo_renderer(load_template("chat"), tokenizer, 3)
    request = Request("r", (1,), SAMPLING, GameView(Role.ATTACKER, (), "river"))
    server.says("do you like music ?")

    async def asked(max_retries: int) -> str:
        far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids, max_retries=max_retries)
        server.num_away = 6
        try:
            (found,) = await far.generate([request])
            return found.finish_reason
        finally:
            server.num_away = 0
            await far.close()

    assert await asked(10) == "stop"
    with pytest.raises(EngineError, match="talker gave no answer"):
        await asked(2)


@pytest.mark.parametrize("garbled", [b" ", b'{"choices": [', b'{"id": "\xff"}'])
async def test_an_unreadable_answer_loses_its_turn(garbled: bytes, server: Server, played: Any) -> None:
    server.garbled = garbled
    try:
        with pytest.raises(EngineError, match="talker gave no answer"):
            await played()
    finally:
        server.garbled = b""


@pytest.mark.parametrize("finish", ["abort", "error"])
async def test_an_answer_that_a_server_breaks_off_loses_its_turn(finish: str, server: Server, tokenizer: Any) -> None:
    renderer = taboo_renderer(load_template("chat"), tokenizer, 3)
    server.is_cut("do you like", finish)
    far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids)
    with pytest.raises(EngineError, match=f"talker did not finish its answer \\({finish}\\)"):
        await far.generate([Request("r", (1,), SAMPLING, GameView(Role.ATTACKER, (), "river"))])
    await far.close()


THOUGHTS = {"reasoning_content": "The word is river. I should not say river, so"}


@pytest.mark.parametrize(
    ("content", "finish"),
    [(None, "length"), ("", "length"), (" \n", "length"), (None, "stop"), (None, None), (None, "content_filter"),
     ("", "content_filter"), (None, "tool_calls")],
)  # fmt: skip
async def test_an_answer_that_is_cut_before_it_says_anything_is_no_silence(
    content: str | None, finish: str | None, server: Server, tokenizer: Any
) -> None:
    """A server whose model thinks until its budget is used up. It has answered before."""
    server.says("do you like music ?")
    renderer = taboo_renderer(load_template("chat"), tokenizer, 3)
    far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids)
    player = seat(far, renderer)
    found = [await answer(GameTask(0, "river", "m"), [], Role.ATTACKER, player, taboo_rules(3))]
    server.is_cut(content, finish, **THOUGHTS)
    found.append(await answer(GameTask(1, "river", "m"), [], Role.ATTACKER, player, taboo_rules(3)))
    await far.close()
    (said, over, next_role), (nothing, verdict, _) = found
    assert (said, over, next_role) == (["do you like music ?"], None, Role.DEFENDER)
    assert verdict is not None
    assert (nothing, verdict.outcome, verdict.end_reason) == ([], Outcome.TIED, EndReason.CONTEXT_FULL)
    assert "no room for the attacker's reply" in verdict.reason


async def test_a_player_that_says_nothing_breaks_the_rules(server: Server, played: Any) -> None:
    server.says("")
    assert (await played()).verdict.end_reason is EndReason.EMPTY_REPLY


async def test_a_player_that_never_answers_ends_a_match(server: Server, played: Any) -> None:
    server.is_cut(**THOUGHTS)
    server.num_asked = 0
    with pytest.raises(EngineError, match="talker has given no text, only answers that were cut") as caught:
        await played()
    assert "sampling.max_new_tokens (24)" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert server.num_asked < 10


async def test_a_thought_in_the_text_that_is_cut_is_no_silence_either(server: Server, tokenizer: Any) -> None:
    template = load_template("chat").model_copy(update={"thought": "[ {thought} ]"})
    renderer = taboo_renderer(template, tokenizer, 3)
    server.says("do you like music ?")
    far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids)
    player = seat(far, renderer)
    said, _, _ = await answer(GameTask(0, "river", "m"), [], Role.ATTACKER, player, taboo_rules(3))
    server.is_cut("[ the word is river")
    _, verdict, _ = await answer(GameTask(1, "river", "m"), [], Role.ATTACKER, player, taboo_rules(3))
    await far.close()
    assert verdict is not None
    assert said == ["do you like music ?"]
    assert verdict.end_reason is EndReason.CONTEXT_FULL


async def test_a_thought_takes_no_tokens_of_what_is_said(server: Server, tokenizer: Any) -> None:
    """The server has its own tokenizer; by ours the limit may be within the thought."""
    template = load_template("chat").model_copy(update={"thought": "[ {thought} ]"})
    renderer = taboo_renderer(template, tokenizer, 3)
    server.says(f"[ {'the word is river ' * 20}] do you like music ?")

    far = EndpointPolicy(server.endpoint, renderer.game, renderer.reply_ids)
    found = await answer(GameTask(0, "river", "m"), [], Role.ATTACKER, seat(far, renderer), taboo_rules(3))
    await far.close()
    said, verdict, _ = found
    assert (said, verdict) == (["do you like music ?"], None)


@pytest.mark.parametrize("rules", ["strict", "published"])
@pytest.mark.parametrize("missing", [0, 2])
async def test_a_full_context_is_a_tie_that_is_counted_as_such(
    rules: str, missing: int, server: Server, played: Any
) -> None:
    """Of the defender, who has no room at all, or for two tokens of its reply."""
    server.says("do you like music ? " * 40)
    first = (await played()).turns[1]
    episode = await played(len(first.prompt_ids) + missing, rules)
    assert [turn.role for turn in episode.turns] == [Role.ATTACKER], "what it could not finish is no turn"
    assert episode.verdict.outcome is Outcome.TIED
    assert episode.verdict.length == 1
    assert "no room" in episode.verdict.reason
    assert "defender" in episode.verdict.reason
    assert str(end_of(episode.verdict)) == "none tie: context full"
    assert decode(encode(episode)) == episode


async def test_somebody_who_fills_the_context_has_a_tie(tiny_model: Path, tokenizer: Any) -> None:
    renderer = taboo_renderer(load_template("chat"), tokenizer, 3)
    player = seat(TransformersPolicy(str(tiny_model), max_model_len=512), renderer)
    texts = ["do you like music ? " * 200]
    turns, verdict, _ = await answer(GameTask(0, "river", "visit"), texts, Role.DEFENDER, player, taboo_rules(3))
    assert turns == texts
    assert verdict is not None
    assert verdict.outcome is Outcome.TIED
    assert verdict.end_reason is EndReason.CONTEXT_FULL


async def test_an_endpoint_reads_the_messages_of_the_game_that_is_played(server: Server, tokenizer: Any) -> None:
    game = KuhnPoker()
    renderer = game_renderer(game, tokenizer, "lines")

    async def asked() -> list[str]:
        far = EndpointPolicy(server.endpoint, game, renderer.reply_ids)
        player, rules = seat(far, renderer), Rules(game, "kuhn")
        texts, _, _ = await answer(GameTask(0, "KJ", "m"), ["check", "bet"], Role.ATTACKER, player, rules)
        await far.close()
        return texts

    server.says("call")
    await asked()
    assert server.asked == game.messages(0, ["check", "bet"], "KJ")
    for opening in ("<think>\n", ""):  # the server's chat template may have opened it
        server.says(f"{opening}I have the King.\n</think>\n\ngo on")
        assert await asked() == ["check", "bet", "go on"], "what a model thought is not part of its move"

    far = EndpointPolicy(server.endpoint, game, renderer.reply_ids)
    found = []
    for cut in (False, True):
        server.is_cut("do you like music") if cut else server.says("So.\n</think>\n\ngo on")
        (turn,) = await far.generate([Request("a", (1,), SAMPLING, GameView(Role.ATTACKER, (), "KJ"))])
        found.append((renderer.text_of(turn.token_ids), turn.finish_reason))
    await far.close()
    assert found == [("go on", "stop"), ("", "context")], "a thought that the template opened was cut"


@pytest.mark.parametrize(("style", "end"), [("lines", "\nHint:"), ("chat", "From where?")])
async def test_an_endpoint_is_told_whose_line_it_writes(style: str, end: str, server: Server, tokenizer: Any) -> None:
    game = TabooGame(load_template(style), 3)
    renderer = game_renderer(game, tokenizer, style)

    server.says("a lake")
    far = EndpointPolicy(server.endpoint, game, renderer.reply_ids, style=style)
    player, rules = seat(far, renderer), Rules(game, "taboo", style)
    await answer(GameTask(0, "river", "m"), ["It flows.", "From where?"], Role.ATTACKER, player, rules)
    await far.close()
    assert server.asked[-1]["content"].endswith(end)


@pytest.mark.parametrize(
    "page", [b"<html>Welcome</html>", b"[]", b'{"data": [1]}', b'{"data": [{"name": "x"}]}', b"no"]
)
def test_a_server_of_another_kind_is_told_from_a_player_in_one_line(server: Server, page: bytes) -> None:
    """A web page is what an address without /v1 often has."""
    server.garbled = page
    try:
        with pytest.raises(ModelError, match=rf"^{server.endpoint.url}[: ]"):
            check_endpoint(server.endpoint)
    finally:
        server.garbled = b""


@pytest.mark.parametrize(("key", "is_refused"), [("", False), ("sk-\u00e4", True)])
def test_an_empty_key_is_none_and_one_that_cannot_be_sent_is_told(
    server: Server, key: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    server.garbled = json.dumps({"data": [{"id": server.endpoint.model}]}).encode()
    try:
        with pytest.raises(ModelError, match="no player there") if is_refused else contextlib.nullcontext():
            check_endpoint(server.endpoint)
    finally:
        server.garbled = b""
