"""Values of a configuration that have no effect, because of another value. They are no errors: a value may have been
left in a file whose other values were changed with -o.

>>> from spag_ray.config.loading import parse_config
>>> values_without_effect(parse_config({"objective": {"constant_length": 256}}))
['objective.constant_length: 256 has no effect, because objective.length_norm is mean']
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, TypeAlias

from spag_ray.config.engine import EngineConfig, EngineRange
from spag_ray.config.objective import BETWEEN_CLIPS, ObjectiveConfig, with_defaults_of_choices
from spag_ray.config.parts import CheckpointConfig, ImitationConfig, LearnerConfig, StreamConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.host.cpu_features import fast_dtype
from spag_ray.stages import Stage

MANY = 3  # keys with one reason, that are named together
LEAST_IMITATION_STEPS = 20  # in fewer a model hardly changes, whatever it is shown
_SPAG_TERMS = "objective.length_norm objective.constant_length objective.mismatch_cap objective.kl_weighting"
# Of the objective, what imitation uses too.
_OF_IMITATION = (
    *("loss", "advantage", "decay", "role_weights", "role_weight_cap", "unsaid_coeff"),
    *("listening_coeff", "listening_turns", "claiming_coeff", "claiming_words"),
)
_PAST = "league.choose league.num_engines league.num_opponents league.snapshot_every league.max_snapshots"


def check_something_to_do(config: RunConfig) -> None:
    """Raise ConfigError for a run that would train nothing."""
    if not config.self_play.rounds and not config.imitation.enabled:
        raise ConfigError(
            "self_play.rounds is 0 and imitation.enabled is false, so there is nothing to train; set one of them "
            "(`match` and `eval` measure a model without training it)"
        )


def values_without_effect(config: RunConfig, num_scenarios: Mapping[str, int] | None = None) -> list[str]:
    """A line for each value that is not its default and has no effect, or for all that have none for one reason.
    `num_scenarios`: {game: how many it is trained on}, where they were read."""
    idle = [dict(_idle_keys(each)) for each in config.each_game]
    usual = RunConfig.model_validate({"preset": config.preset})
    chosen = with_defaults_of_choices({name: getattr(config.objective, name) for name in _CHOICES})
    by_choice = {f"objective.{name}": value for name, value in chosen.items() if name not in _CHOICES}
    by_reason: dict[str, list[str]] = {}
    for key, why in idle[0].items():
        value = _value(config, key)
        if all(key in other for other in idle[1:]) and value not in (_value(usual, key), by_choice.get(key), None):
            by_reason.setdefault(why, []).append(key)
    found = []
    for why, keys in by_reason.items():
        if len(keys) < MANY:
            found += [_line(key, _value(config, key), why) for key in keys]
        else:  # what was left of a part that is switched off is one line
            found.append(f"{', '.join(keys)} have no effect, because {why}")
    for number, (game, own) in enumerate(zip(config.games, idle, strict=True)):
        for name, value in game.objective.model_dump(exclude_none=True).items():
            if f"objective.{name}" in own and value != _value(usual, f"objective.{name}"):
                found.append(_line(f"games.{number}.objective.{name}", value, own[f"objective.{name}"]))
    found += _idle_payoffs(config)
    found += _too_large_batches(config)
    found += _idle_listener(config)
    found += _idle_progress(config, num_scenarios or {})
    found += _uncentred(config)
    return [*found, *_baselines_of_one(config, num_scenarios or {}), *_odd_clips(config.objective)]


def few_imitation_steps(config: RunConfig) -> str | None:
    """A warning of an imitation that has hardly any effect; None if it has enough steps, or nobody knows how many,
    because its games, or rows beside them, are in a file.

    >>> few_imitation_steps(RunConfig.model_validate({"imitation": {"games": 120, "batch_games": 128}}))
    'imitation.games: 120 in batches of imitation.batch_games 128 is 1 learner step: a model hardly changes in fewer \
than 20; play more games, take smaller batches, or set imitation.enabled: false'
    """
    imitation = config.imitation
    if not imitation.enabled or imitation.source != "scripted" or imitation.sft_file is not None:
        return None
    num_steps = math.ceil(imitation.games / imitation.batch_games)
    if num_steps >= LEAST_IMITATION_STEPS:
        return None
    return (
        f"imitation.games: {imitation.games} in batches of imitation.batch_games {imitation.batch_games} "
        f"{'is 1 learner step' if num_steps == 1 else f'are {num_steps} learner steps'}: a model hardly changes in "
        f"fewer than {LEAST_IMITATION_STEPS}; play more games, take smaller batches, or set imitation.enabled: false"
    )


def slow_dtypes(config: RunConfig) -> list[str]:
    """A warning for each part that computes bfloat16 on CPUs, if this one is slow at it."""
    if fast_dtype(on_gpu=False) == "bfloat16":
        return []
    parts: dict[str, EngineConfig | LearnerConfig] = {"engine": config.engine, "learner": config.learner}
    return [
        f"{name}.dtype: bfloat16 is several times slower than float32 on this CPU, which has no AVX-512; set float32"
        for name, part in parts.items()
        if part.dtype == "bfloat16" and not part.num_gpus
    ]


def _line(key: str, value: Any, why: str) -> str:
    return f"{key}: {value} has no effect, because {why}"


def _value(config: RunConfig, key: str) -> Any:
    return reduce(getattr, key.split("."), config)


def _idle_keys(config: RunConfig) -> Iterator[tuple[str, str]]:
    """(key, why) of every key that has no effect in a run of one game, whether it was set or not."""
    for is_idle, why, keys in (*_of_objective(config), *_of_learning(config), *_of_running(config)):
        if is_idle:
            if " " not in why:
                value = _value(config, why)
                why = f"{why} is {value:g}" if isinstance(value, float) else f"{why} is {value}"
            yield from ((key, why) for key in keys.split())


_CHOICES = ("loss", "advantage", "gain_of", "gain_event")  # of the objective, which set other keys where nobody has

# (whether the keys have no effect, why: a reason, or the key whose value it is; the keys)
_Rule: TypeAlias = tuple[bool, str, str]


def _of_objective(config: RunConfig) -> list[_Rule]:
    """What the terms of the objective use."""
    objective = config.objective
    return [
        (objective.loss == "published", "objective.loss", _SPAG_TERMS),
        (
            objective.length_norm != "constant" and objective.loss != "dr-grpo",
            "objective.length_norm",
            "objective.constant_length",
        ),
        (
            not objective.kl_coeff,
            "objective.kl_coeff",
            "objective.kl_weighting objective.kl_reference objective.kl_reference_every objective.kl_reference_average",
        ),
        (objective.learn_from == "winners", "objective.learn_from", "objective.loser_turns"),
        (not objective.has_moving_baseline, "objective.baseline", "objective.baseline_decay"),
        (not config.listens, "objective.listening_coeff is 0", "objective.listening_turns"),
        (not objective.claiming_coeff, "objective.claiming_coeff", "objective.claiming_words"),
        (
            not objective.information_gain,
            "objective.information_gain",
            "objective.listener objective.gain_of objective.gain_clip objective.gain_event objective.gain_seats",
        ),
        # With an estimator's `none` winners' games are imitated with balanced roles, and this cap.
        (
            objective.role_weights == "none" and (objective.advantage == "spag" or not config.imitation.enabled),
            "objective.role_weights",
            "objective.role_weight_cap",
        ),
    ]


def _of_learning(config: RunConfig) -> list[_Rule]:
    """Imitation, self-play, and what policies, references and rows make of the objective."""
    objective, self_play, imitation = config.objective, config.self_play, config.imitation
    is_separate = config.policies == "separate"
    of_imitation = [f"imitation.{key}" for key in ImitationConfig.model_fields if key != "enabled"]
    of_rounds = [f"self_play.{key}" for key in ("games_per_round", "batch_games", "learning_rate", "sft_file")]
    of_rounds += [f"objective.{key}" for key in ObjectiveConfig.model_fields if key not in _OF_IMITATION]
    return [
        (not imitation.enabled, "imitation.enabled", " ".join(of_imitation)),
        (not self_play.rounds, "self_play.rounds", " ".join(of_rounds)),
        (
            self_play.rounds <= (objective.kl_reference_every or 1),
            "self_play.rounds",
            "objective.kl_reference_every objective.kl_reference_average",
        ),
        (not objective.kl_coeff, "objective.kl_coeff is 0 in the first round", "self_play.last_kl_coeff"),
        (
            not objective.claiming_coeff and bool(imitation.claiming_coeff),  # 0 is what it is anyway
            "objective.claiming_coeff",
            "imitation.claiming_coeff",
        ),
        (
            is_separate,
            "with policies: separate each seat has a model of its own, and its games weigh the same",
            "objective.role_weights objective.role_weight_cap",
        ),
        (
            is_separate or objective.role_weights == "none",
            f"policies is {config.policies} and objective.role_weights is {objective.role_weights}",
            "stream.role_weight_window",
        ),
        (
            config.learner.reference != "recompute",
            f"learner.reference is {config.learner.reference}: no log-probabilities are corrected",
            "objective.mismatch_cap",
        ),
        (
            config.render == "varied",
            "with render: varied no log-probabilities of the engines are used",
            "objective.mismatch_cap",
        ),
        (
            self_play.sft_file is None,
            "there is no self_play.sft_file",
            "objective.sft_coeff self_play.sft_rows_per_step",
        ),
        (
            self_play.rounds < 2,
            "self_play.rounds",
            "self_play.last_learning_rate self_play.last_kl_coeff learner.keep_moments",
        ),
        (config.schedule == "stream", "a stream is one stage, which keeps Adam's moments", "learner.keep_moments"),
        (self_play.on_collapse != "mix", "self_play.on_collapse", "self_play.mix_share"),
    ]


def _of_running(config: RunConfig) -> list[_Rule]:
    """Imitation's games, the schedule, prompts, opponents, evaluation, the machines."""
    imitation, evaluation, learner, engine = config.imitation, config.evaluation, config.learner, config.engine
    of_checkpoints = [
        f"checkpoint.{key}" for key in CheckpointConfig.model_fields if key not in ("enabled", "stop_within_s")
    ]
    is_plain = engine.kind == "transformers"
    of_stream = " ".join(f"stream.{key}" for key in StreamConfig.model_fields)
    of_tasks = ("task_stages", "task_limit", "num_fewshot", "apply_chat_template", "include_path", "download")
    has_no_template = config.prompts in ("flat", "lines") and not evaluation.apply_chat_template
    return [
        (imitation.source != "scripted", "all games of imitation.source are imitated", "imitation.games"),
        (config.schedule != "stream", "schedule", f"{of_stream} checkpoint.every_versions"),
        (not config.checkpoint.enabled, "checkpoint.enabled", " ".join(of_checkpoints)),
        (not engine.num_gpus, "engine.num_gpus", "engine.gpu_memory_utilization"),
        (engine.num_gpus > 0, "engine.num_gpus", "engine.kv_cache_gib"),
        (is_plain, "engine.kind", "engine.kv_cache_gib engine.gpu_memory_utilization"),
        # Other parts of the program count an engine's turns by it.
        (
            is_plain and not evaluation.tasks and not isinstance(engine.num_engines, EngineRange),
            "engine.kind",
            "engine.max_num_seqs",
        ),
        (has_no_template, "prompts", "chat_template_kwargs"),
        (config.render != "varied", "render", "varied_prompts"),
        (config.words.source != "deck", "words.source", "words.max_held_out_difficulty"),
        (config.words.source == "textarena", "words.source", "words.deck"),
        (not config.needs_cards, "no player and no list of words needs cards", "words.deck words.max_difficulty"),
        (not config.league.past_share, "league.past_share", _PAST),
        (not evaluation.games, "evaluation.games", "evaluation.base_games evaluation.engines"),
        (not evaluation.against, "evaluation.against is empty", "evaluation.against_games"),
        (not evaluation.tasks, "evaluation.tasks is empty", " ".join(f"evaluation.{key}" for key in of_tasks)),
        (learner.lora is not None, "learner.lora never trains embeddings", "learner.freeze_embeddings"),
        (
            True,
            "there is no learner.lora" if learner.lora is None else "a run sets it from learner.lora",
            "engine.max_lora_rank engine.max_adapters",
        ),
        (
            config.cluster.address is not None,
            "it is of a Ray that is started here, and cluster.address is set",
            "cluster.num_cpus cluster.metrics_port cluster.object_store_gib",
        ),
    ]


