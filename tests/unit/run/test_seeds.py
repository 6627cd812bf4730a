"""`spag-ray train --seeds`: which runs start, where and when, what becomes of failed and stopped ones, and the table.

The runs are processes of the real command line, but for `run_training`: their stand-in writes what a run leaves behind.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import cluster.commands.seeds as seeds_module
from cluster.cli import app
from cluster.commands.seeds import seeds_of
from cluster.guarded import run_guarded
from cluster.planning.reservation import NodeUse
from cluster.runtime.run_folder import is_finished, make_run_folder
from cluster.types import NodeResources
from spag_ray.config.loading import load_config, parse_config
from tests.support.waiting import wait_until

# What each seed does is in $SEEDS: ends well; fails; crashes; stops; waits for a notice; waits for another to begin.
# It keeps a line for what it was given in the file `told` of the working directory.
RUN = """
import contextlib, json, os, sys, time, types
from pathlib import Path

def run_training(config, folder, console, resume=False):
    from cluster.runtime.run_folder import make_run_folder, reopen_run_folder
    from cluster.runtime.stop_notice import notice_to_stop
    from spag_ray.errors import ModelError, StopRequestedError

    def tell(what):
        with open("told", "a") as file:
            file.write(f"{what} {config.seed}\\n")

    what, _, other = json.loads(os.environ["SEEDS"]).get(str(config.seed), "ends").partition(" ")
    rounds = config.self_play.rounds
    with notice_to_stop() as notice:
        (reopen_run_folder if resume and folder.exists() else make_run_folder)(folder, config)
        tell("resumes" if resume else "begins")
        print(f"{folder.name} has {rounds} rounds", flush=True)
        deadline = time.monotonic() + 120
        if what == "edits":
            Path(other).write_text("nonsense: true")
        try:
            while what in ("waits", "meets") and not notice and time.monotonic() < deadline:
                if what == "meets" and f"begins {other}" in Path("told").read_text().splitlines():
                    break
                time.sleep(0.05)
        except KeyboardInterrupt:
            tell("interrupted")
            raise
        if notice:
            tell("notices")
            while other and time.monotonic() < deadline:
                time.sleep(0.05)
            raise StopRequestedError("stopped")
    if what == "fails":
        raise ModelError("no such model")
    if what == "crashes":
        os.kill(os.getpid(), 9)
    step = {"time": 1.0, "kind": "step", "policy": "policy", "stage": "spag-1", "step": 1, "loss": 1.0}
    (folder / "metrics.jsonl").write_text(json.dumps(step | {"entropy": float(config.seed)}) + "\\n")
    (folder / "ended.json").write_text(json.dumps({"ended": "stopped" if what == "stops" else "finished"}))
    tell("ends")

