"""The report in a real browser: it opens fast, draws, filters, pages, asks nothing of the network, and runs no text."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from rich.console import Console

from cluster.commands.report import decoder
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.results.report.packing import BLOCK_GAMES
from spag_ray.results.report.page import write_report
from spag_ray.stages import order_of
from tests.support.browser import chromium
from tests.support.browser import opened as browser_page
from tests.support.kuhn_runs import make_kuhn_run
from tests.support.report_runs import HOSTILE, hostile_episode, make_run, repeated, write_log

DESKTOP = {"width": 1280, "height": 900}
TIMEOUT_MS = 20_000
LARGE = 10_000
OPENS_WITHIN_S = 2.0
EMOJI = "\U0001f600\U0001f600 the tiger, you know"


@dataclass(frozen=True)
class Reports:
    """Two pages, and the games on the small one in their order."""

    small: Path
    large: Path
    episodes: list[Episode]


@pytest.fixture(scope="module")
def reports(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    folder = tmp_path_factory.mktemp("pages")
    small, large = folder / "small", folder / "large"
    make_run(small, tiny_model, words)
    write_log(small, "spag-1", [hostile_episode(100), emoji_episode(101)])
    shutil.copytree(small, large)
    write_log(large, "spag-2", repeated(list(read_log(small / "episodes" / "spag-2.log")), LARGE - 122))
    for run in (small, large):
        write_report(run, run / "report.html", decoder(run, Console(quiet=True)))
    logs = sorted((small / "episodes").glob("*.log"), key=lambda path: order_of(path.stem))
    return Reports(small / "report.html", large / "report.html", [each for log in logs for each in read_log(log)])


def emoji_episode(number: int) -> Episode:
    """What decided stands behind characters that are two units of JavaScript's strings each."""
    episode = hostile_episode(number)
    turns = (episode.turns[0], replace(episode.turns[1], text=EMOJI))
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, 2, "the defender said 'tiger'", 1, (7, 12))
    return replace(episode, turns=turns, verdict=verdict, scenario="tiger")


@pytest.fixture(scope="module")
def browser(reports: Reports) -> Iterator[Any]:
    """Chromium. It starts after games were played: Playwright keeps an event loop in this thread."""
    with chromium(TIMEOUT_MS) as started:
        yield started


def opened(browser: Any, path: Path, **options: Any) -> AbstractContextManager[Any]:
    """Nothing but the page itself may be asked for."""
    with_defaults = {"viewport": DESKTOP, "timeout_ms": TIMEOUT_MS, **options}
    return browser_page(browser, path.as_uri(), only=path.as_uri(), **with_defaults)


def draw_all(page: Any) -> None:
    """Every chart comes into view once."""
    for plot in page.locator(".plot").all():
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()


def rows_of(page: Any) -> list[str]:
    return [row.inner_text() for row in page.locator(".row").all()]


def go_to_first(page: Any) -> None:
    """The page opens another game."""
    page.locator("#list").focus()
    page.keyboard.press("Home")


def count_of(page: Any) -> str:
    return page.locator("#count").inner_text()


SHOWN = """game => ({
    turns: [...game.querySelectorAll(".bubble")].map(bubble => bubble.textContent),
    word: game.querySelector("h3").textContent,
    ruling: game.querySelector(".ruling").textContent,
    marked: [...game.querySelectorAll(".turn.decides mark")].map(mark => mark.textContent),
})"""


def shows(page: Any, episode: Episode) -> None:
    """All of a game, and of its deciding turn the words that decided."""
    expect(page.locator(".facts")).to_contain_text(f"{episode.stage}, game {episode.number}:")
    shown, verdict = page.locator("#game").evaluate(SHOWN), episode.verdict
    assert shown["turns"] == [turn.text or "says nothing" for turn in episode.turns]
    assert shown["word"] == episode.scenario
    assert verdict.reason in shown["ruling"]
    if verdict.turn is None or verdict.span is None:
        assert shown["marked"] == []
    else:
        assert shown["marked"] == [episode.turns[verdict.turn].text[slice(*verdict.span)]]


def test_every_chart_is_drawn_in_both_themes(browser: Any, reports: Reports) -> None:
    with opened(browser, reports.small, color_scheme="light") as page:
        draw_all(page)
        names = {plot.get_attribute("id").removeprefix("plot-") for plot in page.locator(".plot").all()}
        assert {"outcomes-trained", "outcomes-held-out", "imitation-loss", "kl", "matrix", "throughput"} <= names
        for plot in page.locator(".plot").all():
            assert plot.locator(".trace, .heatmaplayer image").count() > 0, plot.get_attribute("id")
            assert plot.get_attribute("role") == "img"
            assert plot.get_attribute("aria-label")
        bar = "#plot-outcomes-trained .trace .point path"
        light = page.locator(bar).first.evaluate("bar => getComputedStyle(bar).fill")
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        expect(page.locator(bar).first).not_to_have_css("fill", light)
        page.reload()
        page.wait_for_selector("html[data-ready][data-theme=dark]")  # kept


