"""Names of stages: their phase, their place in a run, their title."""

from __future__ import annotations

from spag_ray.stages import PHASES, order_of, phase_of, title_of


def test_phases_stay_few() -> None:
    assert phase_of("match-spag-7-base") == "evaluation" and phase_of("spag-7") == "self_play"
    assert phase_of("whatever") == "other" and "other" not in PHASES


def test_stages_sort_as_a_run_comes_to_them() -> None:
    wanted = ["eval-base", "expert", "eval-imitated", "spag-1", "eval-spag-1", "spag-2", "eval-spag-2", "spag-10"]
    wanted += ["eval-spag-10", "stream", "match-imitated-spag-10", "match-spag-10-imitated", "play"]
    assert sorted(reversed(wanted), key=order_of) == wanted


def test_an_evaluation_is_called_by_its_players() -> None:
    assert [title_of(stage) for stage in ("eval-spag-3", "match-imitated-spag-2", "spag-1")] == [
        "spag-3",
        "imitated v spag-2",
        "spag-1",
    ]
    assert title_of("match-of-my-own") == "match-of-my-own"
