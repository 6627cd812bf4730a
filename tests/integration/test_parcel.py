"""What a job is sent is enough to run from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cluster.launch.parcel import PACKAGES, is_sent, parcel_of
from tests.support.runs import tiny_run

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.parallel


def test_what_a_job_is_sent_is_enough_to_run_from(tmp_path: Path) -> None:
    """In a folder of its own, by a Python that does not know of the checkout."""
    config = tiny_run(Path("model"), Path("words.txt"))
    kept = tmp_path / "sent"
    with parcel_of(config, Console(quiet=True)) as folder:
        shutil.copytree(folder, kept)
    tracked = subprocess.run(["git", "ls-files", *PACKAGES, "configs"], cwd=ROOT, capture_output=True, text=True)
    sent = {path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()}
    assert {name for name in tracked.stdout.split() if is_sent(Path(name))} <= sent
    assert not {name for name in sent if name.endswith(".pyc")}
    code = "import cluster.commands.train, cluster.cli, learners.learner; print(cluster.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=kept, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip().splitlines()[-1].startswith(str(kept)), done.stdout + done.stderr
