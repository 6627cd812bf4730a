"""The check of a GPU machine, as far as a machine without one can try it: its own code, on a tiny model."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest
import torch

import learners.head
from actors.models import load_tokenizer
from cluster.checks.preflight import check_files
from cluster.gpu_check import engine_checks, learner_checks, processes, run_checks
from cluster.gpu_check.check import Check, Finding, Told
from cluster.gpu_check.learner_checks import attention, head, layouts
from cluster.gpu_check.processes import cause_of, cause_of_run
from cluster.gpu_check.run_checks import CHECKS, run_all, why_not
from cluster.planning.placement import placement_fault
from cluster.types import NodeResources
from learners import attention as attention_module
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.gpu_checks import hangs, is_killed, leaves_a_process, passes, raises
from tests.support.waiting import is_running, wait_until

# What a machine with torch, transformers and DeepSpeed alone does not have; DeepSpeed itself brings pydantic.
ABSENT = ("ray", "vllm", "pydantic", "xxhash", "peft", "lm_eval")
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from pathlib import Path
from cluster.gpu_check import run_checks
print(run_checks.attention(run_checks.Told("tiny", Path("."), "cpu")).passed)
"""


def test_what_it_needs_is_imported_when_a_check_begins_and_not_before() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("{absent}", repr(set(ABSENT)))], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "True"


def test_arithmetic_is_compared_and_not_only_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("tiny", tmp_path, "cpu")
    found = attention(told)
    assert found.passed
    assert 0 < found.figures["worst_error"] < 0.02
    assert head(told).passed
    monkeypatch.setattr(learner_checks, "MOST_ERROR", found.figures["worst_error"] / 2)
    assert not attention(told).passed
    monkeypatch.setattr("torch.promote_types", lambda dtype, _: dtype)  # log-probabilities in bfloat16
    assert not head(told).passed


def test_trees_and_padded_rows_are_timed_at_all_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = layouts(Told("tiny", tmp_path, "cpu")).figures
    for length in (250, 500):
        assert found[f"padded_tokens_{length}"] > found[f"tree_tokens_{length}"] >= length
        for name in ("tree_ms", "padded_ms", "tree_layer_ms", "padded_layer_ms", "mask_ms"):
            assert found[f"{name}_{length}"] > 0

    def times(told: Told, samples: list[Any]) -> dict[str, float]:
        at = len(samples) * attention_module.FLEX_BLOCK_TOKENS / 128
        return {"tree_layer_ms": 30.0, "padded_layer_ms": at, "mask_ms": 28.0}

    monkeypatch.setattr(learner_checks, "_layout_times", times)
    found = layouts(Told("qwen2.5-1.5b", tmp_path)).figures
    assert found["padded_layer_ms_4096_blocks_256"] == 2 * found["padded_layer_ms_4096"]
    assert found["faster_from_tokens"] == 2048, "31 ms against 48 of 12 games, and against 28 of 7 games at 1024"
    assert attention_module.FLEX_BLOCK_TOKENS == 128


