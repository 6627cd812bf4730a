"""Two whole runs on one folder: the second is refused while the first is alive, and resumes once it is not."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from cluster.commands.train import run_training
from cluster.launch.placed_run import every_words, placed_run
from cluster.planning.reservation import reservation_of
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.errors import LeaseLostError, RunFolderError
from spag_ray.host.folder_lease import FolderLease
from tests.support.runs import begun, quiet, records_of, steps_of, tiny_run, told_to_stop
from tests.support.waiting import wait_until


@pytest.fixture
def long_run(tiny_model: Path, words: Path) -> RunConfig:
    """A stream of more versions than any test waits for."""
    return tiny_run(
        tiny_model,
        words,
        schedule="stream",
        stream={"games_per_version": 8, "max_lag": 3},
        imitation={"enabled": False},
        engine={"kind": "transformers"},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": 40000},
        checkpoint={"every_versions": 2},
        evaluation={"games": 0},
    )


@pytest.mark.long  # three processes, two of which run
@pytest.mark.timeout(400)
def test_a_second_process_is_refused_while_the_first_lives_then_resumes(long_run: RunConfig, tmp_path: Path) -> None:
    file, folder = tmp_path / "config.yaml", tmp_path / "run"
    file.write_text(to_yaml(long_run))
    with begun(file, folder, num_syncs=2) as first:
        before = {path: path.stat().st_mtime_ns for path in (folder / "config.yaml", folder / "versions.json")}
        command = [sys.executable, "-m", "spag_ray", "train", str(file), "--run-dir", str(folder), "--resume"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert second.returncode == 2, second.stdout + second.stderr
        refused = re.search(r"run run, process (\d+) on \S+ is alive in it; .*delete \S+/run/lease", second.stderr)
        assert refused is not None, second.stderr
        family = psutil.Process(first.pid).children(recursive=True)
        assert int(refused[1]) in [process.pid for process in family], "it names the process that runs it"
        assert {path: path.stat().st_mtime_ns for path in before} == before
        report = [sys.executable, "-m", "spag_ray", "report", str(folder)]
        assert subprocess.run(report, capture_output=True, timeout=120, check=False).returncode == 0
        wait_for_syncs(folder, len(records_of(folder, "sync")) + 2)
        assert first.poll() is None, "the first one runs as if nothing had been"
        first.kill()
    (its_run,) = (process for process in family if process.pid == int(refused[1]))
    its_run.wait(timeout=60)  # it ends a moment later, and publishes until then
    num_syncs = len(records_of(folder, "sync"))
    began = time.monotonic()
    with begun(file, folder, num_syncs + 1, "--resume") as third:
        assert time.monotonic() - began < 55, "nobody waits for a process that has ended on this host"
        told_to_stop(third)
    assert len(records_of(folder, "resumed")) == 1


def wait_for_syncs(folder: Path, count: int) -> None:
    wait_until(lambda: len(records_of(folder, "sync")) >= count, 60)


def sizes_in(folder: Path) -> dict[str, int]:
    """But for what every process has of its own, logs and TensorBoard's files."""
    files = [path for path in folder.rglob("*") if "logs" not in path.parts and "tfevents" not in path.name]
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


@pytest.mark.long  # two minutes
@pytest.mark.usefixtures("local_ray")
def test_a_second_run_is_refused_and_a_run_that_lost_its_lease_ends_itself(long_run: RunConfig, tmp_path: Path) -> None:
    """Slow: a whole run. It leaves everything to the one that has the lease."""
    folder = make_run_folder(tmp_path / "run", long_run)
    words, held_out = every_words(long_run, {})
    with placed_run(long_run, folder, long_run.model, words, held_out, {}) as run:
        training = run.train.remote()
        while not (folder / "metrics.jsonl").exists() or len(steps_of(folder)) < 4:
            assert not ray.wait([training], timeout=0.1)[0], ray.get(training)
        before = {path: path.read_bytes() for path in (folder / "config.yaml", folder / "versions.json")}
        with pytest.raises(RunFolderError, match=r"run run, process \d+ on \S+ is alive in it; .*delete \S+/run/lease"):
            run_training(long_run, folder, quiet(), resume=True)
        assert {path: path.read_bytes() for path in before} == before
        num_steps = len(steps_of(folder))
        while len(steps_of(folder)) < num_steps + 2:
            assert not ray.wait([training], timeout=0.1)[0], "the first one runs as if nothing had been"
        shutil.rmtree(folder / "lease")
        newer = FolderLease.take(folder)
        time.sleep(1.5)  # the old one looks once a second
        there = sizes_in(folder)
        with pytest.raises(LeaseLostError, match="has lost the lease"):
            get(training, timeout_s=60)
        after = sizes_in(folder)
        assert {path: after.get(path) for path in there} == there, "nothing is written or removed"
        assert not (folder / "ended.json").exists()
        theirs = ray.util.placement_group([{"CPU": 0.01}], name=reservation_of(folder))
        assert theirs.wait(20)
    groups = [group for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"]
    assert [group["name"] for group in groups] == [reservation_of(folder)], "the new one's places are not given back"
    ray.util.remove_placement_group(theirs)
    newer.check(now=True)
