"""`spag-ray watch --web`: the page of the report for runs that go on, which renews itself.

GET  /?run=1                     the page of a run
GET  /api/state?run=1            which reading of its folder is the newest, and whether the run goes on
GET  /api/curves                 {"runs": their names, "names": of the curves that one of them has}
GET  /api/curve?name=step/loss   of each run, to be drawn over each other
GET  /data/RUN/STAMP/NAME        the packed data of a reading: index, figures, block-0, ...

A run's folder is read in a thread when somebody asks, if it has changed; nothing is read while nobody looks. All else
happens in the event loop, so nothing is locked. Nothing here writes to a run's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from cluster.runtime.output_files import told_apart_paths
from cluster.serve.guard import Guard, add_file, limited, new_app
from spag_ray.config.loading import shown_config
from spag_ray.errors import SpagError
from spag_ray.results.report.markup import NOTHING, table
from spag_ray.results.report.packing import as_utf8
from spag_ray.results.report.page import MAX_GAMES, Live, own_file, page_script, plotly_script, read_run, rendered
from spag_ray.results.report.run_curves import RunCurves
from spag_ray.results.report.tokens import Decode

log = logging.getLogger(__name__)

LEAST_S = 2.0  # between two readings of a folder
REST = 4  # so at most a fifth of a core reads
MAX_SHOWN = 60  # characters of a value
_MAIN_FILES = ("config.yaml", "metrics.jsonl", "matches.json", "league.json", "evaluations.json", "ended.json")


class Rereading:
    """Reads again when somebody asks and it is due: `least_s` after the last time, and REST times as long as that took.
    One reading runs at a time, and no request that gives up ends it."""

    def __init__(self, read: Callable[[], Coroutine[Any, Any, None]], least_s: float) -> None:
        self._read, self._least_s = read, least_s
        self._task: asyncio.Task[None] | None = None
        self._due = 0.0

    def begin(self) -> None:
        if (self._task is None or self._task.done()) and time.monotonic() >= self._due:
            self._task = asyncio.create_task(self._timed())

    async def done(self) -> None:
        """When none is running."""
        while self._task is not None and not self._task.done():
            await asyncio.shield(self._task)

    async def _timed(self) -> None:
        began = time.monotonic()
        try:
            await self._read()
        finally:
            self._due = time.monotonic() + max(self._least_s, REST * (time.monotonic() - began))


@dataclass(frozen=True)
class Reading:
    """A run's folder as it was read. `data`: {name: packed}."""

    stamp: int
    page: str
    data: dict[str, str]
    ended: str


