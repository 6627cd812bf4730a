"""The part `objective` of a RunConfig: what is trained on in a game, and with which weights (docs/learning.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from spag_ray.config.parts import ListeningTurns, Part
from spag_ray.errors import meant

# What each computes: spag_ray/training_data/estimators.py.
ESTIMATORS = ("spag", "rae", "rloo", "grpo", "reinforce++", "marshal")
GROUPED = ("rloo", "grpo")  # they compare games of one scenario
Loss = Literal["spag", "published", "ppo-clip", "dr-grpo", "gspo"]
# What an estimator sets that gives a turn its whole advantage, where the configuration does not say it.
_WHOLE_GAMES = {"learn_from": "both", "role_weights": "none"}
# Those settings that an estimator has no use for, beside the two above.
_OF_SHARES = ("decay", "loser_turns", "trap_credit", "guess_credit", "baseline", "baseline_std")
_GSPO_CLIPS = {"clip_range": 3e-4, "clip_range_high": 4e-4}  # of its paper: ratios of whole turns are close to 1
Heard = Literal["claim", "reply"]
NATS_CLIP = 3.0  # of gains in nats: a word becomes 20 times as probable
BETWEEN_CLIPS = 0.01  # clips of turns are below it, those of tokens above


def without_former_names(run: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's configuration whose `objective` has `loss` and no `name`."""
    objective = run.get("objective")
    return {**run, "objective": with_loss(objective)} if isinstance(objective, Mapping) else run


