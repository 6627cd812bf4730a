"""A real cluster on this machine, used as people use one: jobs, sessions over Ray Client, a token."""

import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from spag_ray.config.loading import to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import RunFolderError
from spag_ray.host.folder_lease import FolderLease
from tests.support.bare_environment import of_extra, python_with, site_packages
from tests.support.listening import free_ports
from tests.support.notebooks import NOTEBOOKS, executed
from tests.support.runs import PENALISED, records_of, stream_run, tiny_run
from tests.support.typed import CTRL_C, typed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).resolve().parents[2]
TOKEN = "f3" * 32


@dataclass
class Head:
    """`ray start --head` on loopback, with ports and a token of its own."""

    jobs: str
    client: str
    gcs: str
    environment: dict[str, str]

    program: str = sys.executable

    def run(
        self, *arguments: str, cwd: Path = ROOT, typed: str | None = None, **changes: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, "-m", "spag_ray", *arguments],
            env={**self.environment, **changes},
            input=typed,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=cwd,
        )

    def python(self, code: str, **options: Any) -> subprocess.Popen[str]:
        """A session: `run = attach(ADDRESS)` and the like."""
        begin = f"from cluster.console import attach, launch, runs_here\nADDRESS = {self.client!r}\n"
        return subprocess.Popen(
            [self.program, "-c", begin + code],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.PIPE,
            text=True,
            **{"cwd": ROOT, **options},
        )

    def said(self, code: str, typed: str = "", **options: Any) -> str:
        """What a session prints that ends well."""
        process = self.python(code, **options)
        output, _ = process.communicate(typed, timeout=200)
        assert process.returncode == 0, output
        return output


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    gcs, dashboard, client, agent = free_ports(4)
    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text(TOKEN)
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps 127.0.0.1
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "200",
    }
    command = [
        *(str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
        *("--dashboard-host=127.0.0.1", "--num-cpus=2", "--object-store-memory=300000000", "--disable-usage-stats"),
        f"--dashboard-agent-listen-port={agent}",  # it takes jobs; the usual port may be another Ray's
        f"--temp-dir=/tmp/spag-ray-{os.getpid()}",  # a socket's path has to be short
    ]
    log = (folder / "head.log").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
    everything = [psutil.Process(process.pid)]
    try:
        wait_until(lambda: answers(dashboard) and answers(client), 90, "the head is up")
        yield Head(f"http://127.0.0.1:{dashboard}", f"ray://127.0.0.1:{client}", f"127.0.0.1:{gcs}", environment)
    finally:
        everything += everything[0].children(recursive=True)
        process.send_signal(signal.SIGTERM)
        _, left = psutil.wait_procs(everything, timeout=30)
        for each in left:
            each.kill()
        log.close()
        shutil.rmtree(f"/tmp/spag-ray-{os.getpid()}", ignore_errors=True)


@pytest.fixture(scope="module")
def client(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Head:
    """The same head, reached from an environment with what the extra `client` needs, and nothing else."""
    folder = tmp_path_factory.mktemp("client") / "environment"
    python = python_with(of_extra(importlib.metadata.requires("spag-ray") or [], "client"), folder)
    names = {path.name for path in site_packages(folder).iterdir()}
    assert "ray" in names
    assert not names & {"torch", "vllm", "deepspeed", "transformers"}
    return replace(head, program=str(python), environment={**head.environment, "PYTHONPATH": str(ROOT)})


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def count(folder: Path, kind: str) -> int:
    return len(records_of(folder, kind)) if (folder / "metrics.jsonl").exists() else 0


@pytest.fixture
def short(tiny_model: Path, words: Path, tmp_path: Path) -> Path:
    """A run of half a minute, as a file."""
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        imitation={"enabled": False},
        objective={"learn_from": "both"},
        game={"payoffs": PENALISED},
        self_play={"rounds": 1, "games_per_round": 16},
        evaluation={"games": 0},
    )
    return written(config, tmp_path / "short.yaml")


@pytest.fixture
def endless(tiny_model: Path, words: Path, tmp_path: Path) -> Path:
    """A run that is stopped, as a file."""
    changes: dict[str, Any] = {
        "engine": {"kind": "transformers", "num_engines": 1, "env": {"HF_TOKEN": "hf_secret"}},
        "checkpoint": {"every_versions": 1_000_000},  # those that are written are asked for
    }
    return written(stream_run(tiny_model, words, 100_000, **changes), tmp_path / "endless.yaml")


def written(config: RunConfig, path: Path) -> Path:
    path.write_text(to_yaml(config))
    return path


def test_a_job_trains_several_seeds_side_by_side(head: Head, short: Path, tmp_path: Path) -> None:
    """Half a CPU for each engine and learner: both runs have room."""
    small = ("-o", "engine.num_cpus=0.5", "-o", "learner.num_cpus=0.5")
    command = ("submit", str(short), "--address", head.jobs, "--run-dir", str(tmp_path / "runs"), "--seeds", "0-1")
    done = head.run(*command, *small, "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"2 runs in {tmp_path}/runs, 2 at a time" in done.stdout
    assert re.search(r"^seed-1: run folder: ", done.stdout, re.MULTILINE)
    began, ended = [], []
    for seed in (0, 1):
        lines = (tmp_path / "runs" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        times = [json.loads(line)["time"] for line in lines]
        began.append(times[0])
        ended.append(times[-1])
    assert max(began) < min(ended), "at the same time"
    (table,) = [line for line in done.stdout.splitlines() if "mean [95 %]" in line]
    assert table.split()[:2] == ["seed-0", "seed-1"]


def test_a_job_trains_by_either_command_and_gives_its_exit_code(head: Head, short: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plain = ["ray", "job", "submit", "--address", head.jobs, "--working-dir", str(ROOT), "--"]
    plain += ["python", "-m", "spag_ray", "train", str(short), "--run-dir"]
    done = subprocess.run([*plain, str(folder)], env=head.environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "models:" in done.stdout, done.stdout + done.stderr
    assert "SIGTERM leaves 30 s" in done.stdout
    assert re.search(r"^\d\d:\d\d \| ", done.stdout, re.MULTILINE), "a line of what it does"
    assert len(list(read_log(folder / "episodes" / "spag-1.log"))) == 16
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    relative = subprocess.Popen([*plain, "runs/here"], env=head.environment, **pipes)

    submit = ("submit", str(short), "--address", head.jobs, "--run-dir", str(folder), "--follow")
    goes_on = head.run(*submit, "--resume")
    refused, _ = relative.communicate(timeout=200)
    assert relative.returncode != 0
    assert "a job's working directory is temporary" in refused
    assert goes_on.returncode == 0, goes_on.stdout + goes_on.stderr
    size = re.search(r"sending (\d+) files, ([\d.]+) MiB", goes_on.stdout)
    assert size is not None
    assert float(size[2]) < 2
    assert "models: " in goes_on.stdout
    assert "SUCCEEDED" in goes_on.stdout
    again = head.run(*submit)
    assert again.returncode == 2
    assert "this run folder exists" in again.stdout
    assert "FAILED" in again.stdout


@pytest.mark.long  # another run
def test_the_notebook_of_a_session_looks_at_a_run_plays_and_stops_it(
    head: Head, endless: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    head.said(f"launch({str(endless)!r}, ADDRESS, {str(folder)!r})\n")
    wait_until(lambda: count(folder, "sync") >= 1, 150, "games were learned")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, head.environment[name])
    monkeypatch.setenv("SPAG_RAY_ADDRESS", head.client)
    monkeypatch.setenv("SPAG_RAY_RUN_NAME", folder.name)
    said = executed(NOTEBOOKS / "tour.ipynb")
    for words in (f"{folder.name} | ", str(folder), "paused", "policy v", "castle", "newest", "plotly"):
        assert words in said, words
    assert (folder / "ended.json").exists()
    kept = (folder / "logs" / "train.log").read_text()
    assert "an attempt starts" in kept
    assert "a checkpoint takes" in kept, "a note"
    assert "spag-ray: the run was asked to stop" in kept
    assert head.run("runs", "--address", head.client).stdout.strip() == f"no runs at {head.client}"


@pytest.mark.long  # three jobs
def test_a_job_stops_by_command_or_ctrl_c_and_resumes_in_another(head: Head, endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    submit = ("submit", str(endless), "--address", head.jobs, "--run-dir", str(folder), "--follow", "--resume")
    with typed(*submit, environment=head.environment) as following:
        following.until("run folder: ", 200)
        wait_until(lambda: count(folder, "sync") >= 1, 120, "it learns")
        following.type(CTRL_C)
        following.until("stop the job, too?", 20)
        following.type(b"n\n")
        assert following.ended(30) == 0
        assert b"continues; see its output with" in following.output
    before = count(folder, "sync")
    wait_until(lambda: count(folder, "sync") > before, 60, "it goes on by itself")
    assert f"RUNNING  {folder}" in head.run("runs", "--address", head.jobs).stdout
    stopped = head.run("stop", str(folder), "--address", head.jobs)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert "stopped; continue with" in stopped.stdout, stopped.stdout + stopped.stderr
    before = count(folder, "sync")
    names = [line["name"] for line in records_of(folder, "checkpoint")]
    assert len(names) == 2, "it had the time to save"
    assert names[0] == "start", "it had the time to save"
    assert names[1].startswith("version-"), "it had the time to save"
    with typed(*submit, environment=head.environment) as following:
        wait_until(lambda: count(folder, "resumed") == 1 and count(folder, "sync") > before + 1, 120, "it goes on")
        following.type(CTRL_C)
        following.until("stop the job, too?", 20)
        following.type(b"y\n")
        assert following.ended(90) == 0, following.output
    assert b"Traceback" not in following.output
    assert f"RUNNING  {folder}" not in head.run("runs", "--address", head.jobs).stdout
    assert len(records_of(folder, "checkpoint")) == 3, "it had the time in its second life, too"
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(set(versions))


@pytest.mark.long  # jobs that end at once, one after the other
def test_what_cannot_work_is_refused_in_one_line(head: Head, short: Path, tmp_path: Path) -> None:
    submit = ("submit", str(short), "--address", head.jobs, "--run-dir")
    refused: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
        ({}, (*submit, "runs/here"), "a job's working directory is temporary"),
        ({"RAY_AUTH_TOKEN_PATH": "", "RAY_AUTH_TOKEN": "00" * 32}, (*submit, "/tmp/nothing"), "RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled"}, (*submit, "/tmp/nothing"), "RAY_AUTH_MODE=token"),
        ({"RAY_AUTH_MODE": "disabled"}, ("runs", "--address", head.client), "RAY_AUTH_MODE=token"),
        ({}, ("runs", "--address", "http://127.0.0.1:9"), "http://127.0.0.1:9"),
        ({}, ("stop", "/tmp/nothing", "--address", head.jobs), "no job at"),
    )
    with ThreadPoolExecutor(2) as pool:
        everything = list(pool.map(lambda each: head.run(*each[1], **each[0]), refused))
    for (_, arguments, reason), done in zip(refused, everything, strict=True):
        assert done.returncode == 2, (arguments, done.stdout + done.stderr)
        assert reason in done.stderr, (arguments, done.stdout + done.stderr)
        assert done.stderr.count("\n") == 1, done.stderr
    doctor = ("doctor", str(short), "--address", head.gcs, "--run-dir", "/tmp/nothing")
    done = head.run(*doctor, RAY_AUTH_MODE="disabled")
    assert done.returncode != 0, done.stdout + done.stderr
    assert f"{head.gcs} needs a token" in done.stdout, done.stdout + done.stderr
    big = tmp_path / "model.bin"
    big.write_bytes(b"")
    os.truncate(big, 120 * 2**20)
    (tmp_path / "below").mkdir()
    large = ("/tmp/nothing", "-o")
    done = head.run(*submit, *large, "self_play.sft_file=model.bin", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the largest: model.bin (120 MiB)" in done.stderr, done.stdout + done.stderr
    done = head.run(*submit, *large, "self_play.sft_file=../model.bin", cwd=big.parent / "below")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "name it by an absolute path" in done.stderr, done.stdout + done.stderr


@pytest.mark.long  # another run
def test_a_run_outlives_the_session_that_started_it_and_frees_everything_when_it_is_stopped(
    head: Head, client: Head, endless: Path, tmp_path: Path
) -> None:
    """Its sessions and commands need neither torch nor vllm nor deepspeed."""
    folder = tmp_path / "run"
    started = client.python(f"run = launch({str(endless)!r}, ADDRESS, {str(folder)!r})\nprint(run)\nrun.checkpoint()\n")
    wait_until(lambda: count(folder, "sync") >= 2 or started.poll() is not None, 150, "versions are published")
    assert started.poll() is None or started.returncode == 0, started.communicate()[0]
    started.kill()  # probably mid-call
    before = count(folder, "sync")
    wait_until(lambda: count(folder, "sync") > before + 1, 60, "it goes on by itself")
    with pytest.raises(RunFolderError, match="is alive in it"):  # it has its folder, although who started it is gone
        FolderLease.take(folder)
    looked = client.said(
        """
import time
run = attach(ADDRESS)
print("status:", run.status()); print("html:", run.status()._repr_html_())
games = run.episodes(5); print("games:", len(games), sorted(games[-1]))
print("wins:", {game["outcome"] for game in run.episodes(5, outcome="attacker wins")})
print("metrics:", [line["kind"] for line in run.metrics("sync", 2)], run.config.schedule, run.folder)
print("environment:", run.config.engine.env)
print("saved:", run.checkpoint())
def waits(is_so):
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        if is_so():
            return True
        time.sleep(0.5)
    return False
def rests():
    before = run.metrics("sync", 1); time.sleep(4)
    return before == run.metrics("sync", 1)
run.pause(); print("paused:", waits(rests), "paused" in str(run.status()))
paused = run.metrics("sync", 1)
run.resume(); print("resumed:", waits(lambda: paused != run.metrics("sync", 1)))
print("played:", run.play("river", as_role="defender"))
""",
        typed="is it a tiger ?\n\n",
    )
    for line in (
        f"status: {folder.name} | ",
        "html: <table><tr><th>run</th>",
        "games: 5 ['history',",
        "wins: {'attacker wins'}",
        f"metrics: ['sync', 'sync'] stream {folder}",
        "environment: {'HF_TOKEN': '...'}",
        "saved: version-",
        "paused: True True",
        "resumed: True",
        "policy v",
    ):
        assert line in looked, (line, looked)
    assert client.run("runs", "--address", head.client).stdout.split() == [folder.name]
    assert f"{folder.name} | " in client.run("attach", head.client, typed="print(run.status())\n").stdout
    watched = client.run("watch", head.client, "--once")
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert "staleness" in watched.stdout, watched.stdout + watched.stderr
    assert "a checkpoint takes" in watched.stdout, "what the run says itself"
    assert client.run("stop", folder.name, "--address", head.client).returncode == 0
    left = head.said(
        """
import ray, time
from cluster.console import session
with session(ADDRESS):
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != 2.0 and time.monotonic() < deadline:
        time.sleep(0.5)
    named = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)]
    print("left:", [name for name in named if "job" not in name], ray.available_resources()["CPU"])
"""
    )
    assert "left: [] 2.0" in left, left
    assert json.loads((folder / "ended.json").read_text())["ended"] == "stopped"


@pytest.mark.long
def test_two_runs_on_a_cluster_do_not_see_each_other(head: Head, endless: Path, tmp_path: Path) -> None:
    share = ["engine.num_cpus=0.25", "learner.num_cpus=0.25"]
    code = "for name in ('one', 'two'):\n"
    code += f"    launch({str(endless)!r}, ADDRESS, {str(tmp_path)!r} + '/' + name, overrides={share})\n"
    code += "print(sorted(name for name, _ in runs_here()))\n"
    code += "try:\n    attach()\nexcept Exception as error:\n    print(error)\n"
    said = head.said(code)
    assert "['one', 'two']" in said
    assert "name one by its folder's name" in said
    wait_until(lambda: all(count(tmp_path / name, "sync") >= 2 for name in ("one", "two")), 150, "both learn")
    assert head.run("stop", "one", "--address", head.client).returncode == 0
    before = count(tmp_path / "two", "sync")
    wait_until(lambda: count(tmp_path / "two", "sync") > before + 1, 60, "the other goes on")
    assert head.run("stop", "two", "--address", head.client).returncode == 0