def test_a_few_logits_rounded_to_the_next_number_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logit between 2 and 4 that is rounded to the next bfloat16 differs by 1/64."""
    computed = learners.head._TargetLogprobs.apply

    def with_steps(share: float) -> Finding:
        def apply(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs, entropies = computed(*arguments)
            steps = (torch.arange(len(logprobs)) < share * len(logprobs)) / 64
            return logprobs + steps, entropies

        monkeypatch.setattr("learners.head._TargetLogprobs", SimpleNamespace(apply=apply))
        return head(Told("tiny", tmp_path, "cpu"))

    assert with_steps(0.005).passed
    assert not with_steps(0.02).passed


def named(name: str, run: Any = passes, takes_s: float = 10.0, **options: Any) -> Check:
    return Check(name, run, takes_s, ("torch",), **options)


def test_what_is_missing_is_said() -> None:
    def nothing(_: Told) -> Finding:
        raise AssertionError

    check = Check("x", nothing, 1, ("torch", "no_such_package", "nor_this"), num_gpus=2)
    assert why_not(check, "cuda", 2) == "needs no_such_package, nor_this, which is not installed here"
    here = named("x", nothing, num_gpus=2)
    assert why_not(here, "cuda", 1) == "GPUs: needs 2, found 1"
    assert why_not(here, "cuda", 2) == ""
    assert why_not(here, "cpu", 0) == "GPUs: needs 2"
    compiled = named("x", nothing, programs=("no-such-compiler",))
    assert why_not(compiled, "cuda", 1) == "needs no-such-compiler, which is not on the PATH"
    assert why_not(compiled, "cpu", 0) == ""
    assert why_not(named("x", nothing, gpu_only="of GPUs"), "cpu", 0) == "needs 1 GPU: of GPUs"


def test_what_a_run_imports_later_is_looked_for_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose machine had no nltk, which textblob imports, died at the first judged turn."""
    [run] = [check for check in CHECKS if check.name == "run object_store"]
    assert why_not(run, "cuda", 1) == ""
    monkeypatch.setattr(run_checks.importlib.util, "find_spec", lambda n: None if n == "nltk" else SimpleNamespace())
    assert why_not(run, "cuda", 1) == "needs nltk, which is not installed here"


def test_without_a_gpu_every_check_is_skipped_and_nothing_has_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "gpus", lambda: [])
    assert run_all("tiny") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["check"] for row in found["checks"]] == [check.name for check in CHECKS]
    assert {row["status"] for row in found["checks"]} == {"skip"}


def test_the_checks_of_one_gpu_fit_and_those_that_say_most_come_first() -> None:
    on_one = [check for check in CHECKS if check.num_gpus == 1]
    assert sum(check.takes_s for check in (run_checks.MODEL, *on_one)) <= 60 * run_checks.MINUTES
    assert [check.name for check in on_one[:5]] == [
        "engine",
        "run ipc",
        "run shared_memory",
        "run object_store",
        "learner ZeRO-2",
    ]


