"""What both servers begin with, and the answers that both give: files, and errors as JSON."""

from __future__ import annotations

import gzip
from collections.abc import Mapping

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

LARGE_BYTES = 2**18


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
