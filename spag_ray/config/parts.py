"""The parts of a RunConfig: the settings of each room of the program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from spag_ray.host.addresses import Form, address_fault
from spag_ray.host.cpu_features import Dtype, fast_dtype

ReplayOrder = Literal["fifo", "recent", "prioritized"]


# Whose turns are imitated: the winner's; both seats' without mistakes; both seats' with replies that fall into traps.
ImitatedSides = Literal["winners", "both", "all"]


# Which of a game's defender's turns teach its word.
ListeningTurns = Literal["last", "all"]


# YAML 1.1 reads a bare `off` as false.
OFF_IN_YAML = BeforeValidator(lambda value: "off" if value is False else value)


class Part(BaseModel):
    """A part of a run's configuration: unknown keys and numbers that are not finite are refused, values do not change
    after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def dtype_for(given: Mapping[str, Any]) -> Dtype:
    """The default dtype of a part with `num_gpus`, a field before its `dtype`."""
    return fast_dtype(on_gpu=given.get("num_gpus", 0) > 0)


PaidTurn = Annotated[float, Field(ge=-2, le=2)]
Payoff = PaidTurn | None
SeatPayoffs = tuple[Payoff, Payoff]


class Payoffs(Part):
    """Rewards of each end of a game, `[attacker, defender]`; null: the seat is not trained on it. The defaults are the
    paper's. Scores and ratings always use the paper's values: 1 for a win, 0.5 for a tie, 0 for a loss."""

    trap: SeatPayoffs = Field((1.0, -1.0), description="the defender said the word without guessing it")
    wrong_guess: SeatPayoffs = Field((1.0, -1.0), description="the defender claimed another word")
    right_guess: SeatPayoffs = Field((-1.0, 1.0), description="the defender named the word")
    tie: SeatPayoffs = Field((None, None), description="nobody won before the turns ran out")
    attacker_breach: SeatPayoffs = Field(
        (None, None),
        description="the attacker broke the rules; its reward goes to the turn that broke them, or, with any "
        "objective.advantage but spag, to all its turns",
    )
    defender_breach: SeatPayoffs = Field((None, None), description="the same for the defender")
    early_guess: tuple[PaidTurn, PaidTurn] = Field(
        (0.0, 0.0),
        description="beside the payoff of the end, for each wrong guess that did not end the game (game.max_guesses): "
        "to the attacker's turn before it, and to the guess",
    )
    cooperative: bool = Field(
        False, description="a right guess may pay the attacker as much as a tie or more, so that it learns to help"
    )

    @property
    def pays_helping(self) -> bool:
        """Whether the attacker is trained, and a right guess pays it at least as much as a tie; what trains it on
        neither pays 0."""
        if all(getattr(self, end)[0] is None for end in PAID_ENDS):
            return False
        return (self.right_guess[0] or 0.0) >= (self.tie[0] or 0.0)

    @property
    def rewards_helping(self) -> bool:
        """Whether the attacker is trained on right guesses, and they pay it at least as much as a tie."""
        return self.right_guess[0] is not None and self.pays_helping

    @model_validator(mode="after")
    def _helping_does_not_pay(self) -> Payoffs:
        if self.pays_helping and not self.cooperative:
            raise ValueError(
                f"a right guess pays the attacker {self.right_guess[0] or 0:g}, a tie {self.tie[0] or 0:g}: it would "
                "learn to help the defender; set the attacker's value of right_guess below that of tie, or "
                "payoffs.cooperative: true if both are to gain when the word is found"
            )
        return self


PAID_ENDS = tuple(name for name in Payoffs.model_fields if name not in ("cooperative", "early_guess"))


