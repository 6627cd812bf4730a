"""Times in which a run did not run: before a resume, however its lines begin, and nowhere else."""

from collections.abc import Sequence

import pytest

from spag_ray.results.lines import EngineStateLine, Line, RestartLine, ResumedLine, SyncLine, SyncReport
from spag_ray.results.metric_lines import Clock


def engine(state: str, before: str) -> EngineStateLine:
    return EngineStateLine("engine-policy-0", "policy", state, before, 0.0, "why")


WORK = SyncLine("policy", SyncReport(1, 1.0, 1, 10))
NEW, BEHIND, PLAYS = engine("starting", ""), engine("behind", "starting"), engine("playing", "behind")
RESUMED = ResumedLine("spag-1", "spag-1-v1", 2)
HOURS = 36_000.0


@pytest.mark.parametrize(
    ("then", "paused_s"),
    [
        ([(HOURS, RESUMED), (HOURS + 1, WORK)], HOURS),
        ([(HOURS, NEW), (HOURS + 20, BEHIND), (HOURS + 25, PLAYS), (HOURS + 26, RESUMED)], HOURS),
        ([(HOURS, NEW), (HOURS + 600, BEHIND), (HOURS + 1200, RESUMED), (HOURS + 1201, WORK)], HOURS),
        ([(HOURS, NEW), (HOURS + 9, BEHIND), (2 * HOURS, NEW), (2 * HOURS + 9, RESUMED)], 2 * HOURS - 9),  # tried twice
        ([(HOURS, NEW), (2 * HOURS, NEW), (2 * HOURS + 9, WORK)], 0.0),
        ([(HOURS, NEW), (HOURS + 20, BEHIND), (HOURS + 25, WORK)], 0.0),  # an engine more, after a long step
        ([(HOURS, WORK)], 0.0),
        ([(HOURS, None)], 0.0),
        ([(HOURS, RestartLine("learners", "stuck", "why")), (HOURS + 600, RESUMED)], 0.0),  # it ran, and was stuck
        ([(10.0, NEW), (700.0, BEHIND), (1400.0, RESUMED)], 0.0),  # stopped and resumed at once; models are large
    ],
)
def test_silence_before_a_resumes_line_is_a_pause(then: Sequence[tuple[float, Line | None]], paused_s: float) -> None:
    clock = Clock()
    for time, line in [(0.0, WORK), *then]:
        clock.take(time, line)
    assert clock.paused_s == paused_s


def test_while_a_resumed_run_starts_its_silence_is_a_pause_already() -> None:
    clock = Clock()
    for time, line in ((0.0, WORK), (HOURS, NEW), (HOURS + 1, BEHIND)):
        clock.take(time, line)
    assert clock.pauses == [(0.0, HOURS)]


def test_every_pause_counts() -> None:
    clock = Clock()
    for begin in (0.0, 2 * HOURS):
        for after, line in ((0.0, WORK), (HOURS, NEW), (HOURS + 9, RESUMED), (2 * HOURS - 9, WORK)):
            clock.take(begin + after, line)
    assert clock.pauses == [(0.0, HOURS), (2 * HOURS, 3 * HOURS)]
