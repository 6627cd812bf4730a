"""The fleet: who may be taken out, what becomes of engines that die, and a model of everything at once."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cluster.fleet import fleet as fleet_module
from cluster.fleet.engine_start import EngineStarter
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.fleet.roster import MAY_BECOME, EngineRecord, Roster, State
from cluster.learning.direct_channel import Answers
from cluster.learning.learning_policy import LearningPolicy
from cluster.planning.reservation import NoRoomError, Reservation
from cluster.rollout import arenas as arenas_module
from cluster.rollout.arenas import Arenas
from cluster.run.run import Run
from cluster.runtime.ray_session import NoAnswerError
from cluster.supervision.restart_budget import RestartBudget, TooManyRestartsError
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.errors import (
    EngineError,
    EngineGoneError,
    InputError,
    LearnersLostError,
    RunFolderError,
    SpagError,
    WeightSyncError,
)
from spag_ray.game.rules import Role
from spag_ray.host.folder_lease import FolderLease
from tests.support.fake_engines import _PENDING, FakeEngine, FakeRay, FakeRef
from tests.support.runs import records_of
from tests.support.settings import config_of

WITHIN_S = 20.0  # far more than anything here takes


class FakeLearners:
    """Learner ranks whose weights are one bucket, ready at once."""

    num_tensors, adapter, timeout_s = 1, None, 5.0

    def bucket_refs(self) -> list[Any]:
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class Parts:
    """A fleet with fake engines and arenas, a policy that learns, and all that connects them. `calls` of what a run
    does in its own thread come one after the other; others beside them."""

    def __init__(self, folder: Path, placement: str = "separate", update: str = "in_flight") -> None:
        self.patch = pytest.MonkeyPatch()
        self.ray = FakeRay()
        self.ray.install(self.patch)
        self.patch.setattr(fleet_module, "BEAT_S", 0.02)
        self.patch.setattr(fleet_module, "LOOK_EVERY_S", 0.02)
        self.patch.setattr(fleet_module, "CLOSE_WITHIN_S", 0.1)
        self.patch.setattr(arenas_module.Arenas, "_start", lambda arenas, index: self._arena(arenas, index))
        self.config = config_of(
            f"placement={placement}; sync.update={update}; sync.timeout_s=0.5; sync.channel=object_store; "
            f"engine.turn_timeout_s=4; "
            "supervision.heartbeat_timeout_s=0.5; supervision.max_restarts=100000; engine.start_timeout_s=5; "
            "self_play.num_arenas=2"
        )
        recorder = Recorder(folder)
        self.failures: list[str] = []
        self.restarts = RestartBudget(self.config.supervision, recorder, self.failures.append)
        watch: Any = SimpleNamespace(forget=lambda name: None, reason=lambda name: None, answer_within_s=5.0)
        nothing: Any = None
        uncounted: Any = SimpleNamespace(count=lambda *_: None)
        self.arenas = Arenas(self.config, folder, watch, uncounted, [], nothing)
        self.fleet = Fleet(self.config, folder, self.arenas, recorder, self.restarts, Reservation())
        self.policy = LearningPolicy("policy", tuple(Role), self.config, folder, "model", recorder)
        self.policy.learners = FakeLearners()  # type: ignore[assignment]
        self.policy.start_learners = lambda: None  # type: ignore[method-assign]
        self.publisher = Publisher(self.config, FolderLease.take(folder), [self.policy], self.fleet, self.arenas)

    def _arena(self, arenas: Arenas, index: int) -> Any:
        arenas._lives[index] += 1
        return self.ray.arena()

    def start(self, count: int) -> None:
        self.fleet.start("model", "policy", "policy", count, self.policy)

    def record(self, name: str) -> EngineRecord:
        return next(each for each in self.fleet.roster.records if each.name == name)

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not is_so():
            self.fleet.tasks.check()
            assert time.monotonic() < deadline, (
                [(each.name, str(each.state)) for each in self.fleet.roster.records],
                [each.name for each in self.ray.alive],
            )
            time.sleep(0.005)

    def play(self) -> list[str]:
        return [engine.name for engine in self.fleet.roster.of("policy")]

    def close(self) -> None:
        self.ray.busy.clear()
        self.fleet.close()
        self.patch.undo()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Parts]]:
    made: list[Parts] = []

    def build(num_engines: int = 0, **options: Any) -> Parts:
        made.append(Parts(tmp_path, **options))
        if num_engines:
            made[-1].start(num_engines)
        return made[-1]

    yield build
    for each in made:
        each.close()


def test_an_engine_that_is_not_there_cannot_be_taken_out(make: Callable[..., Parts]) -> None:
    parts = make(1)
    with pytest.raises(InputError, match="no engine is called 'engine-policy-7'; there are engine-policy-0"):
        parts.fleet.remove("engine-policy-7")


def test_the_only_engine_of_a_policy_cannot_be_taken_out(make: Callable[..., Parts]) -> None:
    parts = make(1)
    with pytest.raises(InputError, match="engine-policy-0 is the only engine of policy, and its games would stop"):
        parts.fleet.remove("engine-policy-0")
    added = parts.fleet.add(parts.policy)
    parts.fleet.remove("engine-policy-0")
    assert [record.name for record in parts.fleet.roster.records] == [added]


def test_no_engine_is_added_for_a_policy_that_does_not_learn() -> None:
    policies = [SimpleNamespace(name="attacker"), SimpleNamespace(name="defender")]
    run: Any = Run.__new__(Run)
    run._parts = SimpleNamespace(policies=policies)
    with pytest.raises(InputError, match="no policy 'policy' learns; there are attacker, defender"):
        run.add_engine()


def test_a_lost_engine_is_replaced_and_plays_the_newest_version(make: Callable[..., Parts]) -> None:
    parts = make(2)
    parts.publisher.publish()
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.2", "engine-policy-1"])
    assert parts.record("engine-policy-0.2").version == 1
    assert parts.ray.engines[2].loaded == [1]
    assert len(parts.failures) == 1
    for arena in parts.arenas.handles:
        assert set(arena.known["policy"]) <= {"engine-policy-0.2", "engine-policy-1"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("update", "is_lost"), [("between_turns", False), ("in_flight", True)])
def test_an_engine_may_finish_its_turns_before_it_loads(update: str, is_lost: bool, make: Callable[..., Parts]) -> None:
    """Once every engine with a turn longer than sync.timeout_s was killed, and counted as a failure. With `in_flight`
    nothing waits for turns, so an engine that takes this long hangs."""
    parts = make(2, update=update)
    busy = parts.ray.engines[0]
    busy.turns_end = time.monotonic() + 2.5  # longer than sync.timeout_s, within engine.turn_timeout_s
    parts.publisher.publish()
    assert busy.is_dead == is_lost
    assert busy.loaded == ([] if is_lost else [1])


def test_an_engine_that_dies_while_the_learner_works_starts_when_the_engines_wake(make: Callable[..., Parts]) -> None:
    """Colocated: there is no room on the devices before. Once the publish waited for the replacement, which needed the
    publisher's lock."""
    parts = make(1, placement="colocated")
    parts.publisher.wake_learners()
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.record("engine-policy-0").state is State.LOST)
    time.sleep(0.1)
    assert len(parts.ray.engines) == 1
    parts.publisher.publish()
    parts.until(lambda: parts.play() == ["engine-policy-0.2"])
    assert parts.record("engine-policy-0.2").version == 1