def _idle_payoffs(config: RunConfig) -> Iterator[str]:
    """`cooperative` of payoffs that pay nobody for helping; payoffs of guesses that end no game, in a game whose first
    guess ends it."""
    for game, key in zip(config.each_game, config.game_keys, strict=True):
        for name, payoffs in game.payoffs_by_key.items():
            where = name.replace("game.", f"{key}.", 1)
            if payoffs.cooperative and not payoffs.pays_helping:
                why = "a right guess pays the attacker less than a tie, or no end of a game pays it"
                yield _line(f"{where}.cooperative", True, why)
            if game.game.max_guesses == 1 and any(paid := payoffs.early_guess):
                yield _line(f"{where}.early_guess", list(paid), f"{key}.max_guesses is 1")
            elif payoffs.early_guess[1] and (game.objective.learn_from == "winners" or payoffs.tie[1] is None):
                when = "won" if game.objective.learn_from == "winners" else "won or lost"
                yield (
                    f"{where}.early_guess: {list(payoffs.early_guess)} reaches the defender only in games that it "
                    f"{when}; for guesses to cost something in others, set objective.learn_from: both, and pay its tie"
                )


def _too_large_batches(config: RunConfig) -> Iterator[str]:
    """Batches that no pass can fill: the number of steps is 1, whatever the batch."""
    imitation, self_play = config.imitation, config.self_play
    scripted_alone = imitation.enabled and imitation.source == "scripted" and imitation.sft_file is None
    if scripted_alone and imitation.batch_games > imitation.games:
        yield (
            f"imitation.batch_games: {imitation.batch_games} is more than imitation.games, {imitation.games}: all of "
            "them are one step"
        )
    per_pass, key = self_play.games_per_round, "self_play.games_per_round"
    if config.schedule == "stream":
        per_pass, key = config.stream.games_per_version, "stream.games_per_version"
    if self_play.rounds and self_play.batch_games > per_pass:
        yield f"self_play.batch_games: {self_play.batch_games} is more than {key}, {per_pass}: all of them are one step"