class WordsConfig(Part):
    """The words, or other scenarios, of the games: which are trained on, and which are held out."""

    source: str = Field(
        "deck", description="`deck`: the deck's words; a words file (one word a line); or `textarena`: its Taboo cards"
    )
    deck: str = Field("everyday", description="cards of the scripted expert: a shipped deck, or a file")
    max_difficulty: float | None = Field(
        None, ge=0, le=1, description="only cards whose measured difficulty is at most this (all if empty)"
    )
    num_held_out: int = Field(40, ge=1, description="words kept for evaluation, never trained on")
    max_held_out_difficulty: float | None = Field(
        None,
        ge=0,
        le=1,
        description="with source: deck, hold out only words whose measured difficulty is at most this (any if empty)",
    )
    num_train: int | None = Field(None, ge=1, description="use only this many training words (all if empty)")
    games_per_word: int = Field(
        1,
        ge=1,
        description="games in a row about each word, or other scenario: a group that objective.baseline: scenario, "
        "rloo and grpo compare (against other players at least 2, one in each seat)",
    )
    order: Literal["shuffled", "progress"] = Field(
        "shuffled",
        description="each word once in a pass; or, after the first pass, words more often whose last games ended "
        "differently (docs/self_play.md)",
    )

    @property
    def are_from_cards(self) -> bool:
        """Whether every word has a card, and no words file is read."""
        return self.source in ("deck", "textarena")

    @property
    def cards_from(self) -> str:
        """The deck that the cards come from, by the name that `load_deck` takes."""
        return "textarena" if self.source == "textarena" else self.deck


class SamplingConfig(Part):
    """How players sample their turns in training games."""

    temperature: float = Field(1.0, ge=0.0, description="0 is greedy")
    top_k: int | None = Field(None, ge=1, description="refused for training, but with objective.loss: published")
    top_p: float | None = Field(
        None, gt=0.0, le=1.0, description="refused for training, but with objective.loss: published"
    )
    max_new_tokens: int = Field(128, ge=1, description="tokens of one turn")
    max_thought_tokens: int | None = Field(
        None,
        ge=1,
        description="a thought that has not ended after so many tokens of a turn is ended for the player, which speaks "
        "with what is left of max_new_tokens; what ends it is not trained on (no limit if empty)",
    )

    @model_validator(mode="after")
    def _leaves_words(self) -> SamplingConfig:
        if self.max_thought_tokens is not None and self.max_thought_tokens >= self.max_new_tokens:
            raise ValueError(
                f"max_thought_tokens ({self.max_thought_tokens}) has to be below max_new_tokens "
                f"({self.max_new_tokens}), or a turn has no tokens for words"
            )
        return self


# A model's embeddings and output layer, as families name them.
_WORDS = ("embed_tokens", "embed_in", "wte", "word_embeddings", "lm_head", "embed_out")


class LoraConfig(Part):
    """Low-rank adapters."""

    rank: int = Field(16, ge=1, description="of each adapter's two matrices")
    alpha: int = Field(32, ge=1, description="adapters are scaled by alpha / rank")
    targets: tuple[str, ...] = Field((), description="names of the layers with adapters (all linear layers if empty)")
    export: Literal["merged", "adapter"] = Field(
        "merged", description="what is sent to engines: whole weights with the adapters merged, or the adapters alone"
    )

    @model_validator(mode="after")
    def _leaves_words_alone(self) -> LoraConfig:
        if found := [each for each in self.targets if each.rpartition(".")[2] in _WORDS]:
            # Trees and engines compute the output layer without adapters, and tied embeddings lose them when merged.
            raise ValueError(
                f"targets: {found[0]} is a model's embeddings or output layer, which have no adapters here; take it out"
            )
        return self


