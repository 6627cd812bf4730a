"""Every wait for another process has a bound: none waits for ever."""

import ast
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from rich.console import Console

from cluster.buffer import buffer_actor
from cluster.buffer.buffer_actor import Buffer
from cluster.checks import preflight
from cluster.commands.watch import AttachedSource
from cluster.console import AttachedRun, AwayError, attach, launch
from cluster.launch import jobs, placed_run
from cluster.monitor.run_view import KINDS
from cluster.rollout.arenas import game_within_s
from cluster.run.run import CONTROL, SESSIONS, Run
from cluster.runtime import ray_session
from cluster.runtime.ray_session import ClusterError, NoAnswerError, get
from cluster.types import Progress
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, InputError, ModelError

ROOT = Path(__file__).resolve().parents[3]

# Waits without a time limit in their call, and what bounds them.
BOUNDED_ELSEWHERE = {
    "cluster/supervision/actor_watch.py": {"ray.get": "a call that ray.wait has found to have ended"},
    "cluster/fleet/heartbeats.py": {"ray.get": "a call that ray.wait has found to have ended"},
    "cluster/rollout/engine_actor.py": {"ray.get": "a call that ray.wait has found to have ended"},
    "actors/arena.py": {"result": "a task of its own event loop that asyncio.wait has found to have ended"},
}


