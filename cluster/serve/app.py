"""The server's addresses: the page and its files, and the games as JSON.

GET  /api/table              what can be played
POST /api/games              {"seat": 0, "stage": "spag-2", "scenario": "river" or null} -> a game
GET  /api/games/ID           its state; the page asks again while the model is to move
POST /api/games/ID/turns     {"text": "..."}
POST /api/games/ID/again     asks a model again that failed
POST /api/games/ID/keep      the person agrees that the game is kept

400: it cannot be; 404: no such game; 408, 413, 503: see guard.py; 429: too many games wait for a model
"""

from __future__ import annotations

import asyncio
import logging
from importlib import resources
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from cluster.serve.guard import Guard, add_file, limited, new_app, refused
from cluster.serve.kept_games import KeptGames
from cluster.serve.opponents import BusyError, Opponents
from cluster.serve.visits import GAME_FAULT, Table, Visit, Visits
from spag_ray.errors import GameError, InputError, SpagError
from spag_ray.game.protocol import SEATS, Ordered
from spag_ray.host.addresses import is_loopback

log = logging.getLogger(__name__)
# {address: (package, file, media type)}; base.js and game.js are also those of the report.
_FILES = {
    "/": ("cluster.serve", "page.html", "text/html"),
    "/play.css": ("cluster.serve", "play.css", "text/css"),
    "/play.js": ("cluster.serve", "play.js", "text/javascript"),
    "/report.css": ("spag_ray.results.report", "page.css", "text/css"),
    "/base.js": ("spag_ray.results.report", "base.js", "text/javascript"),
    "/game.js": ("spag_ray.results.report", "game.js", "text/javascript"),
}


class _Begin(BaseModel):
    model_config = ConfigDict(extra="forbid")
    seat: int
    stage: str = Field(max_length=200)
    scenario: str | None = Field(None, max_length=200)


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = Field(max_length=10_000)


def make_app(title: str, visits: Visits, opponents: Opponents, kept: KeptGames | None, guard: Guard) -> ASGIApp:
    """`title`: what is played against, as the page's heading. `kept`: where games go that may be kept."""
    app = new_app()
    _add_table(app, title, visits.table, opponents)
    _add_games(app, visits)
    _add_keeping(app, visits, kept)
    for address, (package, name, media_type) in _FILES.items():
        add_file(app, address, resources.files(package).joinpath(name).read_bytes(), media_type)
    app.exception_handler(SpagError)(_told)
    app.exception_handler(GameError)(_hidden)
    app.exception_handler(BusyError)(_busy)
    return guard.around(limited(app))  # the guard first: it refuses before it reads a body


def _add_table(app: FastAPI, title: str, table: Table, opponents: Opponents) -> None:
    @app.get("/api/table")
    async def show_table() -> dict[str, Any]:
        return {
            "title": title,
            "game": table.names.name,
            "seats": table.names.seats,
            "scenario": table.names.scenario,
            "guesses": table.rules.guesser is not None,
            "saysWhoMoves": isinstance(table.rules.game, Ordered),
            "mayChoose": [table.may_choose(role) for role in SEATS],
            "maxTurns": table.rules.max_turns,
            "maxGuesses": getattr(table.rules.game, "max_guesses", 1),
            "claim": table.claim,
            "stages": [
                {"name": name, "seats": [SEATS.index(role) for role in each.seats]}
                for name, each in opponents.named.items()
            ],
        }


def _add_games(app: FastAPI, visits: Visits) -> None:
    @app.post("/api/games", status_code=201)
    async def begin(wanted: _Begin, request: Request) -> dict[str, Any]:
        visitor = _visitor(request)
        return await visits.view(await visits.begin(wanted.seat, wanted.stage, wanted.scenario, visitor))

    @app.get("/api/games/{name}")
    async def show(name: str) -> dict[str, Any]:
        return await visits.view(_found(visits, name))

    @app.post("/api/games/{name}/turns")
    async def say(name: str, said: _Said) -> dict[str, Any]:
        visit = _found(visits, name)
        await visits.say(visit, said.text)
        return await visits.view(visit)

    @app.post("/api/games/{name}/again")
    async def again(name: str) -> dict[str, Any]:
        visit = _found(visits, name)
        visits.ask_again(visit)
        return await visits.view(visit)


def _add_keeping(app: FastAPI, visits: Visits, kept: KeptGames | None) -> None:
    @app.post("/api/games/{name}/keep")
    async def keep(name: str) -> dict[str, Any]:
        visit = _found(visits, name)
        if kept is None:
            raise InputError("this server keeps no games; it was started without --keep")
        if visit.keeping is None:
            add = asyncio.to_thread(kept.add, lambda number: visits.episode(visit, number))
            visit.keeping = asyncio.create_task(add)
        try:
            # Shielded: the thread writes also for a visitor who has gone, and a second request must not write again.
            await asyncio.shield(visit.keeping)
        except Exception:
            visit.keeping = None
            raise
        return await visits.view(visit)


async def _hidden(request: Request, error: Exception) -> Response:
    """The message has what is hidden from a seat."""
    log.error("%s", error)
    return refused(GAME_FAULT, 500)


async def _told(request: Request, error: Exception) -> Response:
    return refused(" ".join(str(error).split()), 400)


async def _busy(request: Request, error: Exception) -> Response:
    return refused(str(error), 429, {"Retry-After": "30"})


def _visitor(request: Request) -> str:
    """Their address; "" on loopback, where all who come through a tunnel have the same."""
    host = request.client.host if request.client is not None else ""
    return "" if is_loopback(host) else host


def _found(visits: Visits, name: str) -> Visit:
    try:
        return visits.find(name)
    except KeyError:
        raise HTTPException(404, "this game is not here any more; begin another") from None
