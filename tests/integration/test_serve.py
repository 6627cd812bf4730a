"""`spag-ray serve` as a person meets it: a real server, a real model in its own process, a real browser."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import expect

from actors.engine_process import EngineProcess
from spag_ray.config.engine import EngineConfig
from spag_ray.config.loading import write_config
from spag_ray.episodes.log import read_log
from tests.support.browser import chromium, server_of
from tests.support.browser import opened as browser_page
from tests.support.runs import tiny_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)
TIMEOUT_MS = 40_000
HOSTILE = "</script><img src=x onerror=alert(1)><b>river</b>"


@dataclass
class Served:
    address: str
    process: subprocess.Popen[str]
    kept: Path
    model: Path
    run: Path

    def engines(self) -> list[psutil.Process]:
        """The processes of models."""
        children = psutil.Process(self.process.pid).children()
        return [each for each in children if "spawn_main" in " ".join(each.cmdline())]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "spag_ray", "serve", *map(str, arguments), "--no-browser"]


@pytest.fixture(scope="module")
def served(
    tiny_model: Path, other_tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A run of two stages."""
    folder = tmp_path_factory.mktemp("served")
    run = folder / "run"
    for name, model in (("imitated", other_tiny_model), ("spag-1", tiny_model)):
        shutil.copytree(model, run / "models" / name)
    write_config(run / "config.yaml", tiny_run(tiny_model, words, game={"max_turns": 2}, prompts="chat"))
    arguments = command(run, "--port", "0", "--keep", folder / "kept")
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("serving "):
            break
    assert said, "it ended"
    assert said[-1].startswith("serving http://127.0.0.1:"), said
    rest = threading.Thread(target=process.stdout.read, daemon=True)
    rest.start()
    yield Served(said[-1].split()[1], process, folder / "kept", tiny_model, run)
    engines = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.wait(20)
    assert process.returncode == 0
    assert psutil.wait_procs(engines, timeout=10)[1] == []


@pytest.fixture(scope="module")
def browser(served: Served) -> Iterator[Any]:
    with chromium(TIMEOUT_MS) as started:
        yield started


def opened(browser: Any, served: Served, **options: Any) -> AbstractContextManager[Any]:
    with_defaults = {"viewport": {"width": 1100, "height": 800}, "timeout_ms": TIMEOUT_MS, **options}
    return browser_page(browser, served.address, only=served.address, shorten=server_of, **with_defaults)


def begin(page: Any, seat: int, stage: str = "spag-1", word: str = "") -> None:
    page.locator(f"input[name=seat][value='{seat}']").check()
    page.get_by_label("Opponent").select_option(stage)
    if word:
        page.get_by_label("Word", exact=True).fill(word)
    page.get_by_role("button", name="Start").click()


def is_over(page: Any) -> bool:
    """When it is the person's turn, or the game has ended."""
    page.locator("#speak:not([hidden]), #over:not([hidden])").wait_for()
    return bool(page.locator("#over").is_visible())


def say(page: Any, text: str) -> None:
    """By keys alone: the field has the focus already."""
    assert page.evaluate("document.activeElement.id") == "text"
    number = page.locator(".turn").count()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.locator(".turn").nth(number).locator(".bubble")).to_have_text(" ".join(text.split()))


