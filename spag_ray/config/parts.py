"""The parts of a RunConfig: what each room of the program is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from spag_ray.config.vllm_arguments import why_not_passed

RulesName = Literal["strict", "published"]


ReplayOrder = Literal["fifo", "recent", "prioritized"]


# Whose turns are imitated: the winner's, both seats' but for mistakes, or both seats' with walking into traps.
ImitatedSides = Literal["winners", "both", "all"]


# Which of a game's defender's turns teach its word.
ListeningTurns = Literal["last", "all"]


Channel = Literal["object_store", "shared_memory", "nccl", "ipc"]


class Part(BaseModel):
    """A part of a run's configuration: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Payoff = Annotated[float, Field(ge=-2, le=2)] | None
SeatPayoffs = tuple[Payoff, Payoff]


class Payoffs(Part):
    """What the end of a game is worth to learning, `[attacker, defender]`; null: nothing is learned. The defaults are
    the paper's. Scores and ratings are always the paper's: 1 a win, 0.5 a tie, 0 a loss."""

    trap: SeatPayoffs = Field((1.0, -1.0), description="the defender said the word unawares")
    wrong_guess: SeatPayoffs = Field((1.0, -1.0), description="the defender claimed another word")
    right_guess: SeatPayoffs = Field((-1.0, 1.0), description="the defender named the word")
    tie: SeatPayoffs = Field((None, None), description="nobody won before the turns ran out")
    attacker_breach: SeatPayoffs = Field(
        (None, None), description="the attacker broke the rules; its value goes to the turn that did"
    )
    defender_breach: SeatPayoffs = Field((None, None), description="the same of the defender")

    @model_validator(mode="after")
    def _helping_does_not_pay(self) -> Payoffs:
        if all(getattr(self, end)[0] is None for end in type(self).model_fields):
            return self  # the attacker learns from no end of a game
        guessed, tied = self.right_guess[0] or 0.0, self.tie[0] or 0.0
        if guessed >= tied:
            raise ValueError(
                f"a right guess pays the attacker {guessed:g}, a tie {tied:g}: it would learn to help the defender; "
                "set the attacker's value of right_guess below that of tie"
            )
        return self


class GameConfig(Part):
    max_turns: int = Field(5, ge=1, description="turns of each player")
    rules: RulesName = Field("strict", description="the referee")
    payoffs: Payoffs = Payoffs()


class WordsConfig(Part):
    source: str = Field(
        "deck", description="`deck`: the deck's words; a words file (one word a line); or `textarena`: its Taboo cards"
    )
    deck: str = Field("everyday", description="what the scripted expert plays from: a shipped deck, or a file")
    max_difficulty: float | None = Field(
        None, ge=0, le=1, description="only cards whose measured difficulty is at most this (all if empty)"
    )
    num_held_out: int = Field(40, ge=1, description="words kept for evaluation, never trained on")
    num_train: int | None = Field(None, ge=1, description="use only this many training words (all if empty)")

    @property
    def are_from_cards(self) -> bool:
        """Whether every word has a card, and no words file is read."""
        return self.source in ("deck", "textarena")

    @property
    def cards_from(self) -> str:
        """The deck whose cards are played from, by the name that `load_deck` takes."""
        return "textarena" if self.source == "textarena" else self.deck


class SamplingConfig(Part):
    temperature: float = Field(1.0, ge=0.0, description="0 is greedy")
    top_k: int | None = Field(None, ge=1, description="refused for learning under the objective `spag`")
    top_p: float | None = Field(None, gt=0.0, le=1.0, description="refused for learning under the objective `spag`")
    max_new_tokens: int = Field(256, ge=1, description="tokens of one turn")