class LearnerConfig(Part):
    """The group of DeepSpeed ranks that trains a policy."""

    num_ranks: int = Field(1, ge=1, description="ranks of the DeepSpeed learner group")
    zero_stage: int = Field(1, ge=0, le=3, description="DeepSpeed ZeRO stage; bfloat16 needs at least 1")
    deepspeed: str | None = Field(None, description="a DeepSpeed JSON of your own, or one of configs/deepspeed/")
    packing: Literal["trees", "none"] = Field("trees", description="`none`: one row per sample, for any causal LM")
    max_tokens_per_microbatch: Annotated[int, Field(ge=16)] | Literal["auto"] = Field(
        2048,
        description="distinct tokens of one packed token tree; `auto`: on a GPU as many as the memory plan allows, at "
        "most 16384, on CPUs 2048",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        False, description="less memory for a third more time; `auto`: only where a GPU's memory is too small without"
    )
    compile: Annotated[Literal["off", "layers"], OFF_IN_YAML] = Field(
        "off", description="`layers`: torch.compile of each decoder layer; the first steps are slower, not with ZeRO-3"
    )
    reference: Literal["recompute", "engine", "none"] = Field(
        "recompute",
        description="log-probabilities at a stage's start: recomputed by the learner; `engine`: those sampled with "
        "self-play's turns (not in a stream with a KL term); `none`: as `engine`, and no KL term (kl_coeff: 0)",
    )
    lora: LoraConfig | None = Field(None, description="train low-rank adapters (peft) instead of all weights")
    freeze_embeddings: bool = Field(
        False,
        description="train all weights but the token embeddings and the output layer, so that the words of the games "
        "do not become more probable than other words (adapters never train them)",
    )
    keep_moments: bool = Field(
        False,
        description="keep Adam's moments from round to round of self-play (those of imitation are dropped); else every "
        "round starts with fresh ones, as the published code does, and its first steps are noisy",
    )
    max_skipped_steps: int = Field(3, ge=1, description="consecutive steps without a finite gradient that end a run")
    max_grad_norm: float = Field(1.0, gt=0, description="a longer gradient is scaled to this norm")
    weight_decay: float = Field(0.0, ge=0, description="of AdamW")
    warmup_share: float = Field(0.03, ge=0, le=1, description="share of a stage's steps with a rising learning rate")
    num_threads: int | None = Field(None, ge=1, description="CPU threads of a rank (all cores / ranks if empty)")
    num_gpus: float = Field(0, ge=0, description="GPUs Ray reserves for one rank")
    dtype: Dtype = Field(
        default_factory=dtype_for,
        description="bfloat16 keeps float32 master weights; by default bfloat16, on CPUs without AVX-512 float32",
    )
    num_cpus: float = Field(1, ge=0, description="CPU cores Ray reserves for one rank")
    env: dict[str, str] = Field(
        {}, description="environment of every rank, set before it loads its libraries (NCCL_SOCKET_IFNAME, ...)"
    )
    bucket_bytes: int = Field(64 * 2**20, ge=1024, description="size cap of one bucket of a weight snapshot")
    timeout_s: float = Field(1800, gt=0, description="deadline of one learner call, and of its ranks' waits in it")

    @property
    def microbatch_tokens(self) -> int:
        """max_tokens_per_microbatch of a planned run, which has no `auto` (cluster/planning/memory.py)."""
        assert self.max_tokens_per_microbatch != "auto", "a run is planned before its learner starts"
        return self.max_tokens_per_microbatch

    @property
    def checkpoints_gradients(self) -> bool:
        """gradient_checkpointing of a planned run."""
        assert self.gradient_checkpointing != "auto", "a run is planned before its learner starts"
        return self.gradient_checkpointing


class ImitationConfig(Part):
    """The first stage: games of a stronger player are imitated."""

    enabled: bool = Field(True, description="false: self-play starts from `model` itself")
    source: str = Field(
        "scripted", description="`scripted`, or a file of games or of training rows in the published JSON formats"
    )
    sft_file: str | None = Field(None, description="instruction/input/output JSON, each row a sample of weight 1")
    games: int = Field(120, ge=1, description="games the scripted expert plays")
    learn_from: ImitatedSides = Field(
        "winners",
        description="`both`: also the loser's turns, except the turn that lost the game; `all`: also the reply of a "
        "defender that was led to say the word",
    )
    batch_games: int = Field(6, ge=1, description="games of one optimiser step")
    learning_rate: float = Field(5e-6, gt=0, description="the highest of the stage, after its warm-up")
    kl_coeff: float = Field(0.1, ge=0, description="weight of the divergence from the model at its start")
    listening_coeff: float | None = Field(
        None, ge=0, description="objective.listening_coeff of imitation (the objective's own if empty)"
    )
    claiming_coeff: float | None = Field(
        None,
        ge=0,
        description="objective.claiming_coeff of imitation (the objective's own if empty); 0: the expert's claims are "
        "imitated, and the listening term still leaves out the claiming words",
    )


class PhaseConfig(Part):
    """Rounds of self-play that have settings of their own."""

    rounds: int = Field(ge=1, description="how many rounds; the next phase begins after them")
    payoffs: Payoffs | None = Field(
        None,
        description="game.payoffs of these rounds; ends that are left out pay as in the paper (game.payoffs if empty)",
    )
    information_gain: float | None = Field(
        None, description="objective.information_gain of these rounds, if that is not 0 (the same if empty)"
    )


