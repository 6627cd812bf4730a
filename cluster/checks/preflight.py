"""Preflight checks, made before Ray, an engine or a learner is started."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

from actors.endpoint_policy import Endpoint, check_endpoint
from actors.models import load_tokenizer, resolve_model
from cluster.checks.imports import check_imports, environment_of, imports_checked
from cluster.checks.known_imports import KnownImports
from cluster.checks.vllm_build import ON_ONE_GPU, gpu_build
from cluster.planning.memory import with_planned_learner
from cluster.planning.model_size import model_size
from cluster.planning.placement import base_plays_in_turn
from cluster.planning.plan_checks import check_engine, micro_batch_fault, room_fault
from cluster.tracking.callbacks import check_callbacks
from cluster.tracking.wandb import check_tracking
from learners.deepspeed_config import deepspeed_config
from spag_ray.config.no_effect import check_something_to_do
from spag_ray.config.opponents import SCRIPTED
from spag_ray.config.run import RunConfig
from spag_ray.episodes.formats import Row, holds_games, read_games, read_samples, read_sft
from spag_ray.errors import ConfigError, ModelError, SpagError, reason_of
from spag_ray.game.game_form import has_turns_left
from spag_ray.game.protocol import SEATS, Message, Scripted, guesser_of, seat_of, seat_to_move
from spag_ray.game.renderer import Renderer, first_difference
from spag_ray.game.turn import Turn, one_line
from spag_ray.games.registry import SHIPPED, Scenarios, game_of, renderer_of
from spag_ray.games.taboo.prompt_file import check_guesses
from spag_ray.host.libraries import hidden
from spag_ray.results.evaluations import task_names
from spag_ray.tokens import Tokenizer, chat_text, holds_a_mark
from spag_ray.training_data.estimators import check_advantage
from spag_ray.training_data.prompt_randomization import load_varied
from spag_ray.training_data.replay import episode_from_game, published_samples, sft_samples
from spag_ray.weights.weight_files import is_safetensors, weight_files

CHECK_WITHIN_S = 600.0  # reading a large model folder from a slow disk
DOWNLOAD_WITHIN_S = 6 * 3600.0  # data sets of many GiB through a slow network
_TALK = ("Where would you cross it?", "Is it wet, and 3 km long...", "Yes!", 'A "bridge" (by boat)', "and then?")
# The names of a model's longest context in config.json, and positions that it says the scaled length of.
_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
_LENGTH_IS_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
_FRAME = 256  # tokens of a chat template around a row, and more
_NUM_CHECKED = 20  # games that show the faults of a game, in a moment


class EndedError(ConfigError):
    """The process of a check was ended from outside, or by a library that crashed in it."""


def check_files(config: RunConfig) -> None:
    """Reads every file that a training run will need, and checks what `check_learning` does. Raises SpagError for the
    first fault, and for a run that would train nothing."""
    check_something_to_do(config)
    check_learning(config)
    for opponent in config.league.fixed:
        if opponent.is_served:
            check_endpoint(Endpoint.parse(opponent.model))
        elif opponent.has_engine:
            resolve_model(opponent.model, others=[SCRIPTED])
    if config.own_listener is not None:
        resolve_model(config.own_listener)
    _check_engines(config)
    if config.self_play.sft_file:
        read_sft(config.self_play.sft_file)
    if config.imitation.enabled and config.imitation.source != "scripted":
        is_of_games = holds_games(config.imitation.source)
        (read_games if is_of_games else read_samples)(config.imitation.source)
        if config.imitation.listening_coeff and not is_of_games:
            raise ConfigError(
                f"imitation.listening_coeff: {config.imitation.source} has rows of training data, which do not have "
                "the target word; set it to 0, or give a file of games"
            )
    if config.imitation.enabled and config.imitation.sft_file:
        read_sft(config.imitation.sft_file)
    if config.render == "varied":
        load_varied(config.varied_prompts)


def check_learning(config: RunConfig) -> None:
    """What whatever trains needs, games or not: tracking, files of the learner and of its objective. Raises SpagError
    for the first fault."""
    _check_tracked(config)
    check_advantage(config.objective)
    deepspeed_config(config.learner, on_gpu=config.learner.num_gpus > 0)


def check_playing(config: RunConfig, has_engines: bool = True) -> None:
    """What whatever plays or answers needs, but does not train: tracking, packages, and for engines their arguments and
    a build of vLLM that fits the devices. `has_engines`: whether any player is a model of this run. Raises ConfigError
    for the first fault."""
    _check_tracked(config)
    if has_engines:
        _check_engines(config)
    check_imports(config, trains=False, has_engines=has_engines)


def _check_tracked(config: RunConfig) -> None:
    check_tracking(config.tracking)
    check_callbacks(config.tracking.callbacks)


def _check_engines(config: RunConfig) -> None:
    """Refuses unknown arguments, and engine.num_gpus 0 if vLLM was built for GPUs: vLLM would use the first GPU without
    reserving it."""
    check_engine(config)
    if config.engine.kind == "vllm" and not config.engine.num_gpus and (build := gpu_build()):
        raise ConfigError(
            f"engine.num_gpus is 0, but vLLM {build} is built for GPUs: use a configuration for GPUs (taboo_1gpu; "
            f"`spag-ray quickstart`), or add -o {' -o '.join(ON_ONE_GPU)}, or install requirements/cpu.txt"
        )


def check_model(config: RunConfig, model: str, words: Sequence[str], trains: bool = True) -> None:
    """Refuses a tokenizer that the prompts or the model cannot use, a context that is too short for a game or too long
    for the model, and a model that the learner cannot train with this configuration. If the games are trained on
    (`trains`), also a micro-batch that is too small for a game, and a base that engines cannot play in turn."""
    from learners.packing import check_packable
    from spag_ray.families.torch_free import read_config

    if trains and base_plays_in_turn(config):
        check_played_in_turn(model)
    settings = read_config(model)
    _check_length(config, settings)
    rules, num_turns = _check_prompts(config, model, words, getattr(settings.get_text_config(), "vocab_size", None))
    planned = with_planned_learner(config, model_size(model, config.model_shape))
    if fault := room_fault(config, rules, num_turns) or (trains and micro_batch_fault(planned, rules, num_turns)):
        raise ConfigError(fault)
    if config.learner.packing == "trees":
        check_packable(settings, planned.learner.microbatch_tokens)


def check_players(config: RunConfig, models: Sequence[str], words: Scenarios) -> None:
    """`check_model` for models that only play."""
    for model in models:
        for each in config.each_game:
            check_model(each, model, words[each.game.full_name], trains=False)


def check_rows(config: RunConfig, model: str) -> None:
    """Refuses a row of training or instruction data, or a game of a file, that no micro-batch holds: the step that
    draws it would end the run, days after its start."""
    imitation, sft_file = config.imitation, config.self_play.sft_file
    is_imitated = imitation.enabled and (imitation.source != "scripted" or imitation.sft_file is not None)
    if not (is_imitated or sft_file):
        return
    most, tokenizer = _tokens_of_micro_batch(config, model), load_tokenizer(model, config.chat_template_kwargs)
    of_game = next((each for each in config.each_game if each.game.guesses), config.each_game[0])
    renderer = renderer_of(of_game, tokenizer)
    found = _sft_lengths(sft_file, renderer, most)
    if is_imitated:
        source = _source_lengths(of_game, tokenizer, renderer, most)
        found = chain(found, _sft_lengths(imitation.sft_file, renderer, most), source)
    _refuse_longer(found, most)


def check_training_data(config: RunConfig, model: str, path: str, rows: Sequence[Row], tokenizer: Tokenizer) -> None:
    """The same for the rows of `spag-ray learn`, which writes no checkpoint that a failed pass could continue from."""
    most = _tokens_of_micro_batch(config, model)
    _refuse_longer(_row_lengths(path, rows, tokenizer, most), most)


def _tokens_of_micro_batch(config: RunConfig, model: str) -> int:
    return with_planned_learner(config, model_size(model, config.model_shape)).learner.microbatch_tokens


def _refuse_longer(found: Iterable[tuple[str, int]], most: int) -> None:
    for what, num_tokens in found:
        if num_tokens > most:
            raise ConfigError(
                f"{what} has {num_tokens} tokens, and a micro-batch holds {most}: raise "
                f"learner.max_tokens_per_microbatch to at least {num_tokens}, or leave it out"
            )


# {what: tokens} of those rows and games alone that may be too long: no token is less than a byte of text.


def _sft_lengths(path: str | None, renderer: Renderer, most: int) -> Iterator[tuple[str, int]]:
    for index, row in enumerate(read_sft(path) if path else ()):
        if _num_bytes(row["query"], row["target"]) > most:
            (sample,) = sft_samples([row], renderer)
            yield f"{path}: row {index}", sample.num_tokens


def _row_lengths(path: str, rows: Iterable[Row], tokenizer: Tokenizer, most: int) -> Iterator[tuple[str, int]]:
    for index, row in enumerate(rows):
        if _num_bytes(row["query"], row["target"]) > most:
            games, sft = published_samples([row], tokenizer)
            yield f"{path}: row {index}", (games or sft)[0].num_tokens


def _source_lengths(
    config: RunConfig, tokenizer: Tokenizer, renderer: Renderer, most: int
) -> Iterator[tuple[str, int]]:
    source, own = config.imitation.source, config.game
    if source == "scripted":
        return
    if not holds_games(source):
        yield from _row_lengths(source, read_samples(source), tokenizer, most)
        return
    for index, game in enumerate(read_games(source)):
        rules = max(len(renderer.opening(role, game["target_word"])) for role in SEATS)
        if rules + sum(_num_bytes(turn["content"]) for turn in game["history"]) > most:
            turns = episode_from_game(
                game, index, "", renderer=renderer, rules=own.rules, max_guesses=own.max_guesses
            ).turns
            yield f"{source}: game {index}", max(len(each.prompt_ids) + each.num_tokens for each in turns)


def _num_bytes(*texts: str) -> int:
    """With the frame of a chat template around them."""
    return sum(len(text.encode()) for text in texts) + _FRAME


def check_played_in_turn(model: str) -> None:
    """Refuses weights that an engine reads only when it starts, so that it cannot play them in turn with others."""
    folder = Path(model)
    if not is_safetensors(folder):
        raise ModelError(
            f"{model}: its weights are in {weight_files(folder)[0].name}, but engines that play several models in turn "
            "read safetensors only; save it as safetensors (save_pretrained does), or set evaluation.engines: own"
        )


def check_folder(model: str, is_saved: bool = True) -> None:
    """Refuses a folder that the learner cannot load: incomplete, quantised, or of a family that transformers does not
    have; where it `is_saved`, also a model that transformers could not write at the end of a stage. Reads no weights.
    Call it in its own process."""
    with hidden("sklearn"):  # transformers would import it for draft models: a second
        from learners.model_folder import check_loadable, check_saveable
    _silence()
    (check_saveable if is_saved else check_loadable)(model)


def check_seat_models(config: RunConfig, model: str) -> None:
    """Refuses a seat's model (seat_models) that is not whole, or has another shape or tokenizer than `model`. Reads no
    weights."""
    from spag_ray.families.torch_free import shape_of

    for role, named in config.seat_models.items():
        folder = resolve_model(named)
        check_folder(folder)
        wanted, found = shape_of(model), shape_of(folder)
        for key in sorted(wanted.keys() | found.keys()):
            if wanted.get(key) != found.get(key):
                raise ConfigError(
                    f"seat_models.{role}: {key} in config.json of {named} is {found.get(key)!r}, but "
                    f"{wanted.get(key)!r} in that of `model`; name a model of the same shape"
                )
        if base_plays_in_turn(config):
            check_played_in_turn(folder)
        ours, its = (_what_renders(load_tokenizer(each)) for each in (model, folder))
        if ours != its:
            raise ConfigError(
                f"seat_models.{role}: {named} has another tokenizer or chat template than `model`; name a model that "
                "was trained from the same one"
            )


def _what_renders(tokenizer: Any) -> tuple[Any, ...]:
    """All that decides which tokens a prompt has. A tokenizer in Python alone has no more than its words."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    words = tokenizer.get_vocab() if backend is None else backend.to_str()
    return words, tokenizer.special_tokens_map, tokenizer.chat_template, tokenizer.generation_end_ids


