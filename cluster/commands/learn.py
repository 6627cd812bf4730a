"""`spag-ray learn`: one pass over samples from a file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from actors.models import load_tokenizer, resolve_model
from cluster.checks.preflight import check_folder, check_learning, check_training_data, in_a_process
from cluster.launch.placed_run import any_words, placed_run, watch_run
from cluster.monitor.terminal import say
from cluster.runtime.output_files import folder_beside
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.formats import read_samples
from spag_ray.errors import InputError
from spag_ray.host.whole_files import refuse_existing
from spag_ray.training_data.replay import published_samples, sft_games


def for_rows(config: RunConfig) -> RunConfig:
    """What holds for rows of a file: one policy, no checkpoint, and the weights that it starts with as the reference,
    because rows have no log-probabilities of an engine, and nothing was imitated before."""
    stage = {"kl_reference": "stage", "kl_reference_every": None, "kl_reference_average": None}
    return config.model_copy(
        update={
            "policies": "shared",
            "seat_models": {},
            "checkpoint": config.checkpoint.model_copy(update={"enabled": False}),
            "learner": config.learner.model_copy(update={"reference": "recompute"}),
            "objective": config.objective.model_copy(update=stage),
        }
    )


def run_learn(config: RunConfig, method: str, data: Path, out: Path, console: Console) -> None:
    """`spag-ray learn`: one pass over a file of training data."""
    refuse_existing(out)
    rows = read_samples(data)
    config = for_rows(config)
    check_learning(config)
    model = resolve_model(config.model)
    in_a_process(check_folder, model)
    tokenizer = load_tokenizer(model)
    check_training_data(config, model, str(data), rows, tokenizer)
    games, sft = published_samples(rows, tokenizer)
    imitating = method == "imitation"
    if imitating:  # in imitation an SFT row is an ordinary sample of weight 1
        games, sft = games + sft_games(sft), []
    if not games and not sft:
        raise InputError(f"{data}: it has no rows, so there is nothing to train on; make some with `spag-ray reward`")
    folder = make_run_folder(folder_beside(out), config)
    words = any_words(config)
    with placed_run(config, folder, model, words=words, held_out=words, cards={}) as run:
        learning = run.learn_only.remote("imitation" if imitating else "self_play", games, sft, str(out))
        watch_run(run, learning, console)
        get(learning)
    say(console, f"model in {out}")
