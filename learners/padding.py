"""Samples -> padded rows, one sample a row: what `packing: none` runs, for models that cannot read a tree.

>>> (rows,) = pad([Sample([1, 2], [3]), Sample([4], [5])], max_tokens=8)
>>> rows.token_ids.tolist(), rows.row_lengths, rows.sample_indices
([[4, 5, 0], [1, 2, 3]], (2, 3), (1, 0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from learners.packing import check_lengths, joined
from spag_ray.training_data.samples import Sample


@dataclass(frozen=True)
class PaddedRows:
    """One micro-batch: token_ids [rows, longest], padded with 0 on the right; `row_lengths` without the padding.

    sample_indices, lengths, targets: as in packing.TokenTree, by row. owners, predictors: [M], the row of each target
    and the position in it that predicts the target.
    """

    token_ids: Tensor
    row_lengths: tuple[int, ...]
    sample_indices: tuple[int, ...]
    lengths: tuple[int, ...]
    owners: Tensor
    predictors: Tensor
    targets: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.token_ids.numel()

    @property
    def num_flat_tokens(self) -> int:
        return sum(self.row_lengths)


def pad(samples: Sequence[Sample], max_tokens: int) -> list[PaddedRows]:
    """Rows of similar length together, at most `max_tokens` with their padding.

    Raises LearnerError for a sample longer than `max_tokens`, or without a prompt.
    """
    check_lengths(samples, max_tokens)
    order = sorted(range(len(samples)), key=lambda index: (samples[index].num_tokens, index))
    groups: list[list[int]] = []
    for index in order:
        if not groups or (len(groups[-1]) + 1) * samples[index].num_tokens > max_tokens:
            groups.append([])
        groups[-1].append(index)
    return [_rows(samples, group) for group in groups]


def _rows(samples: Sequence[Sample], group: Sequence[int]) -> PaddedRows:
    rows = [samples[index] for index in group]
    row_lengths = tuple(row.num_tokens for row in rows)
    token_ids = np.zeros((len(rows), max(row_lengths)), np.int64)
    for of_row, row in zip(token_ids, rows, strict=True):
        of_row[: row.num_tokens] = np.concatenate([row.prompt_ids, row.target_ids])
    lengths = tuple(len(row.target_ids) for row in rows)
    return PaddedRows(
        token_ids=torch.from_numpy(token_ids),
        row_lengths=row_lengths,
        sample_indices=tuple(group),
        lengths=lengths,
        owners=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)),
        predictors=joined([np.arange(len(row.prompt_ids) - 1, row.num_tokens - 1) for row in rows]),
        targets=joined([row.target_ids for row in rows]),
    )