class EngineConfig(Part):
    kind: Literal["vllm", "transformers"] = "vllm"
    num_engines: int = Field(1, ge=1, description="engines that play the newest weights")
    max_model_len: int = Field(2048, ge=16, description="tokens of a prompt and its reply together")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    max_num_seqs: int = Field(64, ge=1, description="sequences decoded at once in one engine")
    kv_cache_gib: float = Field(1.0, gt=0, description="GiB of KV cache (CPU)")
    gpu_memory_utilization: float = Field(0.85, gt=0, lt=1, description="share of a GPU's memory (GPU)")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs of one engine")
    max_lora_rank: int | None = Field(None, ge=1, description="room for adapters; a run with lora sets it")
    num_gpus: float = Field(0, ge=0, description="GPUs Ray reserves for one engine")
    num_cpus: float = Field(1, ge=0, description="CPU cores Ray reserves for one engine")
    env: dict[str, str] = Field(
        {},
        description="environment of every engine, set before it loads its libraries (NCCL_SOCKET_IFNAME, ...)",
    )
    turn_timeout_s: float = Field(600, gt=0, description="a turn that takes longer is asked of another engine")
    start_timeout_s: float = Field(
        600, gt=0, description="an engine that is not up by then is an error; games wait as long where there is none"
    )
    vllm: dict[str, Any] = Field(
        {}, description="further arguments of vLLM's engine, by their own names (quantization: fp8, ...)"
    )

    @model_validator(mode="after")
    def _vllm_leaves_what_is_ours(self) -> EngineConfig:
        if self.vllm and self.kind != "vllm":
            raise ValueError(f"vllm has arguments of vLLM's engine, but kind is {self.kind}; leave one of them out")
        if reason := next(filter(None, map(why_not_passed, self.vllm)), None):
            raise ValueError(reason)
        return self


class LoraConfig(Part):
    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1, description="adapters count alpha / rank")
    targets: tuple[str, ...] = Field((), description="names of the layers that get one (all linear layers if empty)")
    export: Literal["merged", "adapter"] = Field(
        "merged", description="what engines are sent: whole weights with the adapters in them, or the adapters alone"
    )


class LearnerConfig(Part):
    num_ranks: int = Field(1, ge=1, description="ranks of the DeepSpeed learner group")
    zero_stage: int = Field(1, ge=0, le=3, description="DeepSpeed ZeRO stage; bfloat16 needs at least 1")
    deepspeed: str | None = Field(None, description="a DeepSpeed JSON of your own, or one of configs/deepspeed/")
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="bfloat16 keeps float32 master weights")
    packing: Literal["trees", "none"] = Field("trees", description="`none`: a row per sample, for any causal LM")
    max_tokens_per_microbatch: int = Field(2048, ge=16, description="distinct tokens of one packed token tree")
    gradient_checkpointing: bool = Field(False, description="less memory for a third more time")
    reference: Literal["recompute", "engine", "none"] = Field(
        "recompute",
        description="log-probabilities at a stage's start: recomputed by the learner; `engine`: those that came with "
        "self-play's turns (not in a stream with a KL term); `none`: the same, and no KL term (kl_coeff: 0)",
    )
    lora: LoraConfig | None = Field(None, description="train low-rank adapters (peft) instead of all weights")
    max_skipped_steps: int = Field(3, ge=1, description="steps in a row without a finite gradient that end a run")
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    warmup_share: float = Field(0.03, ge=0, le=1, description="share of a stage's steps with a rising learning rate")
    num_threads: int | None = Field(None, ge=1, description="CPU threads of a rank (all cores / ranks if empty)")
    num_gpus: float = Field(0, ge=0, description="GPUs Ray reserves for one rank")
    num_cpus: float = Field(1, ge=0, description="CPU cores Ray reserves for one rank")
    env: dict[str, str] = Field(
        {}, description="environment of every rank, set before it loads its libraries (NCCL_SOCKET_IFNAME, ...)"
    )
    bucket_bytes: int = Field(64 * 2**20, ge=1024, description="size cap of one bucket of a weight snapshot")
    timeout_s: float = Field(1800, gt=0, description="deadline of one learner call")