sys.modules["cluster.commands.train"] = fake = types.ModuleType("cluster.commands.train")
fake.run_training = run_training
"""
CHILD = RUN + seeds_module._CHILD
METRICS = Path(__file__).resolve().parents[2] / "golden" / "run_folders" / "rounds" / "metrics.jsonl"
OWN = "name: own\nself_play: {rounds: 2}\nsampling: {max_new_tokens: 64}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.yaml").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[3]))
    monkeypatch.setenv("SEEDS", "{}")
    monkeypatch.setattr(seeds_module, "_CHILD", CHILD)
    monkeypatch.setattr(seeds_module, "LOOK_EVERY_S", 0.02)
    return tmp_path


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Any:
    def given(**what: str) -> None:
        monkeypatch.setenv("SEEDS", json.dumps({name.removeprefix("seed"): told for name, told in what.items()}))

    return given


def train(*arguments: str) -> int:
    return run_guarded(lambda **options: app(["train", "own.yaml", *arguments], **options))


def told(folder: Path) -> list[str]:
    return (folder / "told").read_text().splitlines() if (folder / "told").exists() else []


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_of("0-3") == (0, 1, 2, 3)
    assert seeds_of("5, 1,2") == (5, 1, 2)
    assert seeds_of("0-2,7") == (0, 1, 2, 7)
    assert seeds_of("4-4") == (4,)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "'' is no seed and no range; write 0-3"),
        ("1,,2", "'' is no seed"),
        ("-1", "'-1' is no seed"),
        ("a-b", "'a-b' is no seed"),
        ("1.5", "'1.5' is no seed"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "is no seed"),
        ("3-0", "the range 3-0 is empty; write 0-3"),
        ("0-3,2", "seed 2 is named twice"),
        ("0-999999999999", "more than 1000 runs"),
        ("0-600,1000-1600", "more than 1000 runs"),
    ],
)
def test_nonsense_is_refused_in_one_line(text: str, fault: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(f"--seeds={text}") == 2
    error = capsys.readouterr().err
    assert error.startswith("spag-ray: --seeds ")
    assert error.count("\n") == 1
    assert fault in error
    assert [path.name for path in here.iterdir()] == ["own.yaml"]


def test_a_seed_of_its_own_is_refused_beside_seeds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--seeds", "0-3", "-o", " seed = 7") == 2
    assert capsys.readouterr().err == "spag-ray: --seeds gives each run its seed: leave out -o seed = 7\n"
    assert [path.name for path in here.iterdir()] == ["own.yaml"]


def test_seeds_run_in_turn_on_this_machine_and_have_their_table(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train("--seeds", "3,1-2", "--run-dir", "runs/mine", "-o", "self_play.rounds=5") == 0
    assert told(here) == ["begins 3", "ends 3", "begins 1", "ends 1", "begins 2", "ends 2"]
    for seed in (1, 2, 3):
        kept = yaml.safe_load((here / "runs" / "mine" / f"seed-{seed}" / "config.yaml").read_text())
        assert (kept["seed"], kept["self_play"]["rounds"]) == (seed, 5)
    lines = capfd.readouterr().out.splitlines()
    assert "3 runs in runs/mine, one after another" in lines
    assert "seed-3 has 5 rounds" in lines, "its output comes through as it is"
    row = next(line for line in lines if "entropy of the last stage" in line)
    assert row.split()[-6:] == ["3", "1", "2", "2", "[-0.4841,", "4.484]"]


def test_a_run_without_a_folder_gets_one_of_its_name_and_the_date(here: Path) -> None:
    assert train("--seeds", "4") == 0
    (folder,) = (here / "runs").iterdir()
    assert folder.name.startswith("own-2")
    assert [path.name for path in folder.iterdir()] == ["seed-4"]


def test_failed_and_stopped_seeds_are_named_with_how_to_continue_and_the_others_run(
    here: Path, does: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    does(seed0="fails", seed1="crashes", seed2="stops")
    assert train("--seeds", "0-3", "--run-dir", "my runs", "-o", "name=a", "-o", "evaluation.tasks=[]") == 2
    assert [line for line in told(here) if line.startswith("ends")] == ["ends 2", "ends 3"]
    output, error = capfd.readouterr()
    for line in ("seed-0 failed (exit code 2)", "seed-1 failed (ended by SIGKILL)", "seed-2 was stopped"):
        assert line in output.splitlines()
    assert error.splitlines() == [
        "spag-ray: no such model",
        "spag-ray: seed-0 failed (exit code 2), seed-1 failed (ended by SIGKILL), seed-2 was stopped; to continue: "
        "spag-ray train own.yaml -o name=a -o 'evaluation.tasks=[]' --seeds 0-3 --run-dir 'my runs' --resume",
    ]
    head = next(line for line in output.splitlines() if "mean [95 %]" in line)
    assert head.split("  mean")[0].strip() == "my runs/seed-3", "the table is over those that have finished"


def test_no_table_is_printed_if_nothing_has_finished(here: Path, does: Any, capfd: pytest.CaptureFixture[str]) -> None:
    does(seed0="fails")
    assert train("--seeds", "0", "--run-dir", "r") == 2
    assert "mean" not in capfd.readouterr().out


def test_a_resumed_call_skips_what_has_finished_resumes_what_has_not_and_starts_the_rest(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for seed, ended in enumerate(("finished", "stopped")):
        folder = make_run_folder(here / "r" / f"seed-{seed}", load_config("own.yaml", [f"seed={seed}"]))
        (folder / "ended.json").write_text(json.dumps({"ended": ended}))
        shutil.copy(METRICS, folder)
    assert train("--seeds", "0-2", "--run-dir", "r", "--resume") == 0
    assert told(here) == ["resumes 1", "ends 1", "resumes 2", "ends 2"]
    output = capfd.readouterr().out.splitlines()
    assert "seed-0 has finished already" in output
    assert "seed-1 resumes" in output
    assert "seed-2 starts" in output
    assert any(line.split()[:3] == [f"seed-{seed}" for seed in range(3)] for line in output), "all are in the table"
    (here / "told").unlink()
    assert train("--seeds", "0-2", "--run-dir", "r", "--resume") == 0
    assert told(here) == [], "nothing is left to do, but the table comes"
    assert "mean [95 %]" in capfd.readouterr().out


def test_a_run_has_finished_once_it_has_all_rounds_that_are_asked_for(here: Path) -> None:
    two, three = (load_config("own.yaml", [f"self_play.rounds={rounds}"]) for rounds in (2, 3))
    folder = make_run_folder(here / "run", two)
    assert not is_finished(folder, two)
    for text, expected in (("{", False), ('{"ended": "stopped"}', False), ('{"ended": "finished"}', True)):
        (folder / "ended.json").write_text(text)
        assert is_finished(folder, two) is expected
    assert not is_finished(folder, three), "it is continued"


def test_a_seed_of_another_configuration_is_refused_at_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run_folder(here / "r" / "seed-1", load_config("own.yaml", ["seed=1", "self_play.games_per_round=7"]))
    assert train("--seeds", "0-1", "--run-dir", "r", "--resume") == 2
    assert "r/seed-1: this run was started with self_play.games_per_round: 7" in capsys.readouterr().err
    assert told(here) == []


def test_an_existing_folder_is_refused_before_anything_starts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "r" / "seed-1").mkdir(parents=True)
    assert train("--seeds", "0-1", "--run-dir", "r") == 2
    assert "r/seed-1: this run folder exists; choose another with --run-dir" in capsys.readouterr().err
    assert told(here) == []
    assert train("--seeds", "2", "--run-dir", "r") == 0, "other seeds may join them"


def test_a_configuration_that_is_edited_meanwhile_is_not_that_of_the_seeds_to_come(here: Path, does: Any) -> None:
    does(seed0=f"edits {here}/own.yaml")
    assert train("--seeds", "0-1", "--run-dir", "r") == 0
    assert load_config("r/seed-1/config.yaml").self_play.rounds == 2


def on_cluster(monkeypatch: pytest.MonkeyPatch, *free_cpus: float) -> None:
    """A cluster whose nodes have 16 CPUs each, of which so many are free."""
    nodes = [NodeUse(NodeResources(f"10.0.0.{n}", 16, 0), free, 0) for n, free in enumerate(free_cpus)]
    monkeypatch.setattr(seeds_module, "ray_session", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(seeds_module, "node_uses", lambda: nodes)


def test_on_a_cluster_as_many_run_at_a_time_as_have_room(
    here: Path, does: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Seeds 0 and 1 end only if they run at the same time."""
    on_cluster(monkeypatch, 2, 3)  # a run has an engine and a learner of one CPU each
    does(seed0="meets 1", seed1="meets 0")
    assert train("--seeds", "0-2", "--run-dir", "r", "-o", "cluster.address=10.0.0.1:6379") == 0
    output = capfd.readouterr().out.splitlines()
    assert "3 runs in r, 2 at a time" in output
    assert "seed-1: seed-1 has 2 rounds" in output, "its lines say whose they are"
    lines = told(here)
    assert lines.index("begins 2") > min(lines.index("ends 0"), lines.index("ends 1"))