def test_a_replacement_under_way_when_engines_sleep_is_stopped_and_not_counted(make: Callable[..., Parts]) -> None:
    """It would fill a card that the learner needs, or fail on it again and again until the budget ends the run."""
    parts = make(2, placement="colocated")
    parts.ray.start_s = 3.0
    parts.ray.engines[1].is_dead = True
    parts.until(lambda: len(parts.ray.engines) == 3)
    parts.publisher.wake_learners()
    parts.until(lambda: parts.ray.engines[2].is_dead)
    parts.ray.start_s = 0.0
    time.sleep(0.2)
    assert len(parts.ray.engines) == 3, "nothing starts while the learner has the devices"
    parts.publisher.publish()
    parts.until(lambda: parts.play() == ["engine-policy-0", "engine-policy-1.3"])
    assert len(parts.failures) == 1, "one engine died"


@pytest.mark.parametrize(
    ("error", "num_failures"),
    [(EngineError("no"), 3), (NoAnswerError("silence"), 3), (NoRoomError("no room"), 1), (ValueError, 1)],
)
def test_a_replacement_that_fails_is_tried_again_while_others_play(
    error: Any, num_failures: int, make: Callable[..., Parts]
) -> None:
    """One that finds no room has not failed: nothing is wrong with it. What nobody foresaw ends the run."""
    parts = make(2)
    start, tried = parts.fleet._starter.start, []

    def fails(records: Any, *options: Any) -> None:
        tried.append(records[0].name)
        if len(tried) < 3:
            raise error
        start(records, *options)

    parts.patch.setattr(parts.fleet._starter, "start", fails)
    parts.ray.engines[0].is_dead = True
    if error is ValueError:
        parts.until(lambda: parts.fleet.tasks._failure is not None)
        parts.fleet.tasks._failure = None
        return
    parts.until(lambda: parts.play() == ["engine-policy-0.4", "engine-policy-1"])
    assert tried == ["engine-policy-0.2", "engine-policy-0.3", "engine-policy-0.4"]
    assert len(parts.failures) == num_failures


