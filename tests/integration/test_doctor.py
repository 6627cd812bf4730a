"""`spag-ray doctor` on a real Ray."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.checks.cluster_checks import cluster_checks
from cluster.commands.doctor import run_doctor
from tests.support.runs import tiny_run


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[bool, str]]:
    """What the command says, and whether all is well."""
    monkeypatch.chdir(tmp_path)

    def call(config: Any) -> tuple[bool, str]:
        with (tmp_path / "out").open("w") as out:
            is_well = run_doctor(config, tmp_path / "runs" / "x", Console(file=out, width=100))
        assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing is left behind"
        return is_well, (tmp_path / "out").read_text()

    return call


@pytest.mark.usefixtures("local_ray")
def test_a_machine_is_told_what_is_well_and_what_is_not(printed: Any, tiny_model: Path, words: Path) -> None:
    is_well, text = printed(tiny_run(tiny_model, words, imitation={"enabled": False}))
    assert is_well
    assert "all checks passed" in text
    assert "fail" not in text
    large = {"num_engines": 2, "num_cpus": 0.5, "num_gpus": 4, "tensor_parallel_size": 4}
    absent = tiny_run(tiny_model / "absent", words.parent / "absent.txt", imitation={"enabled": False}, engine=large)
    is_well, text = printed(absent)
    assert not is_well
    assert "4 checks failed" in text
    assert "no such model folder" in text
    assert "8 GPUs are needed" in text
    assert "absent.txt" in text


@pytest.mark.usefixtures("local_ray")
def test_a_cluster_is_asked_in_tasks_on_its_nodes(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    config = tiny_run(tiny_model, words, cluster={"address": address}, imitation={"source": "/nowhere/games.json"})
    found = list(cluster_checks(config, str(tiny_model), tmp_path / "run"))
    failed = [result for result in found if result.status == "fail"]
    assert [result.check for result in failed] == ["paths"]
    assert "/nowhere/games.json" in failed[0].text
    assert {"nodes", "placement", "versions", "run folder", "ports"} <= {result.check for result in found}
    assert list(tmp_path.iterdir()) == []
