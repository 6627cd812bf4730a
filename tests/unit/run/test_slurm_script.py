"""docs/examples/slurm.sh with stand-ins for what it calls; tests/integration/test_slurm.py has the real programs."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "slurm.sh"
PROGRAMS = {
    # More nodes than a pipe holds.
    "scontrol": 'if [[ $1 == show ]]; then seq -f node%g 20000; else echo "$@" >"$JOB/asked"; fi',
    "srun": 'shift && exec "$@"',
    "ray": 'if [[ $1 == get-auth-token ]]; then echo a-token; exit; fi; export -p >"$JOB/environment"; '
    'echo "$@" >"$JOB/called"; while [[ $1 != -- ]]; do shift; done; shift; "$@"',
    "spag-ray": "trap 'echo asked to stop; exit 0' TERM; echo started; "
    '[[ -e $JOB/short ]] && mkdir "$JOB/run" && echo finished >"$JOB/run/ended.json" && exit; '
    'touch "$JOB/runs"; while sleep 0.05; do :; done',
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def started(job: Path, **changes: str) -> subprocess.Popen[str]:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-20000]", "SLURM_JOB_NUM_NODES": "20000"}
    command = ["bash", str(SCRIPT), "a.yaml", str(job / "run"), "-o", "seed=1"]
    environment = {**os.environ, **slurm, "JOB": str(job), "PATH": f"{job}:{os.environ['PATH']}", **changes}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_job_that_finishes_is_not_queued_again_and_its_nodes_use_a_token(job: Path) -> None:
    (job / "short").touch()
    script = started(job)
    said, _ = script.communicate(timeout=30)
    assert script.returncode == 0, said
    assert "a-token" not in said
    called = (job / "called").read_text()
    assert called.startswith("symmetric-run --address node1:6379 --min-nodes 20000 ")
    assert called.endswith(f"a.yaml -o cluster.address=node1:6379 --run-dir {job}/run --resume -o seed=1\n")
    exported = (job / "environment").read_text()
    for variable in ('RAY_AUTH_MODE="token"', 'RAY_py_gcs_connect_timeout_s="300"'):
        assert f"declare -x {variable}" in exported
    assert not (job / "asked").exists()


@pytest.mark.parametrize(("wanted", "used"), [("/scratch/" + "7" * 80, "/tmp"), ("/scratch/7", "/scratch/7")])
def test_a_temporary_folder_whose_path_is_too_long_for_sockets_is_replaced(job: Path, wanted: str, used: str) -> None:
    (job / "short").touch()
    said, _ = started(job, TMPDIR=wanted).communicate(timeout=30)
    assert f'declare -x TMPDIR="{used}"' in (job / "environment").read_text(), said


def test_a_job_that_gets_a_notice_stops_its_run_and_is_queued_again(job: Path) -> None:
    script = started(job)
    deadline = time.monotonic() + 20
    while not (job / "runs").exists():
        assert script.poll() is None, script.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    script.send_signal(signal.SIGUSR1)
    said, _ = script.communicate(timeout=30)
    assert script.returncode == 0, said
    assert "asked to stop" in said
    assert (job / "asked").read_text() == "requeue 7\n"
