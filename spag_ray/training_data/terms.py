"""Which sample trains which term of the loss, and with which weight.

A sample has a kind, and each term is of samples of one kind. A sample's weight in a term holds the term's coefficient
and the counts of the global batch, so the terms of all micro-batches and ranks add up to one loss. With the numbers

    N  games with trained turns      T  trained turns of this game
    M  SFT rows                      P  listened turns of this game; for unsaid words: such turns of this seat in it
    K  games that listen for the word; for claiming: games with listened turns of either kind; for unsaid words: games
       with such turns of this seat

it is, for the loss `spag`:

    policy     weight / N                        claiming   claiming_coeff share / (K P)
    kl         weight / N * kl_coeff / T         unsaid     unsaid_coeff / (K P)
    listening  listening_coeff / (K P)           sft        sft_coeff / M
    entropy_bonus  as kl, with entropy_coeff

The losses `ppo-clip`, `dr-grpo` and `gspo` are means over the trained tokens (the first) or turns of the batch: policy
is weight / n and kl weight / n * kl_coeff, n being their number. The published losses and imitation are divided by the
trained turns of all games, and hold their divergence.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.training_data.samples import Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec

KINDS = ("turn", "listening", "claiming", "unsaid", "sft")
# Each term and the kind of the samples that train it.
TERMS = {
    "policy": "turn",
    "kl": "turn",
    "entropy_bonus": "turn",
    "listening": "listening",
    "claiming": "claiming",
    "unsaid": "unsaid",
    "sft": "sft",
}

# A sample, its kind, its weight in each term of that kind, and the temperature of its softmax.
_Entry: TypeAlias = tuple[Sample, str, Mapping[str, float], float]


@dataclass(frozen=True)
class Rows:
    """The S samples of a rank's share, and what the loss has to know of each: `kinds` [S] int64 (a place in KINDS),
    `weights` [terms, S] float64 (in the order of TERMS), `temperatures` [S] float64 of the softmax."""

    samples: list[Sample]
    kinds: NDArray[np.int64]
    weights: NDArray[np.float64]
    temperatures: NDArray[np.float64]

    @classmethod
    def of(cls, batch: Batch, objective: ObjectiveConfig, spec: StageSpec) -> Rows:
        """The rows of a global batch or of a rank's share, in the order of `batch.samples`."""
        found = list(_entries(batch, objective, spec))
        return cls(
            [sample for sample, _, _, _ in found],
            np.array([KINDS.index(kind) for _, kind, _, _ in found], np.int64),
            np.array([[weights.get(term, 0.0) for _, _, weights, _ in found] for term in TERMS]),
            np.array([temperature for _, _, _, temperature in found]),
        )


def _entries(batch: Batch, objective: ObjectiveConfig, spec: StageSpec) -> Iterator[_Entry]:
    counts = batch.counts
    has_kl = spec.trains_tokens(objective)
    is_spag = has_kl and objective.loss == "spag"
    num_averaged = counts.num_decided if is_spag else counts.num_turns
    if has_kl and objective.loss == "ppo-clip":
        num_averaged = counts.num_tokens
    for game in batch.games:
        for turn in game.turns:
            weight = game.weight / num_averaged
            of_turn = weight / (len(game.turns) if is_spag else 1) if has_kl else 0.0
            kl, bonus = of_turn * spec.kl_coeff, of_turn * objective.entropy_coeff
            yield turn, "turn", {"policy": weight, "kl": kl, "entropy_bonus": bonus}, spec.temperature
    for game in batch.games:
        for position in game.listening:
            if (claiming := position.claiming) is None:
                weight = spec.listening_coeff / (counts.num_listened * len(game.listening))
                yield position, "listening", {"listening": weight}, 1.0
            else:
                weight = objective.claiming_coeff * claiming.share / (counts.num_heard * len(game.listening))
                yield position, "claiming", {"claiming": weight}, claiming.temperature
    for game in batch.games:
        num_turns = Counter(places[0].role for places in game.unsaid)
        for place in itertools.chain(*game.unsaid):
            weight = objective.unsaid_coeff / (counts.num_unsaid[place.role] * num_turns[place.role])
            yield place, "unsaid", {"unsaid": weight}, 1.0
    for row in batch.sft:
        yield row, "sft", {"sft": objective.sft_coeff / counts.num_rows}, 1.0
