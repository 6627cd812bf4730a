"""Every panel of the Grafana dashboard shows something of a real run in a real Prometheus."""

import contextlib
import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from cluster.commands.train import run_training
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig
from spag_ray.episodes.log import read_log
from tests.support.dashboard import panels
from tests.support.listening import listens_on
from tests.support.not_here import not_here
from tests.support.runs import quiet, steps_of, stream_run

WINDOW_S = 20
NUM_PARTS = 12


@pytest.fixture
def prometheus() -> str:
    """The program."""
    return shutil.which("prometheus") or not_here("no `prometheus` on the PATH (Debian has it as a package)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, what: str, **parameters: Any) -> Any:
        address = f"{self._url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def values(self, query: str, since: float) -> list[float]:
        """All finite values of all series of a query, from then until now."""
        found = self.ask("query_range", query=query, start=since, end=time.time(), step=1)
        numbers = [float(value) for series in found["result"] for _, value in series["values"]]
        return [number for number in numbers if math.isfinite(number)]

    def wait_for_target(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if any(target["health"] == "up" for target in self.ask("targets")["activeTargets"]):
                    return
            time.sleep(0.5)
        raise AssertionError("Prometheus has not reached Ray's metrics")


@contextlib.contextmanager
def scraping(program: str, target: int, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that looks at one port of this machine every second."""
    folder.mkdir()
    job = {"job_name": "ray", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        server.wait_for_target()
        assert listens_on(psutil.Process(process.pid)) == {"127.0.0.1"}
        yield server
    finally:
        process.terminate()
        process.wait(timeout=20)


# Shares of guesses and of attacker wins: a tiny model's two games may have none, and then there is nothing to draw.
SHARES = {"right_share": "spag_ray_right_guess_ratio", "trap_share": "spag_ray_trap_ratio"}
OF_SOLVED_GAMES = "spag_ray_exploitability"  # the run plays Taboo
OF_GPUS = {"gpu_tokens_per_second", "spag_ray_learner_mfu_ratio", "spag_ray_engine_gpu_"}  # absent, never 0, on CPUs
OF_VLLM = {f"spag_ray_engine_{name}_" for name in ("kv_cache", "preemptions", "prefix", "running", "waiting")}
OF_MATCHES = "spag_ray_elo"  # the run ends with the only ones
# A gauge that is set as the run ends may not reach Prometheus: both Ray and Prometheus look once a second.
EXPORT_S = 8


def measured_before(metrics: Path, end: float) -> set[str]:
    """Those of SHARES that a run had measured by a time, by the names in Prometheus."""
    lines = [json.loads(text) for text in metrics.read_text().splitlines()]
    held_out = [line for line in lines if line["kind"] == "held_out"]
    assert held_out
    return {
        name
        for field, name in SHARES.items()
        if any(line.get(field) is not None and line["time"] < end for line in held_out)
    }


@pytest.mark.long  # a run beside Prometheus
@pytest.mark.timeout(280)
def test_every_panel_shows_something_of_a_real_run(
    prometheus: str, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")  # ten seconds otherwise
    port = free_port()
    config = stream_run(
        tiny_model,
        words,
        NUM_PARTS,
        engine={"kind": "transformers"},
        imitation={"enabled": True},
        objective={"listening_coeff": 1.0, "claiming_coeff": 1.0, "unsaid_coeff": 1.0, "entropy_coeff": 0.01},
        evaluation={"games": 2, "tasks": ["spag_reasoning"], "task_limit": 4},
        checkpoint={"every_versions": 2},
    )
    with (
        ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3, metrics_port=port)),
        scraping(prometheus, port, tmp_path / "prometheus") as server,
    ):
        assert listens_on(psutil.Process()) == {"127.0.0.1"}, "also where Ray has its metrics"
        began = time.time()
        run_training(config, tmp_path / "a-run", quiet())
        streamed = tmp_path / "a-run" / "episodes" / "stream.log"
        measured = measured_before(tmp_path / "a-run" / "metrics.jsonl", time.time() - EXPORT_S)
        absent = OF_VLLM if torch.cuda.is_available() else OF_VLLM | OF_GPUS  # its engines are transformers'
        optional = {OF_SOLVED_GAMES, OF_MATCHES, *SHARES.values()} - measured
        empty, num_queries = [], 0
        for panel in panels():
            for target in panel["targets"]:
                query = target["expr"].replace("$run", "a-run").replace("$window", f"{WINDOW_S}s")
                num_queries += 1
                found = server.values(query, began)
                if any(name in query for name in absent):
                    assert not found, query
                elif not found and not any(name in query for name in optional):
                    empty.append((panel["title"], query))
        assert empty == []
        print(f"\n{len(panels())} panels, {num_queries} queries, none empty; {time.time() - began:.0f} s of a run")
        for counted, happened in (
            ("sum(ray_spag_ray_learner_steps_total)", len(steps_of(tmp_path / "a-run"))),
            ('sum(ray_spag_ray_games_total{phase="self_play"})', len(list(read_log(streamed)))),
            ("max(ray_spag_ray_policy_version)", NUM_PARTS + 1),  # imitation makes a version too
        ):
            # What a run counts in its last seconds may not be seen any more.
            assert 0.7 * happened <= max(server.values(counted, began)) <= happened, counted
