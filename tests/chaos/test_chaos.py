"""Every kind of process of a run is killed or hangs while it runs: it comes to its end, nothing finished is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.faults import FAULTS, FaultyRun
from tests.support.runs import stream_run

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.timeout(1790)
def test_thirty_faults(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Real vLLM engines; every kind of fault at least three times, in an order of the seed's."""
    kinds = sorted(FAULTS)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    random.Random(0).shuffle(faults)
    num_parts = 400
    run = FaultyRun(stream_run(tiny_model, words, num_parts), tmp_path / "run", faults, gap_s=5, seed=0)
    run.to_the_end()
    print("\nfrom the fault to the next published version, shortest / median / longest:")
    print(run.table())
    run.check(num_parts)
