"""`spag-ray watch RUN... --web` as a person meets it: a real server, runs that go on, a real browser."""

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from spag_ray.episodes.log import read_log
from tests.support.browser import chromium, server_of
from tests.support.browser import opened as browser_page
from tests.support.report_runs import (
    HOSTILE,
    hostile_episode,
    make_interrupted_run,
    make_run,
    measurements,
    repeated,
    write_log,
    write_metrics,
)

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(240)]
TIMEOUT_MS = 30_000
LARGE = 10_000
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def runs(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs a, b (other settings, other losses), large (10,000 games), and one that goes on."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "a", tiny_model, words)
    shutil.copytree(folder / "a", folder / "large")
    games = list(read_log(folder / "a" / "episodes" / "spag-2.log"))
    write_log(folder / "large", "spag-2", repeated(games, LARGE - 120))
    write_log(folder / "a", "spag-1", [hostile_episode(100)])
    shutil.copytree(folder / "a", folder / "b")
    settings = (folder / "b" / "config.yaml").read_text()
    (folder / "b" / "config.yaml").write_text(re.sub(r"\bseed: \d+", "seed: 17", settings, count=1))
    lines = measurements()
    for line in lines:
        if "loss" in line:
            line["loss"] *= 2
    write_metrics(folder / "b" / "metrics.jsonl", lines)
    make_interrupted_run(folder / "going", tiny_model, words)
    return folder


@contextlib.contextmanager
def served(*folders: Path) -> Iterator[str]:
    """The address of a server of these runs; at its end it stops by Ctrl-C with exit code 0."""
    arguments = ["watch", *map(str, folders), "--web", "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        [sys.executable, "-m", "spag_ray", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("serving "):
            break
    assert said, "it ended"
    assert said[-1].startswith("serving http://127.0.0.1:"), said
    threading.Thread(target=process.stdout.read, daemon=True).start()
    try:
        yield said[-1].split()[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def several(runs: Path) -> Iterator[str]:
    with served(*(runs / name for name in ("a", "b", "large"))) as address:
        yield address


@pytest.fixture(scope="module")
def browser(runs: Path) -> Iterator[Any]:
    with chromium(TIMEOUT_MS) as started:
        yield started


def opened(browser: Any, address: str, query: str = "", **options: Any) -> AbstractContextManager[Any]:
    with_defaults = {"viewport": DESKTOP, "timeout_ms": TIMEOUT_MS, **options}
    return browser_page(browser, address + query, only=address, shorten=server_of, **with_defaults)


def saved(page: Any, figure: str) -> list[str]:
    """The lines of a chart's CSV."""
    with page.expect_download() as download:
        page.locator(figure).get_by_role("button", name="Save the data of").click()
    return Path(download.value.path()).read_text().splitlines()


def test_runs_are_drawn_over_each_other_in_both_themes_at_both_widths(browser: Any, several: str) -> None:
    for viewport in (DESKTOP, PHONE):
        for scheme in ("light", "dark"):
            with opened(browser, several, viewport=viewport, color_scheme=scheme) as page:
                for plot in page.locator(".plot").all():
                    plot.scroll_into_view_if_needed()
                    plot.locator(".main-svg").first.wait_for()
                assert page.locator("#plot-curve .scatterlayer .trace").count() == 3
                assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
                assert page.evaluate("document.documentElement.dataset.theme") == scheme


def test_a_curve_is_chosen_smoothed_and_saved(browser: Any, several: str) -> None:
    with opened(browser, several) as page:
        lines = page.locator("#plot-curve .scatterlayer .trace")
        page.locator("#curves").scroll_into_view_if_needed()
        expect(lines).to_have_count(3)
        page.get_by_label("Curve", exact=True).select_option("step/loss/self_play")
        rows = saved(page, "#curves")
        assert rows[0] == "series,x,y,value"
        assert [row for row in rows if row.startswith("a,")][:2] == ["a,7,2,", "a,8,1.9,"]
        assert [row for row in rows if row.startswith("b,")][:2] == ["b,7,4,", "b,8,3.8,"]
        page.get_by_label("Over", exact=True).select_option("hours of the run")
        hours = float(next(row for row in saved(page, "#curves") if row.startswith("a,")).split(",")[1])
        assert hours == pytest.approx(34 / 3600), "10 + 12 s of imitation, 10 s of games, 2 s of the first step"
        page.locator("#curve-smooth").fill("0.5")
        expect(lines).to_have_count(6)
        smooth = [float(row.split(",")[2]) for row in saved(page, "#curves") if row.startswith("a,")]
        assert smooth[:3] == pytest.approx([2, (2 + 2 * 1.9) / 3, (2 + 2 * 1.9 + 4 * 1.8) / 7], rel=1e-6)
        page.get_by_label("logarithmic").check()
        page.get_by_label("large", exact=True).uncheck()
        expect(lines).to_have_count(4)
        page.locator("#runs").select_option("b")
        page.wait_for_selector("html[data-ready][data-run='1']")
        expect(page.locator("h1")).to_have_text("b")
        expect(page.locator("#differences")).to_contain_text("seed")
        assert page.locator("#differences tbody tr").count() == 1


def test_a_run_that_goes_on_is_shown_as_it_goes(browser: Any, runs: Path, tiny_model: Path) -> None:
    going = runs / "going"
    with served(going) as address, opened(browser, address, may_fail=True) as page:
        count, live = page.locator("#count"), page.locator("#live")
        expect(count).to_have_text("16 games")
        expect(live).to_contain_text("live")
        page.get_by_label("Stage", exact=True).select_option(label="expert")
        expect(count).to_have_text("12 of 16 games")
        page.locator(".row").nth(2).click()
        page.locator(".row[aria-selected=true][aria-posinset='3']").wait_for()
        shown = page.locator(".facts").inner_text()
        failed: list[str] = []

        def fail_once(route: Any) -> None:
            failed.append(route.request.url)
            (route.abort if len(failed) == 1 else route.continue_)()

        page.route(
            "**/data/0/*/index", fail_once
        )  # a renewal that fails in its middle changes nothing, and is tried again
        page.locator("#outcomes .plot svg").first.wait_for()  # what is drawn is drawn again
        page.locator("#outcomes button").last.focus()
        write_log(going, "spag-1", repeated(list(read_log(runs / "a" / "episodes" / "spag-2.log")), 70))
        write_metrics(going / "metrics.jsonl", measurements())
        (going / "config.yaml").touch()
        expect(count).to_have_text("12 of 86 games")
        assert len(failed) >= 2
        expect(page.locator("#outcomes button").last).to_be_focused()
        assert page.locator(".facts").inner_text() == shown, "the game that is read stays"
        page.locator(".row[aria-selected=true][aria-posinset='3']").wait_for()
        page.locator("#list").focus()
        page.keyboard.press("j")
        page.keyboard.press("k")
        expect(page.locator(".facts")).to_have_text(shown)  # its turns are those of the new reading
        expert = list(read_log(going / "episodes" / "expert.log"))
        assert [each.inner_text() for each in page.locator(".bubble").all()] == [turn.text for turn in expert[2].turns]
        assert page.locator("#filter-stage").evaluate("select => select.selectedOptions[0].text") == "expert"
        expect(page.locator("#learning")).to_contain_text("KL")
        page.locator("#plot-curve").scroll_into_view_if_needed()
        page.get_by_label("Curve", exact=True).select_option("step/loss/self_play")
        assert len(saved(page, "#curves")) == 7

        with (going / "metrics.jsonl").open("a") as file:
            line = measurements()[-2] | {"step": 7, "loss": 0.5}
            file.write(json.dumps(line | {"time": line["time"] + 60}) + "\n")
        expect(page.locator("#plot-curve path.point")).to_have_count(0)  # a line
        page.locator("#live", has_text="live").wait_for()
        (going / "ended.json").write_text('{"ended": "stopped", "reason": "Ctrl-C"}')
        expect(live).to_have_text("stopped: Ctrl-C")
        expect(page.locator(".state")).to_contain_text("Stopped: Ctrl-C")
        assert [row for row in saved(page, "#curves") if row.endswith(",0.5,")] == ["going,13,0.5,"]


def test_ten_thousand_games_are_searched_and_each_has_an_address(browser: Any, runs: Path, several: str) -> None:
    said = "it is ` river"
    expert = list(read_log(runs / "large" / "episodes" / "expert.log"))
    found = sum(any(said in turn.text for turn in game.turns) for game in expert)
    assert 1 < found < len(expert)
    with opened(browser, several, "?run=2") as page:
        assert page.locator("#count").inner_text() == "10,000 games"
        page.get_by_label("Said in a turn").fill(f"I know the word ! {said}")
        page.locator("#count", has_text=" of 10,000 games").wait_for()
        assert page.locator("#count").inner_text() == f"{found} of 10,000 games"
        expect(page.locator(".turns")).to_contain_text(said)
        page.locator(".row").nth(1).click()
        page.locator(".row[aria-selected=true][aria-posinset='2']").wait_for()
        facts, address = page.locator(".facts").inner_text(), page.locator(".steps a").get_attribute("href")
        page.get_by_role("button", name="Clear").click()
        expect(page.locator("#count")).to_have_text("10,000 games")
    with opened(browser, several, f"?run=2{address}") as page:
        assert page.locator(".facts").inner_text() == facts
        expect(page.locator("#game")).to_be_in_viewport()
        page.evaluate("location.hash = '#game=spag-2/9000'")
        expect(page.locator(".facts")).to_contain_text("spag-2, game 9000:")


def test_text_of_players_and_names_stays_text(browser: Any, several: str) -> None:
    with opened(browser, several) as page:
        page.get_by_label("Word", exact=True).fill("</script>")
        expect(page.locator("#count")).to_have_text("1 of 121 games")
        assert page.locator(".row b").text_content() == HOSTILE
        assert page.locator("img").count() == 0


def test_what_cannot_be_asked_is_refused(several: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    def answer(path: str, **headers: str) -> tuple[int, str]:
        try:
            with urlopen(Request(several + path, headers=headers), timeout=20) as found:
                return found.status, found.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    assert answer("?run=7") == (404, '{"error":"no run 7: there are 3"}')
    assert answer("?run=x")[0] == 400
    assert answer("data/0/99/index")[0] == 404
    assert answer("api/state", Host="evil.example")[0] == 403
    assert answer("api/state", Origin="http://evil.example")[0] == 403
    stamp = json.loads(answer("api/state")[1])["stamp"]
    assert answer(f"data/0/{stamp}/index")[0] == 200
    assert answer(f"data/0/{stamp}/nothing")[0] == 404
    assert answer("docs")[0] == 404
