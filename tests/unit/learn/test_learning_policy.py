"""A policy that learns: which steps are dumped, when it stops, whose log-probabilities it scores."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cluster.commands.learn import for_rows
from cluster.learning import learning_policy, weight_sync
from cluster.learning.direct_channel import Answers
from cluster.learning.learning_policy import LearningPolicy, TrainingStage
from cluster.learning.policy_training import StageProgress
from cluster.learning.weight_sync import Export
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, LearnerError, LearnersLostError, RunFolderError
from spag_ray.game.rules import Role
from spag_ray.results.lines import SyncReport
from spag_ray.stages import IMITATED, LEARN, Stage
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import Method, StageSpec

SPEC = StageSpec("self_play", 0, 1e-6, 0.2)


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
        self.rows: list[list[int]] = []

    def check(self, turns: list[Sample]) -> None:
        assert turns

    def score_games(self, games: list[GameSample], temperature: float) -> list[GameSample]:
        self.scored += [game.episode_id for game in games]
        return [replace(game, turns=tuple(replace(t, old_logprobs=(-9.0,)) for t in game.turns)) for game in games]

    def begin_stage(self, spec: StageSpec) -> None:
        assert spec.num_steps > 0
        self.begun = spec

    def continue_stage(self, spec: StageSpec) -> None:
        self.begun = spec

    def step(self, games: list[GameSample], sft: list[Sample], at_start: bool) -> Report:
        assert at_start == (not self.steps)
        self.steps.append(games)
        self.rows.append([int(row.target_ids[0]) for row in sft])
        bad = len(self.steps) in self.bad
        return Report(len(self.steps), math.nan if bad else 0.5, bad)


def games(count: int) -> list[GameSample]:
    turn = Sample((1,), (2,), 1.0, sampler_logprobs=(-1.0,), role=Role.ATTACKER)
    return [GameSample(f"e/{number}", Role.ATTACKER, 1.0, (turn,)) for number in range(count)]


def learned(
    tmp_path: Path, bad: set[int], config: RunConfig | None = None, method: Method = "self_play", kl_coeff: float = 0.2
) -> FakeLearners:
    policy = LearningPolicy("policy", tuple(Role), config or RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = FakeLearners(bad)
    policy.learners = fake
    stage = TrainingStage(Stage.of_round(1), StageSpec(method, 0, 1e-6, kl_coeff), games(12), [], 2)
    policy.learn(stage, lambda *_: None)
    return fake


@pytest.mark.parametrize(("method", "reads"), [("self_play", True), ("imitation", False)])
def test_a_reference_pass_is_shown_where_there_is_one(method: Method, reads: bool, tmp_path: Path) -> None:
    """Imitation without a KL term compares nothing: what its first step waits for is no reference."""
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = FakeLearners(set())
    policy.learners = fake
    shown: list[tuple[str, int]] = []
    stage = TrainingStage(Stage.of_round(1), StageSpec(method, 0, 1e-6, 0.0), games(4), [], 2)
    policy.learn(stage, lambda name, done, *_: shown.append((name.rpartition(" ")[2], done)))
    assert bool(fake.scored) == reads
    assert shown == [("reference", 0)] * reads + [("learn", 0), ("learn", 1), ("learn", 2)]


def test_a_version_whose_channel_broke_takes_the_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To those that are left, and at once to who comes in their place."""
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    stays, leaves, comes = (Engine(cast(Any, None), name, "policy") for name in ("stays", "leaves", "comes"))
    learners: Any = SimpleNamespace(num_tensors=1)
    channel: Any = object()
    policy.learners, policy._direct = learners, channel
    handed_out: list[tuple[Any, list[Engine]]] = []

    def export(learners: Any, version: int, probe: Any, direct: Any = None) -> Export:
        return Export(learners, version, [], None, direct)

    def publish(exported: Any, engines: list[Engine], *_: Any) -> tuple[SyncReport, dict[Engine, str]]:
        handed_out.append((exported.direct, engines))
        if exported.direct is not None:
            return SyncReport(exported.version, 2.0, 1, 100, broken_channels=1), {leaves: "no answer"}
        return SyncReport(exported.version, 0.5, len(engines), 100), {}

    monkeypatch.setattr(learning_policy, "export", export)
    monkeypatch.setattr(learning_policy, "publish", publish)

    policy.export()
    assert policy.publish([stays, leaves], cast(Any, None)) == {leaves: "no answer"}
    policy.verify_weights([stays])

    assert policy.version == 1
    assert policy._published is not None
    assert policy._published.report == SyncReport(1, 2.5, 1, 100, broken_channels=1)
    assert policy.catch_up(comes, others_play=True) == {}
    assert handed_out == [(channel, [stays, leaves]), (None, [stays]), (None, [comes])]
    policy.export()
    assert policy._published.direct is channel, "the next version tries it again"