def test_engines_on_one_gpu_start_one_after_the_other(make: Callable[..., Parts]) -> None:
    """vLLM takes what the free memory of a GPU falls by during its start for its own use."""
    parts = make()
    parts.fleet._starter.config = config_of("engine.num_gpus=0.5; learner.num_gpus=0.5; engine.start_timeout_s=5")
    gpus, up_before, call = iter([("a",), ("a",), ("b",), ("a",)]), dict[str, set[str]](), FakeEngine._call

    def watched(engine: FakeEngine, method: str, arguments: Any) -> FakeRef:
        if method == "gpus":
            own = next(gpus)
            return FakeRef(lambda: own)
        if method == "start":
            up_before[arguments[2]] = {each.name[:15] for each in parts.ray.engines if each.is_up}
        return call(engine, method, arguments)

    parts.patch.setattr(FakeEngine, "_call", watched)
    parts.start(4)
    zero, one, two, _ = names = [f"engine-policy-{index}" for index in range(4)]
    assert up_before == dict(zip(names, [set(), {zero, two}, set(), {zero, one, two}], strict=True))


def test_replacements_on_gpus_that_engines_share_start_one_after_the_other(make: Callable[..., Parts]) -> None:
    parts = make(2)
    parts.fleet._starter.config = config_of("engine.num_gpus=0.5; learner.num_gpus=0.5; engine.start_timeout_s=5")
    at_once: list[int] = []
    wait_until_up, under_way = EngineStarter._wait_until_up, set[str]()

    def watched(starter: EngineStarter, engines: Any, *more: Any) -> None:
        under_way.add(engines[0].name)
        time.sleep(0.2)
        at_once.append(len(under_way))
        wait_until_up(starter, engines, *more)
        under_way.discard(engines[0].name)

    parts.patch.setattr(EngineStarter, "_wait_until_up", watched)
    for engine in parts.ray.engines:
        engine.is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.2", "engine-policy-1.2"])
    assert at_once == [1, 1]


def test_games_hear_that_a_replacement_waits_for_room(make: Callable[..., Parts]) -> None:
    """Without that their own limit ended runs of which a pool has one engine, while its node was away."""
    parts = make(1)
    (arena, *_) = cast("list[Any]", parts.arenas.handles)
    heard: list[list[tuple[str, bool]]] = []
    parts.patch.setattr(parts.fleet._starter.reservation, "wait_for", lambda *_: heard.append(list(arena.waits)))
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.2"])
    assert heard == [[("policy", True)]]
    assert arena.waits == [("policy", True), ("policy", False)]


