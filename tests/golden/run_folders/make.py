"""Makes the run folders beside this file: a finished run of rounds of Taboo, one of Kuhn poker, and a stream of Taboo
that was cut mid-round.

The kept ones were made by 146f8f8, the last commit in which the only game of a run had no name, into /golden; logs,
reports, DeepSpeed's scripts and the host's name were taken out. Do not make them again: every later version has to
resume and report these (tests/unit/run/test_old_run_folders.py).

    git checkout 146f8f8 && PYTHONPATH=. python make.py /golden
"""

from __future__ import annotations

import sys
from pathlib import Path

import transformers
from rich.console import Console

from cluster.commands.train import run_training
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig
from spag_ray.episodes.log import read_log, segments
from tests.integration.test_resume import run_until
from tests.support.runs import PENALISED, tiny_run
from tests.support.tiny_model import TARGETS, make_tiny_model


def small_model(folder: Path) -> Path:
    """The tests' tiny model, smaller still: these folders are kept in the repository."""
    full = transformers.LlamaConfig

    def small(**shape: object) -> object:
        return full(**{**shape, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1})

    transformers.LlamaConfig = small
    try:
        return make_tiny_model(folder, more_words=("check", "bet", "call", "fold"))
    finally:
        transformers.LlamaConfig = full


def main(out: Path) -> None:
    out.mkdir(parents=True)
    model = small_model(out / "model")
    words = out / "words.txt"
    words.write_text("\n".join(TARGETS) + "\n")
    common = {
        "engine": {"kind": "transformers"},
        "game": {"payoffs": {"tie": [0.0, 0.0], **PENALISED}},
        "imitation": {"games": 12, "learn_from": "all"},
        "objective": {"learn_from": "both", "baseline": "moving"},
        "evaluation": {"games": 2},
        "checkpoint": {"keep_last": 1},
    }
    few = {"rounds": 2, "games_per_round": 4, "batch_games": 2}
    rounds = tiny_run(model, words, name="rounds", self_play=few, **common)
    kuhn = tiny_run(
        model, Path("deck"), name="kuhn", self_play=few, **{**common, "game": {"name": "kuhn", "max_turns": 5}}
    )
    stream = tiny_run(
        model,
        words,
        name="stream",
        schedule="stream",
        stream={"games_per_version": 4, "max_lag": 2},
        self_play={"rounds": 2, "games_per_round": 16, "batch_games": 4, "games_in_flight": 4},
        **{**common, "imitation": {"enabled": False}, "checkpoint": {"keep_last": 1, "every_versions": 2}},
    )
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3)):
        run_training(rounds, out / "rounds", Console())
        run_training(kuhn, out / "kuhn", Console())
        run_until(stream, out / "stream", mid_round)


def mid_round(folder: Path) -> bool:
    """A checkpoint was written within the first round, and games came after it."""
    done = folder / "checkpoints" / "version-2" / "COMPLETE"
    log = folder / "episodes" / "stream.log"
    return done.exists() and bool(segments(log)) and sum(1 for _ in read_log(log)) > 10


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
