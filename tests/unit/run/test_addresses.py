"""Addresses of clusters and servers: their forms, and which are asked without a proxy."""

import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from actors.endpoint_policy import Endpoint, check_endpoint
from cluster.cli import app
from cluster.console import attach
from cluster.guarded import run_guarded
from cluster.launch.jobs import jobs_at
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError
from spag_ray.host.addresses import Form, ask_directly, check_address

EXPLAINED = (
    "a cluster has three addresses: http://HEAD:8265 (jobs: submit, runs, stop), ray://HEAD:10001 (sessions: attach, "
    "watch, runs, stop) and HEAD:6379 (Ray itself: doctor --address, cluster.address)"
)
# What somebody may write in place of the right form. Nobody answers at 192.0.2.1, so a try would take long.
NO_SESSION = (
    "192.0.2.1:10001", "192.0.2.1", "http://192.0.2.1:8265", "ray://", "ray://192.0.2.1", "ray://192.0.2.1:port",
    "ray:/192.0.2.1:10001", "RAY:192.0.2.1:10001", "ray://192.0.2.1:99999", "ray://a b:10001", "grpc://192.0.2.1:10001",
    "ray://192.0.2.1:10001/x", "auto", " ",
)  # fmt: skip
NO_JOBS = ("192.0.2.1:8265", "ray:192.0.2.1:8265", "http:192.0.2.1:8265", "http://", "http://:8265", "http://a:b",
           "http://192.0.2.1:99999", "auto")  # fmt: skip
NO_CLUSTER = ("http://192.0.2.1:8265", "https://192.0.2.1", "ray://192.0.2.1:10001", "192.0.2.1", "192.0.2.1:0",
              "local", "192.0.2.1:port", "192.0.2.1:99999", "192.0.2.1:6379/x", ":6379")  # fmt: skip


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> str:
        """The one line of a command that refuses its arguments at once."""
        capsys.readouterr()
        began = time.monotonic()
        assert run_guarded(lambda **options: app(list(arguments), **options)) == 2
        assert time.monotonic() - began < 20
        error = capsys.readouterr().err
        assert error.startswith("spag-ray: ")
        assert error.count("\n") == 1
        return error

    return call


@pytest.mark.parametrize("address", NO_SESSION)
def test_a_session_needs_the_form_of_a_session(said: Any, address: str) -> None:
    assert EXPLAINED in said("attach", address)
    with pytest.raises(ConfigError, match="a cluster has three addresses"):
        attach(address)


@pytest.mark.parametrize("address", ["192.0.2.1:10001", "http://192.0.2.1:8265", "ray://192.0.2.1", "ray://a:b"])
def test_a_view_needs_a_folder_or_the_form_of_a_session(said: Any, address: str) -> None:
    assert EXPLAINED in said("watch", address)


@pytest.mark.parametrize("address", NO_JOBS)
def test_a_job_needs_the_form_of_the_dashboard(said: Any, address: str) -> None:
    submit = ("submit", "quickstart", "--address", address, "--run-dir", "/shared/one")
    for command in (
        submit,
        (*submit, "--dry-run"),
        ("runs", "--address", address),
        ("stop", "/r", "--address", address),
    ):
        assert EXPLAINED in said(*command), command


@pytest.mark.parametrize("address", ["ray://192.0.2.1:10001", "ray://192.0.2.1"])
def test_a_job_is_not_submitted_to_a_session(said: Any, address: str) -> None:
    assert EXPLAINED in said("submit", "quickstart", "--address", address, "--run-dir", "/shared/one")


@pytest.mark.parametrize("address", NO_CLUSTER)
def test_a_run_needs_the_form_of_the_cluster(said: Any, address: str) -> None:
    assert EXPLAINED in said("doctor", "quickstart", "--address", address)
    for command in ("train", "doctor"):
        error = said(command, "quickstart", "-o", f"cluster.address={address}")
        assert "-o cluster.address: " in error
        assert EXPLAINED in error


