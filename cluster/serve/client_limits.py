"""What one client may take of the server: bytes of a body, time, and connections.

Everything here is a bound on what comes from a socket, before it is known who sends it. How many games may wait for a
model is the matter of visits.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from cluster.serve.answers import refused

MAX_BODY_BYTES = 64 * 2**10
BODY_S = 10.0  # for a whole body
ANSWER_S = 60.0  # for an answer: none waits for a model, but a tokenizer may be read or a game be written to the disk
HEAD_S = 20.0  # for the next request on a connection, and for the client to take the answer before it
MAX_CONNECTIONS = 256  # a process may often have 1024 open files


def limited(app: ASGIApp) -> ASGIApp:
    """`app` gets whole bodies of at most MAX_BODY_BYTES (else 413) that came within BODY_S (else 408), and has ANSWER_S
    for the answer (else 503)."""

    async def within_limits(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(receive)
        except TimeoutError:
            await refused(f"the request was not complete within {BODY_S:g} s", 408)(scope, receive, send)
            return
        if body is None:
            await refused(f"a request has at most {MAX_BODY_BYTES // 2**10} KiB", 413)(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        is_begun = False

        async def receive_whole() -> Message:
            return whole.pop() if whole else await receive()

        async def send_noted(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        try:
            async with asyncio.timeout(ANSWER_S) as limit:
                await app(scope, receive_whole, send_noted)
        except TimeoutError:
            if is_begun or not limit.expired():
                raise
            await refused(f"the server found no answer within {ANSWER_S:g} s", 503)(scope, receive, send)

    return within_limits


async def _body(receive: Receive) -> bytes | None:
    """None if it is too long. uvicorn reads and drops what follows, for at most HEAD_S: a connection that is closed
    with unread bytes is reset, and its client may not see the answer."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):  # also of a client that has gone
            return bytes(body)


class Connection(H11Protocol):
    """uvicorn waits for ever for the rest of a request's head, and for a client to take an answer; this ends such
    connections. h11 limits a head to 16 KiB."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._patience is not None:
            self._patience.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def _await_head(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self.loop.call_later(HEAD_S, self._end_without_head, self.cycle)

    def _end_without_head(self, before: RequestResponseCycle | None) -> None:
        """`before`: the request that was answered last; uvicorn makes a new object for every request."""
        if self.cycle is before and (before is None or before.response_complete):
            self.transport.abort()  # not `close`, which would wait until the client takes the rest of an answer