def _odd_clips(objective: ObjectiveConfig) -> Iterator[str]:
    """Clips that were set for another loss: the ratio of a turn is much closer to 1 than that of a token."""
    low, high = objective.clip_ends
    is_of_turns = objective.loss == "gspo"
    if objective.loss == "published":
        return
    if is_of_turns != (max(1 - low, high - 1) < BETWEEN_CLIPS):
        ratios = "ratios of turns, which are close to 1" if is_of_turns else "ratios of tokens, which may be far from 1"
        yield (
            f"objective.loss: {objective.loss} clips {ratios}, at {low:g} and {high:g}; set clip_range and "
            f"clip_range_high to {'0.0003 and 0.0004' if is_of_turns else '0.2'}, or leave them out"
        )


def _uncentred(config: RunConfig) -> Iterator[str]:
    """Means that are subtracted game by game and come back by the weights of games: a role that often wins weighs less
    where it won than where it lost."""
    if config.policies == "separate" or not config.self_play.rounds:
        return
    for each, game in zip(config.each_game, config.games, strict=True):
        objective = each.objective
        if objective.baseline == "none" or objective.learn_from == "winners" or objective.role_weights == "none":
            continue
        which = f" of {game.full_name}" if len(config.games) > 1 else ""
        gains = ", nor are gains (objective.information_gain)" if objective.information_gain else ""
        yield (
            f"objective.baseline: {objective.baseline}{which} is not centred{gains}, because objective.role_weights: "
            f"{objective.role_weights} weighs games by who won; set role_weights: none"
        )