def test_a_wait_for_room_ends_also_if_arenas_do_not_answer(make: Callable[..., Parts]) -> None:
    """Else games would wait without a limit for an engine that nobody starts."""
    parts, told = make(1), list[bool]()

    def silent(waits: bool) -> None:
        told.append(waits)
        if waits:
            raise NoAnswerError("arena-0 does not answer")

    with pytest.raises(NoAnswerError):
        parts.fleet._starter.start([parts.record("engine-policy-0")], waits_for_room=silent)
    assert told == [True, False]


def test_the_engines_of_a_lost_node_count_as_one_restart(make: Callable[..., Parts]) -> None:
    """Eight engines of a node once left the budget two for the rest of the hour."""
    parts = make(8)
    parts.restarts._config = parts.config.supervision.model_copy(update={"max_restarts": 2})
    with parts.fleet.roster.lock:  # no poll begins
        time.sleep(0.2)
        for engine in parts.ray.engines:
            engine.is_dead = True
    parts.until(lambda: parts.play() == [f"engine-policy-{number}.2" for number in range(8)])
    assert len(parts.failures) == 8, "each is recorded"


def test_the_count_of_the_kernels_kills_is_looked_at_again_and_again(make: Callable[..., Parts]) -> None:
    looked: list[float] = []
    parts = make()
    parts.patch.setattr(parts.restarts, "poll", lambda: looked.append(time.monotonic()))
    parts.until(lambda: len(looked) > 2)


def test_engines_that_a_version_was_not_taken_by_count_as_one_restart(make: Callable[..., Parts]) -> None:
    parts = make(3)
    parts.restarts._config = parts.config.supervision.model_copy(update={"max_restarts": 1})
    parts.fleet.lose({each.process: "it did not answer" for each in parts.fleet.roster.records})
    parts.until(lambda: parts.play() == [f"engine-policy-{number}.2" for number in range(3)])
    parts.fleet.lose({parts.record("engine-policy-0.2").process: "it did not answer"})
    with pytest.raises(TooManyRestartsError):
        parts.until(lambda: parts.play()[0] == "engine-policy-0.3")


def test_a_replacement_that_refuses_the_weights_and_is_seen_dead_first_counts_once(make: Callable[..., Parts]) -> None:
    """The thread that gave it the weights hears of its end after the heartbeats: then another one replaces it."""
    parts = make(1)
    parts.publisher.publish()
    catch_up = parts.policy.catch_up
    refused: list[str] = []

    def refuses(engine: Engine, others_play: bool) -> Any:
        if refused:
            return catch_up(engine, others_play)
        refused.append(engine.name)
        parts.ray.engines[1].is_dead = True
        parts.ray.start_s = 0.3
        parts.until(lambda: parts.fleet.roster.records[0].name == "engine-policy-0.3")
        raise WeightSyncError("the version was not taken")

    parts.patch.setattr(parts.policy, "catch_up", refuses)
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.3"])
    assert refused == ["engine-policy-0.2"]
    assert len(parts.failures) == 2, "the first engine died, and the second"
    assert len(parts.ray.alive) == 1


def test_engines_of_a_broken_channel_take_the_next_version_if_learners_were_lost_meanwhile(
    make: Callable[..., Parts],
) -> None:
    """They are drained, with a part of a version. Once they stayed so for ever, and no version reached them."""
    parts = make(3, update="between_games")
    parts.publisher.publish()
    channel = SimpleNamespace(send=lambda version, engines: (0, Answers(dict.fromkeys(engines, 0)), False))
    learners: Any = parts.policy.learners
    parts.policy._direct = channel  # type: ignore[assignment]
    learners.bucket_refs, learners.timeout_s = (lambda: [FakeRef(lambda: _PENDING)]), 0.1
    with pytest.raises(LearnersLostError):
        parts.publisher.publish()
    assert [each.state for each in parts.fleet.roster.records[1:]] == [State.DRAINING] * 2
    parts.policy._direct = None
    learners.bucket_refs, learners.timeout_s = list, 5.0
    parts.policy.forget_export()
    parts.publisher.publish()
    parts.until(lambda: parts.play() == ["engine-policy-0.2", "engine-policy-1", "engine-policy-2"])
    assert {(each.state, each.version) for each in parts.fleet.roster.records} == {(State.PLAYING, 2)}
    assert [engine.loaded[-1] for engine in parts.ray.alive] == [2, 2, 2]