@pytest.mark.parametrize(("free", "expected"), [((1,), 1), ((0.5, 0.5), 1), ((4,), 2), ((16, 16), 3)])
def test_at_least_one_run_is_started_and_no_more_than_there_are(
    free: Sequence[float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_cluster(monkeypatch, *free)
    config = parse_config({"cluster": {"address": "10.0.0.1:6379"}})
    assert seeds_module._most_at_once(config, 3) == expected
    assert seeds_module._most_at_once(parse_config({}), 3) == 1, "each starts a Ray on this machine"


def test_a_dry_run_prints_one_plan_and_the_runs_and_starts_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--seeds", "0-3", "--dry-run") == 0
    output = capsys.readouterr().out
    assert output.count("plan of own") == 1
    assert output.endswith(
        "4 runs of this plan, with seed 0, 1, 2, 3: one after another, because each starts a Ray of its own on this "
        "machine.\n"
    )
    assert train("--seeds", "0-3", "--dry-run", "-o", "cluster.address=10.0.0.1:6379") == 0
    told_of_cluster = capsys.readouterr().out
    assert "as many at a time as fit into what is free at 10.0.0.1:6379" in told_of_cluster
    assert "each reserves 2 CPUs and 0 GPUs. The cluster was not asked." in told_of_cluster
    assert [path.name for path in here.iterdir()] == ["own.yaml"]


class Parent:
    """`train --seeds` as a process of its own, in a process group of its own, as a shell starts it."""

    def __init__(self, folder: Path, what: dict[str, str], *arguments: str) -> None:
        code = f"import sys\nimport cluster.commands.seeds as seeds\nseeds._CHILD = {CHILD!r}\n"
        code += "from cluster.cli import main\nmain()"
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "train", "own.yaml", "--seeds", "0-2", "--run-dir", "r", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "SEEDS": json.dumps(what)},
            process_group=0,
        )

    def wait_for(self, line: str) -> None:
        wait_until(lambda: line in told(self.folder), 120, line)

    def output(self) -> str:
        output, _ = self.process.communicate(timeout=120)
        return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_request_to_stop_is_passed_on_and_starts_no_more(number: signal.Signals, here: Path) -> None:
    parent = Parent(here, {"1": "waits"})
    parent.wait_for("begins 1")
    parent.process.send_signal(number)
    output = parent.output()
    assert parent.process.returncode == 0, output
    assert told(here) == ["begins 0", "ends 0", "begins 1", "notices 1"]
    assert "mean [95 %]" in output, "what has finished is shown"
    assert output.splitlines()[-1] == (
        "spag-ray: seed-1 was stopped, seed-2 was not started; to continue: spag-ray train own.yaml --seeds 0-2 "
        "--run-dir r --resume"
    )