@pytest.mark.parametrize("held", [True, False])
def test_engines_whose_channel_broke_get_weights_before_games(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are paused: games that came would wait for the weights, which are given once the games have ended."""
    told: list[str] = []
    gate: Any = SimpleNamespace(
        drain=lambda engine: told.append(f"drain {engine.name}"),
        reopen=lambda engine: told.append(f"open {engine.name}"),
    )
    monkeypatch.setattr(weight_sync, "_load", lambda *_: (100, held))
    engines = [Engine(cast(Any, None), name, "policy") for name in ("a", "b")]
    exported: Any = SimpleNamespace(version=2, direct=object())
    report, lost = weight_sync.publish(exported, engines, parse_config({"sync": {"update": "between_games"}}), gate)
    assert (report.broken_channels, lost) == (0 if held else 1, {})
    assert told == ["drain a", "drain b", *(["open a", "open b"] if held else [])]


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


def test_skipped_steps_in_a_row_count_through_the_versions_of_a_stream(tmp_path: Path) -> None:
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = FakeLearners({1, 3, 4, 5})
    fake.step = lambda games, sft, at_start: FakeLearners.step(fake, games, sft, at_start=not fake.steps)
    policy.learners = fake
    spec = replace(SPEC, num_steps=20, name="stream", is_part=True)

    def learn(part: int) -> None:
        policy.learn(TrainingStage(Stage.of_round(1), spec, games(2), [], 2, part=part), lambda *_: None)

    for part in range(4):
        learn(part)
    with pytest.raises(LearnerError, match="3 steps in a row"):
        learn(4)


def test_the_first_steps_games_are_not_scored_because_the_learner_is_its_own_reference(tmp_path: Path) -> None:
    fake = learned(tmp_path, bad=set())
    assert fake.scored == [f"e/{number}" for number in range(2, 12)]
    assert fake.steps[0][0].turns[0].old_logprobs is None
    assert fake.steps[1][0].turns[0].old_logprobs == [-9.0]


def test_imitation_without_a_kl_term_scores_nothing_and_self_play_still_does(tmp_path: Path) -> None:
    assert learned(tmp_path, bad=set(), method="imitation", kl_coeff=0.0).scored == []
    assert len(learned(tmp_path, bad=set(), kl_coeff=0.0).scored) == 10


def test_with_reference_engine_nothing_is_scored_in_self_play_and_imitation_still_is(tmp_path: Path) -> None:
    config = parse_config({"learner": {"reference": "engine"}})
    fake = learned(tmp_path, bad=set(), config=config)
    assert fake.scored == []
    assert fake.steps[0][0].turns[0].old_logprobs == [-1.0]
    assert fake.steps[0][0].turns[0].sampler_logprobs is None, (
        "else a gap of 0 would be reported, which nobody measured"
    )
    assert len(learned(tmp_path, bad=set(), config=config, method="imitation").scored) == 10


def test_with_reference_engine_no_gap_is_reported_after_a_resume_either(tmp_path: Path) -> None:
    policy = LearningPolicy(
        "policy", tuple(Role), parse_config({"learner": {"reference": "engine"}}), tmp_path, "model", Recorder(tmp_path)
    )
    fake: Any = FakeLearners(set())
    policy.learners = fake
    policy.saved_progress = StageProgress("spag-1", [np.array([-1.0], np.float32)] * 12, 2)
    stage = TrainingStage(Stage.of_round(1), StageSpec("self_play", 0, 1e-6, 0.2), games(12), [], 2)
    fake.step = lambda games, sft, at_start: fake.steps.append(games) or Report(3, 0.5, False)
    policy.learn(stage, lambda *_: None)
    turns = [turn for batch in fake.steps for game in batch for turn in game.turns]
    assert len(fake.steps) == 4, "two of six were done"
    assert [turn.old_logprobs for turn in turns] == [[-1.0]] * 8
    assert [turn.sampler_logprobs for turn in turns] == [None] * 8


@pytest.mark.parametrize("settings", [{"learner": {"reference": "engine"}}, {"objective": {"kl_reference": "start"}}])
def test_rows_of_a_file_are_scored_whatever_a_run_compares_with(settings: dict[str, Any], tmp_path: Path) -> None:
    """They have no log-probabilities of an engine, and nothing was imitated before."""
    assert len(learned(tmp_path, bad=set(), config=for_rows(parse_config(settings))).scored) == 10


def test_the_schedule_follows_a_streams_steps_and_the_reference_each_stages_start(tmp_path: Path) -> None:
    told: list[Any] = []

    class Watched(FakeLearners):
        def begin_stage(self, spec: StageSpec) -> None:
            told.append(f"begin, {spec.num_steps} steps")
            self.begun = spec

        def continue_stage(self, spec: StageSpec) -> None:
            told.append(f"continue, {spec.num_steps} steps")
            self.begun = spec

        def keep_reference(self) -> None:
            told.append("keep")

        def load_reference(self, folder: str) -> bool:
            told.append(f"load {Path(folder).name}")
            return True

        def score_reference(self, games: list[GameSample], temperature: float) -> list[GameSample]:
            return [replace(each, turns=(replace(each.turns[0], ref_logprobs=(-7.0,)),)) for each in games]

        def step(self, games: list[GameSample], sft: list[Sample], at_start: bool) -> Report:
            self.steps.append(games)
            return Report(len(self.steps), 0.5, False)

        def load_state(self, folder: str) -> StageSpec:
            return StageSpec("self_play", 8, 1e-6, 0.2, name="stream", is_part=True)

    config = parse_config({"schedule": "stream", "self_play": {"games_per_round": 160}})
    policy = LearningPolicy("policy", tuple(Role), config, tmp_path, "/base", Recorder(tmp_path))
    fake: Any = Watched(set())
    policy.learners = fake

    def learn(stage: str, part: int, num_steps: int, after: str = "", count: int = 2) -> Any:
        began_with = Stage.parse(after) if after else None
        spec = StageSpec("self_play", num_steps, 1e-6, 0.2, name="stream", is_part=True)
        training_stage = TrainingStage(Stage.parse(stage), spec, games(count), [], 2, part=part, after=began_with)
        policy.learn(training_stage, lambda *_: None)
        return fake.steps[-1][0].turns[0].ref_logprobs if fake.steps else None

    assert learn("spag-1", 0, 8, count=0) is None, "no game was decided, and the start is kept all the same"
    assert learn("spag-1", 1, 8) == (-7.0,)
    assert learn("spag-2", 0, 8, "spag-1") is None, "the weights of the start are those of now"
    policy.load_state(tmp_path, "stream")
    assert learn("spag-2", 1, 12, "spag-1") == [-7.0] == learn("spag-2", 2, 12, "spag-1")
    policy.load_state(tmp_path, "stream")
    learn("spag-1", 2, 12)
    assert told == [
        *("keep", "begin, 8 steps", "keep", "load spag-1", "continue, 12 steps"),
        *("load base", "continue, 12 steps"),
    ]  # fmt: skip


def sft_rows(count: int) -> list[Sample]:
    return [Sample((1,), (number,)) for number in range(count)]


class Resumed(FakeLearners):
    def save_state(self, folder: str) -> None:
        Path(folder).mkdir(parents=True)

    def load_state(self, folder: str) -> StageSpec:
        return self.begun

    def step(self, games: list[GameSample], sft: list[Sample], at_start: bool) -> Report:
        self.rows.append([int(row.target_ids[0]) for row in sft])
        return Report(len(self.rows), 0.5, False)


def test_instruction_rows_go_on_from_round_to_round_and_after_a_resume_in_shuffled_passes(tmp_path: Path) -> None:
    config = parse_config({"self_play": {"sft_rows_per_step": 5}})

    def rounds(numbers: list[int], at: Path, resumed_from: Path | None = None) -> list[list[int]]:
        policy = LearningPolicy("policy", tuple(Role), config, at, "model", Recorder(at))
        fake: Any = Resumed(set())
        fake.begun = SPEC
        policy.learners = fake
        if resumed_from:
            policy.load_state(resumed_from, None)
        for number in numbers:
            policy.learn(TrainingStage(Stage.of_round(number), SPEC, games(6), sft_rows(20), 2), lambda *_: None)
            policy.save_state(at / f"after-{number}")
        return cast(list[list[int]], fake.rows)

    for name in ("whole", "first"):
        (tmp_path / name).mkdir()
    whole = rounds([1, 2, 3], tmp_path / "whole")
    rows = [row for step in whole for row in step]
    passes = [rows[start : start + 20] for start in range(0, 40, 20)]
    assert [sorted(each) for each in passes] == [list(range(20))] * 2, "9 steps of 5 rows: two passes and a quarter"
    assert passes[0] != passes[1]
    assert list(range(20)) not in passes
    assert rounds([1], tmp_path / "first") == whole[:3]
    assert rounds([2, 3], tmp_path / "first", tmp_path / "first" / "after-1") == whole[3:]


@pytest.mark.parametrize("num_games", [7, 0])
def test_learning_from_a_file_takes_every_instruction_row_once(num_games: int, tmp_path: Path) -> None:
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = Resumed(set())
    policy.learners = fake
    policy.learn(TrainingStage(LEARN, SPEC, games(num_games), sft_rows(30), 2, one_pass=True), lambda *_: None)
    assert len(fake.rows) == 4
    assert sorted(row for step in fake.rows for row in step) == list(range(30))
    assert max(map(len, fake.rows)) <= 8


def test_a_seat_that_first_learns_after_a_resume_begins_the_stream_then(tmp_path: Path) -> None:
    """Before, it had learned nothing but imitation: the checkpoint's learners are in that stage."""
    told: list[tuple[str, str]] = []

    class Watched(Resumed):
        def begin_stage(self, spec: StageSpec) -> None:
            told.append(("begin", spec.method))
            self.begun = spec

        def continue_stage(self, spec: StageSpec) -> None:
            told.append(("continue", spec.method))

    policy = LearningPolicy("defender", (Role.DEFENDER,), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = Watched(set())
    policy.learners = fake
    own = [replace(each, turns=(replace(each.turns[0], role=Role.DEFENDER),)) for each in games(2)]
    spec = replace(SPEC, num_steps=9, name="stream", is_part=True)
    policy.learn(TrainingStage(IMITATED, replace(SPEC, method="imitation"), own, [], 2), lambda *_: None)
    policy.learn(TrainingStage(Stage.of_round(1), spec, [], [], 2), lambda *_: None)
    policy.save_state(tmp_path / "version-1")
    policy.load_state(tmp_path / "version-1", "stream")
    policy.learn(TrainingStage(Stage.of_round(1), spec, own, [], 2, part=1), lambda *_: None)
    policy.learn(TrainingStage(Stage.of_round(1), spec, own, [], 2, part=2), lambda *_: None)
    assert told == [("begin", "imitation"), ("begin", "self_play")]


class WithReference(FakeLearners):
    """Notes which weights it is told to keep, and scores turns under them."""

    def __init__(self) -> None:
        super().__init__(set())
        self.loaded: list[str] = []

    def load_reference(self, folder: str) -> bool:
        self.loaded.append(folder)
        return True

    def score_reference(self, games: list[GameSample], temperature: float) -> list[GameSample]:
        return [replace(each, turns=(replace(each.turns[0], ref_logprobs=(-7.0,)),)) for each in games]

    def step(self, games: list[GameSample], sft: list[Sample], at_start: bool) -> Report:
        self.steps.append(games)
        return Report(len(self.steps), 0.5, False)

    def load_state(self, folder: str) -> StageSpec:
        return self.begun


@pytest.mark.parametrize("imitates", [True, False])
def test_the_kl_term_compares_with_the_model_that_self_play_started_with(imitates: bool, tmp_path: Path) -> None:
    settings = {"objective": {"kl_reference": "start"}, "imitation": {"enabled": imitates}}
    policy = LearningPolicy("policy", tuple(Role), parse_config(settings), tmp_path, "/base", Recorder(tmp_path))
    fake: Any = WithReference()
    policy.learners = fake

    def learn(stage: str, method: Method = "self_play", count: int = 4) -> None:
        spec = StageSpec(method, 0, 1e-6, 0.2)
        policy.learn(TrainingStage(Stage.parse(stage), spec, games(count), [], 2), lambda *_: None)

    learn("imitated", "imitation")
    assert fake.loaded == []
    assert fake.steps[-1][0].turns[0].ref_logprobs is None, "imitation compares with its own start"
    learn("spag-1")
    learn("spag-2")
    start = str(tmp_path / "models" / "imitated") if imitates else "/base"
    assert fake.loaded == [start], "once"
    assert [game.turns[0].ref_logprobs for batch in fake.steps[2:] for game in batch] == [-7.0] * 8
    assert fake.steps[2][0].turns[0].old_logprobs is None
    assert fake.steps[3][0].turns[0].old_logprobs == [-9.0]
    policy.load_state(tmp_path, None)
    learn("spag-3")
    assert fake.loaded == [start, start], "learners that resume have to load it again"


def moving(tmp_path: Path, schedule: str, **objective: Any) -> tuple[LearningPolicy, list[Any]]:
    """A policy whose reference moves, and what its learners are told about it."""
    told: list[Any] = []

    class Told(WithReference):
        def keep_reference(self) -> None:
            told.append("keep")

        def move_reference(self, share: float) -> None:
            told.append(share)

        def load_reference(self, folder: str) -> bool:
            told.append(Path(folder).name)
            return True

        def save_state(self, folder: str) -> None:
            Path(folder).mkdir(parents=True)

        def load_state(self, folder: str) -> StageSpec:
            return SPEC

    settings = {
        "schedule": schedule,
        "self_play": {"games_per_round": 160},
        "objective": {"kl_reference": "start", **objective},
    }
    policy = LearningPolicy("policy", tuple(Role), parse_config(settings), tmp_path, "/base", Recorder(tmp_path))
    fake: Any = Told()
    policy.learners = fake
    return policy, told


def learn_round(policy: LearningPolicy, number: int, part: int | None = None, count: int = 4) -> None:
    spec = replace(SPEC, name="stream", is_part=True) if part is not None else SPEC
    stage = TrainingStage(Stage.of_round(number), spec, games(count), [], 2, part=part or 0)
    policy.learn(stage, lambda *_: None)


def moves(folder: Path) -> list[tuple[str, str]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line["stage"], line["saved"]) for line in lines if line["kind"] == "reference" and line["is_exact"]]


def test_a_reference_that_moves_every_two_rounds_is_the_model_of_the_round_before(tmp_path: Path) -> None:
    policy, told = moving(tmp_path, "rounds", kl_reference_every=2)
    for number in range(1, 6):
        learn_round(policy, number)
    assert told == ["imitated", "spag-2", "spag-4"]
    assert moves(tmp_path) == [("spag-3", "spag-2"), ("spag-5", "spag-4")]
    policy.save_state(tmp_path / "spag-5")
    policy.load_state(tmp_path / "spag-5", None)
    learn_round(policy, 6)
    assert told[3:] == ["spag-4"], "learners that resume load it again"


def test_in_a_stream_a_reference_moves_between_rounds_not_between_versions(tmp_path: Path) -> None:
    policy, told = moving(tmp_path, "stream", kl_reference_every=1)
    for number, part in ((1, 0), (1, 1), (2, 0), (2, 1)):
        learn_round(policy, number, part)
    assert told == ["imitated", "spag-1"]


@pytest.mark.parametrize("parts", [[None], [0, 1]])
def test_an_average_moves_once_before_each_round_whatever_resumes(parts: list[int | None], tmp_path: Path) -> None:
    policy, told = moving(tmp_path, "rounds" if parts == [None] else "stream", kl_reference_average=0.75)
    for number in (1, 2, 3):
        for part in parts:
            learn_round(policy, number, part, count=0 if number == 2 else 4)
            checkpoint = tmp_path / f"{number}-{part}"
            policy.save_state(checkpoint)
            policy.forget()
            policy.load_state(checkpoint, None if part is None else "stream")
    assert told == ["keep", 0.75, 0.75], "in a round without decided games too"
    assert moves(tmp_path) == [("spag-2", "average"), ("spag-3", "average")]


def test_a_stage_that_resumes_computes_the_reference_of_the_start_again(tmp_path: Path) -> None:
    settings = {"objective": {"kl_reference": "start"}, "imitation": {"enabled": False}}
    policy = LearningPolicy("policy", tuple(Role), parse_config(settings), tmp_path, "/base", Recorder(tmp_path))
    fake: Any = WithReference()
    policy.learners = fake
    stage = TrainingStage(Stage.of_round(1), SPEC, games(6), [], 2)

    def stop_after_one(name: str, done: int, total: int, loss: float | None) -> None:
        if done == 1 and "learn" in name:
            (tmp_path / "policy").mkdir()
            policy.save_progress(tmp_path / "policy")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        policy.learn(stage, stop_after_one)
    policy.load_state(tmp_path, None)
    policy.learn(stage, lambda *_: None)
    assert len(fake.steps) == 3
    resumed = [game for batch in fake.steps[1:] for game in batch]
    assert [game.turns[0].ref_logprobs for game in resumed] == [-7.0] * 4
    assert [game.turns[0].old_logprobs for game in resumed] == [-9.0] * 4


def mixed(num_won: int, num_tied: int) -> list[GameSample]:
    """Games that the attacker won, and ties; all are listened to."""
    word = Sample((1, 3), (4,), 1.0, role=Role.DEFENDER)
    tied = [GameSample(f"t/{number}", None, 1.0, (), (word,)) for number in range(num_tied)]
    return [*(replace(each, listening=(word,)) for each in games(num_won)), *tied]


def names(steps: list[list[GameSample]]) -> list[list[str]]:
    return [[each.episode_id for each in batch] for batch in steps]


def listening(tmp_path: Path, role: Role | None, given: list[GameSample], batch_games: int = 2) -> FakeLearners:
    policy = LearningPolicy(
        str(role or "policy"), (role,) if role else tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path)
    )
    fake: Any = FakeLearners(set())
    policy.learners = fake
    stage = TrainingStage(Stage.of_round(1), StageSpec("self_play", 0, 1e-6, 0.2, 0.5), given, [], batch_games)
    policy.learn(stage, lambda *_: None)
    return fake


