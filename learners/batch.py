"""The trained tokens of a micro-batch as the columns that its loss reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from learners.objectives import BETWEEN, DECIDING, WORD, TrainedTokens
from learners.staging import to_device
from spag_ray.errors import LearnerError
from spag_ray.training_data.terms import KINDS, Rows

_TURN = KINDS.index("turn")


def trained_tokens(
    rows: Rows, indices: Sequence[int], dtype: torch.dtype, device: torch.device, needs_old: bool
) -> TrainedTokens:
    """Those of the rows `indices`, in this order, in three copies to a GPU. Columns of numbers have `dtype`.

    Raises LearnerError with `needs_old` for a turn without old log-probabilities.
    """
    samples, kinds = [rows.samples[index] for index in indices], rows.kinds[list(indices)]
    lengths = np.array([len(sample.target_ids) for sample in samples])
    of_samples = [(sample.sampler_logprobs, sample.old_logprobs, sample.ref_logprobs) for sample in samples]
    is_known = np.array([[values is not None for values in three] for three in of_samples]).T
    if needs_old and not is_known[1, kinds == _TURN].all():
        raise LearnerError("a turn came to the learner without its old log-probabilities; score it first")
    logprobs = np.zeros((3, int(lengths.sum())), np.float32)
    parts = np.zeros(logprobs.shape[1], np.int64)
    start = 0
    for sample, three, length in zip(samples, of_samples, lengths.tolist(), strict=True):
        for row, values in zip(logprobs, three, strict=True):
            if values is not None:
                row[start : start + length] = values
        if (claiming := sample.claiming) is not None:
            deciding, opening = start + claiming.num_deciding, start + claiming.num_opening
            parts[start:deciding], parts[deciding:opening], parts[opening : start + length] = DECIDING, BETWEEN, WORD
        start += length
    sent = to_device(
        {
            "lengths": torch.from_numpy(lengths),
            "kinds": torch.from_numpy(np.repeat(kinds, lengths)),
            "shares": torch.from_numpy(np.repeat(1 / lengths, lengths)).to(dtype),
            "parts": torch.from_numpy(parts),
            "advantages": torch.tensor([sample.advantage for sample in samples], dtype=dtype),
            "weights": torch.from_numpy(rows.weights[:, list(indices)]).to(dtype),
            "logprobs": torch.from_numpy(logprobs).to(dtype),
            "is_known": torch.from_numpy(np.repeat(is_known, lengths, axis=1)),
        },
        device,
    )
    return TrainedTokens(**sent, held=frozenset(KINDS[kind] for kind in np.unique(kinds)))
