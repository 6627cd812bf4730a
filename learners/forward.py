"""A micro-batch through a model: log-probabilities and entropies of the target tokens.

    logprobs, entropies = token_logprobs_and_entropies(model, tree, temperature=1.0)

`model` is a transformers causal LM with a TargetHead, or a DeepSpeed engine around one. A tree's head runs on the
predicting tokens alone. Log-probabilities are float32 (float64 of float64 models), at the temperature: one for all
samples, or one for each in the order of `sample_indices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from learners.attention import plan_attention
from learners.packing import TokenTree
from learners.padding import PaddedRows

MicroBatch: TypeAlias = TokenTree | PaddedRows
Temperature: TypeAlias = float | Sequence[float]


def token_logprobs(model: Any, micro_batch: MicroBatch, temperature: Temperature = 1.0) -> list[Tensor]:
    """[len target] log-probabilities of each sample's target tokens, in the order of `sample_indices`."""
    if isinstance(micro_batch, TokenTree):
        logprobs = _tree(model, micro_batch, temperature, with_entropies=False)
    else:
        logprobs, _ = _padded(model, micro_batch, temperature)
    return list(logprobs.split([len(nodes) for nodes in micro_batch.targets]))


def token_logprobs_and_entropies(
    model: Any, micro_batch: MicroBatch, temperature: Temperature = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """`token_logprobs`, and the entropy in nats of each target token's distribution (without gradient)."""
    if isinstance(micro_batch, TokenTree):
        logprobs = _tree(model, micro_batch, temperature, with_entropies=True)
        entropies = model.target_head.entropies
    else:
        logprobs, entropies = _padded(model, micro_batch, temperature)
    lengths = [len(nodes) for nodes in micro_batch.targets]
    return list(logprobs.split(lengths)), list(entropies.split(lengths))


def _tree(model: Any, tree: TokenTree, temperature: Temperature, with_entropies: bool) -> Tensor:
    device, dtype = model.device, model.dtype
    nodes, rows = torch.cat(tree.predictors).unique(return_inverse=True)
    of_rows = _of_targets(tree, temperature)
    if isinstance(of_rows, Tensor):  # a node has one row for each temperature at which it predicts
        wanted = torch.stack([torch.cat(tree.predictors).double(), of_rows], dim=1)
        pairs, rows = wanted.unique(dim=0, return_inverse=True)
        nodes, of_rows = pairs[:, 0].long(), pairs[:, 1]
    with model.target_head.asked_for(rows, torch.cat(tree.targets), of_rows, with_entropies):
        output = model(
            input_ids=tree.token_ids.to(device)[None],
            position_ids=tree.positions.to(device)[None],
            tree_attention=plan_attention(tree.parents, tree.subtree_ends, device, dtype),
            use_cache=False,
            logits_to_keep=nodes.to(device),
        )
    return output.logits[0]


def _padded(model: Any, batch: PaddedRows, temperature: Temperature) -> tuple[Tensor, Tensor]:
    device = model.device
    output = model(input_ids=batch.token_ids.to(device), attention_mask=batch.mask.to(device), use_cache=False)
    owners = torch.repeat_interleave(torch.tensor([len(nodes) for nodes in batch.predictors])).to(device)
    logits = output.logits[owners, torch.cat(batch.predictors).to(device)]
    logits = logits if logits.dtype == torch.float64 else logits.float()
    of_rows = _of_targets(batch, temperature)
    logits = logits / (of_rows if isinstance(of_rows, float) else of_rows.to(logits)[:, None])
    normalised = logits.log_softmax(-1)
    with torch.no_grad():
        entropies = -torch.linalg.vecdot(normalised.exp(), normalised)
    targets = torch.cat(batch.targets).to(device)
    return normalised[torch.arange(len(targets), device=device), targets], entropies


def _of_targets(micro_batch: MicroBatch, temperature: Temperature) -> float | Tensor:
    """The temperature of every target token; one number if it is the same for all."""
    if isinstance(temperature, int | float):
        return float(temperature)
    if len(set(temperature)) == 1:
        return temperature[0]
    lengths = torch.tensor([len(nodes) for nodes in micro_batch.targets])
    return torch.tensor(temperature, dtype=torch.float64).repeat_interleave(lengths)
