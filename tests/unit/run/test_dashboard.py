"""The Grafana dashboard: made from the registry, and every panel shows something of a real run in a real Prometheus."""

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import ray

from cluster.cli import app
from cluster.guarded import run_guarded
from cluster.runtime.ray_session import ClusterError, ray_session
from cluster.tracking.grafana import dashboard
from cluster.tracking.metric_registry import METRICS
from spag_ray.config.parts import ClusterConfig
from spag_ray.results.lines import LINES
from tests.support.dashboard import panels
from tests.support.metrics_page import COMMAND, PAGE, page


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
            assert named == [label for label in kept if label != "le"]
            assert set(named) <= {"run", *metric.labels}
            assert '{run=~"$run"}' in query
            assert target["refId"]


def test_the_metrics_of_a_panel_have_one_unit_and_kind() -> None:
    for panel in panels():
        text = " ".join(target["expr"] for target in panel["targets"])
        inside = [m for m in METRICS if f"{m.exported_name}{{" in text or f"{m.exported_name}_bucket{{" in text]
        assert len({(metric.unit, metric.kind) for metric in inside}) == 1, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]


def test_it_is_what_grafana_imports() -> None:
    found = dashboard()
    assert found["id"] is None
    assert found["uid"]
    assert found["schemaVersion"] >= 36
    assert [variable["name"] for variable in found["templating"]["list"]] == ["datasource", "run", "window"]
    numbers = [panel["id"] for panel in found["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_command_writes_it_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "dashboard.json"

    def command(**options: Any) -> None:
        app(["dashboard", "--out", str(out)], **options)

    assert run_guarded(command) == 0
    assert json.loads(out.read_text()) == dashboard()
    out.write_text("mine")
    capsys.readouterr()
    assert run_guarded(command) == 2
    assert out.read_text() == "mine"
    assert "nothing is overwritten" in capsys.readouterr().err


def test_the_document_has_every_metric() -> None:
    assert page() == PAGE.read_text(encoding="utf-8"), f"write its table by `{COMMAND}`"


def leaves(of: type) -> Iterator[str]:
    """The names of a line's fields, and of those inside; `{}` stands for the key of a mapping."""
    hints = get_type_hints(of)
    for each in fields(of):
        if "name" in each.metadata:
            yield each.metadata["name"]
        elif isinstance(hint := hints[each.name], type) and is_dataclass(hint):
            yield from leaves(hint)
        elif each.name != "unknown":
            yield each.name


def is_exported(kind: str, field: str) -> bool:
    keys = ("attacker", "1", "attacker win: said the word")
    names = {field.replace("{}", key) for key in keys}
    patterns = [metric.pattern for metric in METRICS if metric.line == kind and metric.field]
    return any(re.fullmatch(pattern, name) for pattern in patterns for name in names)


def test_the_document_has_every_field_of_every_line_that_is_no_metric() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    told = {(kind, name) for kinds, names in rows for kind in re.findall(r"[\w*]+", kinds) for name in quoted(names)}
    lacking = {
        (kind, field)
        for kind, line in LINES.items()
        for field in leaves(line)
        if not is_exported(kind, field) and not told & {(kind, field), ("*", field)}
    }
    assert lacking == set()
    assert {"advantage_std", "reward_mean/{}", "kv_cache_max", "tokens_per_s_per_gpu"} <= set(leaves_of_all())


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def leaves_of_all() -> Iterator[str]:
    for line in LINES.values():
        yield from leaves(line)


def test_a_port_that_is_taken_is_said_before_ray_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken = pytest.raises(ClusterError, match=f"metrics_port: {port} cannot be used")
        with taken, ray_session(ClusterConfig(metrics_port=port)):
            pass
    assert not ray.is_initialized()


def test_the_port_of_a_run_that_has_just_ended_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run, as of `train --seeds`, starts while the last connections to it wait for their end."""
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as reader:
            server.accept()[0].close()  # who closes first, waits
            reader.recv(1)
    with ray_session(ClusterConfig(metrics_port=port)):
        pass
