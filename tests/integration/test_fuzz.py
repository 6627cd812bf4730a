"""The fuzzers of tests/fuzz run, for a short time, and find nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel
FUZZ = Path(__file__).resolve().parents[1] / "fuzz" / "fuzz_bytes.py"
# Whoever holds more memory than a fuzzer may take, and then starts one.
LARGE_PARENT = """
import subprocess, sys
held = b"x" * (1200 * 2**20)
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize("target", ["wire", "log", "json"])
def test_a_fuzzer_finds_nothing_in_a_short_time(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), target, "-max_total_time=10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "INITED" in done.stderr
    assert "DONE" in done.stderr


def test_a_fuzzer_takes_no_memory_of_its_parent_for_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGE_PARENT, str(FUZZ), "wire", "-runs=1000"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_fuzzer_finds_a_reader_that_takes_a_gib(tmp_path: Path) -> None:
    greedy = f"""
import sys
sys.argv[1:] = ["wire", "-runs=10"]
sys.path.insert(0, {str(FUZZ.parent)!r})
import fuzz_bytes
fuzz_bytes.TARGETS["wire"] = lambda data: bytearray(2**30)
fuzz_bytes.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", greedy], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode != 0
    assert "MemoryError" in done.stdout + done.stderr
