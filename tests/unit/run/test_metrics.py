"""What is measured is one line and, where Ray is, metrics: named as Prometheus wants it, counted right."""

import ast
import json
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.tracking.metric_registry import AT_START, GUESSING_AT_START, METRICS, Metric, rows, updates
from cluster.tracking.recorder import Exporter, Recorder
from spag_ray.game.rules import GAME_ENDS, Outcome, end_of
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.results.game_names import UNKNOWN, GameNames
from spag_ray.results.lines import (
    LINES,
    BufferLine,
    CollapseLine,
    ExploitabilityLine,
    GamesLine,
    Line,
    LogDamageLine,
    RestartLine,
    StepLine,
    StepReport,
    SyncLine,
    SyncReport,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("metric", METRICS, ids=[metric.name for metric in METRICS])
def test_names_and_units_are_as_prometheus_has_them(metric: Metric) -> None:
    assert re.fullmatch(r"spag_ray(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.unit in ("seconds", "bytes", "ratio", "nats"):
        assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}")
    assert metric.unit not in ("ms", "milliseconds", "minutes", "kilobytes", "percent")
    assert metric.help
    assert all(re.fullmatch("[a-z]+", label) for label in metric.labels)
    assert "run" not in metric.labels, "every series has it anyway"
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert all({*labels, "game"} == {*metric.labels, "game"} for labels in metric.at_start), "of every game"


def test_names_are_given_once() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_rows_have_what_they_may_have() -> None:
    for row in rows():
        assert row.kind in ("counter", "counter rare", "counter share", "gauge", "histogram"), row.name
        assert row.lines == "play, stream" or row.lines in LINES, row.name
        assert re.fullmatch(".+ / .+", row.panel), row.name
        assert row.told, row.name
    names = {metric.name.removeprefix("spag_ray_") for metric in METRICS}
    assert {*AT_START, *GUESSING_AT_START} <= names


# The kinds of lines that feed no metric, and why.
NOT_EXPORTED = {
    "samples": "each `step` has what was trained on",
    "opponent": "league.json has the league",
    "reference": "written by a resumed stream, and when a reference moves: where it came from",
}


def recorded_kinds() -> set[str]:
    """Of every line that is made in cluster/."""
    kinds = {line.__name__: kind for kind, line in LINES.items()}
    made = set()
    for path in (ROOT / "cluster").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in kinds:
                    made.add(kinds[name])
    return made


def test_every_kind_of_line_is_exported_or_said_not_to_be() -> None:
    exported = {metric.line for metric in METRICS}
    assert recorded_kinds() == set(LINES) == exported | set(NOT_EXPORTED)
    assert not exported & set(NOT_EXPORTED)


def test_a_step_feeds_every_metric_of_steps() -> None:
    values: dict[str, Any] = dict.fromkeys(StepReport.__dataclass_fields__, 1) | {"skipped": False}
    found = updates(StepLine("spag-3-attacker", "attacker", StepReport(**values)))
    assert {update.metric.name for update in found} == {metric.name for metric in METRICS if metric.line == "step"}
    (steps,) = (update for update in found if update.metric.name == "spag_ray_learner_steps_total")
    assert steps.labels == {"policy": "attacker", "phase": "self_play"}
    assert steps.value == 1
    seats = {update.labels["seat"] for update in found if update.metric.name == "spag_ray_role_weight"}
    assert seats == {"attacker", "defender"}


def test_a_sync_feeds_every_metric_of_syncs() -> None:
    found = updates(SyncLine("policy", SyncReport(3, 0.5, 2, 1000, broken_channels=1)))
    assert {update.metric.name for update in found} == {metric.name for metric in METRICS if metric.line == "sync"}


def test_an_alarm_is_counted_and_its_end_is_not() -> None:
    alarm = CollapseLine("spag-2", "ties", True, 0.9, 0.1, 0.35, "imitated", "mix", 0.25)
    for line, counted, share in ((alarm, 1.0, 0.25), (replace(alarm, is_alarm=False, mix_ratio=0.0), 0.0, 0.0)):
        found = {update.metric.name: (update.labels, update.value) for update in updates(line)}
        assert found == {
            "spag_ray_collapse_alarms_total": ({"figure": "ties"}, counted),
            "spag_ray_mix_ratio": ({}, share),
        }


def test_a_solved_games_figures_are_series_and_its_probabilities_are_not() -> None:
    line = ExploitabilityLine("spag-1", "kuhn", 3, {"0/check": 0.25}, {"nash_conv": 0.5, "value": float("nan")})
    found = [(update.metric.name, update.labels, update.value) for update in updates(line)]
    assert found == [("spag_ray_exploitability", {"game": "kuhn", "figure": "nash_conv"}, 0.5)]


def test_labels_stay_few() -> None:
    (update,) = updates(RestartLine("engine-policy-added-3.2", "crash", "it is gone"))
    assert update.labels == {"part": "engine", "cause": "crash"}


def test_what_is_not_finite_is_left_out() -> None:
    report = StepReport(1, loss=float("inf"), kl=float("nan"), entropy=2.0)
    found = {update.metric.name for update in updates(StepLine("spag-1", "policy", report))}
    assert "spag_ray_entropy_nats" in found
    assert "spag_ray_learner_steps_total" in found
    assert not found & {"spag_ray_loss", "spag_ray_kl_nats", "spag_ray_gradient_norm"}


@pytest.mark.parametrize(("rules", "file"), [("published", "judge.json"), ("strict", "judge_strict.json")])
def test_every_verdict_is_one_of_the_known_ends(rules: str, file: str) -> None:
    games = json.loads((ROOT / "tests" / "golden" / file).read_text(encoding="utf-8"))
    verdicts = [judge(game["history"], game["target_word"], game["max_turns"], rules) for game in games]
    found = {end_of(verdict) for verdict in verdicts}
    assert found <= set(GAME_ENDS)
    assert len(found) > 4
    ties = [verdict for verdict in verdicts if end_of(verdict).result == "tie"]
    assert ties == [verdict for verdict in verdicts if verdict.outcome is Outcome.TIED]


class RaysMetric:
    """Takes what Ray's would take, and keeps it: {labels: value}."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self.values: dict[tuple[str, ...], float] = {}

    def inc(self, value: float, tags: dict[str, str]) -> None:
        assert self._metric.kind == "counter", "Ray refuses 0"
        assert value > 0, "Ray refuses 0"
        self.values[self._series(tags)] = self.values.get(self._series(tags), 0.0) + value

    def set(self, value: float, tags: dict[str, str]) -> None:
        assert self._metric.kind == "gauge"
        self.values[self._series(tags)] = value

    def _series(self, tags: dict[str, str]) -> tuple[str, ...]:
        assert set(tags) == {"run", *self._metric.labels}
        assert all(value.isascii() for value in tags.values()), "Ray encodes labels as ASCII"
        return tuple(tags[label] for label in self._metric.labels)


@pytest.fixture
def made() -> dict[str, RaysMetric]:
    return {}


@pytest.fixture
def exporter(made: dict[str, RaysMetric]) -> Exporter:
    return Exporter("a-run", UNKNOWN, lambda metric: made.setdefault(metric.name, RaysMetric(metric)))


def export(exporter: Exporter, line: Line) -> None:
    for update in updates(line):
        exporter.take(update)


def test_what_may_never_happen_is_there_at_0_from_the_start(exporter: Exporter, made: dict[str, RaysMetric]) -> None:
    restarts = made["spag_ray_restarts_total"].values
    assert len(restarts) == 15
    assert all(value == sys.float_info.min for value in restarts.values())
    export(exporter, RestartLine("buffer", "crash"))
    assert restarts["buffer", "crash"] == 1.0
    games = made["spag_ray_games_total"].values
    assert len(games) == 3 * len(GAME_ENDS)
    export(exporter, GamesLine("self_play", "taboo", 9, 90, {str(GAME_ENDS[0]): 4}))
    export(exporter, GamesLine("self_play", "kuhn", 3, 30, {str(GAME_ENDS[0]): 1}))
    assert games["self_play", "taboo", GAME_ENDS[0].seat, GAME_ENDS[0].result, GAME_ENDS[0].reason] == 4.0


def test_another_game_has_its_own_seats_and_nothing_of_taboo(made: dict[str, RaysMetric]) -> None:
    exporter = Exporter(
        "a-run",
        {"kuhn": GameNames("kuhn", ("first", "second"), "scenario", guesses=False)},
        lambda metric: made.setdefault(metric.name, RaysMetric(metric)),
    )
    games, alarms = (made[f"spag_ray_{name}_total"].values for name in ("games", "collapse_alarms"))
    assert not games
    assert set(alarms) == {("ties",), ("breaches",)}
    ends = {"attacker win: fold": 2, "defender breach: illegal action": 1, "none tie: undecided": 3}
    export(exporter, GamesLine("self_play", "kuhn", 9, 90, ends))
    assert games == {
        ("self_play", "kuhn", "first", "win", "fold"): 2.0,
        ("self_play", "kuhn", "second", "breach", "illegal action"): 1.0,
        ("self_play", "kuhn", "none", "tie", "undecided"): 3.0,
    }
    export(exporter, StepLine("spag-1", "policy", StepReport(1, attacker_weight=0.75)))
    assert made["spag_ray_role_weight"].values["policy", "first"] == 0.75


def test_names_in_any_script_are_labels_that_ray_takes(made: dict[str, RaysMetric]) -> None:
    def of_run(name: str) -> Exporter:
        seats = GameNames("markt", ("Käufer", "卖家"), "scenario", guesses=False)
        return Exporter(name, {"markt": seats}, lambda metric: made.setdefault(metric.name, RaysMetric(metric)))

    for name in ("größe", "グローセ", "x[1]", "\udcff"):
        export(of_run(name), GamesLine("self_play", "markt", 9, 90, {"attacker win: sold": 2, "defender win: sold": 1}))
    seats = {series[2] for series in made["spag_ray_games_total"].values}
    assert len(seats) == 2, "different names stay different"


def test_of_a_sum_the_rise_is_counted_also_after_it_fell(exporter: Exporter, made: dict[str, RaysMetric]) -> None:
    for evicted in (0, 5, 5, 7, 2, 3):
        export(exporter, BufferLine(waiting=3, oldest_s=1.0, evicted=evicted, lags={0: 8, 12: evicted}))
    assert made["spag_ray_episodes_evicted_total"].values[()] == 8.0
    assert made["spag_ray_episodes_learned_total"].values == {("0",): 8.0, ("12",): 8.0}
    assert made["spag_ray_buffer_episodes"].values[()] == 3.0


def test_lines_of_two_threads_stay_whole(tmp_path: Path) -> None:
    metrics = Recorder(tmp_path)
    text = "x" * 5000

    def write(name: str) -> None:
        for number in range(200):
            metrics.record(LogDamageLine(f"{name}-{number}", text))

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    metrics.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for name in ("a", "b", "c"):
        stages = [line["stage"] for line in lines if line["stage"].startswith(name)]
        assert stages == [f"{name}-{number}" for number in range(200)]
