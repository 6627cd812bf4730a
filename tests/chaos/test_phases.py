"""Each kind of process is stopped (SIGSTOP) at the beginning of each phase of a run: it comes to its end, in time."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.launch import placed_run as placing
from cluster.launch.placed_run import placed_run
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.errors import EngineError
from tests.support.phases import KINDS, PHASES, RunWithPhases, happened_at, write_phase
from tests.support.runs import records_of, stream_run
from tests.support.tiny_model import TARGETS

pytestmark = pytest.mark.usefixtures("local_ray")
NUM_PARTS = 4
WITHIN_S = 150.0  # a heartbeat's limit of 8 s, a learner's of 20 s, restarts, and what is left of the run
RECORDED_AS = {"EngineActor": "engine", "LearnerActor": "learners", "BufferActor": "buffer", "ArenaActor": "arena"}

rows: dict[tuple[str, str], str] = {}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """What was measured: seconds from the stop to the end of the run, and what was restarted."""
    yield
    print("\n| phase | " + " | ".join(KINDS) + " |\n|---|" + "---|" * len(KINDS))
    for phase in PHASES:
        print(f"| {phase} | " + " | ".join(rows.get((phase, kind), "-") for kind in KINDS) + " |")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_process_that_hangs_in_a_phase_does_not_hang_the_run(
    phase: str, kind: str, tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "Run", RunWithPhases)
    config = stream_run(
        tiny_model,
        words,
        NUM_PARTS,
        engine={"kind": "transformers", "start_timeout_s": 90},
        checkpoint={"every_versions": 1},
        sync={"timeout_s": 20},
        evaluation={"games": 4},
    )
    folder = make_run_folder(tmp_path / "run", config)
    write_phase(folder, phase, kind)
    targets = list(TARGETS)
    # An engine that hangs while it starts is found by its deadline or, once it has answered, by its heartbeat. At the
    # start that ends the run with a line: it is more often a fault of the configuration, which a restart would repeat.
    is_fatal = (phase, kind) == ("start", "EngineActor")
    found = pytest.raises(EngineError, match=r"no engine after|not answered a heartbeat")
    ends = found if is_fatal else contextlib.nullcontext()
    with ends, placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as run:
        get(run.train.remote(), 350.0)
    after_s = time.time() - happened_at(folder)
    if is_fatal:
        rows[phase, kind] = f"{after_s:.0f} s, the run ends with a line"
        return
    restarted = sorted({line["what"].split("-")[0] for line in records_of(folder, "restart")})
    rows[phase, kind] = f"{after_s:.0f} s, {', '.join(restarted) or 'nothing'} restarted"
    print(f"\n{phase}, {kind}: {rows[phase, kind]}")
    assert records_of(folder, "checkpoint")[-1]["name"] == f"version-{NUM_PARTS}"
    assert after_s < WITHIN_S
    assert RECORDED_AS[kind] in restarted or phase == "end", "a restart is never silent"
