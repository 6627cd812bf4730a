"""Every kind of process of a run is killed or hangs while it runs: it comes to its end, nothing finished is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faults import FAULTS, FaultyRun
from runs import records_of, stream_run

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.slow  # a run of two minutes
@pytest.mark.timeout(580)
def test_a_stream_goes_on_whatever_is_killed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    faults = ["engine killed", "learner killed", "buffer killed", "arena killed", "run killed"]
    config = stream_run(tiny_model, words, 40, engine={"kind": "transformers"})
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=1, seed=0)
    run.to_the_end()
    run.check(40)
    again = {line["what"].split("-")[0] for line in records_of(tmp_path / "run", "restart")}
    assert again >= {"engine", "learners", "arena", "buffer"} and records_of(tmp_path / "run", "resumed")


@pytest.mark.chaos  # twenty minutes
@pytest.mark.timeout(1790)
def test_thirty_faults(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Real vLLM engines; every kind of fault at least four times, in an order of the seed's."""
    kinds = sorted(FAULTS)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    random.Random(0).shuffle(faults)
    num_parts = 400
    run = FaultyRun(stream_run(tiny_model, words, num_parts), tmp_path / "run", faults, gap_s=5, seed=0)
    run.to_the_end()
    print("\nfrom the fault to the next published version, shortest / median / longest:")
    print(run.table())
    run.check(num_parts)
