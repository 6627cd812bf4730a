"""What the live view of a run shows."""

from dataclasses import replace

from rich.console import Console

from cluster.monitor.progress import ProgressLine, describe
from cluster.types import Progress
from spag_ray.game.rules import Outcome


def test_outcomes_are_shown_with_the_names_of_the_seats() -> None:
    outcomes = {str(Outcome.DEFENDER_BREACH): 1, str(Outcome.TIED): 1, str(Outcome.ATTACKER_WINS): 2}
    taboo = Progress("spag-1: play", outcomes=outcomes)
    assert "| attacker 50%, defender breach 25%, tie 25% |" in describe(taboo, 1.0, Progress())
    kuhn = replace(taboo, seats=("first", "second"))
    assert "| first 50%, second breach 25%, tie 25% |" in describe(kuhn, 1.0, Progress())


def test_a_note_is_shown_once_and_only_the_last_are_kept() -> None:
    console = Console(record=True, width=100)
    line = ProgressLine(console)
    for notes, num_notes in (((), 0), (("a", "b"), 2), (("a", "b"), 2), (("b", "c"), 3), (("f", "g"), 7)):
        line.show(Progress("play", notes=notes, num_notes=num_notes), None)
    shown = [text for text in console.export_text().splitlines() if len(text) == 1]
    assert shown == ["a", "b", "c", "f", "g"]


def test_what_an_earlier_attempt_has_played_is_no_speed_of_this_one() -> None:
    logged = Progress("spag-2: play", 120, 128, "games", num_tokens=30_000)
    assert "/s" not in describe(logged, 1.0, logged), "nobody knows yet"
    later = replace(logged, done=121, num_tokens=30_050)
    assert "121/128 games | 0.10 games/s | 5 tokens/s | 70 s left" in describe(later, 10.0, logged)