@dataclass
class LiveRun:
    """A run's folder, and what was read of it. The newest two readings are kept: a page asks for the data of the one
    that it shows while the next is there already."""

    folder: Path
    decode: Decode | None
    place: int
    names: Sequence[str]
    differences: Markup
    fault: str = ""
    _readings: list[Reading] = field(default_factory=list)
    _seen: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        self._rereading = Rereading(self._read, LEAST_S)

    async def newest(self) -> Reading:
        """The newest reading; a newer one is begun if the folder has changed. Waits only for the first. Raises
        HTTPException if that cannot be made."""
        self._rereading.begin()
        if not self._readings:
            await self._rereading.done()
        if not self._readings:
            raise HTTPException(503, as_utf8(self.fault))
        return self._readings[-1]

    def of_stamp(self, stamp: int) -> Reading:
        """Raises HTTPException for one that is not kept any more."""
        for reading in self._readings:
            if reading.stamp == stamp:
                return reading
        raise HTTPException(404, "this reading of the run is not here any more; a newer one is")

    async def _read(self) -> None:
        try:
            seen = await asyncio.to_thread(_state_of, self.folder)
            if seen != self._seen or not self._readings:
                # Larger than any of an earlier server on this port, whose page may be open.
                reading = await asyncio.to_thread(self._reading, time.time_ns() // 10**6)
                self._readings, self._seen = [*self._readings[-1:], reading], seen
            self.fault = ""
        except Exception as error:  # for example, the folder was moved; the page says so, and what was read stays
            self.fault = " ".join(str(error).split()) or type(error).__name__
            log.info("%s cannot be read: %s", self.folder, self.fault)

    def _reading(self, stamp: int) -> Reading:
        blocks: dict[str, str] = {}
        run = read_run(self.folder, self.decode, MAX_GAMES, blocks.__setitem__)
        page, data = rendered(run, Live(self.place, stamp, self.names, self.differences))
        how, why = run.files.ended or ("", "")
        return Reading(stamp, page.replace("<!-- data -->\n", ""), data | blocks, f"{how}: {why}" if why else how)


@dataclass
class LiveCurves:
    """The curves of all runs, read as they grow. `faults`: {run: why its metrics cannot be read}."""

    runs: dict[str, RunCurves]
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rereading = Rereading(lambda: asyncio.to_thread(self._read), LEAST_S / 2)

    async def look(self) -> int:
        """How many points there are. When it returns, no thread is reading."""
        self._rereading.begin()
        await self._rereading.done()
        return sum(curves.num_points for curves in self.runs.values())

    def _read(self) -> None:
        for name, curves in self.runs.items():
            try:
                curves.read()
            except Exception as error:  # one run's file must not hide the others
                self.faults[name] = " ".join(str(error).split()) or type(error).__name__
            else:
                self.faults.pop(name, None)


def make_live_app(runs: Sequence[LiveRun], curves: LiveCurves, guard: Guard) -> ASGIApp:
    """The server's addresses, guarded as those of `spag-ray serve`."""
    app = new_app()

    def found(run: int) -> LiveRun:
        if not 0 <= run < len(runs):
            raise HTTPException(404, f"no run {run}: there are {len(runs)}")
        return runs[run]

    @app.get("/")
    async def page(run: int = 0) -> Response:
        return HTMLResponse((await found(run).newest()).page)

    @app.get("/api/state")
    async def state(run: int = 0) -> dict[str, Any]:
        shown = found(run)
        newest = await shown.newest()
        points = await curves.look()
        name = shown.names[run]
        last = curves.runs[name].last_time
        measured = "never" if last is None else f"{datetime.datetime.fromtimestamp(last):%d %B, %H:%M:%S}"
        fault = as_utf8(shown.fault or curves.faults.get(name, ""))
        ended = as_utf8(newest.ended)
        return {"stamp": newest.stamp, "points": points, "ended": ended, "measured": measured, "fault": fault}

    @app.get("/api/curves")
    async def names_of_curves() -> dict[str, list[str]]:
        await curves.look()
        every = {name for each in curves.runs.values() for name in each.names}
        return {"runs": list(map(as_utf8, curves.runs)), "names": sorted(every)}

    @app.get("/api/curve")
    async def curve(name: str) -> list[Any]:
        await curves.look()
        return [each.curve(name) for each in curves.runs.values()]

    @app.get("/data/{run}/{stamp}/{name}")
    async def data(run: int, stamp: int, name: str) -> Response:
        reading = found(run).of_stamp(stamp)
        if name not in reading.data:
            raise HTTPException(404, f"there is no {name[:100]!r}")
        return Response(reading.data[name], media_type="text/plain")

    live = (Path(__file__).parent / "live.js").read_text(encoding="utf-8")
    add_file(app, "/page.js", f"{page_script()}\n{live}".encode(), "text/javascript")
    add_file(app, "/page.css", own_file("page.css").encode(), "text/css")
    add_file(app, "/plotly.js", plotly_script().encode(), "text/javascript")
    return guard.around(limited(app))


def live_runs(folders: Sequence[Path], decoders: Sequence[Decode | None]) -> tuple[list[LiveRun], LiveCurves]:
    """The runs under names that differ."""
    resolved = [folder.resolve() for folder in folders]
    names = [resolved[0].name] if len(folders) == 1 else told_apart_paths(resolved)
    differences = config_differences(dict(zip(names, folders, strict=True)))
    pairs = enumerate(zip(folders, decoders, strict=True))
    runs = [LiveRun(folder, decode, place, names, differences) for place, (folder, decode) in pairs]
    paths = [folder / "metrics.jsonl" for folder in folders]
    return runs, LiveCurves({name: RunCurves(path) for name, path in zip(names, paths, strict=True)})


def config_differences(runs: dict[str, Path]) -> Markup:
    """A table of the keys that have different values, without those of environment variables and the runs' names;
    nothing if there are none. A configuration that cannot be read has no values: its run's page says so."""
    flat: dict[str, dict[str, Any]] = {}
    for name, folder in runs.items():
        try:
            flat[name] = _flat(shown_config(folder))
        except (SpagError, OSError, ValueError):
            flat[name] = {}
    keys = dict.fromkeys(key for values in flat.values() for key in values if key != "name")
    rows = []
    for key in keys:
        values = [str(values.get(key, "-")) for values in flat.values()]
        if len(set(values)) > 1:
            rows.append((key, *_shortened(values)))
    return table("Keys with different values", ("", *runs), rows) if rows else NOTHING


def _shortened(values: Sequence[str]) -> list[str]:
    """Long values without what all of them begin with."""
    if max(map(len, values)) <= MAX_SHOWN:
        return list(values)
    same = next((place for place, found in enumerate(zip(*values, strict=False)) if len(set(found)) > 1), 0)
    cut = [value if same < 4 else f"...{value[same:]}" for value in values]
    return [value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 3]}..." for value in cut]


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= _flat(value, f"{before}{key}.") if isinstance(value, dict) and value else {before + key: value}
    return found


def _state_of(folder: Path) -> tuple[object, ...]:
    """Changes when a file of the folder that the page shows does."""
    paths = [*(folder / name for name in _MAIN_FILES), *sorted((folder / "episodes").glob("*.log"))]
    found = []
    for path in paths:
        with contextlib.suppress(OSError):  # it is not there, or not any more
            status = path.stat()
            found.append((path.name, status.st_mtime_ns, status.st_size))
    return tuple(found)