class ObjectiveConfig(Part):
    name: Literal["spag", "published"] = "spag"
    decay: float = Field(0.8, gt=0, le=1, description="turn t of n gets decay^-t / sum_i decay^-i")
    kl_coeff: float = Field(0.2, ge=0)
    sft_coeff: float = Field(0.5, ge=0)
    clip_range: float = Field(0.2, gt=0, lt=1)
    mismatch_cap: float = Field(2.0, gt=0, description="cap of the engine/learner importance weight")
    length_norm: Literal["mean", "constant"] = Field("mean", description="a turn's tokens are divided by their number")
    constant_length: int | None = Field(None, ge=1, description="or by this, with length_norm: constant")
    learn_from: Literal["winners", "both"] = Field(
        "winners", description="`both`: losers learn too, and both seats of a tie that has payoffs"
    )
    loser_turns: Literal["all", "deciding"] = Field(
        "all",
        description="with learn_from: both: a loser's payoff goes to all its turns by their shares, or to the turn "
        "alone that lost the game (a wrong guess, the word said), if one did",
    )
    trap_credit: Literal["all", "trap"] = Field(
        "all",
        description="whose the attacker's payoff of a trap is: of all its turns by their shares, or of the turn alone "
        "after which the word was said",
    )
    baseline: Literal["none", "moving", "mean"] = Field(
        "none", description="taken from a result: the role's moving average, or its mean over the games learned with it"
    )
    baseline_decay: float = Field(0.95, gt=0, lt=1, description="of that average, per decided game")
    listening_coeff: float = Field(
        0.0, ge=0, description="weight of the word's log-likelihood at the defender's turns, once a game has ended"
    )
    listening_turns: ListeningTurns = Field("all", description="at each of these turns, or at a game's last one alone")
    claiming_coeff: float = Field(
        0.0, ge=0, description="weight of claiming as often as the word is known: p(claim) is to be p(word)"
    )
    claiming_words: float = Field(
        0.25, gt=0, lt=1, description="share of the words that teach this; listening does not learn them"
    )
    unsaid_coeff: float = Field(
        0.0,
        ge=0,
        description="weight of keeping from words that cannot be said: an attacker's turn from the target word, a "
        "defender's claim from words that were said before",
    )
    role_weights: Literal["balanced", "none"] = Field(
        "balanced", description="`none`: every game counts 1, for results whose mean a baseline takes out"
    )
    role_weight_cap: float | None = Field(
        4.0,
        gt=0,
        description="cap of a role's weight when wins are lopsided (none if empty, as with name: published by default)",
    )

    @model_validator(mode="before")
    @classmethod
    def _published_has_no_cap(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("name") == "published":
            return {"role_weight_cap": None, **data}
        return data

    @model_validator(mode="after")
    def _check(self) -> ObjectiveConfig:
        if self.length_norm == "constant" and self.constant_length is None:
            raise ValueError("length_norm: constant needs constant_length, for example sampling.max_new_tokens")
        if self.claiming_coeff and not self.listening_coeff:
            raise ValueError("claiming_coeff teaches when to claim the word that listening_coeff teaches; set both")
        return self


class ImitationConfig(Part):
    enabled: bool = True
    source: str = Field(
        "scripted", description="`scripted`, or a file of games or of training rows in the published JSON formats"
    )
    sft_file: str | None = Field(None, description="instruction/input/output JSON, each row a sample of weight 1")
    games: int = Field(120, ge=1, description="games the scripted expert plays")
    learn_from: ImitatedSides = Field(
        "winners",
        description="`both`: the loser's turns too, but not the turn that lost the game; `all`: also the reply of a "
        "defender that was led to say the word",
    )
    batch_games: int = Field(6, ge=1, description="games of one optimiser step")
    learning_rate: float = Field(5e-6, gt=0)
    kl_coeff: float = Field(0.1, ge=0)
    listening_coeff: float | None = Field(
        None, ge=0, description="objective.listening_coeff of imitation (the objective's own if empty)"
    )
    claiming_coeff: float | None = Field(
        None,
        ge=0,
        description="objective.claiming_coeff of imitation (the objective's own if empty); 0: the expert's claims are "
        "imitated, and listening still leaves the words out that teach when to claim",
    )


class SelfPlayConfig(Part):
    rounds: int = Field(3, ge=0)
    games_per_round: int = Field(150, ge=1)
    games_in_flight: int = Field(64, ge=1, description="games one arena plays at once")
    num_arenas: int = Field(1, ge=1)
    batch_games: int = Field(16, ge=1, description="decided games of one optimiser step")
    learning_rate: float = Field(2e-6, gt=0)
    sft_file: str | None = Field(None, description="instruction/input/output JSON learned beside the games")
    sft_rows_per_step: int = Field(8, ge=1)
    on_collapse: Literal["off", "warn", "mix", "stop"] = Field(
        "off",
        description="when held-out ties, breaches, right guesses, entropy or the score against evaluation.against are "
        "outside the interval of an earlier stage for two stages: `warn` says so, `mix` also lets the frozen opponents "
        "play until it is over, `stop` ends the run",
    )
    mix_share: float = Field(0.25, gt=0, le=1, description="of a round's games against them, with on_collapse: mix")


class StreamConfig(Part):
    """Of `schedule: stream`: play and learning at the same time."""

    games_per_version: int = Field(32, ge=1, description="games that a version of the weights learns from")
    max_lag: int = Field(2, ge=0, description="versions that an episode may be older than what learns it")
    replay: ReplayOrder = Field("fifo", description="which of the waiting episodes come first")
    reuse: int = Field(1, ge=1, description="how often each episode is learned")
    role_weight_window: int = Field(
        512, ge=1, description="last decided games over which the weights of the roles are counted"
    )

    @model_validator(mode="after")
    def _check(self) -> StreamConfig:
        if self.reuse > self.max_lag + 1:
            raise ValueError(
                f"reuse {self.reuse} learns an episode under {self.reuse} versions, but max_lag {self.max_lag} keeps "
                f"it for {self.max_lag + 1}; set max_lag to at least {self.reuse - 1}"
            )
        return self


class SyncConfig(Part):
    channel: Channel = Field(
        "object_store",
        description="how weights travel: Ray's object store (any machines), shared_memory (one machine), nccl (from "
        "GPU to GPU), ipc (learner and engine on the same GPU; placement: colocated)",
    )
    update: Literal["between_games", "between_turns", "in_flight"] = Field(
        "between_turns",
        description="when an engine that plays takes new weights: once its games have ended, once the turns under way "
        "have, or at once (they are paused, and go on under the new weights); adapters come at once, for new turns",
    )
    max_probe_gap: float = Field(
        0.3,
        ge=0,
        description="mean gap of a fixed turn's log-probabilities, engine to learner, above which an engine is "
        "replaced (the run ends when no engine is below it); nats",
    )
    timeout_s: float = Field(300, gt=0, description="an engine that has not taken a version by then is stopped")


class SupervisionConfig(Part):
    """What is restarted when it dies or hangs."""

    max_restarts: int = Field(10, ge=0, description="restarts within `within_s`; one more ends the run")
    within_s: float = Field(3600, gt=0)
    heartbeat_timeout_s: float = Field(
        120, gt=0, description="an engine, an arena or a buffer that says nothing for so long is stuck"
    )
    engine_stall_s: float = Field(
        600, gt=0, description="an engine with turns to answer that answers none for so long is stuck"
    )


class CheckpointConfig(Part):
    """What a run goes on from with --resume: one at the end of every stage, and more often on the way."""

    enabled: bool = True
    keep_last: int = Field(2, ge=1, description="complete checkpoints kept")
    max_gib: float | None = Field(
        None, gt=0, description="disk that they may take; one alone that is larger is an error"
    )
    every_versions: int = Field(4, ge=1, description="versions of a stream from one checkpoint to the next")
    every_s: float = Field(
        1800,
        gt=0,
        description="seconds after which one is saved mid-stage, between two steps",
    )
    stop_within_s: float = Field(
        30, gt=0, description="time between a notice to stop (SIGTERM) and the end; a checkpoint is saved if it fits"
    )


class ModelShape(Part):
    """A model as its config.json describes it, for plans on machines that do not have the model."""

    model_type: Literal["llama", "mistral", "qwen2", "qwen3", "gpt_neox"] = "llama"
    vocab_size: int = Field(ge=1)
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_hidden_layers: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int | None = Field(None, ge=1, description="all heads if empty")
    head_dim: int | None = Field(None, ge=1, description="hidden_size / num_attention_heads if empty")
    tie_word_embeddings: bool = False


class WandbConfig(Part):
    project: str = Field(min_length=1)
    mode: Literal["offline", "online"] = Field(
        "offline", description="in the run's folder, to be sent with `wandb sync`; or sent as it goes"
    )


class TrackingConfig(Part):
    """Who draws what metrics.jsonl says."""

    tensorboard: bool = Field(True, description="TensorBoard's event files in the run's folder")
    wandb: WandbConfig | None = Field(None, description="a project on Weights & Biases, if wandb is installed")


class ClusterConfig(Part):
    address: str | None = Field(None, description="a running Ray cluster; empty starts one here, on loopback only")
    num_cpus: int | None = Field(None, ge=1, description="cores of a local Ray (all if empty)")
    object_store_gib: float = Field(1.0, gt=0, description="object store of a local Ray")
    metrics_port: int | None = Field(
        None, ge=1024, le=65535, description="port on 127.0.0.1 where a local Ray has metrics for Prometheus"
    )
    strategy: Literal["pack", "spread"] = Field(
        "pack", description="engines and learner ranks on as few nodes as hold them, or on as many as there are"
    )
    placement_timeout_s: float = Field(
        1800, gt=0, description="how long a run waits for room that others hold, before it gives up"
    )
    gpu_gib: float = Field(79, gt=0, description="memory of one GPU, for plans; a card of 80 GB has about 79 GiB")