def test_two_drains_of_one_engine_both_end_and_it_retires(make: Callable[..., Parts]) -> None:
    """A sync between games and a load that falls: the sync once opened again what was to leave."""
    parts = make(2, update="between_games")
    record = parts.record("engine-policy-1")
    parts.ray.busy.add("engine-policy-1")
    with ThreadPoolExecutor() as threads:
        published = threads.submit(parts.publisher.publish)
        parts.until(lambda: record.state is State.DRAINING)
        retired = threads.submit(parts.fleet.retire, record, "fewer are needed")
        parts.until(lambda: bool(record.leaving) or retired.done())
        parts.ray.busy.clear()
        published.result(WITHIN_S)
        assert retired.result(WITHIN_S)
    assert parts.play() == ["engine-policy-0"]
    assert not parts.fleet.retire(record, "again")


def test_no_arena_depends_on_an_engine_that_retires(make: Callable[..., Parts]) -> None:
    """Its games may last for hours. Once an arena's whole share lay on it meanwhile, and the run ended."""
    parts = make(2)
    parts.publisher.publish()
    handles: Any = parts.arenas.handles
    record = parts.record("engine-policy-1")
    parts.ray.busy.add("engine-policy-1")
    with ThreadPoolExecutor() as threads:
        retired = threads.submit(parts.fleet.retire, record, "fewer are needed")
        parts.until(lambda: not any(arena.known["policy"].get(record.name, (0.0, False))[1] for arena in handles))
        told = [dict(arena.known["policy"]) for arena in handles]
        parts.ray.busy.clear()
        assert retired.result(WITHIN_S)
    assert told == [{"engine-policy-0": (0.5, True), "engine-policy-1": (0.0, False)}] * 2


def test_new_weights_do_not_wait_for_games_that_wait_for_an_engine(make: Callable[..., Parts]) -> None:
    """The engine that is to join needs the lock of the publish."""
    parts = make(1, update="between_games")
    parts.fleet.start("other", "past", "past", 1)
    parts.ray.start_s = 0.3
    parts.ray.busy.add("engine-policy-0")
    parts.ray.engines[1].is_dead = True
    parts.until(lambda: parts.fleet.roster.of("past") == [])
    parts.publisher.publish()
    parts.until(lambda: [engine.name for engine in parts.fleet.roster.of("past")] == ["engine-past-0.2"])


def test_an_engine_whose_pool_has_ended_does_not_come_back(make: Callable[..., Parts]) -> None:
    parts = make()
    parts.fleet.start("other", "past", "past", 1)
    parts.ray.start_s = 0.3
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: len(parts.ray.engines) == 2)
    parts.fleet.remove_pool("past")
    parts.until(lambda: parts.ray.engines[1].is_dead)
    assert parts.fleet.roster.records == []


def test_saved_weights_reach_every_engine_of_a_pool_and_the_next_ones(make: Callable[..., Parts]) -> None:
    parts = make()
    parts.fleet.start("other", "past", "past", 2)
    parts.publisher.give("past", {None: ("/saved", 7)})
    assert [each.version for each in parts.fleet.roster.records] == [7, 7]
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: {each.name for each in parts.fleet.roster.of("past")} == {"engine-past-0.2", "engine-past-1"})
    assert parts.record("engine-past-0.2").version == 7


def test_weights_that_a_pool_has_are_not_given_again(make: Callable[..., Parts]) -> None:
    """A league gives its past versions anew at every version: the learner waited for their longest game each time."""
    parts = make()
    parts.fleet.start("other", "past", "past", 1)
    for _ in range(2):
        parts.publisher.give("past", {None: ("/saved", 7)})
        parts.ray.busy.add("engine-past-0")  # a game that does not end
    parts.ray.busy.clear()
    parts.publisher.give("past", {None: ("/saved", 8)})
    parts.publisher.forget("past")
    parts.publisher.give("past", {None: ("/saved", 8)})
    given = [each[None] for each in parts.ray.engines[0].loaded]
    assert given == [("/saved", 7), ("/saved", 8), ("/saved", 8)]


