"""Every kind of process of a run is killed or hangs while it runs: it comes to its end, nothing finished is lost."""

import os
import random
from pathlib import Path

import pytest
import ray

from cluster.launch.placed_run import placed_run
from cluster.runtime.run_folder import make_run_folder
from tests.support.faults import FAULTS, FaultyRun, kill_engine
from tests.support.runs import colocated_run, records_of, steps_of, stream_run
from tests.support.tiny_model import TARGETS

pytestmark = pytest.mark.usefixtures("local_ray")
SEED = int(os.environ.get("SEED", "0"))


@pytest.mark.timeout(1790)
def test_thirty_faults(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Real vLLM engines; every kind of fault three times, in an order of the seed's."""
    kinds = sorted(FAULTS)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    random.Random(SEED).shuffle(faults)
    num_parts = 400
    run = FaultyRun(stream_run(tiny_model, words, num_parts), tmp_path / "run", faults, gap_s=5, seed=SEED)
    run.to_the_end()
    print("\nfrom the fault to the next published version, shortest / median / longest:")
    print(run.table())
    run.check(num_parts)


@pytest.mark.timeout(900)
def test_an_engine_is_killed_while_the_learner_has_its_device(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Colocated: the engine sleeps then. Once the next publish waited for ever for its replacement."""
    num_rounds = 4
    config = colocated_run(tiny_model, words, num_rounds, batch_games=1)
    folder = make_run_folder(tmp_path / "run", config)
    targets = list(TARGETS)
    killed_in: list[str] = []
    with placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as run:
        training = run.train.remote()
        while not ray.wait([training], timeout=0.02)[0]:
            steps = steps_of(folder) if (folder / "metrics.jsonl").exists() else []
            if steps and steps[-1]["stage"] not in killed_in and kill_engine("engine-policy-"):
                killed_in.append(steps[-1]["stage"])
        ray.get(training)
    restarted = [line["what"] for line in records_of(folder, "restart")]
    print(f"\nkilled while these stages were trained on: {', '.join(killed_in)}; restarted: {', '.join(restarted)}")
    assert len(killed_in) >= num_rounds
    assert len(restarted) in (len(killed_in) - 1, len(killed_in)), "nothing has to be played after the last stage"
    assert records_of(folder, "checkpoint")[-1]["name"] == f"spag-{num_rounds}"