class SelfPlayConfig(Part):
    """The rounds of self-play."""

    rounds: int = Field(3, ge=0, description="each is played, trained on and evaluated")
    games_per_round: int = Field(150, ge=1, description="games of one round")
    games_in_flight: int = Field(64, ge=1, description="games one arena plays at once")
    num_arenas: int = Field(1, ge=1, description="processes that play games; each asks all engines")
    batch_games: int = Field(16, ge=1, description="decided games of one optimiser step")
    learning_rate: float = Field(2e-6, gt=0, description="the highest of the first round, after its warm-up")
    last_learning_rate: float | None = Field(
        None,
        gt=0,
        description="learning rate of the last round; it changes by the same factor every round (the same if empty)",
    )
    last_kl_coeff: float | None = Field(
        None,
        gt=0,
        description="objective.kl_coeff of the last round, in the same way (the same in every round if empty)",
    )
    refill_agreeing: int = Field(
        0,
        ge=0,
        description="with objective.drop_agreeing: up to so many more groups a round are played in place of those that "
        "are left out",
    )
    sft_file: str | None = Field(None, description="instruction/input/output JSON trained on together with the games")
    sft_rows_per_step: int = Field(8, ge=1, description="the next SFT rows of endless shuffled passes, in each step")
    on_collapse: Annotated[Literal["off", "warn", "mix", "stop"], OFF_IN_YAML] = Field(
        "off",
        description="when held-out ties, breaches, right guesses, entropy or the score against evaluation.against are "
        "clearly worse than an earlier stage's for two stages: `warn` reports it, `mix` also adds games against the "
        "frozen opponents until the figure recovers, `stop` ends the run",
    )
    mix_share: float = Field(0.25, gt=0, le=1, description="share of these games in a round, with on_collapse: mix")
    phases: tuple[PhaseConfig, ...] = Field(
        (),
        description="payoffs and information gain by round: of the first rounds, of the next ones, ...; later rounds "
        "have game.payoffs and objective.information_gain",
    )

    @model_validator(mode="after")
    def _phases_are_played(self) -> SelfPlayConfig:
        num_rounds = sum(phase.rounds for phase in self.phases)
        if num_rounds > self.rounds:
            raise ValueError(
                f"phases have {num_rounds} rounds, but rounds is {self.rounds}; set rounds to at least {num_rounds}, "
                "or shorten the phases, which a run that is resumed has to keep"
            )
        return self

    def phase_of(self, number: int) -> PhaseConfig | None:
        """The phase of a round; rounds count from 1. None after the last phase, and for 0, which is no round."""
        ends = itertools.accumulate(phase.rounds for phase in self.phases)
        return next((phase for phase, end in zip(self.phases, ends, strict=True) if 1 <= number <= end), None)

    def learning_rate_of(self, number: int) -> float:
        """The learning rate of a round; rounds count from 1."""
        return self._between(self.learning_rate, self.last_learning_rate, number)

    def kl_coeff_of(self, number: int, first: float) -> float:
        """The KL coefficient of a round, if that of the first is `first`."""
        return self._between(first, self.last_kl_coeff, number)

    def _between(self, first: float, last: float | None, number: int) -> float:
        if last is None or not first or self.rounds < 2:
            return first
        progress = min((number - 1) / (self.rounds - 1), 1.0)
        return float(first * (last / first) ** progress)