def test_the_theme_is_the_systems_until_one_is_chosen(browser: Any, reports: Reports) -> None:
    with opened(browser, reports.small, color_scheme="dark") as page:
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.emulate_media(color_scheme="light")
        page.wait_for_selector("html[data-theme=light]")


def test_it_opens_a_game_of_the_newest_stage_that_one_side_won(browser: Any, reports: Reports) -> None:
    newest = [game for game in reports.episodes if game.stage == "eval-spag-2"]
    decisive = next(game for game in newest if game.verdict.outcome.is_decided and all(t.text for t in game.turns))
    with opened(browser, reports.small) as page:
        shows(page, decisive)
        page.locator("#list").scroll_into_view_if_needed()
        expect(page.locator(".row[aria-selected=true]")).to_be_in_viewport()


def test_each_filter_leaves_the_games_that_it_names(browser: Any, reports: Reports) -> None:
    def number_of(passes: Any) -> str:
        return f"{sum(map(passes, reports.episodes))} of 122 games"

    with opened(browser, reports.small) as page:
        assert count_of(page) == "122 games"
        stage, outcome, seat = (page.get_by_label(name, exact=True) for name in ("Stage", "Outcome", "Seat"))
        word, clear = page.get_by_label("Word", exact=True), page.get_by_role("button", name="Clear")
        for name in ("expert", "eval-spag-2"):
            stage.select_option(label=name)
            assert count_of(page) == number_of(lambda game, name=name: game.stage == name)
            assert all(name in row for row in rows_of(page))
        stage.select_option(label="any")
        for result in Outcome:
            outcome.select_option(label=str(result))
            assert count_of(page) == number_of(lambda game, result=result: game.verdict.outcome is result)
        outcome.select_option(label="any")
        for value, winner in (("won:0", Role.ATTACKER), ("won:1", Role.DEFENDER), ("won:-1", None)):
            seat.select_option(value)
            assert count_of(page) == number_of(lambda game, winner=winner: game.verdict.outcome.winner is winner)
        seat.locator('optgroup[label="Attacker\'s seat"] option', has_text="scripted").wait_for(state="attached")
        seat.select_option(label="scripted")
        assert count_of(page) == number_of(lambda game: game.turns[0].policy == "scripted")
        seat.select_option(label="any")
        word.fill("TIG")
        assert count_of(page) == number_of(lambda game: "tig" in game.scenario.lower())
        stage.select_option(label="expert")
        assert count_of(page) == "4 of 122 games"
        word.fill("no such word")
        assert count_of(page) == "0 of 122 games"
        assert rows_of(page) == []
        assert "No game passes" in page.locator("#game").inner_text()
        clear.click()
        expect(page.locator("#count")).to_have_text("122 games")


def test_every_game_can_be_come_to_by_keys(browser: Any, reports: Reports) -> None:
    with opened(browser, reports.small) as page:
        go_to_first(page)
        shows(page, reports.episodes[0])
        page.keyboard.press("j")
        shows(page, reports.episodes[1])
        page.keyboard.press("k")
        page.keyboard.press("k")  # there is none before the first
        shows(page, reports.episodes[0])
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "filter-word"
        page.keyboard.type("jk")  # letters of a word there
        assert page.locator("#filter-word").input_value() == "jk"
        page.locator("#filter-word").fill("")
        page.keyboard.press("Escape")
        assert page.evaluate("document.activeElement.id") == "list"
        page.keyboard.press("ArrowDown")
        shows(page, reports.episodes[1])
        page.keyboard.press("End")
        shows(page, reports.episodes[-1])
        assert page.locator(".row[aria-selected=true]").get_attribute("aria-posinset") == "122"
        assert page.locator("#list").get_attribute("aria-activedescendant") == "row-121"
        page.keyboard.press("Home")
        for place in range(BLOCK_GAMES + 2):  # over the border of a block
            if place % 8 == 0 or place >= BLOCK_GAMES - 1:
                shows(page, reports.episodes[place])
            page.get_by_role("button", name="Next game").click()


def test_the_chosen_game_stays_chosen_when_the_filter_still_passes_it(browser: Any, reports: Reports) -> None:
    place = next(n for n, game in enumerate(reports.episodes) if game.stage == "spag-2")
    with opened(browser, reports.small) as page:
        go_to_first(page)
        for _ in range(place):
            page.keyboard.press("j")
        shows(page, reports.episodes[place])
        page.get_by_label("Stage", exact=True).select_option(label="spag-2")
        shows(page, reports.episodes[place])
        page.get_by_label("Stage", exact=True).select_option(label="expert")
        shows(page, next(game for game in reports.episodes if game.stage == "expert"))