def _idle_progress(config: RunConfig, num_scenarios: Mapping[str, int]) -> Iterator[str]:
    """An order by progress in a run that ends within its first pass, which is shuffled."""
    if config.words.order != "progress":
        return
    groups = config.self_play.rounds * config.self_play.games_per_round / config.words.games_per_word
    for game in config.games:
        number = num_scenarios.get(game.full_name)
        if number is not None and game.share * groups <= number:
            yield (
                f"words.order: progress has no effect, because all rounds give out {round(game.share * groups)} of the "
                f"{number} scenarios of {game.full_name}, and the first pass over them is shuffled"
            )


def _idle_listener(config: RunConfig) -> Iterator[str]:
    """A listener that no round pays for."""
    if config.objective.information_gain and config.self_play.rounds:
        rounds = map(Stage.of_round, range(1, config.self_play.rounds + 1))
        if not any(config.objective_of(each).information_gain for each in rounds):
            yield (
                f"objective.information_gain: {config.objective.information_gain:g} has no effect but the cost of its "
                "listener, because self_play.phases set it to 0 in every round"
            )


def _baselines_of_one(config: RunConfig, num_scenarios: Mapping[str, int]) -> Iterator[str]:
    """A comparison of games of one scenario, where some scenarios come once in the games of a pass: then a game has no
    other to be compared with."""
    needed = 4 if config.meets_others else 2  # against other players a word's games are divided between the seats
    if config.words.games_per_word >= needed or not config.self_play.rounds:
        return
    is_stream = config.schedule == "stream"
    per_pass = config.stream.games_per_version if is_stream else config.self_play.games_per_round
    a_pass = "version" if is_stream else "round"
    for each, game in zip(config.each_game, config.games, strict=True):
        if (number := num_scenarios.get(game.full_name)) is None:
            continue
        games, which = round(game.share * per_pass), f" of {game.full_name}" if len(config.games) > 1 else ""
        if games >= needed * number or not (each.objective.compares_scenarios or each.objective.drop_agreeing):
            continue
        name = each.objective.advantage
        if not each.objective.compares_scenarios:
            told = f"objective.drop_agreeing{which} leaves nothing out"
        elif name == "spag":
            told = f"objective.baseline: scenario{which} is that of `mean`"
        else:
            told = f"objective.advantage: {name}{which} has nothing to compare a game with"
        if config.meets_others:
            why = " in games against other players, where a seat plays a scenario once"
        elif games <= number:
            why = f", because the {games} games of a {a_pass} have {number} scenarios to play, so none comes twice"
        else:
            once = f"{2 * number - games} of {number} scenarios"
            why = f" for {once}, because they come once in the {games} games of a {a_pass}"
        fewer = f", or set words.num_train to at most {games // needed}" if games >= needed else ""
        more = math.ceil(needed * number / game.share)
        yield f"{told}{why}; set words.games_per_word to {needed} or more, play at least {more} games{fewer}"