def test_an_engine_whose_process_ends_while_it_starts_is_a_line_with_its_logs(make: Callable[..., Parts]) -> None:
    parts = make()
    parts.ray.start_s = 5.0

    def die() -> None:
        parts.until(lambda: len(parts.ray.engines) == 1)
        parts.ray.engines[0].is_dead = True

    with ThreadPoolExecutor() as threads:
        threads.submit(die)
        with pytest.raises(EngineGoneError, match=r"ended while it started \(The actor.*/logs$") as caught:
            parts.start(1)
    assert "\n" not in str(caught.value)
    assert parts.fleet.roster.records == []


def test_every_change_of_a_state_is_a_line_in_the_log_and_in_the_metrics(
    make: Callable[..., Parts], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="spag_ray.fleet")
    parts = make(1)
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.2"])
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "engine-policy-0: new -> starting: it is to play policy",
        "engine-policy-0: starting -> behind: it has loaded its model",
        "engine-policy-0: behind -> playing: it has version 0",
        "engine-policy-0: playing -> lost: The actor experienced an error before finishing this task.",
        "engine-policy-0.2: lost -> starting: it takes the place of engine-policy-0",
        "engine-policy-0.2: starting -> behind: it has loaded its model",
        "engine-policy-0.2: behind -> playing: it has version 0",
    ]
    lines = [line for line in records_of(tmp_path, "engine_state") if line["engine"] == "engine-policy-0.2"]
    assert [(line["before"], line["state"]) for line in lines] == [
        ("lost", "starting"),
        ("starting", "behind"),
        ("behind", "playing"),
    ]


def test_a_state_changes_only_as_the_table_allows() -> None:
    record = EngineRecord("engine-0", "policy", "policy", "model")
    recorder: Any = None
    with pytest.raises(AssertionError, match="engine-0 is starting and cannot become playing"):
        Roster(recorder).become(record, State.PLAYING, "it is wanted")
    assert all(State.RETIRED in to for state, to in MAY_BECOME.items() if state is not State.RETIRED)
    assert MAY_BECOME[State.RETIRED] == frozenset()


def test_an_engine_that_is_added_while_the_others_sleep_starts_when_they_wake(make: Callable[..., Parts]) -> None:
    parts = make(1, placement="colocated")
    parts.publisher.wake_learners()
    name = parts.fleet.add(parts.policy)
    time.sleep(0.1)
    assert len(parts.ray.engines) == 1
    assert parts.ray.awake == []
    parts.publisher.publish()
    parts.until(lambda: parts.play() == ["engine-policy-0", f"{name}.2"])
    assert parts.failures == []


def test_engines_that_are_half_awake_sleep_again(make: Callable[..., Parts]) -> None:
    """Learners that were lost in a publish start anew beside engines that were woken for it."""
    parts = make(1, placement="colocated")
    parts.publisher.wake_learners()
    parts.publisher._wake("weights")
    parts.publisher.sleep_engines()
    assert parts.ray.awake == []


