"""The loop, played by a test in the place of a run's parts: what it asks for, in which order."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.learning.stage_samples import StageSamples
from cluster.monitor.status_board import StatusBoard
from cluster.planning.plan import make_plan
from cluster.run.checkpoint import RunState
from cluster.run.parts import RunControl
from cluster.run.run import Run
from cluster.run.training import MAX_UNDECIDED, train
from cluster.run.training_verbs import Trainer, asks_tasks
from cluster.tracking.callbacks import Callbacks
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import decode
from spag_ray.errors import InputError, LearnersLostError, RunFolderError, StopRequestedError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import Line
from spag_ray.stages import Stage
from tests.support.streams import finish, numbers, stream_of


def game(number: int, outcome: Outcome = Outcome.ATTACKER_WINS) -> Episode:
    turns = tuple(Turn(role, "x", (1,), (2,), (-0.5,), "policy", 1, 1) for role in Role)
    verdict = Verdict(outcome, EndReason.SAID_WORD, 2, "the attacker said it", None, None)
    return Episode(f"g/{number}", number, "stage", "river", 2, "strict", 1.0, turns, verdict)


class Lines:
    def record(self, line: Line) -> None:
        """Nowhere."""


class Played:
    """A Trainer that writes down what it is asked. `state` is where it goes on; `outcomes` are given to the versions
    of a stream, one each; learning the n-th stage raises `lost` once. `mid_stage`: the checkpoint was saved between two
    steps of a stage."""

    def __init__(self, config: dict[str, Any], state: RunState | None = None, **more: Any) -> None:
        self.config = RunConfig.model_validate(config)
        nobody: Any = None
        recorder: Any = Lines()
        self.samples = StageSamples(self.config, nobody, nobody, {"policy"}, recorder)
        self.asked: list[str] = []
        self.saved = state or RunState()
        self.outcomes: list[Outcome] = more.get("outcomes", [])
        self.lost_at: int | None = more.get("lost_at")
        self.stopped_at: int | None = more.get("stopped_at")
        self.refused: str | None = more.get("refused")
        self.mid_stage: bool = more.get("mid_stage", False)
        self.num_learned = 0
        self.num_taken = 0
        self.recovery = self

    def __getattr__(self, verb: str) -> Any:
        def ask(*arguments: Any) -> Any:
            named = [str(each) for each in arguments if isinstance(each, str | Stage)]
            self.asked.append(" ".join([verb, *named]))
            return [] if verb == "end" else False

        return ask

    def restore(self) -> RunState:
        self.asked.append("restore")
        return self.saved

    def checkpoint(self, name: str, state: RunState) -> RunState:
        self.asked.append(f"checkpoint {name}")
        self.saved = RunState(**{**vars(state), "order": state.order + 1})
        return self.saved

    def play_expert(self) -> list[Episode]:
        self.asked.append("play_expert")
        return [game(0)]

    def self_play(self, stage: Stage) -> list[Episode]:
        self.asked.append(f"self_play {stage}")
        return [game(0), game(1, Outcome.DEFENDER_WINS)]

    def is_mid_stage(self) -> bool:
        return self.mid_stage

    def learn(self, stage: Any) -> None:
        self.mid_stage = False
        self.asked.append(f"learn {stage.stage}" + (f" part {stage.part}" if stage.spec.is_part else ""))
        self.num_learned += 1
        if self.num_learned == self.lost_at:
            raise LearnersLostError("rank 0 is gone")

    def save(self, stage: Stage) -> None:
        self.asked.append(f"save {stage}")
        if str(stage) == self.refused:
            raise RunFolderError("no room for the model")

    @contextmanager
    def iteration(self, stage: Stage) -> Iterator[None]:
        self.asked.append(f"iteration {stage}")
        yield
        self.asked.append("iteration ends")

    @contextmanager
    def streaming(self, state: RunState) -> Iterator[Any]:
        self.asked.append("streaming")
        yield self
        self.asked.append("stream ends")

    def next_batch(self, stage: Stage, what: str) -> tuple[list[Episode], set[int]]:
        if self.num_taken == self.stopped_at:
            raise StopRequestedError("asked to stop")
        self.num_taken += 1
        return [game(self.num_taken, self.outcomes[self.num_taken - 1])], set()

    def learned(self) -> dict[str, Any]:
        return {"next": self.num_taken}


ROUNDS = {"self_play": {"rounds": 2}}
STREAM = {
    "schedule": "stream", "imitation": {"enabled": False}, "stream": {"games_per_version": 8},
    "self_play": {"rounds": 2, "games_per_round": 16, "batch_games": 8},
}  # fmt: skip


def asked_by_train(run: Any) -> list[str]:
    assert train(run) == []
    return [each for each in run.asked if not each.startswith(("record_opponents", "new_version", "iteration"))]


def test_the_rounds_of_a_run_from_its_beginning() -> None:
    assert asked_by_train(Played(ROUNDS)) == [
        "start", "restore", "save_missing", "measure_checkpoint", "evaluate base",
        "play_expert", "learn imitated", "checkpoint imitated", "save imitated", "publish", "evaluate imitated",
        "start_league",
        "self_play spag-1", "learn spag-1", "checkpoint spag-1", "save spag-1", "publish", "evaluate spag-1",
        "self_play spag-2", "learn spag-2", "checkpoint spag-2", "save spag-2", "publish", "evaluate spag-2",
        "end_learning", "match_with imitated", "end",
    ]  # fmt: skip


def test_a_round_and_a_version_of_a_stream_are_an_iteration_from_play_to_evaluation() -> None:
    run = Played(ROUNDS | {"self_play": {"rounds": 1}})
    asked_by_train(run)
    of_round = run.asked[run.asked.index("iteration spag-1") + 1 : run.asked.index("iteration ends")]
    assert (of_round[0], of_round[-1]) == ("self_play spag-1", "evaluate spag-1")
    run = Played(STREAM, outcomes=[Outcome.ATTACKER_WINS] * 4)
    asked_by_train(run)
    stages = [each for each in run.asked if each.startswith("iteration") and each != "iteration ends"]
    assert stages == ["iteration spag-1"] * 2 + ["iteration spag-2"] * 2


def test_a_run_goes_on_after_the_round_that_was_saved() -> None:
    asked = asked_by_train(Played(ROUNDS, RunState(order=3, stage="spag-1", rounds=1)))
    assert asked[:5] == ["start", "restore", "save_missing", "evaluate spag-1", "start_league"], (
        "it may have ended before it was measured"
    )
    assert asked[5] == "self_play spag-2"
    assert "play_expert" not in asked


@pytest.mark.parametrize(
    ("config", "state", "measured"),
    [
        pytest.param(ROUNDS, RunState(order=1), "look_for_collapse base", id="imitation"),
        pytest.param(ROUNDS, RunState(order=3, stage="imitated"), "look_for_collapse imitated", id="the first round"),
        pytest.param(
            ROUNDS, RunState(order=4, stage="spag-1", rounds=1), "look_for_collapse spag-1", id="the last round"
        ),
        pytest.param(
            ROUNDS | {"imitation": {"enabled": False}}, RunState(order=1), "look_for_collapse base", id="no imitation"
        ),
    ],
)
def test_a_run_that_was_saved_mid_stage_measures_no_weights_before_the_stage_ends(
    config: dict[str, Any], state: RunState, measured: str
) -> None:
    asked = asked_by_train(Played(config, state, mid_stage=True))
    first = next(place for place, each in enumerate(asked) if each.startswith("learn"))
    assert [each for each in asked[:first] if each.startswith(("evaluate", "look_for_collapse"))] == [measured]
    assert [each for each in asked if each.startswith("evaluate")] == [
        each.replace("save", "evaluate") for each in asked if each.startswith("save ")
    ], "every stage that ends is measured once"


@pytest.mark.parametrize(
    ("state", "measured"),
    [
        (RunState(order=2, parts=1), "look_for_collapse base"),
        (RunState(order=3, stage="spag-1", rounds=1, parts=2), "evaluate spag-1"),
        (RunState(order=3, stage="spag-1", rounds=1, parts=3), "look_for_collapse spag-1"),
        (RunState(order=3, stage="spag-2", rounds=2, parts=4), "evaluate spag-2"),
    ],
)
def test_a_stream_saved_mid_round_measures_no_weights_of_other_versions(state: RunState, measured: str) -> None:
    asked = asked_by_train(Played(STREAM, state, outcomes=[Outcome.ATTACKER_WINS] * 4))
    assert asked[:4] == ["start", "restore", "save_missing", measured]


def test_lost_learners_begin_again_where_the_run_was_saved() -> None:
    asked = asked_by_train(Played(ROUNDS, lost_at=3))
    again = asked.index("restart_learners")
    assert asked[again - 1] == "learn spag-2"
    assert asked[again : again + 6] == [
        "restart_learners", "restore", "save_missing", "evaluate spag-1", "start_league", "self_play spag-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "refused", "lost"),
    [(ROUNDS, "imitated", "learn imitated"), (ROUNDS, "spag-1", "learn spag-1"), (STREAM, "spag-1", "learn spag-1")],
)
def test_a_stage_whose_model_was_not_written_is_not_retrained(config: dict[str, Any], refused: str, lost: str) -> None:
    outcomes = [Outcome.ATTACKER_WINS] * 4
    run = Played(config, outcomes=outcomes, refused=refused)
    with pytest.raises(RunFolderError):
        asked_by_train(run)
    assert run.saved.stage == refused, "the checkpoint is older than the model"
    asked = asked_by_train(Played(config, run.saved, outcomes=outcomes))
    assert asked[:3] == ["start", "restore", "save_missing"]
    assert not any(each.startswith(lost) for each in asked)


class Policy:
    """A policy whose learners have some weights, and which saves them in `folder`."""

    def __init__(self, folder: Path, is_in_stage: bool = False) -> None:
        self.folder = folder
        self.is_in_stage = is_in_stage
        self.stage_progress = None

    def saved(self, stage: Stage) -> Path:
        return self.folder / str(stage)

    def is_saved_in(self, folder: Path) -> None:
        """Nothing."""

    def learn(self, stage: Any, show: Any) -> None:
        """Nothing."""


def saves_missing(folder: Path, state: RunState, config: dict[str, Any], is_in_stage: bool = False) -> list[str]:
    """What a run does on resume about the model of the stage that `state` ended with."""
    done: list[str] = []

    class Publisher:
        def wake_learners(self) -> None:
            done.append("wake learners")

        def wake_engines(self) -> None:
            done.append("wake engines")

    trainer: Any = Trainer.__new__(Trainer)
    trainer._split = TimeSplit()
    trainer.config = RunConfig.model_validate(config)
    trainer._parts = SimpleNamespace(
        policies=[Policy(folder, is_in_stage)], publisher=Publisher(), status=StatusBoard(lambda: 1, GameNames())
    )
    trainer.save = lambda stage, is_told: done.append(f"save {stage}")
    trainer.save_missing(state)
    return done


def test_a_model_that_is_missing_or_half_written_is_saved_from_the_checkpoint(tmp_path: Path) -> None:
    state = RunState(order=3, stage="spag-1", rounds=1)
    saved = ["wake learners", "save spag-1", "wake engines"]
    assert saves_missing(tmp_path, state, ROUNDS) == saved
    (tmp_path / "spag-1").mkdir()
    (tmp_path / "spag-1" / "config.json").write_text("{}")
    assert saves_missing(tmp_path, state, ROUNDS) == saved
    for name in ("model.safetensors", "tokenizer_config.json"):
        (tmp_path / "spag-1" / name).write_text("{}")
    assert saves_missing(tmp_path, state, ROUNDS) == []


def test_a_model_of_an_abandoned_attempt_is_not_taken_for_that_of_the_new_checkpoint(tmp_path: Path) -> None:
    """It is there when the stage is trained again, and the run may be killed right after the checkpoint."""
    state = RunState(order=3, stage="spag-1", rounds=1)
    (tmp_path / "spag-1").mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer_config.json"):
        (tmp_path / "spag-1" / name).write_text("{}")
    trainer: Any = Trainer.__new__(Trainer)
    trainer._split = TimeSplit()
    trainer._parts = SimpleNamespace(
        policies=[Policy(tmp_path)],
        publisher=SimpleNamespace(wake_learners=lambda: None),
        callbacks=Callbacks([], pytest.fail),
        control=RunControl(FolderLease.take(tmp_path)),
    )
    trainer.learn(SimpleNamespace(stage=Stage.of_round(2)))
    assert saves_missing(tmp_path, state, ROUNDS) == [], "that of another stage stays"
    trainer.learn(SimpleNamespace(stage=Stage.of_round(1)))
    assert "save spag-1" in saves_missing(tmp_path, state, ROUNDS)


def test_weights_of_no_stages_end_are_not_saved_as_a_stages_model(tmp_path: Path) -> None:
    assert saves_missing(tmp_path, RunState(), ROUNDS) == []
    assert saves_missing(tmp_path, RunState(order=4, stage="spag-1", rounds=1), ROUNDS, is_in_stage=True) == []
    in_a_stream = RunState(order=4, stage="spag-1", rounds=1, parts=3)
    assert saves_missing(tmp_path, in_a_stream, STREAM) == []
    assert saves_missing(tmp_path, replace(in_a_stream, parts=2), STREAM) == [
        "wake learners", "save spag-1", "wake engines",
    ]  # fmt: skip


def test_learners_that_are_lost_while_they_start_are_started_again() -> None:
    class StartsBadly(Played):
        def start(self) -> None:
            self.asked.append("start")
            raise LearnersLostError("rank 0 is gone")

    assert asked_by_train(StartsBadly(ROUNDS))[:4] == ["start", "restart_learners", "restore", "save_missing"]


def test_a_stream_learns_version_by_version_and_is_saved_with_each_round() -> None:
    asked = asked_by_train(Played(STREAM, outcomes=[Outcome.ATTACKER_WINS] * 4))
    begin = asked.index("streaming")
    assert asked[begin : asked.index("end_learning")] == [
        "streaming",
        "learn spag-1 part 0", "publish", "checkpoint_is_due",
        "learn spag-1 part 1", "publish", "checkpoint version-2", "save spag-1", "evaluate spag-1",
        "learn spag-2 part 0", "publish", "checkpoint_is_due",
        "learn spag-2 part 1", "publish", "checkpoint version-4", "save spag-2", "evaluate spag-2",
        "stream ends",
    ]  # fmt: skip


class Planned(Played):
    """Writes down how a stage's games are cut into steps."""

    def __init__(self, config: dict[str, Any], **more: Any) -> None:
        super().__init__(config, **more)
        self.stages: list[Any] = []

    def learn(self, stage: Any) -> None:
        super().learn(stage)
        self.stages.append(stage)


