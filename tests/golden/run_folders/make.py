"""Makes the two run folders beside this file: a finished run of rounds, and a stream that was cut mid-round.

The kept ones were made by 30cf87f, into /golden; logs, reports, DeepSpeed's scripts and the host's name were taken out.
Do not make them again: every later version has to resume and report these (tests/test_old_run_folders.py).

    git checkout 30cf87f && PYTHONPATH=.:tests python make.py /golden
"""

from __future__ import annotations

import sys
from pathlib import Path

import conftest
from conftest import TARGETS
from rich.console import Console
from runs import tiny_run
from test_resume import run_until

from cluster.launch import run_training
from cluster.runtime import ray_session
from spag_ray.config import ClusterConfig
from spag_ray.episode_log import read_log, segments


def small_model(folder: Path) -> Path:
    """The tests' tiny model, smaller still: these folders are kept in the repository."""
    import transformers

    full = transformers.LlamaConfig

    def small(**shape: object) -> object:
        return full(**{**shape, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1})

    transformers.LlamaConfig = small
    try:
        return conftest.make_tiny_model(folder)
    finally:
        transformers.LlamaConfig = full


def main(out: Path) -> None:
    out.mkdir(parents=True)
    model = small_model(out / "model")
    words = out / "words.txt"
    words.write_text("\n".join(TARGETS) + "\n")
    common = {
        "engine": {"kind": "transformers"},
        "imitation": {"games": 4},
        "objective": {"learn_from": "both", "baseline": "moving", "ties": "learn"},
        "evaluation": {"games": 2},
        "checkpoint": {"keep_last": 1},
    }
    rounds = tiny_run(
        model, words, name="rounds", self_play={"rounds": 2, "games_per_round": 4, "batch_games": 2}, **common
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
        run_until(stream, out / "stream", mid_round)


def mid_round(folder: Path) -> bool:
    """A checkpoint was written within the first round, and games came after it."""
    done = folder / "checkpoints" / "version-2" / "COMPLETE"
    log = folder / "episodes" / "stream.log"
    return done.exists() and bool(segments(log)) and sum(1 for _ in read_log(log)) > 10


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