def test_engines_are_ended_even_if_nothing_can_be_written_any_more(
    make: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = make(2)

    def full(line: object) -> None:
        raise RunFolderError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(parts.fleet.roster._recorder, "record", full)
        with pytest.raises(RunFolderError):
            parts.fleet.close()
    assert parts.ray.alive == []


def test_engines_that_are_stopped_because_learners_were_lost_count_as_no_restart(make: Callable[..., Parts]) -> None:
    parts = make(3)
    error = LearnersLostError("a rank is gone")

    def publish(engines: list[Engine], gate: object) -> None:
        error.stopped = tuple(engine.name for engine in engines)
        raise error

    parts.patch.setattr(parts.policy, "publish", publish)
    with pytest.raises(LearnersLostError):
        parts.publisher.publish()
    parts.until(lambda: [each.state for each in parts.fleet.roster.records if each.life == 2] == [State.BEHIND] * 3)
    assert parts.failures == []


def test_an_engine_that_is_removed_while_it_joins_is_no_error_of_the_run(make: Callable[..., Parts]) -> None:
    parts = make(1)
    with ThreadPoolExecutor() as threads:
        with parts.fleet.updating:
            added = threads.submit(parts.fleet.add, parts.policy, True)
            parts.until(
                lambda: len(parts.fleet.roster.records) == 2 and parts.fleet.roster.records[1].engine is not None
            )
            parts.fleet.remove("engine-policy-added-1")
        with pytest.raises(EngineError):
            added.result(WITHIN_S)
    assert len(parts.ray.alive) == 1


def test_the_next_engine_in_a_slot_is_not_moved_off_for_the_one_before(make: Callable[..., Parts]) -> None:
    parts = make(1)
    record = parts.record("engine-policy-0")
    before = record.process
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.play() == ["engine-policy-0.2"])
    assert not parts.fleet.move_off(record, before, "its node is drained", 0.1)
    assert parts.play() == ["engine-policy-0.2"]


def test_a_publish_waits_for_engines_that_died_asleep(make: Callable[..., Parts]) -> None:
    """Else the next games wait for them, no longer than one start may take."""
    parts = make(1, placement="colocated")
    parts.publisher.wake_learners()
    parts.ray.engines[0].is_dead = True
    parts.until(lambda: parts.record("engine-policy-0").state is State.LOST)
    parts.ray.start_s = 0.3
    parts.publisher.publish()
    assert parts.play() == ["engine-policy-0.2"]


