"""A policy that learns: which steps are dumped, when it stops, whose log-probabilities it scores."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.learning_policy import LearningPolicy, Lesson
from cluster.metrics import Metrics
from cluster.run import Run
from spag_ray.config import RunConfig, parse_config
from spag_ray.errors import LearnerError
from spag_ray.game import Role
from spag_ray.samples import GameSample, TurnSample


@dataclass(frozen=True)
class Report:
    step: int
    loss: float
    skipped: bool


class FakeLearners:
    """Counts what it is given; steps named in `bad` have no finite gradient."""

    def __init__(self, bad: set[int]) -> None:
        self.bad = bad
        self.scored: list[str] = []
        self.steps: list[list[GameSample]] = []

    def check(self, turns: list[TurnSample]) -> None:
        assert turns

    def score_games(self, games: list[GameSample], temperature: float) -> list[GameSample]:
        self.scored += [game.episode_id for game in games]
        return [
            replace(game, turns=tuple(replace(turn, reference_logprobs=(-9.0,)) for turn in game.turns))
            for game in games
        ]

    def begin_stage(self, method: str, num_steps: int, learning_rate: float, kl_coeff: float) -> None:
        assert num_steps > 0

    def step(self, games: list[GameSample], sft: list[TurnSample], temperature: float, at_start: bool) -> Report:
        assert at_start == (not self.steps)
        self.steps.append(games)
        bad = len(self.steps) in self.bad
        return Report(len(self.steps), math.nan if bad else 0.5, bad)


def games(count: int) -> list[GameSample]:
    turn = TurnSample((1,), (2,), 1.0, behaviour_logprobs=(-1.0,), role=Role.ATTACKER)
    return [GameSample(f"e/{number}", Role.ATTACKER, 1.0, (turn,)) for number in range(count)]


def learned(tmp_path: Path, bad: set[int], config: RunConfig | None = None, method: str = "self_play") -> FakeLearners:
    policy = LearningPolicy("policy", tuple(Role), config or RunConfig(), tmp_path, "model", Metrics(tmp_path))
    fake: Any = FakeLearners(bad)
    policy.learners = fake
    policy.learn(Lesson("spag-1", method, games(12), [], 2, 1e-6, 0.2), lambda *_: None)
    return fake


def test_a_skipped_step_is_written_down_with_its_episodes_and_the_run_goes_on(tmp_path: Path) -> None:
    fake = learned(tmp_path, bad={2, 4, 5})
    assert len(fake.steps) == 6
    dumps = sorted((tmp_path / "skipped").iterdir())
    assert [path.name for path in dumps] == ["spag-1-00002.json", "spag-1-00004.json", "spag-1-00005.json"]
    assert json.loads(dumps[0].read_text())["episodes"] == ["e/2", "e/3"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines][:2] == [0.5, None]


def test_three_skipped_steps_in_a_row_end_the_run_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"3 steps in a row had no finite gradient \(loss nan\)"):
        learned(tmp_path, bad={2, 3, 4})


def test_the_first_steps_games_are_not_scored_because_the_learner_is_its_own_reference(tmp_path: Path) -> None:
    fake = learned(tmp_path, bad=set())
    assert fake.scored == [f"e/{number}" for number in range(2, 12)]
    assert fake.steps[0][0].turns[0].reference_logprobs is None
    assert fake.steps[1][0].turns[0].reference_logprobs == (-9.0,)


def test_with_reference_engine_nothing_is_scored_in_self_play_and_imitation_still_is(tmp_path: Path) -> None:
    config = parse_config({"learner": {"reference": "engine"}})
    fake = learned(tmp_path, bad=set(), config=config)
    assert fake.scored == [] and fake.steps[0][0].turns[0].reference_logprobs == (-1.0,)
    assert len(learned(tmp_path, bad=set(), config=config, method="imitation").scored) == 10


@pytest.mark.parametrize(
    "channel, taken",
    [
        ("object_store", ["export", "learner sleeps", "engines wake all", "publish", "prove"]),
        (
            "ipc",
            [
                "export",
                "learner sleeps but for its weights",
                "engines wake weights",
                "publish",
                "learner sleeps",
                "engines wake kv_cache",
                "prove",
            ],
        ),
    ],
)
def test_colocated_one_sleeps_while_the_other_works_and_both_hold_weights_only_where_the_channel_needs_it(
    channel: str, taken: list[str], tmp_path: Path
) -> None:
    events: list[str] = []

    def does(name: str) -> Any:
        return lambda *_: events.append(name) or []

    def sleeps(keep_weights: bool = False) -> None:
        events.append("learner sleeps but for its weights" if keep_weights else "learner sleeps")

    policy = SimpleNamespace(
        name="policy", engines=[], waiting=[], version=0,
        **{name: does(name) for name in ("learn", "export", "publish", "prove")},
        wake_learners=does("learner wakes"), sleep_learners=sleeps,
    )  # fmt: skip
    run: Any = object.__new__(Run)
    vars(run).update(
        policies=[policy], takes_turns=True, _show_step=None, folder=tmp_path, arenas=None,
        recovery=SimpleNamespace(note_published=lambda versions: None),
        config=SimpleNamespace(sync=SimpleNamespace(channel=channel)),
        engines=SimpleNamespace(
            lock=threading.RLock(), lost=lambda *_: None, joined=lambda *_: None,
            all=lambda *call: events.append(" ".join(["engines", *call])),
        ),
    )  # fmt: skip
    lesson: Any = None
    run.learn(lesson)
    run.publish()
    assert events == ["engines sleep", "learner wakes", "learn", *taken]
    events.clear()
    run.takes_turns = False
    run.learn(lesson)
    run.publish()
    assert events == ["learn", "export", "publish", "prove"]
