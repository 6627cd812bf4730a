"""How a start goes: learners start beside the engines, and what becomes of the start if one of them fails."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.fleet.publisher import Publisher
from cluster.monitor.progress import ProgressLine, describe
from cluster.monitor.status_board import StatusBoard
from cluster.rollout.engine_actor import IMPORTING, STARTING, slowest
from spag_ray.config.loading import parse_config
from spag_ray.errors import EngineError, LearnerError, LearnersLostError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.game_names import GameNames
from tests.support.waiting import wait_until


class Learning:
    """A policy whose learners start as its `steps` say."""

    says = None

    def __init__(self, prepare: Callable[[], None] = lambda: None, start: Callable[[], None] = lambda: None) -> None:
        self.done: list[str] = []
        self.has_learners = False
        self._steps = {"prepare": prepare, "start": start}

    def place_learners(self) -> None:
        self.done.append("place")

    def prepare_learners(self) -> None:
        self.done.append("prepare")
        self._steps["prepare"]()

    def start_learners(self) -> None:
        if not self.has_learners:
            self.done.append("start")
            self._steps["start"]()
            self.has_learners = True

    def sleep_learners(self) -> None:
        self.done.append("sleep")


def publisher_of(folder: Path, policy: Learning, settings: dict[str, Any]) -> Publisher:
    roster: Any = SimpleNamespace(awake=threading.Event(), records=[], lock=contextlib.nullcontext())
    roster.awake.set()
    tasks = SimpleNamespace(is_stopped=False, check=lambda: None)
    fleet: Any = SimpleNamespace(roster=roster, updating=contextlib.nullcontext(), tasks=tasks)
    config, silent = parse_config(settings), SimpleNamespace()
    publisher = Publisher(config, FolderLease.take(folder), [policy], fleet, silent)  # type: ignore[list-item, arg-type]
    publisher.sleep_engines = lambda: policy.done.append("engines sleep")  # type: ignore[method-assign]
    publisher._wake = lambda part="all": policy.done.append("engines wake")  # type: ignore[method-assign]
    return publisher


@pytest.mark.parametrize(("placement", "then"), [("separate", []), ("colocated", ["sleep", "sleep", "engines wake"])])
def test_learners_start_while_engines_do_also_those_on_a_cpu_that_take_turns_with_them(
    placement: str, then: list[str], tmp_path: Path
) -> None:
    policy = Learning()
    publisher = publisher_of(tmp_path, policy, {"placement": placement})
    with publisher.learners_beside():
        wait_until(lambda: policy.has_learners, 10)
    publisher.start_learners()
    assert policy.done == ["place", "start", *then], "nobody needs their memory yet"


@pytest.mark.parametrize(
    ("placement", "then"), [("colocated", ["engines sleep", "start", "sleep"]), ("separate", ["start"])]
)
def test_learners_take_no_gpu_while_an_engine_on_it_measures_its_memory(
    placement: str, then: list[str], tmp_path: Path
) -> None:
    policy = Learning()
    gpus = {"engine": {"num_gpus": 0.5}, "learner": {"num_gpus": 0.5}}
    publisher = publisher_of(tmp_path, policy, {"placement": placement, **gpus})
    with publisher.learners_beside():
        wait_until(lambda: "prepare" in policy.done, 10)
        time.sleep(0.05)
        assert policy.done == ["place", "prepare"]
    publisher.start_learners()
    assert policy.done[2:5] == then


def test_engines_that_do_not_start_end_the_start_at_once(tmp_path: Path) -> None:
    """The run's end then closes the learners, which ends what the thread waits for."""
    is_closed = threading.Event()

    def wait() -> None:
        is_closed.wait(60)
        raise LearnersLostError("a learner rank is gone")

    publisher = publisher_of(tmp_path, Learning(start=wait), {})
    began = time.monotonic()
    with pytest.raises(EngineError, match="no engine"), publisher.learners_beside():
        raise EngineError("no engine")
    assert time.monotonic() - began < 10
    is_closed.set()


def test_the_error_of_learners_that_do_not_start_is_that_of_the_start(tmp_path: Path) -> None:
    def fail() -> None:
        raise LearnerError("DeepSpeed refuses its configuration")

    policy = Learning(start=fail)
    publisher, has_engines = publisher_of(tmp_path, policy, {}), False
    with pytest.raises(LearnerError, match="DeepSpeed refuses"), publisher.learners_beside():
        has_engines = True
    assert has_engines


def test_the_display_says_what_each_part_waits_for_and_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    board = StatusBoard(lambda: 0, GameNames())
    board.set_status("starting engines and learner")
    board.waits_for("learner", "importing")
    board.waits_for("engine-policy-0", "importing")
    now += 12
    board.waits_for("engine-policy-0", "loading the model")
    board.waits_for("learner", "importing")
    now += 3
    shown = board.progress(is_paused=False)
    assert describe(shown, 15.0, shown) == (
        "00:15 | starting engines and learner | learner: importing, 15 s | engine-policy-0: loading the model, 3 s | v0"
    )
    board.waits_for("learner", None)
    board.waits_for("nobody", None)
    assert board.progress(is_paused=False).waits == ("engine-policy-0: loading the model, 3 s",)


def test_seconds_of_a_wait_are_no_new_line_of_a_log() -> None:
    lines: list[str] = []
    console: Any = SimpleNamespace(print=lambda text, **_: lines.append(str(text)))
    board, line = StatusBoard(lambda: 0, GameNames()), ProgressLine(console)
    for what in ("importing", "loading the model"):
        board.waits_for("learner", what)
        line.show(board.progress(is_paused=False), None)
    assert len(lines) == 1


def test_engines_that_start_together_are_as_far_as_the_slowest() -> None:
    def at(*phases: str) -> Any:
        return [SimpleNamespace(phase=phase) for phase in phases]

    assert slowest(at("loading the model", STARTING, IMPORTING)) == STARTING
    assert slowest(at("loading the model", IMPORTING)) == IMPORTING
    assert slowest(at("loading the model")) == "loading the model"
