"""How the server of `spag-ray serve` begins and ends."""

import asyncio
import json
import os
import signal
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from cluster.serve.server import StoppableServer, _table, open_browser, web_settings
from spag_ray.config.loading import load_config
from spag_ray.errors import ConfigError
from tests.support.runs import tiny_run
from tests.support.served import HERE, Server


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    pytest.fail("it was asked")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_the_server_and_not_what_is_closed_after_it(which: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = StoppableServer(web_settings(nothing))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), which)
        await serving
    assert "closed" == "closed"


def test_a_browser_that_waits_for_the_page_does_not_keep_it_from_being_served(monkeypatch: pytest.MonkeyPatch) -> None:
    is_served, is_shown = threading.Event(), threading.Event()

    def wait(address: str) -> None:
        assert is_served.wait(10)
        is_shown.set()

    monkeypatch.setattr(webbrowser, "open", wait)
    open_browser(HERE)
    is_served.set()
    assert is_shown.wait(10)


def test_a_claim_that_the_referee_never_accepts_is_refused_before_a_person_plays(tmp_path: Path) -> None:
    file = tmp_path / "german.yaml"
    wordings = [{"attacker": "Das Wort ist {target_word}.", "defender": "Sag: Ich kenne das Wort! Es ist `X`!"}]
    file.write_text(
        json.dumps({"style": "chat", "wordings": wordings, "claim": "Ich kenne das Wort! Es ist `{word}`!"})
    )
    _table(load_config("quickstart"), None)
    with pytest.raises(ConfigError, match="is no guess to the strict referee"):
        _table(load_config("quickstart", [f"prompts={file}"]), None)


def test_no_model_is_asked_after_the_end(tiny_model: Path, words: Path, tmp_path: Path, caplog: Any) -> None:
    server = Server(tiny_model, tiny_run(tiny_model, words), tmp_path / "kept")
    server.loads_for_s = 60
    with TestClient(server.app, base_url=HERE) as client:
        games = [client.post("/api/games", json={"seat": 1, "stage": "spag-1"}).json() for _ in range(3)]
        server.visits.close()
        assert [client.get(f"/api/games/{game['id']}").json()["fault"] for game in games] == [None] * 3
    assert server.num_asked == 0
    assert caplog.messages == []
    server.close()
