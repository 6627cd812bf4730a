"""Who may ask the server, and what its answers allow a browser.

- Another page in the same browser must not: a request's Host has to be this server's own (DNS rebinding), and its
  Origin that Host (cross-site posts). Requests that change something are JSON, which forms of other sites cannot send.
- Beyond loopback, a random token has to be given once in the URL; a cookie carries it from then on.
- Texts of players are never read as markup: a page runs only the server's own scripts, and loads nothing else.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

_COOKIE = "spag_ray_token"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """`token`: needed beyond loopback; None: the server is on loopback, and its Host has to be a loopback address."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    async def __call__(self, request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        answer = self._refusal(request) or self._with_cookie(request) or await go_on(request)
        answer.headers.update(_HEADERS)
        return answer

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if self._token is None and not is_loopback(_name_of(host)):
            return _refused(f"this server is for this machine alone, and was asked as {host[:100]!r}")
        if origin is not None and origin != f"{request.url.scheme}://{host}":
            return _refused("another site may not ask this server")
        is_link = request.method == "GET" and request.url.path == "/"  # a link to the page may be anywhere
        if not is_link and request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refused("another site may not ask this server")
        if request.method not in ("GET", "HEAD"):
            kind = request.headers.get("content-type", "").partition(";")[0].strip()
            if kind != "application/json":
                return _refused("send application/json", 415)
        if self._token is not None:
            given = request.query_params.get("token") or request.cookies.get(_COOKIE) or ""
            if not secrets.compare_digest(given.encode(), self._token.encode()):
                return _refused("open the address with the token that the server printed")
        return None

    def _with_cookie(self, request: Request) -> Response | None:
        """The token leaves the address, which is shown and kept in histories, for a cookie."""
        if self._token is None or "token" not in request.query_params:
            return None
        answer = RedirectResponse(request.url.path or "/", status_code=303)
        answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
        return answer


def _name_of(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refused(reason: str, status: int = 403) -> Response:
    return JSONResponse({"error": reason}, status_code=status)