@pytest.mark.parametrize(("batch", "steps"), [(8, 1), (5, 2), (3, 3), (4, 2), (9, 1)])
def test_no_step_of_a_stream_has_more_games_than_a_batch(batch: int, steps: int) -> None:
    config = {**STREAM, "self_play": {"rounds": 1, "games_per_round": 8, "batch_games": batch}}
    run = Planned(config, outcomes=[Outcome.ATTACKER_WINS] * 4)
    asked_by_train(run)
    (stage,) = run.stages
    assert (stage.part_steps, stage.spec.num_steps) == (steps, steps)
    assert make_plan(run.config).schedule.steps == steps


class Paid(Played):
    """Writes down what a stage's last turn was paid."""

    def __init__(self, config: dict[str, Any], state: RunState | None = None, **more: Any) -> None:
        super().__init__(config, state, **more)
        self.paid: list[tuple[str, float]] = []

    def learn(self, stage: Any) -> None:
        super().learn(stage)
        self.paid.append((str(stage.stage), stage.games[0].turns[-1].advantage))


@pytest.mark.parametrize("schedule", ["rounds", "stream"])
def test_a_stage_is_paid_by_its_phase_and_so_is_a_run_that_resumes_in_the_second(schedule: str) -> None:
    settings: dict[str, Any] = STREAM if schedule == "stream" else {"imitation": {"enabled": False}}
    phases = [{"rounds": 1, "payoffs": {"trap": [0.5, -1]}}, {"rounds": 1, "payoffs": {"trap": [0.25, -1]}}]
    config = settings | {"self_play": {**settings.get("self_play", {}), "rounds": 3, "phases": phases}}
    per_round = 2 if schedule == "stream" else 1
    outcomes = [Outcome.ATTACKER_WINS] * 6
    whole = Paid(config, outcomes=outcomes)
    asked_by_train(whole)
    paid = [each for n, value in ((1, 0.5), (2, 0.25), (3, 1.0)) for each in [(f"spag-{n}", value)] * per_round]
    assert whole.paid == paid
    state = RunState(order=2, stage="spag-1", rounds=1, parts=3 if schedule == "stream" else 0)
    resumed = Paid(config, state, outcomes=outcomes)
    asked_by_train(resumed)
    assert resumed.paid == paid[3 if schedule == "stream" else 1 :]


