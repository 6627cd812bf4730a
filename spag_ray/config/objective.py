"""The part `objective` of a RunConfig: what is trained on in a game, and with which weights (docs/learning.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from spag_ray.config.parts import ListeningTurns, Part


class ObjectiveConfig(Part):
    name: Literal["spag", "published"] = "spag"
    decay: float = Field(0.8, gt=0, le=1, description="turn t of n gets decay^-t / sum_i decay^-i")
    kl_coeff: float = Field(0.2, ge=0)
    kl_weighting: Literal["none", "ratio"] = Field(
        "none",
        description="`ratio`: a token's KL estimate is weighted by its importance ratio, so that tokens that became "
        "improbable do not dominate it (name: spag)",
    )
    kl_reference: Literal["stage", "start"] = Field(
        "stage",
        description="what the KL term compares with: the weights at the stage's start, or those that self-play started "
        "with (name: spag)",
    )
    sft_coeff: float = Field(0.5, ge=0)
    clip_range: float = Field(0.2, gt=0, lt=1)
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
    role_weights: Literal["balanced", "none"] = Field(
        "balanced", description="`none`: every game has weight 1; for results with a baseline subtracted"
    )
    role_weight_cap: float | None = Field(
        4.0,
        gt=0,
        description="cap of a role's weight when one role rarely wins (no cap if empty; empty by default with "
        "name: published)",
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
        if self.kl_reference == "start" and self.name != "spag":
            raise ValueError("kl_reference: start is for the objective `spag`; leave it out, or set name: spag")
        if self.claiming_coeff and not self.listening_coeff:
            raise ValueError("claiming_coeff teaches when to claim the word that listening_coeff teaches; set both")
        return self
