"""Who may ask the server, what one client may take of it, and what its answers allow a browser: all that both servers
have in common, with the app that they begin with and the answers that both give (`new_app`, `refused`, `add_file`).

- Another page in the same browser must not: a request's Host has to be this server's own (DNS rebinding), and its
  Origin that Host (cross-site posts). Requests that change something are JSON, which forms of other sites cannot send.
- Beyond loopback, a random token has to be given once in the URL. From then on a cookie shows that it was given. Its
  value is derived from the token, because a browser sends cookies to the servers on all ports of a host.
- Texts of players are never read as markup: a page runs only the server's own scripts, and loads nothing else.
- A client takes at most so many bytes of a body, so much time, and so many connections (`limited`, `Connection`):
  bounds on what comes from a socket, before it is known who sends it. How many games may wait for a model: visits.py.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from spag_ray.host.addresses import is_loopback

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src {styles}; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_BODY_BYTES = 64 * 2**10
BODY_S = 10.0  # for a whole body
ANSWER_S = 60.0  # for an answer: none waits for a model, but a tokenizer may be read or a game be written to the disk
HEAD_S = 20.0  # for the next request on a connection, and for the client to take the answer before it
MAX_CONNECTIONS = 256  # a process may often have 1024 open files
LARGE_BYTES = 2**18


class Guard:
    """`token`: needed beyond loopback; None: the server is on loopback, and its Host has to be a loopback address.
    `inline_styles`: the page's library for charts needs them."""

    def __init__(self, token: str | None = None, inline_styles: bool = False) -> None:
        self._token = token
        styles = "'self' 'unsafe-inline'" if inline_styles else "'self'"
        self._headers = _HEADERS | {"Content-Security-Policy": _POLICY.format(styles=styles)}
        self._pass = "" if token is None else hmac.digest(token.encode(), b"cookie", "sha256").hex()

    def around(self, app: ASGIApp) -> ASGIApp:
        """`app`, which gets the requests that may be asked, and whose answers get the headers."""

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                await app(scope, receive, send)
                return

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(self._headers)
                await send(message)

            request = Request(scope)
            answer = self._refusal(request) or self._with_cookie(request) or app
            await answer(scope, receive, send_with_headers)

        return guarded

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._token is None and not is_loopback(_split(host).hostname or ""):
            return refused(f"this server is for this machine alone, and was asked as {host[:100]!r}", 403)
        if origin is not None and origin != f"{request.scope['scheme']}://{host}":
            return refused("another site may not ask this server", 403)
        is_link = request.method == "GET" and request.scope["path"] == "/"  # a link to the page may be anywhere
        if not is_link and request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return refused("another site may not ask this server", 403)
        if request.method not in ("GET", "HEAD"):
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return refused("send application/json", 415)
        if self._token is not None:
            is_given = _is_same(request.query_params.get("token"), self._token)
            if not is_given and not _is_same(request.cookies.get(_cookie(host)), self._pass):
                return refused("open the address with the token that the server printed", 403)
        return None

    def _with_cookie(self, request: Request) -> Response | None:
        """The token leaves the address, which is shown and kept in histories, for a cookie."""
        if self._token is None or "token" not in request.query_params:
            return None
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(_cookie(request.headers.get("host", "")), self._pass, httponly=True, samesite="strict")
        return answer


def _cookie(host: str) -> str:
    """Its name, with the port that the browser asks: servers that are reached by one name do not replace each other's
    cookie, and neither do those behind two tunnels to the same port."""
    try:
        port = _split(host).port or 80
    except ValueError:
        port = 80
    return f"spag_ray_{port}"


def _split(host: str) -> SplitResult:
    try:
        return urlsplit(f"//{host}")
    except ValueError:
        return urlsplit("")


def _is_same(given: str | None, wanted: str) -> bool:
    return hmac.compare_digest((given or "").encode(), wanted.encode())


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


def new_app() -> FastAPI:
    """Without pages of its own. Its errors are JSON."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.exception_handler(RequestValidationError)(_unfit)
    app.exception_handler(HTTPException)(_missing)
    return app


def refused(reason: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status_code=status, headers=headers)


def add_file(app: FastAPI, address: str, content: bytes, media_type: str) -> None:
    """Compressed if it is large: a tunnel may be slow."""
    is_large = len(content) > LARGE_BYTES
    headers = {"Content-Encoding": "gzip"} if is_large else {}
    sent = gzip.compress(content) if is_large else content

    @app.get(address)
    async def file() -> Response:
        return Response(sent, media_type=media_type, headers=headers)


async def _unfit(request: Request, error: Exception) -> Response:
    """400: a request that does not have the right form."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"][1:])) or "body"
    told = f"{where}: {first['msg']}"  # `where` may be a key that was sent, with any characters
    return refused(" ".join(told.split())[:300], 400)


async def _missing(request: Request, error: Exception) -> Response:
    """What HTTPException says, as JSON."""
    assert isinstance(error, HTTPException)
    return refused(str(error.detail), error.status_code)
