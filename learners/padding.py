"""Samples -> padded rows, one sample a row: what `packing: none` runs, for models that cannot read a tree.

>>> from learners.packing import TokenSample
>>> (rows,) = pad([TokenSample([1, 2], [3]), TokenSample([4], [5])], max_tokens=8)
>>> rows.token_ids.tolist(), rows.lengths, rows.sample_indices
([[4, 5, 0], [1, 2, 3]], (2, 3), (1, 0))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learners.packing import TokenSample, check_lengths


@dataclass(frozen=True)
class PaddedRows:
    """One micro-batch: token_ids [rows, longest], padded with 0 on the right; `lengths` without the padding.

    sample_indices, predictors, targets: as in packing.TokenTree, by row; predictors are positions in the row.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    sample_indices: tuple[int, ...]
    predictors: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.token_ids.numel()

    @property
    def num_flat_tokens(self) -> int:
        return sum(self.lengths)

    @property
    def mask(self) -> Tensor:
        """[rows, longest] int64: 1 at tokens, 0 at padding."""
        columns = torch.arange(self.token_ids.shape[1])
        return (columns[None, :] < torch.tensor(self.lengths)[:, None]).long()


def pad(samples: Sequence[TokenSample], max_tokens: int) -> list[PaddedRows]:
    """Rows of similar length together, at most `max_tokens` with their padding.

    Raises LearnerError for a sample longer than `max_tokens`.
    """
    check_lengths([len(sample.token_ids) for sample in samples], max_tokens)
    order = sorted(range(len(samples)), key=lambda index: (len(samples[index].token_ids), index))
    groups: list[list[int]] = []
    for index in order:
        length = len(samples[index].token_ids)
        if not groups or (len(groups[-1]) + 1) * length > max_tokens:
            groups.append([])
        groups[-1].append(index)
    return [_rows(samples, group) for group in groups]


def _rows(samples: Sequence[TokenSample], group: Sequence[int]) -> PaddedRows:
    rows = [samples[index] for index in group]
    lengths = tuple(len(row.token_ids) for row in rows)
    token_ids = torch.zeros(len(rows), max(lengths), dtype=torch.int64)
    for row, sample in enumerate(rows):
        token_ids[row, : lengths[row]] = torch.tensor(sample.token_ids)
    return PaddedRows(
        token_ids=token_ids,
        lengths=lengths,
        sample_indices=tuple(group),
        predictors=tuple(
            torch.arange(len(row.prompt_ids) - 1, length - 1) for row, length in zip(rows, lengths, strict=True)
        ),
        targets=tuple(torch.tensor(row.target_ids) for row in rows),
    )