def test_a_whole_game_as_the_one_who_knows_the_word(browser: Any, served: Served) -> None:
    with opened(browser, served, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        begin(page, 0, word="castle")
        expect(page.locator("#table-title")).to_have_text("castle")
        while not is_over(page):
            say(page, "king old big")
        expect(page.locator("#looks")).to_be_hidden()
        assert page.locator("#result").inner_text() in ("You win", "You lose", "A tie")
        assert page.locator("#ruling").inner_text().startswith("Referee: ")
        assert page.locator("#legend mark").is_visible() == (page.locator(".turn mark").count() > 0)
        tokens = page.locator(".turn").first.locator(".token").all()
        titles = [token.get_attribute("title") for token in tokens]
        assert all(title and title.startswith("log-probability \u2212") for title in titles)
        page.reload()
        page.wait_for_selector("html[data-ready]")
        expect(page.locator("#over")).to_be_visible()
        page.get_by_role("button", name="Play again").click()
        expect(page.locator("#setup")).to_be_visible()


def test_a_whole_game_as_the_one_who_guesses_it_and_the_game_is_kept(browser: Any, served: Served) -> None:
    log = served.kept / "episodes" / "visit.log"
    for _ in range(6):  # the word is drawn, and the model may break the rules at once
        with opened(browser, served) as page:
            begin(page, 1)
            expect(page.locator("#table-title")).to_have_text("A hidden word")
            while not is_over(page):
                number = page.locator(".turn").count()
                page.get_by_role("button", name="I know the word").click()
                page.keyboard.type("tiger")
                page.keyboard.press("Enter")
                expect(page.locator(".turn").nth(number)).to_be_visible()  # else the field is still there to be clicked
            expect(page.locator("#looks")).to_be_hidden()
            turns, word = page.locator(".bubble").all_inner_texts(), page.locator("#table-title").inner_text()
            if len(turns) < 2:
                continue
            assert turns[1] == "I know the word! It is `tiger`"
            assert page.locator(".turn").nth(1).locator("mark").inner_text() == turns[1]
            assert page.locator("#result").inner_text() == ("You win" if word == "tiger" else "You lose")
            assert "Had the model sat in your seat" in page.locator("#known figcaption").inner_text()
            assert page.locator("#known circle").count() == 1
            assert not log.exists() or list(read_log(log)) == [], "it was not asked yet"
            page.get_by_label("This game may be kept").check()
            expect(page.locator("#keep-says")).to_contain_text("is kept")
            (episode,) = read_log(log)
            assert episode.scenario == word
            assert [turn.policy for turn in episode.turns] == ["spag-1", "person"]
            return
    raise AssertionError("the model never let the person speak")


def test_text_of_players_stays_text_and_what_decided_is_marked(browser: Any, served: Served) -> None:
    with opened(browser, served) as page:
        begin(page, 0, word="river")
        is_over(page)
        say(page, HOSTILE)
        expect(page.locator("#looks")).to_be_hidden()
        assert page.locator(".turn mark").inner_text() == "river"
        assert page.locator(".bubble").inner_text() == HOSTILE
        assert page.locator("main img, .bubble b").count() == 0
        page.wait_for_timeout(200)  # an alert would have come


def test_two_persons_play_at_once(browser: Any, served: Served) -> None:
    with opened(browser, served) as one, opened(browser, served) as other:
        begin(one, 0, word="castle")
        begin(other, 0, word="piano")
        for page in (one, other):
            is_over(page)
        say(one, "king")
        say(other, "music")
        while not (is_over(one) and is_over(other)):
            for page, text in ((one, "old"), (other, "talk")):
                if not is_over(page):
                    say(page, text)
        assert one.locator(".bubble").first.inner_text() == "king"
        assert other.locator(".bubble").first.inner_text() == "music"


def test_a_model_that_dies_gets_a_message_and_can_be_asked_again(browser: Any, served: Served) -> None:
    with opened(browser, served) as page:
        begin(page, 0, word="castle")
        is_over(page)
        engines = served.engines()
        assert engines
        for engine in engines:
            engine.kill()
        psutil.wait_procs(engines, timeout=10)
        say(page, "big and old")
        expect(page.locator("#fault-says")).to_contain_text("spag-1 did not answer: the process of spag-1 has ended")
        page.get_by_role("button", name="Ask again").click()
        expect(page.locator("#fault")).to_be_hidden()
        is_over(page)
        assert page.locator(".turn").count() > 1


def test_nothing_is_wider_than_a_phone_and_the_theme_can_be_changed(browser: Any, served: Served) -> None:
    with opened(browser, served, viewport={"width": 360, "height": 740}, color_scheme="light") as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.get_by_role("button", name="Show in dark colours").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        begin(page, 0, word="river")
        is_over(page)
        say(page, "river" + "a" * 300)
        is_over(page)
        assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_what_cannot_be_served_is_refused_in_one_line(served: Served, tmp_path: Path) -> None:
    """In one process, because most of a command's time is its imports."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        model = [str(served.model), "--words", str(served.run / "nothing.txt")]
        cases = [
            ([str(tmp_path / "nothing")], "no such model folder"),
            ([str(tmp_path)], "neither a run (it has no config.yaml) nor a model"),
            ([str(served.run), "--stage", "spag-9"], "has no such stage; it has base, imitated, spag-1"),
            ([str(served.model), "--stage", "spag-1"], "is a model, not the folder of a run"),
            ([str(served.run), "--port", port], f"--port {port} on 127.0.0.1: Address already in use; choose another"),
            ([str(served.run), "--host", "0.0.0.0"], "add --allow-network: a token is then needed"),
            ([str(served.run), "--keep", str(served.kept)], f"{served.kept}"),
            (model, "cannot read the word list"),
        ]
        code = "import sys\nfrom cluster.cli import app, run_guarded\n"
        code += f"for arguments in {[arguments for arguments, _ in cases]}:\n"
        code += "    print(run_guarded(lambda **options: app(['serve', *arguments, '--no-browser'], **options)), "
        code += "file=sys.stderr)\n"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    lines = done.stderr.splitlines()
    lines = [line for line in lines if line.startswith("spag-ray: ") or line == "2"]
    assert len(lines) == 2 * len(cases), done.stderr
    for (_, why), line, code_line in zip(cases, lines[::2], lines[1::2], strict=True):
        assert why in line
        assert code_line == "2"


def test_sigterm_ends_the_models_and_gives_the_folder_of_kept_games_back(served: Served, tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(served.run, "--port", "0", "--keep", tmp_path / "kept"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            break
    children = psutil.Process(process.pid).children()
    engines = [each for each in children if "spawn_main" in " ".join(each.cmdline())]
    assert engines
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "stopped\n"
    assert process.wait(20) == 0
    assert psutil.wait_procs(engines, timeout=1)[1] == [], "they were ended, not left to end with it"
    assert any('"is_released": true' in beat.read_text() for beat in (tmp_path / "kept" / "lease").glob("*.beat"))


@pytest.mark.long  # a server of its own
def test_the_model_ends_with_a_server_that_is_killed(served: Served) -> None:
    process = subprocess.Popen(
        command(served.run, "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            break
    engines = psutil.Process(process.pid).children(recursive=True)
    assert engines
    process.kill()
    process.wait()
    wait_until(lambda: all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in engines), 10)


def test_a_process_of_a_model_that_is_stopped_can_still_be_ended(tiny_model: Path, loop: Any) -> None:
    engine = loop.run(EngineProcess.start(str(tiny_model), EngineConfig(kind="transformers", dtype="float32"), "tiny"))
    children = [each for each in psutil.Process().children() if each.status() != psutil.STATUS_ZOMBIE]
    (process,) = (each for each in children if "spawn_main" in " ".join(each.cmdline()))
    process.suspend()
    loop.run(asyncio.wait_for(engine.close(), 30))
    assert not process.is_running()