class Model(RuleBasedStateMachine):
    """Everything that may happen to engines, in any order and at the same time. Whatever it was, at rest:

    every slot has an engine that plays the newest version, and there is no other one; every arena knows these and no
    others, so every turn is answered, or asked again of one that is there; restarts are counted for failures alone."""

    placement = "separate"
    update = "in_flight"

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.parts = Parts(Path(self.folder.name), self.placement, self.update)
        self.own = ThreadPoolExecutor(1)  # the run's thread
        self.beside = ThreadPoolExecutor(16)
        self.calls: list[Future[Any]] = []
        self.num_failures = 0
        self.parts.start(2)
        self.parts.fleet.start("other", "past", "past", 1)

    def _do(self, work: Callable[[], Any], own: bool = False) -> None:
        self.calls.append((self.own if own else self.beside).submit(work))

    def _one(self, number: int) -> Any:
        up = [each for each in self.parts.fleet.roster.records if each.is_up]
        return up[number % len(up)] if up else None

    @rule(start_s=st.sampled_from([0.0, 0.05, 0.3]))
    def starts_take(self, start_s: float) -> None:
        self.parts.ray.start_s = start_s

    @rule(number=st.integers(0, 9), hangs=st.booleans())
    def an_engine_fails(self, number: int, hangs: bool) -> None:
        alive = self.parts.ray.alive
        if alive:
            engine = alive[number % len(alive)]
            self.num_failures += 1
            engine.hangs, engine.is_dead = hangs, not hangs

    @rule()
    def publish(self) -> None:
        def learn() -> None:
            self.parts.publisher.wake_learners()
            if self.placement == "colocated":
                self.parts.until(lambda: not self.parts.ray.awake)
            self.parts.publisher.publish()

        self._do(learn, own=True)

    @rule()
    def sleep_and_wake(self) -> None:
        def checkpoint() -> None:
            self.parts.publisher.wake_learners()
            self.parts.publisher.wake_engines()

        self._do(checkpoint, own=True)

    @rule(version=st.integers(1, 50))
    def give(self, version: int) -> None:
        self._do(lambda: self.parts.publisher.give("past", {None: ("/saved", version)}), own=True)

    @rule()
    def add(self) -> None:
        self._do(lambda: self.parts.fleet.add(self.parts.policy, is_extra=True))

    @rule(number=st.integers(0, 9))
    def retire(self, number: int) -> None:
        record = self._one(number)
        if record is not None and record.is_extra:
            self._do(lambda: self.parts.fleet.retire(record, "fewer are needed"))

    @rule(number=st.integers(0, 9))
    def leave_a_node(self, number: int) -> None:
        record = self._one(number)
        engine = record and record.engine

        def leave() -> None:
            if self.parts.fleet.move_off(record, engine, "its node is drained", 0.1) and not record.is_extra:
                self.parts.fleet.replace(record)

        if engine is not None:
            self._do(leave)

    @rule(number=st.integers(0, 9))
    def remove(self, number: int) -> None:
        record = self._one(number)
        if record is not None and record.is_extra:

            def take_out() -> None:
                with contextlib.suppress(InputError):  # it has left meanwhile
                    self.parts.fleet.remove(record.name)

            self._do(take_out)

    @rule(number=st.integers(0, 9))
    def a_long_game(self, number: int) -> None:
        record = self._one(number)
        if record is not None:
            self.parts.ray.busy.add(record.name)

    @rule(index=st.integers(0, 1))
    def an_arena_dies(self, index: int) -> None:
        arenas = self.parts.arenas
        arenas.handles[index].is_dead = True  # type: ignore[attr-defined]
        name = arenas.name(index)
        self._do(lambda: arenas.replace(index, name, RuntimeError()))

    @rule()
    def rest(self) -> None:
        parts = self.parts
        parts.ray.start_s = 0.0
        parts.ray.busy.clear()
        done, late = wait(self.calls, WITHIN_S)
        assert not late, "nobody waits for ever"
        for call in done:
            error = call.exception()
            # Only what a run is told of: an engine that is no longer to start, or that every engine failed.
            may_fail = (SpagError, ray.exceptions.RayError) if self.num_failures else EngineError
            assert error is None or isinstance(error, may_fail), error
        self.calls = []
        parts.until(self._is_well)
        versions = {each.version for each in parts.fleet.roster.records if each.learner is parts.policy}
        assert versions <= {parts.policy.version}
        parts.until(self._arenas_know_it)  # they are told after an engine's state has changed
        assert len(parts.failures) <= self.num_failures

    def _is_well(self) -> bool:
        """Every slot plays, in a process of its own that lives, and no other process is left."""
        records, alive = self.parts.fleet.roster.records, self.parts.ray.alive
        slots = {each.slot for each in records if not each.is_extra}
        playing = [id(each.process.handle) for each in records if each.state is State.PLAYING]
        are_there = len(playing) == len(records) and slots == {"engine-policy-0", "engine-policy-1", "engine-past-0"}
        return are_there and sorted(playing) == sorted(map(id, alive)) and not any(each.hangs for each in alive)

    def _arenas_know_it(self) -> bool:
        """Every arena knows every engine, that it takes games, and that none waits for room."""
        there = {pool: {each.name: True for each in self.parts.fleet.roster.of(pool)} for pool in ("policy", "past")}
        return all(
            {pool: {name: told[1] for name, told in of.items()} for pool, of in arena.known.items()} == there
            and not any(dict(arena.waits).values())
            for arena in cast("list[Any]", self.parts.arenas.handles)
        )

    @invariant()
    def nothing_has_failed(self) -> None:
        self.parts.fleet.tasks.check()

    def teardown(self) -> None:
        try:
            self.rest()
        finally:
            self.parts.close()
            self.own.shutdown(wait=False)
            self.beside.shutdown(wait=False)
            self.folder.cleanup()


@pytest.mark.parametrize(
    ("placement", "update"),
    [
        ("separate", "in_flight"),
        ("separate", "between_games"),
        ("colocated", "in_flight"),
        ("colocated", "between_games"),
    ],
)
def test_whatever_happens_in_any_order_every_slot_plays_in_the_end(placement: str, update: str) -> None:
    machine = type("Machine", (Model,), {"placement": placement, "update": update})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=int(os.environ.get("EXAMPLES", "15")),
            stateful_step_count=20,
            deadline=None,
            phases=[Phase.generate],  # threads: the same steps need not end the same way
            suppress_health_check=list(HealthCheck),
        ),
    )