def test_ties_are_listened_to_beside_the_games_that_make_the_steps(tmp_path: Path) -> None:
    given = mixed(4, 3)
    fake = listening(tmp_path, None, [given[5], *given[:5], given[6]])
    assert names(fake.steps) == [["e/0", "e/1", "t/1"], ["e/2", "e/3", "t/0", "t/2"]]
    assert fake.scored[:2] == ["e/2", "e/3"], "of the first step's games none is scored"
    assert fake.steps[1][0].listening[0].old_logprobs is None
    assert names(listening(tmp_path, None, mixed(0, 3)).steps) == [["t/0"], ["t/1", "t/2"]]


def test_a_seat_that_only_listens_takes_as_many_steps_as_the_games_make(tmp_path: Path) -> None:
    fake = listening(tmp_path, Role.DEFENDER, mixed(3, 5), batch_games=1)
    assert [len(batch) for batch in fake.steps] == [2, 3, 3]
    assert fake.scored == [each.episode_id for batch in fake.steps for each in batch][1:]
    fake = listening(tmp_path, Role.ATTACKER, mixed(3, 5), batch_games=1)
    assert names(fake.steps) == [["e/0"], ["e/1"], ["e/2"]]
    assert not any(each[0].listening for each in fake.steps)


@pytest.mark.parametrize(("num_own", "batches"), [(3, [1, 1, 1]), (9, [2, 2, 2, 3]), (16, [4, 4, 4, 4]), (0, [])])
def test_a_seat_takes_the_steps_of_a_streams_part_with_the_games_it_won(
    num_own: int, batches: list[int], tmp_path: Path
) -> None:
    """The learning rate falls over the steps of all parts: with fewer a seat would not reach the end of its cosine."""
    policy = LearningPolicy("attacker", (Role.ATTACKER,), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = FakeLearners(set())
    policy.learners = fake
    of_other = Sample((1,), (2,), 1.0, sampler_logprobs=(-1.0,), role=Role.DEFENDER)
    lost = [GameSample(f"l/{number}", Role.DEFENDER, 1.0, (of_other,)) for number in range(32 - num_own)]
    spec = replace(SPEC, num_steps=20, name="stream", is_part=True)
    stage = TrainingStage(Stage.of_round(1), spec, [*games(num_own), *lost], [], 8, part_steps=4)
    policy.learn(stage, lambda *_: None)
    assert [len(batch) for batch in fake.steps] == batches
    assert fake.scored == [each.episode_id for batch in fake.steps[1:] for each in batch], "the first step needs none"


def test_one_policy_of_both_seats_takes_whole_batches_of_a_streams_part(tmp_path: Path) -> None:
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    fake: Any = FakeLearners(set())
    policy.learners = fake
    spec = replace(SPEC, num_steps=20, name="stream", is_part=True)
    policy.learn(TrainingStage(Stage.of_round(1), spec, games(9), [], 3, part_steps=4), lambda *_: None)
    assert [len(batch) for batch in fake.steps] == [3, 3, 3]


@pytest.mark.parametrize(
    ("name", "damaged"),
    [
        ("references.npz", b"PK\x03\x04 and zeros" + bytes(99)),
        ("references.npz", b""),
        ("stage.json", b"\0" * 9),
        ("rows.json", b"{}["),
        ("rows.json", b"{}"),
        ("reference.json", b"[1]"),
    ],
)
def test_a_checkpoint_whose_stage_is_damaged_is_named(name: str, damaged: bytes, tmp_path: Path) -> None:
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    policy.stage_progress = StageProgress.of("spag-1", games(2))
    policy.save_progress(tmp_path)
    policy.load_progress(tmp_path, SPEC, None)
    (tmp_path / name).write_bytes(damaged)
    with pytest.raises(RunFolderError, match=r"under way cannot be read.*move this one away"):
        policy.load_progress(tmp_path, SPEC, None)


def test_a_checkpoint_for_which_there_is_no_memory_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise MemoryError

    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    monkeypatch.setattr(StageProgress, "saved_in", full)
    with pytest.raises(MemoryError):
        policy.load_progress(tmp_path, SPEC, None)


@pytest.mark.parametrize("num_won", [4, 0])
def test_a_stage_that_is_resumed_learns_the_same_batches(num_won: int, tmp_path: Path) -> None:
    given = mixed(num_won, 6)
    whole = listening(tmp_path, None, given)
    policy = LearningPolicy("policy", tuple(Role), RunConfig(), tmp_path, "model", Recorder(tmp_path))
    (tmp_path / "policy").mkdir()
    ordered = [*(each for each in given if each.turns), *(each for each in given if not each.turns)]
    replace(StageProgress.of("spag-1", ordered), num_steps_done=1).save(tmp_path / "policy")

    class Loaded(FakeLearners):
        def load_state(self, folder: str) -> StageSpec:
            self.steps.append([])
            return SPEC

    fake: Any = Loaded(set())
    policy.learners = fake
    policy.load_state(tmp_path, None)
    policy.learn(TrainingStage(Stage.of_round(1), SPEC, given, [], 2), lambda *_: None)
    assert names(fake.steps[1:]) == names(whole.steps[1:])
    assert fake.scored == []


class Loading:
    """A handle of an engine that notes what it is to load."""

    def __init__(self) -> None:
        self.loaded: list[Any] = []
        self.load_saved = SimpleNamespace(remote=self._load)

    def _load(self, saved: Any) -> Any:
        self.loaded.append(saved)
        return "answered"


def test_the_only_engine_that_comes_back_while_the_learner_cannot_send_loads_the_model_saved_of_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over `ipc` a learner that sleeps cannot send; the run would end with each engine that dies."""
    monkeypatch.setattr(learning_policy, "gather", lambda engines, refs, timeout_s: Answers(dict.fromkeys(engines, 1)))
    policy = LearningPolicy(
        "policy", tuple(Role), parse_config({"placement": "colocated"}), tmp_path, "model", Recorder(tmp_path)
    )
    learners: Any = FakeLearners(set())
    learners.save_model = lambda folder, adapter_alone: None
    policy.learners = learners
    handle = Loading()
    engine = Engine(cast(Any, handle), "engine-0", "policy")

    def admitted() -> Any:
        handle.loaded.clear()
        policy.admit([engine], others_play=False)
        return handle.loaded

    def learn() -> None:
        policy.learn(TrainingStage(Stage.parse("spag-1"), SPEC, games(2), [], 2), lambda *_: None)

    with pytest.raises(EngineError, match="no engine of policy is left"):
        admitted()
    policy.save_to(tmp_path / "spag-1")
    with pytest.raises(EngineError):
        admitted()  # saved, and not yet the version that is played
    policy.version = 1
    assert admitted() == [{None: (str(tmp_path / "spag-1"), 1)}]
    assert policy.admit([engine], others_play=True) is None
    policy.learners = None  # after the last stage
    assert admitted() == [{None: (str(tmp_path / "spag-1"), 1)}]
    policy.learners = learners
    learn()
    policy.version = 2
    with pytest.raises(EngineError):
        admitted()  # the folder has older weights
    policy.save_to(tmp_path / "spag-2")
    report = SyncReport(3, 0.1, 1, 10, broken_channels=0)
    monkeypatch.setattr(learning_policy, "publish", lambda *_: (report, {}))
    policy._published = Export(cast(Any, None), 3, [], None)
    policy.publish([engine], cast(Any, None))
    assert admitted() == [{None: (str(tmp_path / "spag-2"), 3)}]
    policy.save_to(tmp_path / "league" / "v2")
    assert admitted() == [{None: (str(tmp_path / "league" / "v2"), 3)}], "the same weights, which are that version"


def test_engines_stopped_because_a_learner_died_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the object store: each engine refuses a version whose buckets are gone, and is stopped for it."""
    policy = LearningPolicy("policy", tuple(Role), parse_config({}), tmp_path, "model", Recorder(tmp_path))

    def check_alive(wait_s: float = 0.0) -> None:
        raise LearnersLostError("a learner rank is gone")

    policy.learners = cast(Any, SimpleNamespace(check_alive=check_alive))
    policy._published = Export(cast(Any, None), 1, [], None)
    engines = [Engine(cast(Any, Loading()), f"engine-{number}", "policy") for number in range(12)]

    def refused(*_: Any) -> Any:
        lost = {engine: f"{engine.name}: ActorDiedError" for engine in engines}
        Answers[object]({}, lost, engines).check("version 1 was not taken by ")

    monkeypatch.setattr(learning_policy, "publish", refused)
    with pytest.raises(LearnersLostError) as caught:
        policy.publish(engines, cast(Any, None))
    assert caught.value.stopped == tuple(engine.name for engine in engines)
