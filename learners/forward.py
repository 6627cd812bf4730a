"""A micro-batch through a model: log-probabilities and entropies of the target tokens.

    logprobs, entropies = token_logprobs_and_entropies(model, tree, temperature=1.0)

`model` is a transformers causal LM with a TargetHead, or a DeepSpeed engine around one. A tree's head runs on the
predicting tokens alone. Log-probabilities are float32 (float64 of float64 models), at the temperature: one for all
samples, or one for each in the order of `sample_indices`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from learners.attention import plan_attention
from learners.head import Targets
from learners.objectives import at_least_float32
from learners.packing import PaddedRows, TokenTree

MicroBatch: TypeAlias = TokenTree | PaddedRows
Temperature: TypeAlias = float | Sequence[float]


def token_logprobs(model: Any, micro_batch: MicroBatch, temperature: Temperature = 1.0) -> Tensor:
    """[M] log-probabilities of the target tokens of the micro-batch's samples, one sample after the other."""
    if isinstance(micro_batch, TokenTree):
        return _tree(model, micro_batch, temperature, with_entropies=False)
    return _padded(model, micro_batch, temperature)[0]


def token_logprobs_and_entropies(
    model: Any, micro_batch: MicroBatch, temperature: Temperature = 1.0, trains_entropies: bool = False
) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and [M] the entropy in nats of each target token's distribution, with gradient if
    `trains_entropies`."""
    if isinstance(micro_batch, TokenTree):
        logprobs = _tree(model, micro_batch, temperature, with_entropies=True)
        entropies, model.target_head.entropies = model.target_head.entropies, None  # it holds the graph
        return logprobs, entropies if trains_entropies else entropies.detach()
    return _padded(model, micro_batch, temperature, trains_entropies)


def _tree(model: Any, tree: TokenTree, temperature: Temperature, with_entropies: bool) -> Tensor:
    device, dtype = model.device, model.dtype
    nodes, rows = tree.predictors.unique(return_inverse=True)
    of_rows = _of_targets(tree, temperature)
    if isinstance(of_rows, Tensor):  # a node has one row for each temperature at which it predicts
        pairs, rows = torch.stack([tree.predictors.double(), of_rows], dim=1).unique(dim=0, return_inverse=True)
        nodes, of_rows = pairs[:, 0].long(), pairs[:, 1]
    targets = Targets.of(rows, tree.targets, len(nodes))
    host = {
        "token_ids": tree.token_ids,
        "positions": tree.positions,
        "subtree_ends": tree.subtree_ends,
        "nodes": nodes,
        **dict(zip(Targets._fields, targets[:3], strict=False)),
    }
    if isinstance(of_rows, Tensor):
        host["temperatures"] = of_rows if dtype == torch.float64 else of_rows.float()
    sent = to_device(host, device)
    there = Targets(sent["rows"], sent["ids"], sent["places"], targets.counts)
    at = sent["temperatures"] if isinstance(of_rows, Tensor) else of_rows
    with model.target_head.asked_for(there, at, with_entropies):
        output = model(
            input_ids=sent["token_ids"][None],
            position_ids=sent["positions"][None],
            tree_attention=plan_attention(tree.parents, sent["subtree_ends"], device, dtype),
            use_cache=False,
            logits_to_keep=sent["nodes"],
        )
    return output.logits[0]


def _padded(
    model: Any, batch: PaddedRows, temperature: Temperature, trains_entropies: bool = False
) -> tuple[Tensor, Tensor]:
    of_targets = _of_targets(batch, temperature)
    host = {name: getattr(batch, name) for name in ("token_ids", "owners", "predictors", "targets")}
    if isinstance(of_targets, Tensor):
        host["temperatures"] = of_targets[:, None]
    sent = to_device(host, model.device)
    # No mask: the padding is on the right, where a causal model's tokens do not look.
    output = model(input_ids=sent["token_ids"], use_cache=False)
    logits = at_least_float32(output.logits[sent["owners"], sent["predictors"]])
    logits = logits / (sent["temperatures"].to(logits) if isinstance(of_targets, Tensor) else of_targets)
    normalised = logits.log_softmax(-1)
    with torch.set_grad_enabled(trains_entropies and torch.is_grad_enabled()):
        entropies = -torch.linalg.vecdot(normalised.exp(), normalised)
    return normalised.gather(1, sent["targets"][:, None])[:, 0], entropies


def _of_targets(micro_batch: MicroBatch, temperature: Temperature) -> float | Tensor:
    """The temperature of every target token, float64; one number if it is the same for all."""
    if isinstance(temperature, int | float):
        return float(temperature)
    if len(set(temperature)) == 1:
        return temperature[0]
    return torch.tensor(temperature, dtype=torch.float64).repeat_interleave(torch.tensor(micro_batch.lengths))


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same tensors on `device`, in one copy for each dtype: a GPU gets few large copies. On a CPU the very same.
    The copies run beside the host's work: their source is page-locked, and the allocator keeps it until they are done.
    """
    if device.type == "cpu":
        return dict(tensors)
    by_dtype: defaultdict[torch.dtype, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        by_dtype[tensor.dtype].append(name)
    found: dict[str, Tensor] = {}
    for names in by_dtype.values():
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        flat = flat.pin_memory() if device.type == "cuda" else flat
        parts = flat.to(device, non_blocking=True).split([tensors[name].numel() for name in names])
        found |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return found