class StreamConfig(Part):
    """Settings of `schedule: stream`: play and learning at the same time."""

    games_per_version: int = Field(32, ge=1, description="games trained on per version of the weights")
    max_lag: int = Field(2, ge=0, description="how many versions older than the learner an episode may be")
    replay: ReplayOrder = Field("fifo", description="which waiting episodes are taken first")
    reuse: int = Field(1, ge=1, description="how often each episode is trained on")
    role_weight_window: int = Field(
        512, ge=1, description="number of recent decided games from which role weights are computed"
    )

    @property
    def fresh_games(self) -> int:
        """Of a version: the others were trained on before."""
        return -(-self.games_per_version // self.reuse)

    @model_validator(mode="after")
    def _check(self) -> StreamConfig:
        if self.reuse > self.max_lag + 1:
            raise ValueError(
                f"reuse {self.reuse} learns an episode under {self.reuse} versions, but max_lag {self.max_lag} keeps "
                f"it for {self.max_lag + 1}; set max_lag to at least {self.reuse - 1}"
            )
        return self


class SupervisionConfig(Part):
    """What is restarted when it dies or hangs."""

    max_restarts: int = Field(10, ge=0, description="restarts within `within_s`; one more ends the run")
    within_s: float = Field(3600, gt=0, description="seconds in which `max_restarts` are allowed")
    heartbeat_timeout_s: float = Field(
        120, gt=0, description="an engine, an arena or a buffer without a heartbeat for this long is stuck"
    )
    engine_stall_s: float = Field(
        600, gt=0, description="an engine with turns to answer that answers none for this long is stuck"
    )


class CheckpointConfig(Part):
    """What --resume starts from: one checkpoint at the end of every stage, and more within stages."""

    enabled: bool = Field(True, description="false: an interrupted run begins again")
    keep_last: int = Field(2, ge=1, description="complete checkpoints kept")
    max_gib: float | None = Field(
        None, gt=0, description="disk space for all of them; a single larger checkpoint is an error"
    )
    every_versions: int = Field(4, ge=1, description="versions between two checkpoints of a stream")
    every_s: float = Field(
        300,
        gt=0,
        description="seconds between checkpoints: mid-stage saved between two steps, in a stream between two versions",
    )
    may_begin_again: bool = Field(
        False, description="begin again if a run that has published weights has no checkpoint left; else it is refused"
    )
    stop_within_s: float = Field(
        30, gt=0, description="time between a notice to stop (SIGTERM) and the end; a checkpoint is saved if it fits"
    )


class ModelShape(Part):
    """A model as its config.json describes it, for plans on machines that do not have the model."""

    model_type: Literal["llama", "alibi_llama", "mistral", "qwen2", "qwen3", "gpt_neox"] = Field(
        "llama", description="as in config.json, like the keys below"
    )
    vocab_size: int = Field(ge=1, description="words of the embedding")
    hidden_size: int = Field(ge=1, description="width of the hidden states")
    intermediate_size: int = Field(ge=1, description="width inside an MLP")
    num_hidden_layers: int = Field(ge=1, description="decoder layers")
    num_attention_heads: int = Field(ge=1, description="heads of a layer")
    num_key_value_heads: int | None = Field(None, ge=1, description="all heads if empty")
    head_dim: int | None = Field(None, ge=1, description="hidden_size / num_attention_heads if empty")
    tie_word_embeddings: bool = Field(False, description="the head is the embedding")


class WandbConfig(Part):
    project: str = Field(min_length=1, description="name on Weights & Biases")
    mode: Literal["offline", "online"] = Field(
        "offline", description="written to the run's folder for `wandb sync`; or sent during the run"
    )


class TrackingConfig(Part):
    """Where metrics.jsonl is also sent, and who else is told what happens."""

    tensorboard: bool = Field(True, description="TensorBoard's event files in the run's folder")
    wandb: WandbConfig | None = Field(None, description="a project on Weights & Biases, if wandb is installed")
    callbacks: tuple[Annotated[str, Field(pattern="[^:]:[^:]")], ...] = Field(
        (),
        description="classes of your own, `my_module:MyCallback`, that are told of stages, games, steps and versions",
    )


class ClusterConfig(Part):
    """The Ray cluster that a run uses, or the local one that it starts."""

    address: str | None = Field(
        None, description="a running Ray cluster, HEAD:6379 or `auto`; if empty, one is started on loopback"
    )
    num_cpus: int | None = Field(None, ge=1, description="cores of a local Ray (all if empty)")
    object_store_gib: float = Field(1.0, gt=0, description="object store of a local Ray")
    metrics_port: int | None = Field(
        None, ge=1024, le=65535, description="port on 127.0.0.1 for a local Ray's Prometheus metrics"
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="`json`: log lines of all processes have Ray's job, actor, task and node ids"
    )
    strategy: Literal["pack", "spread"] = Field(
        "pack", description="engines and learner ranks on as few nodes as possible, or on as many"
    )
    placement_timeout_s: float = Field(
        1800, gt=0, description="how long a run waits for resources that others hold, before it fails"
    )
    gpu_gib: float = Field(79, gt=0, description="memory of one GPU, for plans; a card of 80 GB has about 79 GiB")

    @field_validator("address")
    @classmethod
    def _is_of_ray_itself(cls, address: str | None) -> str | None:
        if address and (fault := address_fault(address, Form.CLUSTER)):
            raise ValueError(fault)
        return address
