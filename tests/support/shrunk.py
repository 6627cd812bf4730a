"""A shipped configuration, made so small that a whole run of it takes half a minute on two CPU cores."""

from pathlib import Path
from typing import Any

from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig, merged
from spag_ray.plain_yaml import read_settings

TIES = {"tie": [-0.5, -0.5]}  # so that a model that says nothing has something to learn from


def shrunk(path: Path, model: Path) -> RunConfig:
    """What differs from the file: the model, numbers of games and processes, no GPU, and that ties are paid. Earlier
    stages play in turn where they would on the GPUs that the file is for."""
    whole = load_config(str(path))
    changes: dict[str, Any] = {
        "model": str(model),
        "sampling": {"max_new_tokens": min(8, whole.sampling.max_new_tokens)},
        "engine": {"num_engines": 1, "num_gpus": 0, "num_cpus": 0.25, "kv_cache_gib": 0.1, "max_num_seqs": 16},
        "learner": {"num_ranks": min(2, whole.learner.num_ranks), "num_gpus": 0, "num_cpus": 0.25, "num_threads": 1},
        "objective": {"learn_from": "both"},
        "imitation": {"games": 32, "batch_games": 16},
        "self_play": {"rounds": 1, "games_per_round": 16, "games_in_flight": 8, "batch_games": 8},
        "evaluation": {
            "games": 4,
            "base_games": 2,
            "tasks": [],
            "engines": "in_turn" if whole.plays_in_turn else "own",
        },
        "cluster": {"address": None, "object_store_gib": 0.3},
    }
    if whole.schedule == "stream":
        changes["stream"] = {"games_per_version": 8}
    short, settings = {"max_turns": 2, "payoffs": TIES}, read_settings(path)
    if "games" in settings:
        changes["games"] = [merged(game, short) if game["name"] == "taboo" else game for game in settings["games"]]
    elif whole.game.is_taboo:
        changes["game"] = short
    return parse_config(merged(settings, changes))
