"""The Grafana dashboard: made from the registry, and every panel shows something of a real run in a real Prometheus."""

from __future__ import annotations

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
import ray
from not_here import not_here
from runs import quiet, steps_of, stream_run

from cluster.cli import app, run_guarded
from cluster.dashboard import dashboard
from cluster.launch import run_training
from cluster.metric_registry import METRICS
from cluster.runtime import ClusterError, ray_session
from spag_ray.config import ClusterConfig
from spag_ray.episode_log import read_log

WINDOW_S = 20
NUM_PARTS = 12
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "monitoring.md"


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_every_metric_is_in_a_panel() -> None:
    text = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    for metric in METRICS:
        suffix = "_bucket" if metric.kind == "histogram" else ""
        assert f"{metric.exported_name}{suffix}{{" in text


def test_queries_fit_their_metrics() -> None:
    """Rates of counters, quantiles of histograms; what a legend names, the query keeps."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            (metric,) = (
                m for m in METRICS if f"{m.exported_name}{{" in query or f"{m.exported_name}_bucket{{" in query
            )
            assert ("rate(" in query or "increase(" in query) == (metric.kind != "gauge")
            assert ("histogram_quantile(" in query) == (metric.kind == "histogram")
            kept = query.split(" by (")[1].split(")")[0].split(", ")
            named = [part.split("}}")[0] for part in target["legendFormat"].split("{{")[1:]]
            assert named == [label for label in kept if label != "le"] and set(named) <= {"run", *metric.labels}
            assert '{run=~"$run"}' in query and target["refId"]


def test_the_metrics_of_a_panel_have_one_unit_and_kind() -> None:
    for panel in panels():
        text = " ".join(target["expr"] for target in panel["targets"])
        inside = [m for m in METRICS if f"{m.exported_name}{{" in text or f"{m.exported_name}_bucket{{" in text]
        assert len({(metric.unit, metric.kind) for metric in inside}) == 1, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_it_is_what_grafana_imports() -> None:
    found = dashboard()
    assert found["id"] is None and found["uid"] and found["schemaVersion"] >= 36
    assert [variable["name"] for variable in found["templating"]["list"]] == ["datasource", "run", "window"]
    numbers = [panel["id"] for panel in found["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_the_command_writes_it_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dashboard.json"

    def command(**options: Any) -> None:
        app(["dashboard", "--out", str(out)], **options)

    assert run_guarded(command) == 0
    assert json.loads(out.read_text()) == dashboard()
    out.write_text("mine")
    capsys.readouterr()
    assert run_guarded(command) == 2 and out.read_text() == "mine"
    assert "nothing is overwritten" in capsys.readouterr().err


def test_the_document_has_every_metric() -> None:
    rows = [line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `spag_ray_")]
    wanted = [f"| `{m.name}` | {m.kind} | {m.unit or '-'} | {', '.join(m.labels) or '-'} | {m.help} |" for m in METRICS]
    assert rows == wanted, "write these rows:\n" + "\n".join(wanted)


def test_a_port_that_is_taken_is_said_before_ray_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = pytest.raises(ClusterError, match=f"metrics_port: {port} cannot be used")
        with taken, ray_session(ClusterConfig(metrics_port=port)):
            pass
    assert not ray.is_initialized()


@pytest.fixture
def prometheus() -> str:
    """The program."""
    return shutil.which("prometheus") or not_here("no `prometheus` on the PATH (Debian has it as a package)")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens_on(process: psutil.Process) -> set[str]:
    """The addresses on which a process and its children listen."""
    members = {process.pid, *(child.pid for child in process.children(recursive=True))}
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.pid in members
    }


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


@pytest.mark.slow  # a run and a Prometheus
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
        empty, num_queries = [], 0
        for panel in panels():
            for target in panel["targets"]:
                query = target["expr"].replace("$run", "a-run").replace("$window", f"{WINDOW_S}s")
                num_queries += 1
                if not server.values(query, began):
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
