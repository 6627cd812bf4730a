"""What a run is doing now: the last thing that was said of it, and the notes that came meanwhile."""

import pytest

from cluster.monitor.status_board import MAX_NOTES, StatusBoard
from spag_ray.episodes.episode import GameCount
from spag_ray.game.rules import Outcome
from spag_ray.results.game_names import GameNames
from tests.support.episodes import game


def test_the_last_word_counts_with_the_version_of_its_moment() -> None:
    versions = iter([3, 4])
    board = StatusBoard(lambda: next(versions), GameNames())
    assert board.progress(is_paused=False).stage == "starting"
    board.show_steps("spag-1", 2, 9, 0.5)
    steps = board.progress(is_paused=True)
    assert (steps.done, steps.total, steps.unit, steps.loss, steps.version) == (2, 9, "steps", 0.5, 3)
    assert steps.is_paused
    assert steps.seconds > 0
    board.set_status("spag-2")
    after = board.progress(is_paused=False)
    assert (after.stage, after.done, after.loss, after.version) == ("spag-2", 0, None, 4)


def test_games_are_shown_with_how_they_ended() -> None:
    count = GameCount()
    for number, outcome in enumerate((Outcome.TIED, Outcome.TIED, Outcome.ATTACKER_WINS)):
        count.add(game(number, outcome))
    board = StatusBoard(lambda: 0, GameNames())
    board.show_games("spag-1", 8, count)
    shown = board.progress(is_paused=False)
    assert (shown.stage, shown.done, shown.total, shown.num_tokens) == ("spag-1: play", 3, 8, count.num_tokens)
    assert shown.outcomes == {str(Outcome.TIED): 2, str(Outcome.ATTACKER_WINS): 1}
    assert shown.seats == ("attacker", "defender")
    board = StatusBoard(lambda: 0, GameNames("kuhn", ("first", "second")))
    board.show_games("spag-1", 8, count)
    assert board.progress(is_paused=False).seats == ("first", "second")


@pytest.mark.parametrize("count", [0, 2, MAX_NOTES + 7])
def test_the_last_notes_are_kept_and_all_are_counted(count: int) -> None:
    board = StatusBoard(lambda: 0, GameNames())
    for number in range(count):
        board.note(f"note {number}")
    shown = board.progress(is_paused=False)
    assert shown.num_notes == count
    assert len(shown.notes) == min(count, MAX_NOTES)
    assert list(shown.notes) == [f"note {number}" for number in range(count)][-MAX_NOTES:]
