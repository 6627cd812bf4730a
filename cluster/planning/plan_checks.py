"""What `train --dry-run` checks beside the plan: all that needs no file. What needs one is named instead.

unread = check_plan(load_config("llama2_7b_8gpu"))       # ["model Llama-2-7b-hf", "imitation.sft_file alpaca.json"]
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from actors.models import BUILT_IN
from cluster.planning.placement import shape_fault
from learners.deepspeed_config import deepspeed_config
from spag_ray.config.engine import unknown_argument
from spag_ray.config.games import GameConfig, game_file
from spag_ray.config.loading import find_config, named_paths, own_code
from spag_ray.config.no_effect import check_something_to_do
from spag_ray.config.opponents import SCRIPTED
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, nearest_path
from spag_ray.games.registry import game_of
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.training_data.estimators import check_advantage


def check_plan(config: RunConfig) -> list[str]:
    """The keys and the paths of what was not checked, because it needs files. Raises ConfigError for a run that would
    start on no machine."""
    check_something_to_do(config)
    check_engine(config)
    if fault := shape_fault(config):
        raise ConfigError(fault)
    if game_file(config.objective.advantage) is not None:  # else it may be on the machines of the run
        check_advantage(config.objective)
    unread = list(_unread(config))
    if not any(each.startswith("learner.deepspeed ") for each in unread):
        deepspeed_config(config.learner, on_gpu=config.learner.num_gpus > 0)
    for each in config.each_game:
        max_turns = _max_turns(each)
        if max_turns is None:
            unread.append(_as_given("game.name", each.game.full_name))
        elif fault := room_fault(each, 0, 2 * max_turns) or micro_batch_fault(each, 0, 2 * max_turns):
            raise ConfigError(fault)
    return unread


def _max_turns(config: RunConfig) -> int | None:
    """Turns of each seat; None if the game cannot be made here: its file, or what it imports, is on the machines of the
    run alone."""
    if config.game.has_prompt_file:  # the game is made of that file, which may not be here
        return config.game.max_turns
    if not _is_here(config.game):
        return None
    try:
        return game_of(config).max_turns
    except ConfigError as error:
        if config.game.is_own and isinstance(error.__cause__, ModuleNotFoundError):
            return None
        raise


def _is_here(game: GameConfig) -> bool:
    """Whether a game is shipped or installed, or its file is in this checkout or folder."""
    if game.package is not None:
        return find_spec(game.package.module) is not None
    return not game.is_own or game_file(game.name) is not None


def _as_given(key: str, path: str) -> str:
    """A key and its path, as it is told that the path was not checked; with the nearest name if it may be misspelt."""
    is_own_code = key in ("game.name", "objective.advantage") or key.startswith("tracking.callbacks")
    path, colon, attribute = path.partition(":") if is_own_code else (path, "", "")
    others = [BUILT_IN, SCRIPTED] if key.endswith("model") else []
    is_fine = path in others or Path(path).exists()
    near = None if is_fine else nearest_path(path, others)
    return f"{key} {path}{colon}{attribute}" + (f" (did you mean `{near}`?)" if near is not None else "")


def check_engine(config: RunConfig) -> None:
    """Raises ConfigError for an argument in `engine.vllm` that the vLLM of this machine does not have."""
    if config.engine.kind == "vllm" and (fault := unknown_argument(config.engine.vllm)):
        raise ConfigError(fault)


def room_fault(config: RunConfig, rules: int, num_turns: int) -> str | None:
    """Why a whole game does not fit the context, and what to change; None if it fits. `rules`: their tokens, or 0 where
    no tokenizer is at hand."""
    needed, taken = _longest_game(config, rules, num_turns)
    if needed <= config.engine.max_model_len:
        return None
    return (
        f"a prompt may leave no room for an answer: {taken}, but engine.max_model_len is "
        f"{config.engine.max_model_len}; raise it to {needed}, or shorten the turns"
    )


def micro_batch_fault(config: RunConfig, rules: int, num_turns: int) -> str | None:
    """Why a game of self-play may have a sample that the learner refuses, and what to change; None if it cannot. A
    game's last turn with its prompt is its longest sample, as long as the whole game. Arguments as in `room_fault`."""
    needed, taken = _longest_game(config, rules, num_turns)
    most = config.learner.max_tokens_per_microbatch
    if most == "auto" or needed <= most or not config.self_play.rounds:  # `auto` is checked when it is planned
        return None
    return (
        f"a turn and its prompt may not fit a micro-batch: {taken}, but learner.max_tokens_per_microbatch is "
        f"{most}; raise it to {needed}, or shorten the turns"
    )


def _longest_game(config: RunConfig, rules: int, num_turns: int) -> tuple[int, str]:
    """The most tokens of a whole game, and how they come about."""
    needed = rules + num_turns * (config.sampling.max_new_tokens + 16)
    turns = f"{num_turns} turns of sampling.max_new_tokens {config.sampling.max_new_tokens}"
    if rules:
        return needed, f"the rules take {rules} tokens and {turns} up to {needed - rules} more"
    return needed, f"{turns} take {needed} tokens without any rules"


def _unread(config: RunConfig) -> Iterator[str]:
    """The files and folders that are named. The name of a shipped file has to be one."""
    named = named_paths(config)
    if not config.words.are_from_cards:
        named["words.source"] = config.words.source
    shipped = {"prompts": (config.prompts, "prompts"), "learner.deepspeed": (config.learner.deepspeed, "deepspeed")}
    if config.needs_cards:
        shipped["words.deck"] = (config.words.deck, "decks")
    if config.render == "varied":
        shipped["varied_prompts"] = (config.varied_prompts, "prompts")
    if not any(game.has_prompt_file for game in config.games):
        shipped = {"learner.deepspeed": shipped["learner.deepspeed"]}
    for key, (name, folder) in shipped.items():
        if name is None or key in named:
            continue
        if Path(name).suffix or len(Path(name).parts) > 1:  # a path, perhaps of another machine
            named[key] = name
            continue
        try:
            find_config(name, folder)
        except ConfigError as error:
            raise ConfigError(f"{key}: {error}") from error
        if key == "prompts":
            load_template(name)
    named |= {key: name for key, name in own_code(config).items() if game_file(name) is None}
    yield from (_as_given(key, path) for key, path in named.items() if not key.startswith("game"))