def _silence() -> None:
    """transformers prints bars for weights that are neither read nor written, and a table beside its error."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def check_claims(config: RunConfig, model: str, words: Sequence[str]) -> None:
    """Refuses a tokenizer that joins a word to the claim that names it, and a game without a hidden fact. `words`, and
    the words of a file of games, are checked."""
    source = config.imitation.source
    if config.imitation.enabled and source != "scripted" and holds_games(source):
        words = [*words, *(game["target_word"] for game in read_games(source))]
    renderer = renderer_of(config, load_tokenizer(model, config.chat_template_kwargs))
    for word in dict.fromkeys(words):
        renderer.claim_of(word)


def check_listener(config: RunConfig, model: str, words: Sequence[str]) -> None:
    """Refuses a game that hides nothing from a listener (objective.information_gain), or has nothing for it to read
    before the first hint; and a tokenizer of the listener that joins one of these words to its claim."""
    game, name = game_of(config), config.game.full_name
    if (guesser := guesser_of(game)) is None:
        raise ConfigError(
            f"objective.information_gain: {name} hides no fact that a seat may claim (`Guessing` in docs/games.md); "
            "set it to 0"
        )
    listener = model
    if config.own_listener is not None:
        from spag_ray.families.torch_free import read_config

        listener = resolve_model(config.own_listener)
        _check_length(config, read_config(listener))
    renderer = renderer_of(config, load_tokenizer(listener, config.chat_template_kwargs), game)
    for word in dict.fromkeys(words):
        try:
            renderer.opening(guesser, word)
        except Exception as error:  # of the user's game
            raise ConfigError(
                "objective.information_gain: before the first hint the listener reads what the rules tell seat "
                f"{seat_of(guesser)}, but messages({seat_of(guesser)}, [], {word!r}) of {name} fails: "
                f"{reason_of(error)}; return the rules there, or set information_gain: 0"
            ) from error
        renderer.claim_of(word)


def check_words(config: RunConfig, *scenarios: Scenarios) -> None:
    """Refuses a prompt file of Taboo whose claim the referee does not accept, and words that cannot be guessed."""
    for game in config.games:
        if game.guesses:
            words = (word for own in scenarios for word in own[game.full_name])
            check_guesses(config.prompts, words, game.rules)


def check_tasks(config: RunConfig, model: str) -> None:
    """Refuses tasks of lm-evaluation-harness that do not exist, whose data is not available, or that the engines or the
    tokenizer cannot evaluate. Reads all their data, which takes minutes for large sets. Call it in its own process."""
    from actors.lm_eval_tasks import Shelf, harness_environment  # a job without tasks does not have it

    os.environ.update(harness_environment(config.evaluation.download))
    logging.disable(logging.WARNING)  # the data sets log the same messages again during the evaluation
    evaluation, length = config.evaluation, config.engine.max_model_len
    tokenizer = load_tokenizer(model, config.chat_template_kwargs)
    if evaluation.apply_chat_template and not tokenizer.chat_template:
        raise ConfigError(
            f"evaluation.apply_chat_template: the tokenizer of {model} has no chat template; set it to false"
        )
    if evaluation.apply_chat_template:
        chat_text(tokenizer, ["question"], "set evaluation.apply_chat_template: false")
    shelf = Shelf(evaluation.include_path)
    for name in task_names(evaluation.tasks):
        shelf.find(name)  # all names first: this is fast
    for name in task_names(evaluation.tasks):
        shelf.load(name, evaluation.num_fewshot).check(tokenizer, length)


def check_run(config: RunConfig, model: str, words: Scenarios, held_out: Scenarios, cards: Sequence[str]) -> None:
    """All of these checks that the run needs, in one process, because most of their time is spent on imports. `cards`:
    the words of the deck."""
    if config.evaluation.tasks:
        from actors.lm_eval_tasks import harness_environment

        os.environ.update(harness_environment(config.evaluation.download))  # set before the imports that read it
    check_words(config, words, held_out)
    check_folder(model)
    check_seat_models(config, model)
    check_games(config, model, words, held_out, cards)
    check_rows(config, model)
    if config.evaluation.tasks:
        check_tasks(config, model)


def check_games(config: RunConfig, model: str, words: Scenarios, held_out: Scenarios, cards: Sequence[str]) -> None:
    """Whether the model can play and learn each game."""
    for each in config.each_game:
        own, out = words[each.game.full_name], held_out[each.game.full_name]
        check_model(each, model, [*own, *out])
        if each.listens:
            check_claims(each, model, [*own, *cards])
        if each.objective.information_gain:
            check_listener(each, model, own)


def check_with_imports(config: RunConfig, check: Callable[..., None], mark: str | None = None) -> None:
    """`in_a_process`, while another process imports what the run will need. Raises ConfigError if it cannot. A fault
    that the check finds does not wait for the imports. `mark`: of what the check reads (mark_of); it is not
    made if it found nothing in the same before."""
    downloads = bool(config.evaluation.tasks) and config.evaluation.download
    known = KnownImports(environment_of(config))
    with imports_checked(config) as check_imports:
        try:
            if mark is None or mark not in known:
                in_a_process(check, downloads=downloads)
        except Exception as error:
            if not isinstance(error, SpagError) or isinstance(error, EndedError):
                check_imports()  # the other process names a package that is missing or broken in one line
            raise
        check_imports()
        if mark is not None:
            known.add([mark])


def in_a_process(check: Callable[..., object], *arguments: Any, downloads: bool = False) -> None:
    """Runs a check in its own process, so that this process does not keep the libraries that it imports (0.4 GiB).
    Raises ConfigError if it takes longer than CHECK_WITHIN_S; if it `downloads` data sets, DOWNLOAD_WITHIN_S. Raises
    EndedError if it was ended."""
    within_s = DOWNLOAD_WITHIN_S if downloads else CHECK_WITHIN_S
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        checking = pool.submit(_told, check, *arguments)
        try:
            checking.result(within_s)
        except (TimeoutError, KeyboardInterrupt) as error:
            if checking.done():  # the check's own
                raise
            for process in multiprocessing.active_children():  # else the pool's end would wait for it
                process.kill()
            if isinstance(error, KeyboardInterrupt):
                raise
            told = f"the checks of model, prompts and words took longer than {within_s:g} s; is the disk of the "
            told += "model folder slow or gone?"
            if downloads:
                told = f"the data sets of evaluation.tasks were not downloaded and checked within {within_s:g} s; "
                told += "is the network slow or gone? What has been downloaded is kept for the next try"
            raise ConfigError(told) from error
        except BrokenExecutor as error:
            raise EndedError(
                "the process that checks model, prompts and words was ended; was it out of memory? Make room for it "
                "(about 1 GiB), and start again"
            ) from error


def _told(check: Callable[..., object], *arguments: Any) -> None:
    """Calls a check; an error that cannot be sent to another process is sent as its name and text."""
    try:
        check(*arguments)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {reason_of(error)}") from None
        raise


def _check_length(config: RunConfig, settings: Any) -> None:
    """Refuses a context that vLLM refuses, by vLLM's own rule (vllm/config/model.py). `settings`: config.json."""
    allowed = {**os.environ, **config.engine.env}.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").strip().lower()
    if config.engine.kind != "vllm" or allowed in ("1", "true") or "hf_overrides" in config.engine.vllm:
        return
    text = settings.get_text_config()
    found = {name: value for name in _LENGTHS if (value := getattr(text, name, None)) is not None}
    if "model_max_length" in found:
        found = {"model_max_length": found["model_max_length"]}
    if not found:
        return
    name = min(found, key=lambda each: found[each])
    rope = getattr(text, "rope_parameters", None) or {}
    by_layer = [rope, *(each for each in rope.values() if isinstance(each, dict))]
    factors = [each.get("factor") or 1 for each in by_layer if each.get("rope_type") not in _LENGTH_IS_SCALED]
    limit = int(found[name] * max(factors, default=1))
    if config.engine.max_model_len > limit:
        raise ConfigError(
            f"engine.max_model_len is {config.engine.max_model_len}, but the model's limit is {limit} tokens ({name} "
            f"in config.json), so vLLM would not start; set it to at most {limit}"
        )


