"""The examples of docs/: cluster files are what the schemas of Ray and of KubeRay take, and the game conforms."""

import fnmatch
import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml

from cluster.cli import app
from cluster.launch.jobs import AFTER_NOTICE_S
from cluster.planning.placement import placement_fault
from cluster.types import NodeResources
from spag_ray.config.loading import load_config
from spag_ray.game import check
from spag_ray.games.registry import game_of, load_game, scenarios_of

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "examples"


def test_ray_up_takes_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config: dict[str, Any] = yaml.safe_load((EXAMPLES / "ray_up.yaml").read_text())
    validate_config(prepare_config(config))  # as `ray up` fills it in


def kubernetes(name: str) -> dict[str, Any]:
    resource: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return resource


def faults_of(resource: dict[str, Any]) -> list[str]:
    """What the operator's schema, and its API server's strict validation, refuse."""
    schemas = json.loads((ROOT / "tests" / "golden" / "kuberay.json").read_text())
    schema = {"$defs": schemas["$defs"], **schemas[resource["kind"]]}
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(resource)]


@pytest.mark.parametrize(("name", "kind"), [("kuberay.yaml", "RayJob"), ("kuberay_session.yaml", "RayCluster")])
def test_the_operators_schema_takes_the_kubernetes_files(name: str, kind: str) -> None:
    resource = kubernetes(name)
    assert resource["kind"] == kind
    assert faults_of(resource) == []
    resource["spec"]["autoscalerOption"] = {}
    assert faults_of(resource) == ["Additional properties are not allowed ('autoscalerOption' was unexpected)"]


@pytest.mark.parametrize("name", ["kuberay.yaml", "kuberay_session.yaml"])
def test_rays_autoscaler_understands_the_kubernetes_files(name: str) -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.util import validate_config

    resource = kubernetes(name)
    cluster = resource["spec"].get("rayClusterSpec", resource["spec"])
    config = _derive_autoscaling_config_from_ray_cr({"metadata": resource["metadata"], "spec": cluster})
    validate_config(config)
    gpus = config["available_node_types"]["gpu"]
    assert gpus["resources"]["GPU"] == 8
    assert (gpus["min_workers"], gpus["max_workers"]) == (1, 4)
    assert cluster["authOptions"] == {"mode": "token"}
    assert f"ray=={cluster['rayVersion']}\n" in (ROOT / "requirements" / "gpu.txt").read_text()


@pytest.mark.parametrize("name", ["kuberay.yaml", "kuberay_session.yaml"])
def test_every_pod_has_shared_memory_and_the_port_that_prometheus_reads(name: str) -> None:
    spec = kubernetes(name)["spec"]
    cluster = spec.get("rayClusterSpec", spec)
    monitor = kubernetes("kuberay_monitor.yaml")["spec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        [container] = pod["containers"]
        assert {"name": "dshm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        [in_memory] = [each["emptyDir"] for each in pod["volumes"] if each["name"] == "dshm"]
        assert in_memory["medium"] == "Memory"
        assert gib(in_memory["sizeLimit"]) < gib(container["resources"]["limits"]["memory"])
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        assert ports["metrics"] == 8080  # what the operator gives `ray start` as its metrics-export-port
        assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["metrics"]


def gib(size: str) -> int:
    return int(size.removesuffix("Gi"))


def test_a_failed_job_builds_no_second_cluster() -> None:
    assert kubernetes("kuberay.yaml")["spec"]["backoffLimit"] == 0


def test_the_job_runs_a_command_that_exists_and_fits_one_node() -> None:
    job = kubernetes("kuberay.yaml")["spec"]
    program, name, config, *options = shlex.split(job["entrypoint"])
    assert (program, name) == ("spag-ray", "train")
    group: Any = typer.main.get_command(app)
    group.commands["train"].make_context("train", [config, *options])
    settings = load_config(config, [options[options.index("-o") + 1]])
    assert placement_fault(settings, [NodeResources("worker", 64, 8)]) is None
    waits_s = int(yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    assert waits_s == settings.checkpoint.stop_within_s + AFTER_NOTICE_S
    assert job["shutdownAfterJobFinishes"]


def test_the_game_of_the_examples_conforms_and_its_configuration_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config("docs/examples/number_duel.yaml")
    assert check(lambda: load_game(config.game.name)) == []
    game = game_of(config)
    assert game is not None
    trained, held_out = scenarios_of(config, game)
    assert (len(trained), len(held_out)) == (48, 24)
    assert len((EXAMPLES / "number_duel.py").read_text(encoding="utf-8").splitlines()) <= 120


def test_ray_up_copies_nothing_that_is_installed_built_or_written_here() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").partition("# caches")[0].splitlines()
    folders = [line.strip("/") for line in ignored if line and not line.startswith(("#", "*"))]
    excluded = yaml.safe_load((ROOT / "docs" / "examples" / "ray_up.yaml").read_text(encoding="utf-8"))["rsync_exclude"]
    assert {".venv", ".venv-gpu", "dist"} <= set(folders)
    assert [each for each in folders if not any(fnmatch.fnmatch(each, pattern) for pattern in excluded)] == []