class Reused(Played):
    """A run on a real stream, whose games the attacker wins; it writes down which games the league counts."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.stream = stream_of(**config["stream"])
        self.trained: list[int] = []
        self.counted: list[int] = []

    def next_batch(self, stage: Stage, what: str) -> tuple[list[Episode], set[int]]:
        version = len(self.trained) // self.config.stream.games_per_version
        for task in self.stream.lease("arena", 100):
            finish(self.stream, task, version)
        batch = self.stream.take()
        self.trained += numbers(batch)
        return [decode(data) for data in batch or ()], self.stream.repeated()

    def record_opponents(self, stage: Stage, episodes: list[Episode]) -> None:
        self.counted += [each.number for each in episodes]

    def learned(self) -> dict[str, Any]:
        self.stream.advance({"policy": len(self.trained) // self.config.stream.games_per_version})
        return self.stream.cursor()


def test_a_game_that_is_trained_on_twice_counts_once_in_league_baseline_and_role_window() -> None:
    stream = {"games_per_version": 8, "max_lag": 2, "reuse": 2}
    run = Reused({**STREAM, "stream": stream, "objective": {"baseline": "moving", "baseline_decay": 0.9}})
    asked_by_train(run)
    different = set(run.trained)
    assert len(different) < len(run.trained) == 4 * 8, "games were trained on twice"
    assert sorted(run.counted) == sorted(different)
    assert run.saved.role_wins == {"taboo": "a" * len(different)}
    assert run.saved.baselines is not None
    assert run.saved.baselines["taboo"]["attacker"] == pytest.approx(1 - 0.9 ** len(different))


def test_a_stream_that_is_stopped_is_left_where_it_was() -> None:
    run = Played(STREAM, outcomes=[Outcome.ATTACKER_WINS] * 4, stopped_at=1)
    with pytest.raises(StopRequestedError):
        asked_by_train(run)
    assert run.asked[-1] == "time_to_save", "and nothing more: there was no time"


def test_versions_without_a_decided_game_end_a_stream_with_advice() -> None:
    config = {**STREAM, "self_play": {"rounds": 1, "games_per_round": 64, "batch_games": 8}}
    run = Played(config, outcomes=[Outcome.TIED] * 8)
    with pytest.raises(InputError, match=f"{MAX_UNDECIDED} versions in a row: none of 40 games was won"):
        asked_by_train(run)


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({}, ["base", "imitated", "spag-1", "spag-2", "spag-3"]),
        ({"evaluation": {"task_stages": "ends"}}, ["imitated", "spag-3"]),
        ({"evaluation": {"task_stages": "ends"}, "imitation": {"enabled": False}}, ["base", "spag-3"]),
        ({"evaluation": {"task_stages": "ends"}, "self_play": {"rounds": 0}}, ["imitated"]),
    ],
)
def test_tasks_are_asked_after_all_stages_or_the_first_and_the_last(config: dict[str, Any], asked: list[str]) -> None:
    parsed = RunConfig.model_validate({"model": "tiny", "imitation": {"enabled": True}, **config})
    stages = ("base", "imitated", "spag-1", "spag-2", "spag-3")
    assert [name for name in stages if asks_tasks(parsed, Stage.parse(name))] == asked


@pytest.mark.parametrize("fault", [None, InputError("no such word")])
def test_a_run_whose_end_fails_still_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception | None
) -> None:
    run: Any = object.__new__(Run)
    run._folder, run._lease = tmp_path, FolderLease.take(tmp_path)

    def close(_: Run) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Run, "close", close)

    def plays() -> None:
        with run._ending():
            if fault is not None:
                raise fault

    with pytest.raises(InputError if fault else OSError, match="no such word" if fault else "disk full"):
        plays()
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert ended == ({"ended": "failed", "reason": "no such word"} if fault else {"ended": "finished"})