def with_loss(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """An `objective` with `loss` in place of `name`, as the key was called before. Raises ValueError if both are there
    and differ."""
    if "name" not in data:
        return data
    if data.get("loss", data["name"]) != data["name"]:
        raise ValueError("objective.name is the former name of objective.loss; leave it out")
    return {**{key: value for key, value in data.items() if key != "name"}, "loss": data["name"]}


def with_defaults_of_choices(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """An `objective` with what its loss, its estimator and the kind of its gains set where nobody has said it."""
    if data.get("loss") == "published":
        data = {"role_weight_cap": None, **data}
    if data.get("loss") == "gspo" and "clip_range" not in data:
        data = {**_GSPO_CLIPS, **data}
    if data.get("gain_of") == "nats":
        data = {"gain_clip": NATS_CLIP, **data}
    if data.get("gain_event") == "reply" or _is_below_0(data.get("information_gain")):
        data = {"gain_seats": "attacker", **data}
    if data.get("advantage", "spag") != "spag":
        data = {**_WHOLE_GAMES, **data}
    return data


def _is_below_0(weight: object) -> bool:
    return isinstance(weight, int | float) and weight < 0


class ObjectiveConfig(Part):
    """What games teach: rewards, advantages, and the terms of the loss (docs/learning.md)."""

    loss: Loss = Field(
        "spag",
        description="what is computed from advantages: the paper's objective token by token, its published code, or "
        "another clipped loss (docs/learning.md)",
    )
    advantage: str = Field(
        "spag",
        description="how a game's payoffs become advantages of turns: shares of them (spag), an estimator by name, or "
        "your own function, my_module:my_advantages (docs/learning.md)",
    )
    drop_agreeing: bool = Field(
        False,
        description="leave out the games of a scenario in which a seat was always paid the same, if it was played "
        "twice or more",
    )
    decay: float = Field(0.8, gt=0, le=1, description="turn t of n gets decay^-t / sum_i decay^-i")
    kl_coeff: float = Field(0.2, ge=0, description="weight of the divergence from `kl_reference`")
    kl_weighting: Literal["none", "ratio"] = Field(
        "none",
        description="`ratio`: a token's KL estimate is weighted by its importance ratio, so that tokens that became "
        "improbable do not dominate it (not with loss: published)",
    )
    kl_reference: Literal["stage", "start"] = Field(
        "stage",
        description="what the KL term compares with: the weights at the stage's start, or those that self-play started "
        "with (not with loss: published)",
    )
    kl_reference_every: int | None = Field(
        None,
        ge=1,
        description="with kl_reference: start, every so many rounds it becomes the newest weights (never if empty)",
    )
    kl_reference_average: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="with kl_reference: start, after each round it becomes this share of itself and the rest of the "
        "newest weights (it stays as it was if empty)",
    )
    entropy_coeff: float = Field(
        0.0, ge=0, description="weight of an entropy bonus of the turns' tokens (not with loss: published)"
    )
    sft_coeff: float = Field(0.5, ge=0, description="weight of the rows of self_play.sft_file")
    clip_range: float = Field(0.2, gt=0, lt=1, description="importance ratios are clipped at 1 - clip_range")
    clip_range_high: float | None = Field(
        None, gt=0, lt=10, description="and at 1 + clip_range_high (clip_range if empty); DAPO takes 0.28"
    )
    mismatch_cap: float = Field(2.0, gt=0, description="cap of the engine/learner importance weight")
    length_norm: Literal["mean", "constant"] = Field(
        "mean", description="a turn's loss is divided by its number of tokens, or by constant_length"
    )
    constant_length: int | None = Field(None, ge=1, description="the divisor with length_norm: constant")
    learn_from: Literal["winners", "both"] = Field(
        "winners", description="`both`: losers are trained too, and both seats of a tie that has payoffs"
    )
    loser_turns: Literal["all", "deciding"] = Field(
        "all",
        description="with learn_from: both: a loser's payoff is shared over all its turns, or goes to the one turn "
        "that lost the game (a wrong guess, the word said), if there is one",
    )
    trap_credit: Literal["all", "trap"] = Field(
        "all",
        description="the attacker's payoff of a trap is shared over all its turns, or goes to the one turn after which "
        "the word was said",
    )
    guess_credit: Literal["all", "guess"] = Field(
        "all",
        description="the defender's payoff of a right guess is shared over all its turns, or goes to the guess alone, "
        "as that of a wrong guess does with loser_turns: deciding",
    )
    baseline: Literal["none", "moving", "mean", "scenario"] = Field(
        "none",
        description="subtracted from a result: the role's moving average, its mean over these games, or over those of "
        "them with the same word or scenario (`mean` if there is only one)",
    )
    baseline_std: Literal["none", "batch"] = Field(
        "none",
        description="`batch`: what is above the baseline is divided by the role's standard deviation over these games",
    )
    baseline_decay: float = Field(0.95, gt=0, lt=1, description="decay of that average, per decided game")
    listening_coeff: float = Field(
        0.0, ge=0, description="weight of the word's log-likelihood at the defender's turns, once a game has ended"
    )
    listening_turns: ListeningTurns = Field("all", description="all of these turns, or only a game's last one")
    claiming_coeff: float = Field(0.0, ge=0, description="weight of the term that moves p(claim) to p(word)")
    claiming_words: float = Field(
        0.25, gt=0, lt=1, description="share of the words that train this term; the listening term leaves them out"
    )
    unsaid_coeff: float = Field(
        0.0,
        ge=0,
        description="weight of the term against words that must not be said: the target word in an attacker's turn, "
        "words said before in a defender's claim",
    )
    information_gain: float = Field(
        0.0,
        description="weight of a reward for each turn: how much its hint raised the probability that a frozen listener "
        "gives the word (docs/learning.md); below 0 attackers are paid for what their hints keep from it",
    )
    listener: str | None = Field(
        None,
        min_length=1,
        description="with information_gain, who listens: `imitated`, `base`, or a model folder (`imitated` if empty; "
        "`base` where nothing is imitated)",
    )
    gain_of: Literal["probability", "nats"] = Field(
        "probability",
        description="what a hint is paid for: by how much the listener's probability of the word rose, or that "
        "probability's logarithm, which also tells apart hints at words that the listener hardly thinks of",
    )
    gain_clip: float = Field(
        0.5, gt=0, description="gains are clipped at -gain_clip and gain_clip; by default 3 where they are in nats"
    )
    gain_event: Heard = Field(
        "claim",
        description="what a hint makes more probable: that the listener names the word as a claim, or that its plain "
        "reply begins with the word, a trap; `reply` needs gain_seats: attacker",
    )
    gain_seats: Literal["attacker", "both"] = Field(
        "both",
        description="who is paid for a gain: the turn that gave the hint, or also the defender's turn before it, which "
        "asked for it",
    )
    role_weights: Literal["balanced", "none"] = Field(
        "balanced", description="`none`: every game has weight 1; for results with a baseline subtracted"
    )
    role_weight_cap: float | None = Field(
        4.0,
        gt=0,
        description="cap of a role's weight when one role rarely wins (no cap if empty; empty by default with "
        "loss: published)",
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_choices(cls, data: Any) -> Any:
        return with_defaults_of_choices(with_loss(data)) if isinstance(data, Mapping) else data

    @model_validator(mode="after")
    def _check(self) -> ObjectiveConfig:
        if self.length_norm == "constant" and self.constant_length is None:
            raise ValueError("length_norm: constant needs constant_length, for example sampling.max_new_tokens")
        if self.claiming_coeff and not self.listening_coeff:
            raise ValueError("claiming_coeff teaches when to claim the word that listening_coeff teaches; set both")
        if self.gain_of == "probability" and self.gain_clip > 1:
            raise ValueError(
                f"gain_clip: {self.gain_clip:g} clips nothing: probabilities differ by at most 1; set at most 1, "
                "or gain_of: nats"
            )
        if self.gain_event == "reply" and self.gain_seats == "both":
            raise ValueError("gain_event: reply pays for traps, and gain_seats: both pays who walks into them too")
        self.check_gain(self.information_gain)
        self._check_loss()
        self._check_advantage()
        self._check_reference()
        return self

    def _check_reference(self) -> None:
        for key in ("kl_reference_every", "kl_reference_average"):
            if getattr(self, key) is not None and self.kl_reference != "start":
                raise ValueError(f"{key} moves the reference of kl_reference: start; set that, or leave {key} out")
        if self.kl_reference_every is not None and self.kl_reference_average is not None:
            raise ValueError("kl_reference_every and kl_reference_average both move the reference; leave one out")

    def check_gain(self, weight: float) -> None:
        """Raises ValueError if hints cannot be paid with this weight: for what they keep back, with a sign below 0."""
        if weight < 0 and (self.gain_event, self.gain_seats) != ("claim", "attacker"):
            raise ValueError(
                f"information_gain: {weight:g} pays attackers for claims that their hints make less probable; it needs "
                "gain_event: claim and gain_seats: attacker"
            )

    def _check_loss(self) -> None:
        if self.loss == "published":
            if self.kl_reference == "start":
                raise ValueError("kl_reference: start is not for the loss `published`; leave it out, or set loss: spag")
            if self.entropy_coeff:
                raise ValueError("entropy_coeff is not for the loss `published`; leave it out, or set loss: spag")
            if self.clip_range_high is not None:
                raise ValueError("clip_range_high is not for the loss `published`, which clips both sides alike")
        elif self.loss == "dr-grpo":
            if self.constant_length is None:
                raise ValueError(
                    "loss: dr-grpo divides by constant_length; set it, for example to sampling.max_new_tokens"
                )
        elif self.loss != "spag" and self.length_norm == "constant":
            raise ValueError(f"length_norm: constant is not for the loss {self.loss}; leave it out")

    def _check_advantage(self) -> None:
        if self.advantage == "spag":
            if self.baseline_std != "none" and self.baseline == "none":
                raise ValueError(
                    f"baseline_std: {self.baseline_std} divides what is above a baseline, but baseline is none; set "
                    "baseline: scenario, mean or moving"
                )
            return
        if self.advantage not in ESTIMATORS and not all(self.advantage.rpartition(":")):
            raise ValueError(
                f"advantage: {self.advantage} is not known; there are {', '.join(ESTIMATORS)}, or name your own as "
                f"my_module:my_advantages{meant(self.advantage, ESTIMATORS)}"
            )
        if self.loss == "published":
            raise ValueError(f"advantage: {self.advantage} is not for the loss `published`; leave one of them out")
        defaults = {key: type(self).model_fields[key].default for key in _OF_SHARES}
        if changed := [key for key, default in defaults.items() if getattr(self, key) != default]:
            told = ", ".join(f"{key}: {getattr(self, key)}" for key in changed)
            back = ", ".join(f"{key}: {defaults[key]}" for key in changed)  # a configuration that is named has values
            raise ValueError(
                f"{told} {'is' if len(changed) == 1 else 'are'} for advantage: spag, which shares a payoff out; "
                f"{self.advantage} gives every turn of a seat its advantage; leave them out, or set {back}"
            )
        for key, value in _WHOLE_GAMES.items():
            if getattr(self, key) != value:
                raise ValueError(
                    f"{key}: {getattr(self, key)} is for advantage: spag; {self.advantage} compares what games paid, "
                    f"won or lost; leave it out, or set {value}"
                )

    @property
    def has_moving_baseline(self) -> bool:
        """Whether it is in checkpoints what games paid on average."""
        return self.baseline == "moving" or self.advantage == "rae"

    @property
    def compares_scenarios(self) -> bool:
        """Whether games of one scenario are compared with each other."""
        return self.baseline == "scenario" or self.advantage in GROUPED

    @property
    def clip_ends(self) -> tuple[float, float]:
        """What importance ratios are clipped at."""
        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        return 1 - self.clip_range, 1 + high