def waits(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(what is called, whether it has a time limit) of each call that may wait for another process."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            keywords = {keyword.arg for keyword in node.keywords}
            if name in ("ray.get", "ray.wait", "subprocess.run"):
                yield name, "timeout" in keywords
            elif name.endswith(".result"):
                yield "result", bool(node.args) or "timeout" in keywords


def test_no_wait_is_without_a_limit() -> None:
    found: dict[str, set[str]] = {}
    for folder in ("cluster", "actors", "learners", "spag_ray/channels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            unlimited = {name for name, limited in waits(ast.parse(path.read_text(encoding="utf-8"))) if not limited}
            if unlimited:
                found[path.relative_to(ROOT).as_posix()] = unlimited
    assert found == {file: set(reasons) for file, reasons in BOUNDED_ELSEWHERE.items()}


def test_a_call_without_an_answer_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def silent(refs: Any, timeout: float) -> None:
        asked.append(timeout)
        raise ray.exceptions.GetTimeoutError()

    monkeypatch.setattr(ray_session.ray, "get", silent)
    ref: Any = object()
    with pytest.raises(NoAnswerError, match=r"no answer from a process of the run within 300 s.*--resume"):
        get(ref)
    with pytest.raises(NoAnswerError, match="within 7 s"):
        get(ref, 7.0)
    assert asked == [300.0, 7.0]


def test_the_buffer_has_time_to_read_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream.log").write_bytes(bytes(3 * 2**20))
    asked: list[float] = []

    def silent(ref: object, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise NoAnswerError("silence")

    monkeypatch.setattr(buffer_actor, "get", silent)
    handle: Any = None
    ref: Any = object()
    with pytest.raises(NoAnswerError):
        Buffer(handle, tmp_path, 60.0).get(ref)
    assert asked == [60.0, 3.0]


def test_what_answers_at_once_never_waits_behind_what_a_session_waits_for() -> None:
    """Ray gives each group threads of its own. Three blocked turns of a session once kept a run from stopping."""
    trains = {"train", "train_alone", "play_only", "match_only", "learn_only", "evaluate_only"}
    groups = {
        name: getattr(getattr(Run, name), "__ray_concurrency_group__", None)
        for name, value in vars(Run).items()
        if callable(value) and not name.startswith("_") and name != "close"
    }
    at_once = {"status", "described", "save_soon", "stop_soon"}  # a pause waits for arenas
    assert {name for name, group in groups.items() if group == CONTROL} == at_once
    assert {name for name, group in groups.items() if group is None} == trains
    assert {name for name, group in groups.items() if group == SESSIONS} == groups.keys() - at_once - trains


def test_the_stop_of_a_session_kills_a_run_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config({})
    killed: list[object] = []
    monkeypatch.setattr(ray, "kill", killed.append)

    def answer(ref: Any, timeout_s: float) -> Any:
        if ref == "described":
            return {"folder": "/runs/a", "config": config.model_dump(mode="json")}
        assert timeout_s < 60, "a bound of this stop, not that of any call"
        raise NoAnswerError("silence")

    monkeypatch.setattr("cluster.console.get", answer)
    handle: Any = SimpleNamespace(
        **{name: SimpleNamespace(remote=lambda *_, name=name: name) for name in ("described", "status", "stop_soon")}
    )
    AttachedRun("a", handle).stop(timeout_s=5.0)
    assert killed == [handle]


class Asked:
    """A run over Ray Client that answers each question with the next of these, or raises it, and has then ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[Any]) -> None:
        config = parse_config({})
        self.asked: list[str] = []
        self._answers = answers | {"described": [{"folder": "/runs/a", "config": config.model_dump(mode="json")}]}
        monkeypatch.setattr("cluster.console.get", self._answer)
        handle: Any = SimpleNamespace(
            **{name: SimpleNamespace(remote=lambda *_, name=name: name) for name in self._answers}
        )
        self.run = AttachedRun("a", handle)

    def _answer(self, ref: Any, timeout_s: float) -> Any:
        self.asked.append(ref)
        answers = self._answers[ref]
        answer = answers.pop(0) if answers else ray.exceptions.RayActorError()
        if isinstance(answer, Exception):
            raise answer
        return answer


def away() -> Exception:
    return ray.exceptions.ActorUnavailableError("the connection is cut", b"0" * 16)


def test_the_stop_of_a_session_does_not_kill_a_run_that_is_away_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Asked(monkeypatch, stop_soon=[away(), None], status=[None, away(), None])
    monkeypatch.setattr(ray, "kill", lambda handle: session.asked.append("killed"))
    session.run.stop(timeout_s=30.0)
    assert session.asked == ["described", "stop_soon", "stop_soon", *4 * ["status"], "killed"], "once it had ended"


def test_a_watched_run_that_is_away_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"time": 1.0, "kind": "play"}
    session = Asked(monkeypatch, metrics=[[line], *(len(KINDS) - 1) * [[]], away(), [line]], status=2 * [Progress()])
    source = AttachedSource(session.run)
    for _ in range(3):
        assert source.look().end is None
    assert "it has ended or died" in str(source.look().end)


def test_a_watched_run_that_has_written_nothing_yet_may_be_away_too(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: list[Any] = [[] for _ in KINDS]
    session = Asked(monkeypatch, metrics=[*nothing, away(), *nothing], status=2 * [Progress()])
    source = AttachedSource(session.run)
    for _ in range(3):
        assert source.look().end is None


def test_ctrl_d_gives_a_game_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(prompt: str) -> str:
        raise EOFError

    answered: dict[str, Any] = {"turns": [], "verdict": None, "to_move": "attacker", "version": 1}
    assert Asked(monkeypatch, play_turn=[answered]).run.play("river", say=ended) == "given up"


def test_a_run_whose_arena_died_during_a_turn_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    died = ray.exceptions.RayTaskError("play_turn", "traceback", ray.exceptions.ActorDiedError())
    session = Asked(monkeypatch, play_turn=[died.as_instanceof_cause()])
    with pytest.raises(AwayError, match=r"run a: a process of it has ended .*The actor died unexpectedly") as error:
        session.run.play("river")  # an AwayError: neither `stop` kills it, nor does `watch` call it ended
    assert "no longer there" not in str(error.value)


def test_a_seat_that_no_game_has_is_refused_before_the_run_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seat: Any = "defendor"
    with pytest.raises(InputError, match="there are attacker, defender; did you mean `defender`"):
        Asked(monkeypatch).run.play("river", as_role=seat)


def test_a_session_adds_and_removes_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Asked(monkeypatch, add_engine=["engine-policy-added-1"], remove_engine=[None])
    session.run.remove_engine(session.run.add_engine())
    assert session.asked == ["described", "add_engine", "remove_engine"]


def test_overrides_of_a_configuration_that_is_no_file_are_not_dropped_in_silence() -> None:
    with pytest.raises(InputError, match="overrides change a configuration that is named by its path"):
        launch(parse_config({}), "ray://one:10001", "/shared/one", overrides=["seed=2"])


def test_a_session_does_not_take_one_cluster_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    worker = SimpleNamespace(_conn_str="one:10001")
    monkeypatch.setattr(ray.util.client.ray.get_context(), "client_worker", worker)
    monkeypatch.setattr("cluster.console.runs_here", list)
    for address in (None, "ray://one:10001"):
        with pytest.raises(ClusterError, match="there is not one run"):
            attach(address)
    with pytest.raises(ClusterError, match=r"is connected with ray://one:10001; call ray.shutdown\(\)"):
        attach("ray://two:10001")


def test_a_job_that_does_not_end_is_not_waited_for_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**6, 40))
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda seconds: None))
    status = SimpleNamespace(is_terminal=lambda: False)
    job = SimpleNamespace(
        submission_id="spag-a",
        metadata={jobs.RUN_DIR: "/runs/a"},
        status=status,
        runtime_env={"env_vars": {jobs.STOP_WAIT: "45"}},
    )
    client = SimpleNamespace(list_jobs=lambda: [job], stop_job=lambda name: None, get_job_status=lambda name: status)
    monkeypatch.setattr(jobs, "job_client", lambda address: client)
    with pytest.raises(ClusterError, match=r"spag-a has not ended 105 s after it was asked to"):
        jobs.stop_job("http://127.0.0.1:8265", Path("/runs/a"), Console(quiet=True))


def test_a_check_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CHECK_WITHIN_S", 1.0)
    began = time.monotonic()
    with pytest.raises(ConfigError, match="took longer than 1 s; is the disk"):
        preflight.in_a_process(time.sleep, 600)
    assert time.monotonic() - began < 60


def test_a_check_whose_process_was_killed_is_one_line() -> None:
    with pytest.raises(preflight.EndedError, match="was ended; was it out of memory"):
        preflight.in_a_process(signal.raise_signal, signal.SIGKILL)


def test_a_fault_that_a_check_finds_in_its_process_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model folder"):
        preflight.in_a_process(preflight.resolve_model, str(tmp_path / "absent"))


def test_an_interrupt_ends_a_check() -> None:
    interrupt = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        preflight.in_a_process(time.sleep, 50)
    assert time.monotonic() - began < 40


def test_a_check_that_downloads_has_a_longer_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "CHECK_WITHIN_S", 0.01)
    preflight.in_a_process(time.sleep, 0.1, downloads=True)
    monkeypatch.setattr(preflight, "DOWNLOAD_WITHIN_S", 0.01)
    with pytest.raises(ConfigError, match=r"data sets .* were not downloaded and checked within"):
        preflight.in_a_process(time.sleep, 600, downloads=True)


def test_a_command_ends_when_the_process_of_its_run_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_run.ray, "wait", lambda refs, timeout: ([], refs))
    answers: list[Any] = [Progress(stage="spag-1: play", version=3)]
    waited: list[float] = []

    def answer(ref: object, timeout_s: float) -> Any:
        waited.append(timeout_s)
        if answers:
            return answers.pop()
        raise NoAnswerError("silence")

    monkeypatch.setattr(placed_run, "get", answer)
    run: Any = SimpleNamespace(status=SimpleNamespace(remote=lambda: "status"))
    ending: Any = object()
    console = Console(record=True, width=200)
    with pytest.raises(ClusterError, match=r"the run has not answered for 300 s: its own process hangs; continue with"):
        placed_run.watch_run(run, ending, console)
    assert set(waited) == {placed_run.STATUS_WITHIN_S}, "so that a notice to stop is seen soon"
    assert "spag-1: play (the run has not answered for" in console.export_text()


def test_a_command_waits_for_a_run_that_cannot_be_reached_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_run, "STATUS_WITHIN_S", 0.01)
    waits: list[tuple[list[str], list[str]]] = [([], ["ending"])] * 4 + [(["ending"], [])]
    monkeypatch.setattr(placed_run.ray, "wait", lambda refs, timeout: waits.pop(0))
    shown: list[str] = []

    def answer(ref: object, timeout_s: float) -> Any:
        shown.append("asked")
        raise ray.exceptions.ActorUnavailableError("connection reset", None)

    monkeypatch.setattr(placed_run, "get", answer)
    run: Any = SimpleNamespace(status=SimpleNamespace(remote=lambda: "status"))
    ending: Any = "ending"
    placed_run.watch_run(run, ending, Console(record=True, width=200))
    assert waits == [], "until the run itself has ended"
    assert len(shown) > 1


def test_time_in_which_a_command_itself_was_held_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is stopped with Ctrl-S, or a command with Ctrl-Z, says nothing about the run."""
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(placed_run, "time", SimpleNamespace(monotonic=lambda: float(next(hours))))
    waits: list[tuple[list[str], list[str]]] = [([], ["ending"])] * 5 + [(["ending"], [])]
    monkeypatch.setattr(placed_run.ray, "wait", lambda refs, timeout: waits.pop(0))
    monkeypatch.setattr(placed_run, "get", lambda ref, timeout_s: Progress())
    run: Any = SimpleNamespace(status=SimpleNamespace(remote=lambda: "status"))
    ending: Any = object()
    placed_run.watch_run(run, ending, Console(quiet=True))
    assert waits == []


def test_no_game_takes_longer_than_its_turns() -> None:
    config = parse_config({"engine": {"turn_timeout_s": 10, "start_timeout_s": 5}})
    assert config.engine.longest_turn_s == 35
    assert game_within_s(config, 2) == 140
