"""What one client may take of a real server: a body, time, connections."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from cluster.serve import guard
from cluster.serve.guard import MAX_BODY_BYTES, limited
from cluster.serve.server import web_settings


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Tells how long a body was; under /large it is 8 MB."""
    request = Request(scope, receive)
    body = await request.body()
    answer = Response(b"x" * 8_000_000) if scope["path"] == "/large" else JSONResponse({"length": len(body)})
    await answer(scope, receive, send)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(guard, "BODY_S", 0.5)
    monkeypatch.setattr(guard, "HEAD_S", 1.5)
    monkeypatch.setattr(guard, "MAX_CONNECTIONS", 10)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(web_settings(limited(echo)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def send(self, text: str | bytes) -> None:
        self.socket.sendall(text if isinstance(text, bytes) else text.encode())

    def post(self, body: bytes, told: str) -> None:
        self.send(f"POST / HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n{told}\r\n\r\n".encode() + body)

    def answer(self) -> tuple[int, Any]:
        with self.socket.makefile("rb") as file:
            status = int(file.readline().split()[1])
            length = 0
            while (line := file.readline().strip().lower()) != b"":
                if line.startswith(b"content-length:"):
                    length = int(line.split()[1])
            return status, json.loads(file.read(length))

    def ends_after_s(self) -> float:
        """Seconds until the server has ended the connection."""
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while self.socket.recv(65536):
                pass
        return time.monotonic() - began


def chunks(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def test_a_body_of_64_kib_is_taken_and_a_longer_one_is_not(port: int) -> None:
    for length, status in ((MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413)):
        body = b"a" * length
        for sent, told in ((body, f"Content-Length: {length}"), (chunks(body), "Transfer-Encoding: chunked")):
            client = Client(port)
            client.post(sent, told)
            found, said = client.answer()
            assert found == status
            assert said == ({"length": length} if status == 200 else {"error": "a request has at most 64 KiB"})


def test_who_sends_a_body_that_is_far_too_long_gets_the_answer_too(port: int) -> None:
    client = Client(port)
    client.post(b"a" * 5_000_000, "Content-Length: 5000000")
    assert client.answer()[0] == 413
    client.post(b"abc", "Content-Length: 3")
    assert client.answer() == (200, {"length": 3})


def test_a_body_that_does_not_end_is_not_waited_for(port: int) -> None:
    client = Client(port)
    client.post(b"a", "Content-Length: 10")
    status, said = client.answer()
    assert (status, said["error"]) == (408, "the request was not complete within 0.5 s")
    assert client.ends_after_s() < 5


@pytest.mark.parametrize("head", ["", "GET / HTTP/1.1\r\nHost: here\r\nX: "])
def test_a_connection_without_a_whole_request_is_ended(port: int, head: str) -> None:
    client = Client(port)
    for _ in range(4):  # a byte now and then gives it no more time
        with contextlib.suppress(ConnectionError):
            client.send(head)
        head = head and "a"
        time.sleep(0.2)
    assert client.ends_after_s() < 5


def test_a_connection_serves_several_requests_and_then_a_rest_of_one_is_not_waited_for(port: int) -> None:
    client = Client(port)
    for _ in range(3):
        client.post(b"abc", "Content-Length: 3")
        assert client.answer() == (200, {"length": 3})
        time.sleep(0.3)
    client.send("POST / HTTP/1.1\r\nHost")
    assert client.ends_after_s() < 5


def test_a_client_that_does_not_take_its_answer_is_not_waited_for(port: int) -> None:
    client = Client(port)
    client.send("GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
    time.sleep(2.5)
    received = 0
    with contextlib.suppress(ConnectionError):
        while data := client.socket.recv(65536):
            received += len(data)
    assert received < 8_000_000


def test_connections_over_a_bound_are_ended_and_give_room_later(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEAD_S", 60)
    idle = [Client(port) for _ in range(10)]
    time.sleep(0.1)
    assert Client(port).ends_after_s() < 1
    for client in idle:
        client.socket.close()
    time.sleep(0.1)
    client = Client(port)
    client.post(b"abc", "Content-Length: 3")
    assert client.answer() == (200, {"length": 3})


async def test_an_answer_that_is_not_found_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "ANSWER_S", 0.1)
    sent = []

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(60)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await limited(never)({"type": "http"}, receive, send)
    assert sent[0]["status"] == 503