def test_text_of_players_stays_text(browser: Any, reports: Reports) -> None:
    with opened(browser, reports.small) as page:
        page.get_by_label("Word", exact=True).fill("</script>")
        assert count_of(page) == "1 of 122 games"
        shows(page, next(game for game in reports.episodes if game.number == 100))
        assert page.locator(".row b").text_content() == HOSTILE
        assert page.locator(".turn mark").text_content() == HOSTILE
        assert page.locator("img").count() == 0
        page.wait_for_timeout(200)  # an alert would have come


def test_what_decided_is_marked_behind_characters_of_two_units(browser: Any, reports: Reports) -> None:
    with opened(browser, reports.small) as page:
        page.get_by_label("Stage", exact=True).select_option(label="spag-1")
        page.locator("#list").focus()
        page.keyboard.press("End")
        shows(page, next(game for game in reports.episodes if game.number == 101))
        assert page.locator(".turn mark").text_content() == "tiger"


def test_each_token_has_the_shade_of_its_surprise(browser: Any, reports: Reports) -> None:
    episode = next(game for game in reports.episodes if game.stage == "spag-2")
    with opened(browser, reports.small) as page:
        page.get_by_label("Stage", exact=True).select_option(label="spag-2")
        shows(page, episode)
        tokens = page.locator(".turn").first.evaluate(
            "turn => [...turn.querySelectorAll('.token')].map(t => [t.title, t.style.getPropertyValue('--shade')])"
        )
        shades = [float(shade) for _, shade in tokens]
        numbers = [-float(title.split("\u2212")[1]) for title, _ in tokens]
        wanted = episode.turns[0].logprobs
        assert len(numbers) > 3
        assert all(min(abs(number - each) for each in wanted) < 0.03 for number in numbers)
        by_surprise = [shade for _, shade in sorted(zip(numbers, shades, strict=True), reverse=True)]
        assert by_surprise == sorted(by_surprise)
        assert len(set(shades)) > 3


def test_another_game_is_shown_with_its_own_names(browser: Any, tmp_path: Path) -> None:
    folder = make_kuhn_run(tmp_path / "kuhn")
    write_report(folder, folder / "report.html")
    with opened(browser, folder / "report.html") as page:
        draw_all(page)
        names = {plot.get_attribute("id").removeprefix("plot-") for plot in page.locator(".plot").all()}
        assert {"outcomes-trained", "payoffs", "matrix", "nash-conv", "illegal", "bluffs"} <= names
        assert page.locator("#known").count() == 0
        assert page.locator("#game").get_attribute("aria-label") == "Game on the scenario KJ: first wins"
        assert [who.inner_text() for who in page.locator(".who b").all()] == ["first", "second"]
        assert page.locator(".ruling").inner_text() == "Ruling: first wins; fold, King against Jack."
        assert "referee" not in page.locator(".facts").inner_text()
        page.get_by_label("Outcome", exact=True).select_option(label="second breaks the rules")
        assert count_of(page) == "3 of 15 games"
        page.get_by_role("button", name="Clear").click()
        expect(page.locator("#count")).to_have_text("15 games")
        page.get_by_label("Seat", exact=True).select_option(label="second")
        assert count_of(page) == "3 of 15 games"
        page.get_by_label("Scenario", exact=True).fill("qk")
        assert count_of(page) == "3 of 15 games"


@pytest.mark.parametrize("width", [390, 360])
def test_nothing_is_wider_than_a_phone(browser: Any, reports: Reports, width: int) -> None:
    with opened(browser, reports.small, viewport={"width": width, "height": 800}, has_touch=True) as page:
        draw_all(page)
        page.get_by_label("Word", exact=True).fill("</script>")  # a long word without a space
        place = next(place for place, game in enumerate(reports.episodes) if game.number == 100)
        shows(page, reports.episodes[place])
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.get_by_role("button", name="Clear").tap()
        page.get_by_role("button", name="Next game").tap()
        shows(page, reports.episodes[place + 1])


def test_ten_thousand_games_open_at_once_and_stay_in_hand(browser: Any, reports: Reports) -> None:
    """From the start of navigation to the page's own mark that the first game is shown and the list can be used."""
    times = []
    for _ in range(3):
        with opened(browser, reports.large) as page:
            times.append(page.evaluate("performance.getEntriesByName('report-ready')[0].startTime") / 1000)
            assert count_of(page) == "10,000 games"
            assert page.locator(".row").count() < 40
            page.locator("#list").focus()
            page.keyboard.press("End")
            page.wait_for_selector(".row[aria-posinset='10000'][aria-selected=true]")
            filtering = page.evaluate(
                """() => {
                    const began = performance.now();
                    const word = document.getElementById("filter-word");
                    word.value = "tig";
                    word.dispatchEvent(new Event("input", { bubbles: true }));
                    return performance.now() - began;
                }"""
            )
            assert page.locator(".row").count() < 40
            assert filtering < 200
    print(f"\n{LARGE:,} games, {reports.large.stat().st_size / 1e6:.1f} MB: ready after {sorted(times)} s")
    assert min(times) < OPENS_WITHIN_S
