import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.exceptions import HTTPException

from cluster.commands.watch_web import run_watch_web
from cluster.serve import live
from cluster.serve.guard import Guard
from cluster.serve.live import LiveRun, config_differences, live_runs, make_live_app
from cluster.serve.server import Page
from spag_ray.config.loading import load_config, write_config
from spag_ray.errors import ConfigError, SpagError
from tests.support.report_runs import measurements, write_metrics


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    write_config(folder / "config.yaml", load_config("quickstart"))
    write_metrics(folder / "metrics.jsonl", measurements(num_steps=2))
    return folder


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings leave no time between them."""
    monkeypatch.setattr(live, "LEAST_S", 0.0)
    monkeypatch.setattr(live, "REST", 0)


def of(folder: Path) -> LiveRun:
    (found,), _ = live_runs([folder], [None])
    return found


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("at_once")
async def test_a_folder_is_read_again_when_it_has_changed_and_the_last_reading_stays(run: Path) -> None:
    shown = of(run)
    first = await shown.newest()
    assert f'data-stamp="{first.stamp}"' in first.page
    for _ in range(3):
        await shown.newest()
        await shown._rereading.done()
    assert (await shown.newest()).stamp == first.stamp, "nothing has changed"
    (run / "ended.json").write_text('{"ended": "failed", "reason": "it broke"}')
    await shown.newest()
    await until(lambda: shown._readings[-1].stamp > first.stamp)
    assert (await shown.newest()).ended == "failed: it broke"
    assert shown.of_stamp(first.stamp) is first
    with pytest.raises(HTTPException):
        shown.of_stamp(first.stamp - 1)


async def test_readings_leave_time_between_them(run: Path) -> None:
    shown = of(run)
    first = await shown.newest()
    write_metrics(run / "metrics.jsonl", measurements())
    assert shown._rereading._due > time.monotonic(), "not at once"
    assert await shown.newest() is first


@pytest.mark.usefixtures("at_once")
async def test_a_folder_that_is_gone_is_said_and_the_reading_stays(run: Path) -> None:
    shown, never = of(run), of(run)
    first = await shown.newest()
    run.rename(run.with_name("moved"))
    await shown.newest()
    await until(lambda: shown.fault)
    assert "no such folder" in shown.fault
    assert (await shown.newest()) is first
    with pytest.raises(HTTPException, match="no such folder"):
        await never.newest()


@pytest.mark.usefixtures("at_once")
async def test_a_reading_that_fails_in_any_way_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = of(run)
    first = await shown.newest()
    monkeypatch.setattr(live, "read_run", lambda *_: 1 / 0)
    (run / "ended.json").write_text('{"ended": "finished"}')
    await shown.newest()
    await until(lambda: shown.fault)
    assert (await shown.newest()) is first
    assert "division" in shown.fault


async def test_a_run_whose_metrics_cannot_be_read_leaves_the_others_curves(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "runs" / "other"
    (other / "metrics.jsonl").mkdir(parents=True)
    _, curves = live_runs([run, other], [None, None])

    assert await curves.look() > 0
    assert list(curves.faults) == ["other"]
    assert curves.runs["one"].curve("step/loss/self_play") is not None


async def test_a_request_that_gives_up_leaves_one_reader(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, curves = live_runs([run], [None])
    read, readers = curves.runs["one"].read, []

    def slow() -> None:
        readers.append(1)
        assert len(readers) == 1, "two threads read one file"
        time.sleep(0.3)
        read()
        readers.pop()

    monkeypatch.setattr(curves.runs["one"], "read", slow)

    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await curves.look()
    assert await curves.look() == curves.runs["one"].num_points > 0
    assert curves.faults == {}


def test_a_damaged_configuration_hides_nothing_and_long_values_show_where_they_differ(tmp_path: Path) -> None:
    long = "/models/" + "very/" * 12
    for name, model in (("a", f"{long}model-a"), ("b", f"{long}model-b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"model: {model}\n")
    folders = {name: tmp_path / name for name in "ab"}
    text = str(config_differences(folders))
    assert "...a</td>" in text
    assert "...b</td>" in text
    (tmp_path / "a" / "config.yaml").write_text("- broken: [")
    assert "model</th>" in str(config_differences(folders)), "the other one is still told"


def test_runs_are_told_apart_by_the_ends_of_their_paths() -> None:
    def names(*folders: str) -> list[str]:
        found, curves = live_runs([Path(folder) for folder in folders], [None] * len(folders))
        assert list(curves.runs) == list(found[0].names)
        return list(found[0].names)

    assert names("/x/runs/a", "/x/runs/b") == ["a", "b"]
    assert names("/x/runs-1/seed-1", "/x/runs-2/seed-1") == ["runs-1/seed-1", "runs-2/seed-1"]
    assert names("/x/runs/a") == ["a"]


def test_only_keys_with_different_values_are_listed_and_no_secrets(tmp_path: Path) -> None:
    folders = {}
    for name, changes in (("a", []), ("b", ["seed=9", "engine.env={KEY: hidden-value}", "self_play.rounds=5"])):
        (tmp_path / name).mkdir()
        write_config(tmp_path / name / "config.yaml", load_config("quickstart", changes))
        folders[name] = tmp_path / name
    text = str(config_differences(folders))
    assert "seed" in text
    assert "self_play.rounds" in text
    assert "hidden-value" not in text
    assert "batch_games" not in text
    assert str(config_differences({"a": folders["a"]})) == ""


@pytest.mark.parametrize(
    ("targets", "run", "once", "said"),
    [
        (["ray://127.0.0.1:10001"], None, False, "is an address"),
        (["runs/x"], "x", False, "--run"),
        (["runs/x"], None, True, "--once"),
    ],
)
def test_what_a_page_cannot_do_is_refused(targets: list[str], run: str | None, once: bool, said: str) -> None:
    with pytest.raises((ConfigError, SpagError), match=said):
        run_watch_web(targets, Page(), run, once, Console())


async def test_runs_whose_names_are_no_utf8_are_shown(run: Path) -> None:
    runs, curves = live_runs([run.rename(run.with_name("caf\udce9")), run.parent], [None, None])
    transport = httpx.ASGITransport(make_live_app(runs, curves, Guard()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        assert "caf?" in (await client.get("/")).text
        assert (await client.get("/api/curves")).json()["runs"][0].endswith("caf?")
        assert (await client.get("/api/state")).json()["fault"] == ""


async def test_a_run_that_cannot_be_read_is_named_whatever_its_name(tmp_path: Path) -> None:
    runs, curves = live_runs([tmp_path / "caf\udce9"], [None])
    transport = httpx.ASGITransport(make_live_app(runs, curves, Guard()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/")
    assert answer.status_code == 503
    assert "caf?" in answer.text