class Machine:
    """In place of the processes of checks: `ends` says how each ends, by its name; a check takes 10 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends: Mapping[str, Sequence[Finding | None]]) -> None:
        self.now = 0.0
        self.began: list[tuple[str, str]] = []
        self._ends = {name: iter(found) for name, found in ends.items()}
        monkeypatch.setattr(run_checks, "in_a_process", self._run)
        monkeypatch.setattr(run_checks, "used_mib", lambda: [100])
        monkeypatch.setattr(run_checks, "wait_until_free", lambda before: "")
        monkeypatch.setattr(run_checks.time, "monotonic", lambda: self.now)

    def _run(self, check: Check, told: Told, limit_s: float, method: str) -> Finding | None:
        self.began.append((check.name, method))
        found = next(self._ends.get(check.name, iter([Finding(True, "fine")])))
        self.now += min(10.0, limit_s) if found else limit_s
        return found


def statuses(checks: Sequence[Check], folder: Path, until: float) -> dict[str, tuple[str, str]]:
    rows = run_checks.rows_of(checks, Told("tiny", folder), 1, until)
    return {row.check: (row.status, row.text) for row in rows}


def test_what_hangs_has_failed_and_what_is_cut_off_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, {"hangs": [None], "last": [None]})
    checks = [named("first"), named("hangs"), named("long", takes_s=300), named("short"), named("last")]
    found = statuses(checks, tmp_path, 150.0)
    assert found == {
        "model": ("pass", "fine"),
        "first": ("pass", "fine"),
        "hangs": ("fail", "hangs: no end within 90 s"),
        "long": ("not reached", "takes about 300 s, 40 s were left (--minutes)"),
        "short": ("pass", "fine"),
        "last": ("not reached", "cut off after 30 s, no time was left (--minutes)"),
    }
    assert [name for name, _ in machine.began] == ["model", "first", "hangs", "short", "last"]


def test_where_a_fork_has_no_gpu_each_check_imports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Finding(False, "RuntimeError: CUDA error: initialization error")
    machine = Machine(monkeypatch, {"model": [broken, Finding(True, "fine")]})
    assert {status for status, _ in statuses([named("a")], tmp_path, 600).values()} == {"pass"}
    assert machine.began == [("model", "forkserver"), ("model", "spawn"), ("a", "spawn")]
    Machine(monkeypatch, {"model": [broken, broken]})
    found = statuses([named("a")], tmp_path, 600)
    assert found == {"model": ("fail", broken.text), "a": ("not reached", "there is no model")}


def test_a_model_that_is_never_made_has_failed_unless_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ("not reached", "there is no model")
    hung = ("fail", "hangs: no end within 90 s")
    Machine(monkeypatch, {"model": [None, None]})
    assert statuses([named("a")], tmp_path, 600) == {"model": hung, "a": absent}
    machine = Machine(monkeypatch, {"model": [None, None]})
    assert statuses([named("a")], tmp_path, 100) == {"model": hung, "a": absent}, "the second try was cut off"
    assert [method for _, method in machine.began] == ["forkserver", "spawn"]
    machine = Machine(monkeypatch, {"model": [None]})
    cut_off = ("not reached", "cut off after 60 s, no time was left (--minutes)")
    assert statuses([named("a")], tmp_path, 60) == {"model": cut_off, "a": absent}
    assert len(machine.began) == 1


def test_a_hanging_check_fails_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(run_checks, "CHECKS", (named("hangs"),))
    Machine(monkeypatch, {"hangs": [None]})
    assert run_all("tiny", "cpu") == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["checks"][-1]["status"] == "fail"


def test_an_engine_that_a_program_disturbed_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disturbed = Finding(False, "Error in memory profiling. Initial free memory 130.1 GiB, current 134.0 GiB.")
    machine = Machine(monkeypatch, {"engine": [disturbed, Finding(True, "fine")], "other": [disturbed, disturbed]})
    found = statuses([named("engine"), named("other"), named("broken")], tmp_path, 600)
    assert found["engine"] == ("pass", "fine")
    assert found["other"] == ("fail", disturbed.text)
    assert [name for name, _ in machine.began] == ["model", "engine", "engine", "other", "other", "broken"]


def test_the_next_check_waits_until_the_lasts_memory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = tmp_path / "used"
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\ncat {used}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    used.write_text("1000\n[N/A]\n")
    assert processes.used_mib() == [1000, 0]
    asked: list[float] = []

    def pause(seconds: float) -> None:
        asked.append(seconds)
        used.write_text("1100\n0\n" if len(asked) >= 3 else "21480\n0\n")

    monkeypatch.setattr(processes.time, "sleep", pause)
    used.write_text("60000\n0\n")
    assert processes.wait_until_free([1000, 0]) == ""
    assert used.read_text() == "1100\n0\n"
    monkeypatch.setattr(processes, "_FREE_WITHIN_S", 0.0)
    used.write_text("21480\n0\n")
    assert processes.wait_until_free([1000, 0]) == "20.0 GiB more than before are in use on a GPU after 0 s"


def test_a_check_that_breaks_or_hangs_says_so_leaving_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("tiny", tmp_path, "cpu")

    def row_of(run: Any, limit_s: float = 60.0) -> run_checks.Row:
        return run_checks.checked(named(run.__name__, run), told, time.monotonic() + limit_s, "forkserver")

    first = row_of(passes)
    assert (first.status, first.text, first.figures) == ("pass", "fine", {"imported": 1.0}), "before it was forked"
    assert list(tmp_path.iterdir()) == []

    broken = row_of(raises)
    assert (broken.status, broken.text) == ("fail", "ValueError: the first error")
    log = (tmp_path / "raises" / processes.LOG).read_text()
    assert log.startswith("noise")
    assert "RuntimeError: what followed" in log

    killed = row_of(is_killed)
    assert (killed.status, killed.text) == ("fail", "its process ended with -9")

    hung = row_of(hangs, 5.0)
    assert hung.status == "not reached"
    assert re.fullmatch(r"cut off after \d+ s, no time was left \(--minutes\)", hung.text)
    assert not is_running(int((tmp_path / "hangs" / "child").read_text()))
    assert {file.name for file in (tmp_path / "hangs").iterdir()} == {"child", processes.LOG}, "no weights"
    left = row_of(leaves_a_process)
    assert left.status == "pass"
    assert not is_running(int(left.text))
    assert row_of(passes).status == "pass"


# As `spag-ray doctor --gpu` calls it.
WAITING = """
import sys, tempfile
from cluster.gpu_check import run_checks
from tests.support.gpu_checks import passes, waits

