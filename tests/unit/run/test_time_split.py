"""Where an iteration's time goes: what the loop waits for, each second once."""

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.run.parts import RunParts
from cluster.run.training_verbs import Trainer
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.loading import parse_config
from spag_ray.results.curves import Curves
from spag_ray.results.lines import IterationLine
from spag_ray.stages import Stage


class Clock:
    """Stands still until somebody waits."""

    now = 5.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


def test_a_phase_inside_another_takes_its_time_from_that() -> None:
    clock = Clock()
    split = TimeSplit(clock)
    with split.phase("train"):
        clock.wait(2)
        with split.phase("score"):
            clock.wait(3)
        with split.phase("checkpoint"):
            clock.wait(4)
        clock.wait(1)
    clock.wait(0.5)
    assert split.taken() == (10.5, {"train": 3.0, "score": 3.0, "checkpoint": 4.0})


def test_a_phase_that_fails_has_ended() -> None:
    clock = Clock()
    split = TimeSplit(clock)

    def save() -> None:
        with split.phase("checkpoint"):
            clock.wait(2)
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        save()
    clock.wait(3)
    with split.phase("generate"):
        clock.wait(1)
    assert split.taken() == (6.0, {"checkpoint": 2.0, "generate": 1.0})


def test_weights_for_an_engine_that_joins_are_no_wait_for_games() -> None:
    clock = Clock()
    split = TimeSplit(clock)
    silent: Any = SimpleNamespace(check_stop=int, tasks=SimpleNamespace(check=int), check=int, sample=int, damage={})
    silent.get, silent.handle = lambda _: silent, SimpleNamespace(health=SimpleNamespace(remote=int))
    silent.is_restarted = False
    publisher: Any = SimpleNamespace(admit=lambda: clock.wait(2))
    ground: Any = SimpleNamespace(buffer_metrics=silent, split=split)
    parts = RunParts.__new__(RunParts)
    parts.control = parts.fleet = parts.watch = parts.buffer = silent
    parts.policies, parts.publisher, parts.ground = [], publisher, ground
    with split.phase("generate"):
        clock.wait(1)
        parts.poll_health()
    assert split.taken() == (3.0, {"generate": 1.0, "sync": 2.0})


def test_the_line_of_an_iteration_has_what_occurred_in_it_and_the_learners_idle_time() -> None:
    clock = Clock()
    split = TimeSplit(clock)
    lines: list[IterationLine] = []
    recorder = SimpleNamespace(record=lines.append, num_steps=12)
    meter = SimpleNamespace(take=lambda *_: None, idle_share=lambda: 0.4)
    ground = SimpleNamespace(split=split, version=3, meter=meter)
    parts: Any = SimpleNamespace(config=parse_config({}), samples=None, recorder=recorder, ground=ground)
    trainer = Trainer(parts, recovery=None)  # type: ignore[arg-type]
    clock.wait(100)  # before the iteration
    with trainer.iteration(Stage.of_round(2)):
        with split.phase("generate"):
            clock.wait(6)
        with split.phase("train"):
            clock.wait(3)
        clock.wait(0.5)
        with split.phase("sync"):
            clock.wait(1)
    (line,) = lines
    assert line == IterationLine(
        "spag-2", 3, 12, 10.5, generate_s=6.0, train_s=3.0, sync_s=1.0, engines_idle_s=4.2, learner_idle_s=6.5
    )
    assert "evaluate_s" in line.values(), "nothing was evaluated, which took 0 s: gauges keep no older time"
    with pytest.raises(OSError, match="lost"), trainer.iteration(Stage.of_round(3)):
        raise OSError("lost")
    assert len(lines) == 1


def test_iterations_are_drawn_over_optimiser_steps_with_their_version() -> None:
    points = Curves().points(5.0, IterationLine("spag-2", 3, 12, 10.5, train_s=3.0))
    assert points is not None
    assert (points.axis, points.x) == ("optimiser_step", 12)
    there = {name: value for name, value in points.values.items() if value}
    assert there == {"iteration/version": 3.0, "iteration/seconds": 10.5, "iteration/train_s": 3.0}


@pytest.mark.parametrize("schedule", ["rounds", "stream"])
def test_a_streams_engines_have_a_line_a_version_those_of_rounds_one_a_stage(schedule: str) -> None:
    asked: list[object] = []
    meter = SimpleNamespace(take=lambda stage=None, version=0: asked.append(stage), idle_share=lambda: None)
    recorder = SimpleNamespace(record=lambda line: None, num_steps=1)
    ground = SimpleNamespace(split=TimeSplit(Clock()), version=3, meter=meter)
    config = parse_config({"schedule": schedule, "self_play": {"games_per_round": 64}})
    parts: Any = SimpleNamespace(config=config, samples=None, recorder=recorder, ground=ground)
    with Trainer(parts, recovery=None).iteration(Stage.of_round(1)):  # type: ignore[arg-type]
        assert asked == [None], "what was before does not count"
    assert asked[1:] == ["spag-1" if schedule == "stream" else None], "play_round measures stages (test_playground.py)"
