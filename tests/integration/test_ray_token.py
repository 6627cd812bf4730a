"""Ray's token, by a GCS of its own: used where a cluster asks for it, and a refusal is one line at once."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "ab" * 32
CONNECT = """
import os, sys
from cluster.runtime.ray_token import check_answer
from cluster.runtime.ray_session import ray_session
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from spag_ray.config.parts import ClusterConfig
from spag_ray.errors import SpagError

try:
    if sys.argv[2] == "refused":
        with ray_session(ClusterConfig(address=sys.argv[1])):
            pass
    check_answer(sys.argv[1])
    print("answers, token:", is_token_auth_enabled(), os.environ.get("RAY_AUTH_MODE"))
except SpagError as error:
    print(error)
"""


@pytest.fixture
def gcs(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Iterator[str]:
    """The address of one that asks for a token (`token`) or for none (`disabled`)."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    program = Path(ray.__file__).parent / "core/src/ray/gcs/gcs_server"
    command = [str(program), f"--gcs_server_port={port}", "--node-ip-address=127.0.0.1", "--metrics-agent-port=0"]
    command += ["--session-name=test", f"--log_dir={tmp_path}", "--config_list=e30="]  # {}
    with (tmp_path / "gcs.log").open("w") as log:
        environment = {**without_token(home), "RAY_AUTH_MODE": request.param}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        yield f"127.0.0.1:{port}"
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's, after a local Ray has left a token there."""
    (tmp_path / "home" / ".ray").mkdir(parents=True)
    (tmp_path / "home" / ".ray" / "auth_token").write_text(TOKEN)
    return tmp_path / "home"


def without_token(home: Path) -> dict[str, str]:
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH_")}
    return {**others, "HOME": str(home), "PYTHONPATH": str(ROOT)}


def said(address: str, home: Path, what: str = "answers", **changes: str) -> str:
    """What a session prints, which is all there is to see, within the time that Ray alone would take."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, address, what],
        env={**without_token(home), **changes},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stderr == "", done.stderr
    assert time.monotonic() - began < 25, done.stderr
    return done.stdout


@pytest.mark.parametrize("gcs", ["token"], indirect=True)
def test_the_token_in_a_users_home_is_used_where_nothing_is_said_and_one_is_needed(gcs: str, home: Path) -> None:
    assert said(gcs, home) == "answers, token: True token\n"


@pytest.mark.parametrize("gcs", ["disabled"], indirect=True)
def test_a_cluster_that_asks_for_no_token_is_given_none(gcs: str, home: Path) -> None:
    assert said(gcs, home) == "answers, token: False None\n"


@pytest.mark.parametrize("gcs", ["token"], indirect=True)
def test_a_refused_token_is_said_in_one_line_at_once_without_rays_warnings(gcs: str, home: Path) -> None:
    for changes in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "00" * 32}, {"HOME": "/nowhere"}):
        assert said(gcs, home, "refused", **changes).startswith(
            f"{gcs} needs a token, and this session has none or a wrong one"
        )
    nowhere = said(gcs, home, "refused", RAY_AUTH_MODE="token", HOME="/nowhere")
    assert nowhere.startswith(f"{gcs} needs a token")


def test_where_nobody_answers_one_line_says_so(home: Path) -> None:
    with socket.socket() as closed:  # bound, never listening
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        assert said(address, home, "refused").startswith(f"cannot use {address}: no answer within 10 s")
