"""The fuzzers of tests/fuzz run, for a short time, and find nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel


@pytest.mark.timeout(200)
@pytest.mark.parametrize("target", ["wire", "log", "json"])
def test_a_fuzzer_finds_nothing_in_a_short_time(target: str, tmp_path: Path) -> None:
    fuzz = Path(__file__).resolve().parents[1] / "fuzz" / "fuzz_bytes.py"
    done = subprocess.run(
        [sys.executable, str(fuzz), target, "-max_total_time=10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "INITED" in done.stderr
    assert "DONE" in done.stderr
