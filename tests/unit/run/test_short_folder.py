"""The temporary folder of a Ray that is started here. Ray's own use of it is in test_ray_session.py."""

import os
import tempfile
from pathlib import Path

import pytest

from cluster.runtime import ray_session
from cluster.runtime.ray_session import MAX_FOLDER_BYTES, use_short_folder
from cluster.runtime.ray_token import ClusterError


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "RAY_TMPDIR"):
        monkeypatch.setenv(name, "")  # so that what the test changes is restored
        monkeypatch.delenv(name)
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def roomy(tmp_path: Path) -> Path:
    """As SLURM makes it: a folder of its own for each job, of 80 characters and more."""
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    return folder


def test_without_a_folder_of_ones_own_nothing_changes() -> None:
    use_short_folder()
    assert "TMPDIR" not in os.environ


@pytest.mark.parametrize("name", ["TMPDIR", "RAY_TMPDIR"])
def test_a_folder_with_a_long_path_is_replaced(
    name: str, roomy: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, str(roomy))
    use_short_folder()
    assert (os.environ[name], tempfile.gettempdir()) == ("/tmp", "/tmp")
    assert f"{name}: {roomy} is too long" in caplog.text


def test_a_short_folder_is_kept_also_one_for_ray(tmp_path: Path, roomy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        use_short_folder()
        assert os.environ["TMPDIR"] == folder
        monkeypatch.setenv("RAY_TMPDIR", folder)
        monkeypatch.setenv("TMPDIR", str(roomy))
        use_short_folder()
        assert (os.environ["RAY_TMPDIR"], os.environ["TMPDIR"]) == (folder, "/tmp"), "vLLM's sockets are in the latter"


@pytest.mark.parametrize("wanted", ["/proc/nowhere", "/proc", "/etc/passwd", "/etc/passwd/x", ""])
def test_a_folder_that_cannot_be_used_is_replaced(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", wanted)
    use_short_folder()
    assert os.environ["TMPDIR"] == "/tmp"


def test_a_folder_that_ray_can_make_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="r") as folder:
        monkeypatch.setenv("RAY_TMPDIR", f"{folder}/a/b")
        use_short_folder()
        assert os.environ["RAY_TMPDIR"] == f"{folder}/a/b"
        assert os.listdir(folder) == []


def test_the_bound_is_that_of_rays_longest_socket() -> None:
    session = "session_2026-11-26_18-07-56_217488_4194304"
    path = f"{'x' * MAX_FOLDER_BYTES}/ray/{session}/sockets/plasma_store"
    assert len(path) == 107


def test_without_any_usable_folder_a_line_says_what_to_set(roomy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(roomy))
    monkeypatch.setattr(ray_session, "SHORT_FOLDERS", ("/proc/nowhere",))
    with pytest.raises(ClusterError, match="set RAY_TMPDIR") as caught:
        use_short_folder()
    assert "\n" not in str(caught.value)