def test_a_second_ctrl_c_ends_the_runs_at_once(here: Path) -> None:
    parent = Parent(here, {"0": "waits for ever"})
    parent.wait_for("begins 0")
    parent.process.send_signal(signal.SIGINT)
    parent.wait_for("notices 0")
    parent.process.send_signal(signal.SIGINT)
    output = parent.output()
    assert parent.process.returncode == 130, output
    assert told(here) == ["begins 0", "notices 0"]


def test_the_runs_of_a_killed_parent_stop_at_a_point_where_nothing_is_lost(here: Path) -> None:
    parent = Parent(here, {"0": "waits"})
    parent.wait_for("begins 0")
    parent.process.kill()
    parent.wait_for("notices 0")
    parent.output()


def test_an_override_may_name_the_seed_of_its_run(here: Path) -> None:
    assert train("--seeds", "3-4", "--run-dir", "runs", "-o", "model=models/{seed}", "-o", "name=of-{seed}") == 0
    for seed in (3, 4):
        config = yaml.safe_load((here / "runs" / f"seed-{seed}" / "config.yaml").read_text())
        assert (config["model"], config["name"], config["seed"]) == (f"models/{seed}", f"of-{seed}", seed)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_seed_whose_own_override_is_wrong_is_refused_before_anything_starts(
    more: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("--seeds", "0,1", "--run-dir", "runs", "-o", "self_play.rounds=-{seed}", *more) == 2
    assert "self_play.rounds" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["own.yaml"]


def test_a_job_has_one_configuration_for_all_its_seeds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["submit", "own.yaml", "--address", "http://127.0.0.1:8265", "--run-dir", "/runs", "--seeds", "1-2"]
    assert run_guarded(lambda **options: app([*arguments, "-o", "model=models/{seed}"], **options)) == 2
    assert "-o model=models/{seed}: a job has one configuration for all of its seeds" in capsys.readouterr().err
