"""A local Ray is a session of its own."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel
ROOT = Path(__file__).resolve().parents[2]


def test_a_local_ray_is_its_own_whatever_cluster_is_up_on_the_machine() -> None:
    """`ray start` leaves its address where every later ray.init() looks first."""
    code = """
import os
import ray
from cluster.runtime.ray_session import SWITCH, ray_session
from spag_ray.config.parts import ClusterConfig
with ray_session(ClusterConfig(num_cpus=1, object_store_gib=0.1)):
    print(len(ray.nodes()), ray.cluster_resources()["CPU"])
print(os.environ.get(SWITCH), ray._private.ray_constants.ENABLE_RAY_CLUSTER)  # a later `ray start --address` works
"""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as folder:  # a socket's path may not be long
        (Path(folder) / "ray").mkdir()
        (Path(folder) / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
        environment = {**os.environ, "RAY_TMPDIR": folder}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
    assert done.stdout.split() == ["1", "1.0", "None", "True"], done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"TMPDIR": "long"},
        {"RAY_TMPDIR": "long"},
        {"TMPDIR": "/proc/nowhere"},
        {"HOME": "/proc"},  # where not even root may write; a container's unknown user has HOME=/
        dict.fromkeys(("http_proxy", "HTTPS_PROXY", "all_proxy", "grpc_proxy"), "http://127.0.0.1:9"),
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_local_ray_starts_in_any_environment(changes: dict[str, str], tmp_path: Path) -> None:
    code = """
import tempfile
import ray
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig

def folder():
    return tempfile.gettempdir()

with ray_session(ClusterConfig(num_cpus=1, object_store_gib=0.1)):
    print(ray.get(ray.remote(folder).remote()))
"""
    (tmp_path / ("x" * 80)).mkdir()
    changes = {name: value.replace("long", str(tmp_path / ("x" * 80))) for name, value in changes.items()}
    others = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "TMPDIR"))}
    environment = {**others, "RAY_AUTH_MODE": "token", **changes}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/tmp\n"
    assert "Traceback" not in done.stderr


def test_an_actor_that_reserved_no_gpu_sees_none() -> None:
    """Ray leaves CUDA_VISIBLE_DEVICES as it was, unless it is told not to."""
    code = """
import json
import os
import ray
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig

class Devices:
    def visible(self):
        return os.environ.get("CUDA_VISIBLE_DEVICES")

with ray_session(ClusterConfig(num_cpus=1, object_store_gib=0.1)):
    print(repr(ray.get(ray.remote(Devices).options(num_gpus=0).remote().visible.remote())))
"""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as folder:
        environment = {**os.environ, "RAY_TMPDIR": folder, "CUDA_VISIBLE_DEVICES": "0,1"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
        )
    assert done.stdout.split() == ["''"], done.stdout + done.stderr


def test_a_log_line_of_an_actor_is_json_and_names_its_job_and_its_actor() -> None:
    """In the file that an actor's output goes to. So a line is found from Ray's dashboard."""
    code = """
import logging, pathlib, sys, tempfile
import ray
from cluster.runtime.ray_session import ray_session, redirect_output
from spag_ray.config.parts import ClusterConfig

class Part:
    def __init__(self, path):
        redirect_output(path)
    def warn(self):
        logging.getLogger("actors.pool").warning("game %d is restarted", 7)
        context = ray.get_runtime_context()
        return context.get_job_id(), context.get_actor_id(), context.get_task_id()

path = sys.argv[1]
with ray_session(ClusterConfig(num_cpus=1, object_store_gib=0.1, log_format=sys.argv[2])):
    print(*ray.get(ray.remote(Part).remote(path).warn.remote()))
"""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray-") as folder:
        lines: dict[str, str] = {}
        ids: dict[str, list[str]] = {}
        for log_format in ("json", "text"):
            path = Path(folder) / f"{log_format}.log"
            command = [sys.executable, "-c", code, str(path), log_format]
            environment = {**os.environ, "RAY_TMPDIR": folder}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
            assert done.returncode == 0, done.stderr
            ids[log_format] = done.stdout.split()
            [lines[log_format]] = [line for line in path.read_text().splitlines() if "game 7" in line]
    said = json.loads(lines["json"])
    assert (said["message"], said["levelname"]) == ("game 7 is restarted", "WARNING")
    assert [said["job_id"], said["actor_id"], said["task_id"]] == ids["json"]
    assert lines["text"] == "game 7 is restarted"