if __name__ == "__main__":
    tempfile.tempdir = sys.argv[1]
    run_checks.METHODS = (sys.argv[2],) * 2
    run_checks.MODEL = run_checks.Check("model", passes, 60, ())  # what it makes is not used
    run_checks.CHECKS = (run_checks.Check("waits", waits, 60, ()),)
    run_checks.run_all("tiny", "cpu")
"""


@pytest.mark.parametrize(
    ("by", "method", "code"),
    [(signal.SIGTERM, "forkserver", 143), (signal.SIGKILL, "forkserver", -9), (signal.SIGKILL, "spawn", -9)],
    ids=("terminated", "killed", "killed, spawned"),
)
def test_a_check_ends_with_the_command_in_any_way(by: signal.Signals, method: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "waiting.py"
    script.write_text(WAITING)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    command = subprocess.Popen([sys.executable, str(script), str(tmp_path), method], env=environment)
    until = time.monotonic() + 120
    while not (found := [each for each in tmp_path.glob("*/waits/own") if each.read_text()]):
        assert command.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    check = int(found[0].read_text())
    assert is_running(check)
    command.send_signal(by)
    assert command.wait(30) == code
    wait_until(lambda: not is_running(check), 20)


def test_sigterm_is_again_what_it_was_when_all_checks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_checks, "gpus", lambda: [])
    before = signal.getsignal(signal.SIGTERM)
    run_all("tiny")
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_logs_of_what_failed_stay_and_their_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(run_checks, "CHECKS", (named("fine"), named("broken one", raises)))
    assert run_all("tiny", "cpu", only="fine") == 0
    assert "logs" not in capsys.readouterr().out
    assert run_all("tiny", "cpu", minutes=5) == 1
    *_, counts, place, last = capsys.readouterr().out.splitlines()
    assert counts == "2 pass, 1 fail"
    folder = Path(place.removeprefix("logs of the checks that failed or were cut off: "))
    assert [each.name for each in folder.iterdir()] == ["broken-one"]
    assert "Traceback" in (folder / "broken-one" / processes.LOG).read_text()
    assert [row["status"] for row in json.loads(last)["checks"]] == ["pass", "pass", "fail"]


def test_the_first_error_is_the_reason(tmp_path: Path) -> None:
    errors = "Traceback\n  File x\ntorch.OutOfMemoryError: CUDA out of memory\nmore\nRuntimeError: engine died\n"
    assert cause_of(errors) == "torch.OutOfMemoryError: CUDA out of memory"
    assert cause_of("killed\n\n") == "killed"
    assert cause_of("") == ""
    pointer = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    core = "(EngineCore pid=7) Traceback (most recent call last):\n(EngineCore pid=7)   File x\n"
    assert cause_of(f"{core}(EngineCore pid=7) ValueError: No room.\nTraceback\n{pointer}") == "No room."
    assert cause_of(f"{pointer}ValueError: what lies behind\n") == "ValueError: what lies behind"
    assert cause_of(pointer) == pointer.strip(), "nothing else is known"


def test_the_reason_of_a_run_is_found_in_the_logs_of_its_processes(tmp_path: Path) -> None:
    told = "loading\nspag-ray: the learners have died\n"
    assert cause_of_run(told, tmp_path) == "spag-ray: the learners have died"
    (tmp_path / "run.log").write_text("LearnersLostError: rank 0 has died\n")
    (tmp_path / "policy-learner-0.log").write_text("x\ntorch.OutOfMemoryError: 3 GiB\nValueError: later\n")
    (tmp_path / "engine-0.log").write_text("it loads\n")
    expected = "spag-ray: the learners have died; first error in policy-learner-0.log: torch.OutOfMemoryError: 3 GiB"
    assert cause_of_run(told, tmp_path) == expected
    (tmp_path / "policy-learner-0.log").unlink()
    assert cause_of_run("spag-ray: LearnersLostError: rank 0 has died", tmp_path).endswith("rank 0 has died")


class Sleeper:
    """A learner of 26 GiB, as the sleep check sees it: what it has put on the GPU stays there until it sleeps, also
    when nobody refers to it. `loses`: what a sleep does to its weights."""

    on_gpu = 0.0
    most = 0.0

    def __init__(self, loses: float) -> None:
        self._loses = loses
        self._loss = 8.0
        Sleeper.take(26.0)

    @staticmethod
    def take(gib: float) -> None:
        Sleeper.on_gpu += gib
        Sleeper.most = max(Sleeper.most, Sleeper.on_gpu)

    def begin_stage(self, spec: StageSpec) -> None: ...

    def step(self, batch: Any) -> Any:
        self._loss -= 1
        return SimpleNamespace(loss=self._loss)

    def sleep(self) -> None:
        Sleeper.take(-25.0)
        self._loss += self._loses

    def wake(self) -> None:
        Sleeper.take(25.0)


@pytest.mark.parametrize("loses", [0.0, 0.5])
def test_the_sleep_check_measures_one_learner_and_never_needs_room_for_two(
    loses: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sleeper, "on_gpu", 1.0)
    monkeypatch.setattr(Sleeper, "most", 0.0)
    monkeypatch.setattr(learner_checks, "_rank", lambda *_, **__: (Sleeper(loses), None))
    monkeypatch.setattr(learner_checks, "_gib_allocated", lambda _: Sleeper.on_gpu)
    found = learner_checks.sleep(Told("tiny", tmp_path))
    assert found.figures == {"freed_gib": 25.0, "held_gib": 26.0}
    assert Sleeper.most < 30
    assert found.passed == (not loses)


def config_of(check: Check, told: Told, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Of the run that a check starts."""
    commands: list[list[str]] = []

    def refused(command: list[str], stdout: TextIO, **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        stdout.write("Error\nwhat was wrong")
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(engine_checks.subprocess, "run", refused)
    found = check.run(told)
    assert (found.passed, found.text) == (False, "ended with 2: what was wrong")
    [command] = commands
    config = load_config("quickstart", [value for option, value in pairwise(command) if option == "-o"])
    check_files(config)
    return config


RUNS = [each for each in CHECKS if each.name.startswith("run ")]


@pytest.mark.parametrize("check", RUNS, ids=lambda each: each.name)
def test_every_run_of_a_check_passes_the_checks(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(check, Told("qwen2.5-1.5b", tmp_path), monkeypatch)
    assert config.sync.channel == check.name.split()[-1] or "ranks" in check.name
    assert config.engine.num_gpus
    assert config.learner.num_gpus
    assert placement_fault(config, [NodeResources("here", 4, check.num_gpus)]) is None
    if check.num_gpus > 1:
        assert placement_fault(config, [NodeResources("here", 4, 1)])


@pytest.mark.parametrize(("name", "kind"), [("run object_store", "transformers"), ("run shared_memory", "vllm")])
def test_a_run_on_a_cpu_has_a_tiny_model(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = [each for each in RUNS if each.name == name]
    config = config_of(check, Told("tiny", tmp_path, "cpu"), monkeypatch)
    assert (config.sync.channel, config.engine.kind) == (name.split()[-1], kind)
    assert not config.engine.num_gpus
    tokenizer = load_tokenizer(config.model)
    assert tokenizer.decode(tokenizer.encode("Hint: an ACORN!")) == "Hint: an ACORN!"
    assert placement_fault(config, [NodeResources("here", 2, 0)]) is None


@pytest.mark.parametrize(("visible", "found"), [(None, 3), ("", 0), ("1", 1), ("-1", 0), ("MIG-1", 3)])
def test_only_gpus_that_the_process_may_use_are_counted(
    visible: str | None, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-smi lists all, chooses by index, and knows no part of a GPU."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase \"$*\" in *--id=-1*) exit 6;; *--id=*) echo one;; *) printf 'one\\ntwo\\nthree\\n';; esac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert len(processes.gpus()) == found