def _check_ids(model: str, tokenizer: Any, framing_ids: Iterable[int], num_embeddings: int | None) -> None:
    """Refuses a tokenizer whose ids have no embedding: engine and learner would fail in the first game that has one.
    Special tokens that no prompt has, such as one for padding, do not matter. `framing_ids`: those of the prompts."""
    if num_embeddings is None:  # a family that names it otherwise
        return
    added = tokenizer.added_tokens_decoder
    special = {token for token, each in added.items() if each.special} - set(framing_ids)
    names = {token: name for name, token in tokenizer.get_vocab().items() if token not in special}
    if beyond := sorted(token for token in {*names, *framing_ids} if token >= num_embeddings):
        raise ModelError(
            f"{model}: the tokenizer has {len(beyond)} tokens without an embedding, such as {names.get(beyond[0])!r} "
            f"with id {beyond[0]}, but the model has {num_embeddings} (vocab_size); give the model its own tokenizer, "
            "or resize its embeddings (resize_token_embeddings) and save it"
        )


def _check_prompts(config: RunConfig, model: str, words: Sequence[str], num_embeddings: int | None) -> tuple[int, int]:
    """Refuses a tokenizer that the prompts or the model cannot use, and a game that breaks a promise of the protocol in
    a few games. Returns the tokens of a game's rules, and the number of its turns."""
    tokenizer, game = load_tokenizer(model, config.chat_template_kwargs), game_of(config)
    # Ours are checked by our tests, and this would take seconds.
    if config.game.full_name not in SHIPPED:
        from spag_ray.game.conformance import check  # a job of our games does not have it

        if faults := check(lambda: game_of(config), _NUM_CHECKED):
            told = f"{faults[0]}; spag_ray.game.check lists every fault (docs/games.md)"
            raise ConfigError(f"game.name: {config.game.full_name}: {told}")
    for name in config.chat_template_kwargs:
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise ConfigError(f"chat_template_kwargs.{name}: the chat template of {model} does not use it; take it out")
    renderer = renderer_of(config, tokenizer, game)
    longest, rules = max(words, key=len), 0
    turns: list[Turn] = []
    for text in _TALK:
        seat = seat_to_move(game, [turn.text for turn in turns], longest)
        said = [one_line(turn.text) if config.prompts == "lines" else turn.text for turn in turns]
        prompt = renderer.prompt(turns, SEATS[seat], longest)
        if len(turns) < 2:
            _check_ids(model, tokenizer, {*prompt, *renderer.end_ids}, num_embeddings)
            rules = max(rules, len(prompt))
        _check_whole(config, tokenizer, renderer, prompt=prompt, messages=game.messages(seat, said, longest), seat=seat)
        moves = [text]
        if isinstance(game, Scripted):  # any other text may end the game
            moves.append(game.scripted(seat, said, longest, random.Random(0)))
        move = next((each for each in moves if game.rule([*said, each], longest) is None), None)
        if move is None or not has_turns_left(game, [*said, move], longest):
            break
        reply = renderer.reply_ids(move)
        turns.append(Turn.unsampled(SEATS[seat], move, prompt, reply, "nobody"))
    return rules, 2 * game.max_turns


def _check_whole(
    config: RunConfig,
    tokenizer: Tokenizer,
    renderer: Renderer,
    prompt: Sequence[int],
    messages: Sequence[Message],
    seat: int,
) -> None:
    """Refuses a tokenizer to which a game in pieces is other tokens than its text. A mark that the text names, as rules
    of thoughts do, is split in the pieces and not in the whole: that is no fault."""
    if any(holds_a_mark(tokenizer, message["content"]) for message in messages):
        return
    whole = renderer.whole_ids(messages, seat)
    if renderer.joins_texts and tuple(prompt) != whole:
        raise ModelError(
            f"prompts: {config.prompts}: the tokenizer cuts a game's text in another way than its pieces, near "
            f"{first_difference(tokenizer, prompt, whole)!r}, so a game would not have the tokens that its text has; "
            f"{'set `prompts: flat`, which is one text, or ' if config.game.has_prompt_file else ''}use another model"
        )
