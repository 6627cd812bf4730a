"""Callbacks of the user's own: told of everything in order, by a thread of their own, and isolated from the run."""

import importlib.util
import runpy
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cluster.tracking import callbacks
from cluster.tracking.callbacks import Callbacks, check_callbacks
from cluster.tracking.recorder import Recorder
from spag_ray.config.loading import named_paths, parse_config
from spag_ray.errors import ConfigError
from spag_ray.game.rules import Outcome
from spag_ray.results.lines import StepLine, StepReport, SyncLine, SyncReport
from tests.support.episodes import game

OWN = """
import threading
heard = []
release = threading.Event()

class Listens:
    def on_stage_began(self, stage): heard.append(("began", stage))
    def on_games(self, stage, episodes): heard.append(("games", stage, len(episodes)))
    def on_step(self, stage, policy, report): heard.append(("step", stage, policy, report.loss))
    def on_version(self, policy, version): heard.append(("version", policy, version, threading.current_thread().name))
    def on_stage_ended(self, stage, models): heard.append(("ended", stage, models))

class Fails:
    def __init__(self): self.num_calls = 0
    def on_step(self, stage, policy, report):
        self.num_calls += 1
        heard.append(self.num_calls)
        if self.num_calls != 3:
            raise ValueError(f"call {self.num_calls}")

class Waits:
    def on_step(self, stage, policy, report):
        release.wait(20)
        heard.append(report.step)

class Misspelt:
    def on_steps(self, stage, policy, report): ...

class Deaf:
    def hear(self): ...

class Helps:
    def on_gpu(self): ...
    def on_version(self, policy, version): ...

class Leaves:
    def __init__(self): raise SystemExit(3)
    def on_version(self, policy, version): ...

class Bad(Exception):
    def __str__(self): raise RuntimeError("no text")

class Terrible:
    on_step = None
    @property
    def on_version(self): raise Bad()
    def on_games(self, stage, episodes): raise SystemExit(1)

class Alternates:
    def on_step(self, stage, policy, report): raise ValueError("x" * 1000)
    def on_version(self, policy, version): heard.append(version)

class Needs:
    def __init__(self, what): ...
    def on_version(self, policy, version): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return "mine.py"


def heard_by(name: str) -> Any:
    return vars(__import__("sys").modules["spag_ray_game_mine"])[name]


def started(names: list[str], note: Any) -> Callbacks:
    told = Callbacks(names, note)
    told.start()
    return told


def step(number: int) -> StepLine:
    return StepLine("spag-1", "policy", StepReport(number, loss=float(number)))


def test_a_callback_is_told_of_stages_games_steps_and_versions_in_order(own: str, tmp_path: Path) -> None:
    notes: list[str] = []
    told = started([f"{own}:Listens"], notes.append)
    recorder = Recorder(tmp_path, hear=told.hear)
    told.stage_began("spag-1")
    told.games_came([game(0, Outcome.TIED), game(1, Outcome.TIED)])
    told.games_came([])
    told.stage_began("spag-1")
    recorder.record(step(1))
    told.stage_ended("spag-1", {"policy": "models/spag-1"})
    recorder.record(SyncLine("policy", SyncReport(2, 0.5)))
    told.end()
    assert heard_by("heard") == [
        ("began", "spag-1"),
        ("games", game(0, Outcome.TIED).stage, 2),
        ("step", "spag-1", "policy", 1.0),
        ("ended", "spag-1", {"policy": "models/spag-1"}),
        ("version", "policy", 2, "callbacks"),
    ]
    assert notes == []


def test_a_method_that_fails_three_times_in_a_row_is_not_called_any_more_and_others_are(own: str) -> None:
    notes: list[str] = []
    told = started([f"{own}:Fails", f"{own}:Listens"], notes.append)
    for number in range(1, 9):
        told.hear(step(number))
    told.end()
    heard = heard_by("heard")
    assert [each for each in heard if isinstance(each, int)] == [1, 2, 3, 4, 5, 6], "the third call was fine"
    assert len([each for each in heard if isinstance(each, tuple)]) == 8
    assert notes == [
        "callback mine.py:Fails: on_step: ValueError: call 1",
        "callback mine.py:Fails: on_step: ValueError: call 4",
        "callback mine.py:Fails: on_step: ValueError: call 6; that was the third time in a row, so it is not called "
        "any more",
    ]


def test_one_that_works_does_not_excuse_another_method_and_no_error_ends_the_thread(own: str) -> None:
    notes: list[str] = []
    told = started([f"{own}:Terrible", f"{own}:Alternates"], notes.append)
    for number in range(1, 6):
        told.hear(step(number))
        told.hear(SyncLine("policy", SyncReport(number, 0.5)))
        told.games_came([game(0, Outcome.TIED)])
    told.end()
    assert heard_by("heard") == [1, 2, 3, 4, 5]
    assert sorted(note.partition(";")[0] for note in notes) == sorted(
        [
            *["callback mine.py:Terrible: on_version: Bad"] * 2,
            *["callback mine.py:Terrible: on_games: SystemExit: 1"] * 2,
            *[f"callback mine.py:Alternates: on_step: ValueError: {'x' * 188}"] * 2,
        ]
    )


def test_a_stage_that_is_begun_anew_is_told_again_and_nothing_before_the_start(own: str) -> None:
    told = Callbacks([f"{own}:Listens"], pytest.fail)
    told.stage_began("spag-1")
    told.begins_again()
    told.start()
    told.stage_began("spag-1")
    told.stage_began("spag-1")
    told.begins_again()
    told.stage_began("spag-1")
    told.end()
    assert heard_by("heard") == [("began", "spag-1")] * 2


def test_a_method_of_another_name_is_no_hook_unless_it_is_nearly_one(own: str) -> None:
    check_callbacks([f"{own}:Helps"])


def test_a_slow_one_holds_nothing_up_and_is_left_at_the_end(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "MAX_WAITING", 3)
    notes: list[str] = []
    told = started([f"{own}:Waits"], notes.append)
    began = time.monotonic()
    for number in range(50):
        told.hear(step(number))
    told.end(within_s=0.3)
    assert time.monotonic() - began < 5
    assert notes == [
        "callbacks are too slow: 3 calls wait, and further ones are left out",
        "callbacks had not ended 0 s after the run and were left",
    ]
    heard_by("release").set()
    told.end()
    assert heard_by("heard")[0] == 0
    assert 3 <= len(heard_by("heard")) <= 4


def test_without_callbacks_there_is_no_thread_and_nothing_is_kept() -> None:
    before = threading.active_count()
    told = started([], pytest.fail)
    for number in range(1000):
        told.hear(step(number))
    told.end()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Misspelt", "on_steps is never called; did you mean `on_step`?"),
        ("Deaf", "has no method that is called; there are on_stage_began, on_games"),
        ("Listen", "mine.py has no Listen; did you mean `Listens`?"),
    ],
)
def test_a_class_that_would_not_be_called_is_refused(own: str, name: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.callbacks") as refused:
        check_callbacks([f"{own}:{name}"])
    assert wrong in str(refused.value)


def test_a_class_that_cannot_be_made_is_refused(own: str) -> None:
    with pytest.raises(ConfigError, match=r"mine.py:Needs cannot be made without arguments \(TypeError"):
        started([f"{own}:Needs"], pytest.fail)
    with pytest.raises(ConfigError, match=r"mine.py:Leaves cannot be made without arguments \(SystemExit"):
        started([f"{own}:Leaves"], pytest.fail)
    with pytest.raises(ConfigError, match="named twice"):
        check_callbacks([f"{own}:Listens"] * 2)
    with pytest.raises(ConfigError, match=r"tracking\.callbacks"):
        parse_config({"tracking": {"callbacks": ["mine"]}})


def test_files_of_callbacks_travel_with_a_job(own: str) -> None:
    config = parse_config({"tracking": {"callbacks": [f"{own}:Listens", "installed_package:Other"]}})
    assert named_paths(config)["tracking.callbacks.0"] == "mine.py"
    assert "tracking.callbacks.1" not in named_paths(config)


def test_the_examples_have_hooks_and_give_finite_figures() -> None:
    path = Path(__file__).parents[3] / "docs" / "examples" / "callbacks.py"
    for name in ("Trackio", "MLflow"):
        check_callbacks([f"{path}:{name}"])
    spec = importlib.util.spec_from_file_location("example_callbacks", path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    logged: list[tuple[dict[str, float], int]] = []

    kept = example.Tracker(lambda figures, step: logged.append((figures, step)))
    kept.on_step("spag-1", "policy", StepReport(1, loss=0.5, kl_loss=0.25))
    kept.on_games("spag-1", [game(0, Outcome.TIED), game(1, Outcome.ATTACKER_WINS)])
    (figures, at), (shares, later) = logged
    assert (at, later) == (1, 1)
    assert figures["train/policy/loss"] == 0.5
    assert "train/policy/entropy" not in figures, "it was not said"
    assert shares == {"play/tied_game": 0.5, "play/attacker_wins": 0.5}


def test_the_mlflow_example_logs_from_any_thread_into_the_run_that_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's active run is one of a thread, and hooks are called in another."""
    runs: list[str] = []
    fake: Any = ModuleType("mlflow")
    fake.set_experiment = lambda name: None
    fake.start_run = lambda: SimpleNamespace(info=SimpleNamespace(run_id="started"))
    fake.log_metrics = lambda figures, step, run_id=None: runs.append(str(run_id))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    example = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "examples" / "callbacks.py"))
    example["MLflow"]().on_step("spag-1", "policy", StepReport(1, loss=0.5))
    assert runs == ["started"]