def test_the_right_form_is_proposed_with_the_host_that_was_given() -> None:
    for given, form, proposed in (
        ("head:10001", Form.SESSION, "ray://head:10001"),
        ("head:8265", Form.JOBS, "http://head:8265"),
        ("http://head:8265", Form.SESSION, "ray://head:10001"),
        ("ray://head:10001", Form.CLUSTER, "head:6379"),
        ("http://head:8265", Form.CLUSTER, "head:6379"),
        ("ray://[::1]:10001", Form.CLUSTER, "[::1]:6379"),
        ("ray://head", Form.SESSION, "ray://head:10001"),
        ("", Form.SESSION, "ray://HEAD:10001"),
    ):
        with pytest.raises(ConfigError, match="a cluster has three addresses") as caught:
            check_address(given, form, where="--address")
        assert str(caught.value).startswith(f"--address {given!r}: write {proposed}; ")


def test_every_form_that_works_is_taken() -> None:
    for address, form in (
        ("ray://127.0.0.1:10001", Form.SESSION),
        ("ray://head-1.cluster.local:10001", Form.SESSION),
        ("ray://[::1]:10001", Form.SESSION),
        ("http://127.0.0.1:8265", Form.JOBS),
        ("https://ray.example.org/cluster/one", Form.JOBS),
        ("http://head", Form.JOBS),
        ("127.0.0.1:6379", Form.CLUSTER),
        ("[fe80::1]:6379", Form.CLUSTER),
        ("auto", Form.CLUSTER),
    ):
        assert check_address(address, *Form) is form
    assert parse_config({"cluster": {"address": "head:6379"}}).cluster.address == "head:6379"


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_can_have_is_one_line(said: Any, host: str) -> None:
    assert f"ray://{host}:10001 does not answer this session" in said("attach", f"ray://{host}:10001")
    assert f"--port 0 on {host}: " in said(
        "serve", "smollm2-135m-instruct", "--host", host, "--port", "0", "--allow-network", "--no-browser"
    )


def test_where_nobody_listens_a_session_says_so_at_once(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:  # bound, never listening
        closed.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{closed.getsockname()[1]}"
        for command in (("attach", address), ("watch", address), ("runs", "--address", address)):
            assert f"{address} does not answer this session: Connection refused; is it the client port" in said(
                *command
            )
            monkeypatch.setattr("cluster.console._LISTENS_WITHIN_S", 0.5)  # the first has waited in full


@pytest.mark.parametrize(("status", "body"), [(200, b"<html>a page</html>"), (200, b"{}"), (200, b"[]"), (500, b"")])
def test_a_server_that_is_no_dashboard_is_one_line(said: Any, status: int, body: bytes) -> None:
    class Page(_Jobs):
        def do_GET(self) -> None:
            self.answer(status, body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        error = said("runs", "--address", f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "no dashboard of Ray answers there" in error


def test_a_dashboard_that_is_lost_between_two_questions_is_one_line(said: Any) -> None:
    class Cut(_Jobs):
        def do_GET(self) -> None:
            if self.path == "/api/version":
                super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Cut) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for command in (("runs", "--address", address), ("stop", "/runs/one", "--address", address)):
            assert f"{address}: " in said(*command)
        server.shutdown()


class _Jobs(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        version = b'{"version": "1", "ray_version": "2", "ray_commit": "3", "session_name": "s"}'
        body = {"/v1/models": b'{"object": "list", "data": [{"id": "m"}]}', "/api/jobs/": b"[]"}.get(self.path, version)
        self.answer(200, body)

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing to the terminal."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server on this machine; every proxy that is set is dead."""
    for name in ("http", "https", "all"):
        for variable in (f"{name}_proxy", f"{name}_proxy".upper()):
            monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with ThreadingHTTPServer(("0.0.0.0", 0), _Jobs) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize("no_proxy", [{}, {"no_proxy": ".corp"}, {"NO_PROXY": ".corp,10.0.0.1"}])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1.2.3", "0.0.0.0"])
def test_no_proxy_is_asked_for_this_machine(
    port: int, host: str, no_proxy: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        if name in no_proxy:
            monkeypatch.setenv(name, no_proxy[name])
    check_endpoint(Endpoint(f"http://{host}:{port}/v1", "m"), timeout_s=5)
    assert jobs_at(f"http://{host}:{port}") == []
    assert urllib.request.proxy_bypass("a.corp") or not no_proxy, "what was set still holds"


def test_a_proxy_is_still_asked_for_other_machines(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    ask_directly("http://example.org:8000/v1")
    assert not urllib.request.proxy_bypass("example.org:8000")
    ask_directly(f"http://127.0.0.1:{port}/v1")
    ask_directly(f"http://127.0.0.1:{port}/v1")
    assert not urllib.request.proxy_bypass("example.org:8000")
