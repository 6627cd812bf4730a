"""Samples -> micro-batches: packed token trees, in which a prefix that samples share is computed once, forward and
backward; or padded rows, one sample a row (`packing: none`), for models that cannot read a tree.

The turns of a game repeat everything said before, so most tokens of a batch are copies. A tree holds each
distinct prefix once, in depth-first order; a token attends to its ancestors and itself, and its position is
its depth. A sample's last token predicts nothing, so it is not read. Log-probabilities and gradients equal those
of the samples one at a time (a test checks it to 1e-9).

    >>> samples = [Sample([1, 2], [3]), Sample([1, 2, 3, 4], [5, 6]), Sample([9], [1])]
    >>> (tree,) = pack(samples, max_tokens=16)
    >>> tree.token_ids.tolist(), tree.positions.tolist(), tree.parents.tolist()
    ([1, 2, 3, 4, 5, 9], [0, 1, 2, 3, 4, 0], [-1, 0, 1, 2, 3, -1])
    >>> tree.num_tokens, tree.num_flat_tokens, tree.predictors.tolist(), tree.lengths
    (6, 8, [1, 3, 4, 5], (1, 2, 1))
    >>> (rows,) = pad([Sample([1, 2], [3]), Sample([4], [5])], max_tokens=8)
    >>> rows.token_ids.tolist(), rows.num_flat_tokens, rows.sample_indices
    ([[4, 5, 0], [1, 2, 3]], 5, (1, 0))
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.initialization import no_init_weights

from learners.attention import TREE, plan_of_no_values
from spag_ray.errors import LearnerError
from spag_ray.families.torch_free import has_alibi
from spag_ray.training_data.samples import Sample

Array: TypeAlias = NDArray[np.int32] | NDArray[np.int64]
RESCALED_LOGITS = ("logit_scale", "logits_scaling", "final_logit_softcapping", "lm_head_multiplier")
# FlexAttention's backward pass walks through all tokens that attend to a block of keys one after the other. Where every
# game of a micro-batch begins with the same words, the first block's walk alone takes a quarter of a step on an H200.
ROOT_TOKENS = 2048
REPEATED_SHARE = 1 / 16  # of a tree's tokens, at most, that repeat an opening
MASKED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True)
class _MicroBatch:
    """Some samples as a model reads them, int64.

    sample_indices: which of the given samples these are. Their M target tokens in that order, `lengths` of each:
    targets: [M] token ids; predictors: [M], the places whose logits predict them.
    num_flat_tokens: tokens read of these samples one by one; num_tokens / num_flat_tokens is what packing saves.
    """

    token_ids: Tensor
    sample_indices: tuple[int, ...]
    lengths: tuple[int, ...]
    predictors: Tensor
    targets: Tensor
    num_flat_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return self.token_ids.numel()


@dataclass(frozen=True)
class TokenTree(_MicroBatch):
    """A forest over the distinct prefixes of its samples, in depth-first order.

    token_ids, positions, parents, subtree_ends: [T]; position = depth, parent = -1 at a root, and the
    descendants of node i (itself included) are the nodes i .. subtree_ends[i] - 1. predictors: nodes.
    """

    positions: Tensor
    parents: Tensor
    subtree_ends: Tensor


@dataclass(frozen=True)
class PaddedRows(_MicroBatch):
    """token_ids [rows, longest], padded with 0 on the right, a sample each. owners, predictors: [M], the row of each
    target and the position in it that predicts the target."""

    owners: Tensor


def pack(samples: Sequence[Sample], max_tokens: int, root_tokens: int | None = None) -> list[TokenTree]:
    """Trees of at most `max_tokens` distinct tokens that hold every sample once, cut where least is shared.

    Sorted by their ids, samples of one game and seat are neighbours; a prefix shared with any earlier sample is shared
    with the neighbour. With `root_tokens`, what many games share is repeated after about as many tokens, where a tree
    may hold twice as many.
    Raises LearnerError for a sample longer than `max_tokens`, or without a prompt.
    """
    check_lengths(samples, max_tokens)
    # A sample's last token predicts nothing, so it is not read.
    ids = [np.concatenate([sample.prompt_ids, sample.target_ids[:-1]]) for sample in samples]
    as_bytes = [each.astype(">i4").tobytes() for each in ids]  # they sort as the ids do
    order = sorted(range(len(ids)), key=as_bytes.__getitem__)
    shared = [0, *(_shared_prefix(ids[left], ids[right]) for left, right in pairwise(order))]
    lengths = [len(ids[index]) for index in order]
    if root_tokens is None or max_tokens < 2 * root_tokens:
        bins = _cheapest_bins(lengths, shared, max_tokens)
    else:
        room = max(*lengths, int(max_tokens * (1 - REPEATED_SHARE)), 1)
        bins = _cheapest_bins(lengths, shared, room)
        for start, end in bins:
            of_tree = [0, *shared[start + 1 : end]]
            shared[start:end] = _repeated_roots(lengths[start:end], of_tree, root_tokens, max_tokens)
    return [_build_tree(samples, ids, order[start:end], shared[start:end]) for start, end in bins]


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


def check_packable(config: PreTrainedConfig, max_tokens: int) -> None:
    """Raises LearnerError, with the reason, when this model cannot read a tree of `max_tokens` exactly."""
    trait = _unpackable_trait(config, max_tokens)
    if trait:
        raise LearnerError(
            f"cannot pack samples into trees for {config.model_type!r}: {trait}; set learner.packing: none, or choose "
            "a model with plain attention and rotary positions (Llama, Qwen, Mistral, GPT-NeoX, SmolLM)"
        )


def check_lengths(samples: Sequence[Sample], max_tokens: int) -> None:
    """Raises LearnerError for a sample of more than `max_tokens` tokens, or without a prompt."""
    for index, sample in enumerate(samples):
        if not len(sample.prompt_ids):
            raise LearnerError("a sample's prompt is empty: nothing predicts its first token; start it with BOS")
        if sample.num_tokens > max_tokens:
            raise LearnerError(
                f"sample {index} has {sample.num_tokens} tokens, a micro-batch holds {max_tokens}: raise "
                f"learner.max_tokens_per_microbatch to at least {sample.num_tokens}, or let turns be shorter"
            )


def _shared_prefix(left: Array, right: Array) -> int:
    shorter = min(len(left), len(right))
    differs = left[:shorter] != right[:shorter]
    return int(differs.argmax()) if differs.any() else shorter


def _repeated_roots(lengths: Sequence[int], shared: Sequence[int], root_tokens: int, max_tokens: int) -> list[int]:
    """`shared` of one tree, with 0 for a sample that begins at a root of its own: after at least `root_tokens` tokens,
    where what it repeats is at most a REPEATED_SHARE of them, and while the tree has at most `max_tokens`."""
    found, below = [], 0
    left = max_tokens - sum(lengths) + sum(shared)
    for length, here in zip(lengths, shared, strict=True):
        begins = below >= max(root_tokens, here / REPEATED_SHARE) and here <= left
        kept = 0 if begins else here
        left -= here - kept
        below = length if kept == 0 else below + length - kept
        found.append(kept)
    return found


def _cheapest_bins(lengths: Sequence[int], shared: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """Bins [start, end) of consecutive samples: fewest distinct tokens in all, then fewest bins.

    A sample adds length - shared tokens to its bin, all of its length as the first of it. best[n] is the
    cheapest (tokens, bins) of the first n samples, begun[n] where the last bin of that begins.
    """
    best: list[tuple[int, int]] = [(0, 0)]
    begun = [0]
    for end in range(1, len(lengths) + 1):
        options = []
        grown = 0
        for start in range(end - 1, -1, -1):
            if grown + lengths[start] <= max_tokens:
                tokens, bins = best[start]
                options.append((tokens + grown + lengths[start], bins + 1, start))
            grown += lengths[start] - shared[start]
            if grown > max_tokens:
                break
        tokens, bins, start = min(options)
        best.append((tokens, bins))
        begun.append(start)
    cuts: list[tuple[int, int]] = []
    end = len(lengths)
    while end > 0:
        cuts.append((begun[end], end))
        end = begun[end]
    return cuts[::-1]


def _build_tree(
    samples: Sequence[Sample], ids: Sequence[Array], order: Sequence[int], shared: Sequence[int]
) -> TokenTree:
    token_ids, positions, parents, predictors = [], [], [], []
    ends = np.zeros(sum(len(ids[index]) for index in order), np.int64)
    num_nodes = 0
    path = np.zeros(0, np.int64)  # nodes of the sample added last, root first
    for rank, index in enumerate(order):
        tokens = ids[index]
        kept = shared[rank] if rank else 0
        ends[path[kept:]] = num_nodes  # nothing more comes below them
        new = np.arange(num_nodes, num_nodes + len(tokens) - kept)
        above = path[kept - 1] if kept else -1
        path = np.concatenate([path[:kept], new])
        num_nodes += len(new)
        token_ids.append(tokens[kept:])
        positions.append(np.arange(kept, len(tokens)))
        parents.append(np.concatenate([[above], new])[: len(new)])
        predictors.append(path[len(samples[index].prompt_ids) - 1 :])
    ends[path] = num_nodes
    return TokenTree(
        token_ids=_joined(token_ids),
        positions=_joined(positions),
        parents=_joined(parents),
        subtree_ends=torch.from_numpy(ends[:num_nodes]),
        sample_indices=tuple(order),
        lengths=tuple(len(each) for each in predictors),
        predictors=_joined(predictors),
        targets=_joined([samples[index].target_ids for index in order]),
        num_flat_tokens=sum(len(ids[index]) for index in order),
    )


def _rows(samples: Sequence[Sample], group: Sequence[int]) -> PaddedRows:
    rows = [samples[index] for index in group]
    token_ids = np.zeros((len(rows), max(row.num_tokens for row in rows)), np.int64)
    for of_row, row in zip(token_ids, rows, strict=True):
        of_row[: row.num_tokens] = np.concatenate([row.prompt_ids, row.target_ids])
    lengths = tuple(len(row.target_ids) for row in rows)
    return PaddedRows(
        token_ids=torch.from_numpy(token_ids),
        sample_indices=tuple(group),
        lengths=lengths,
        owners=torch.from_numpy(np.repeat(np.arange(len(rows)), lengths)),
        predictors=_joined([np.arange(len(row.prompt_ids) - 1, row.num_tokens - 1) for row in rows]),
        targets=_joined([row.target_ids for row in rows]),
        num_flat_tokens=sum(row.num_tokens for row in rows),
    )


def _joined(parts: Sequence[Any]) -> Tensor:
    """Arrays of integers, one after the other, as int64."""
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _unpackable_trait(config: PreTrainedConfig, max_tokens: int) -> str | None:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        return "transformers knows no causal language model of this type"
    if has_alibi(config):
        return "its attention is biased by distance in the row (ALiBi), which differs from the distance in a tree"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if model_class._is_stateful or layer_types - MASKED_LAYER_TYPES:
        return f"it has layers that take no attention mask ({', '.join(sorted(layer_types)) or 'recurrent'})"
    missing = {"position_ids", "logits_to_keep"} - inspect.signature(model_class.forward).parameters.keys()
    if missing:
        return f"its forward takes no {' and no '.join(sorted(missing))}"
    if not model_class._supports_attention_backend:
        return "its attention in transformers cannot be replaced by another implementation"
    if getattr(config, "attn_logit_softcapping", None) or config.model_type == "gpt_oss":
        return "its attention scores are capped or share a sink, which the tree attention does not compute"
    if any(getattr(config, name, None) for name in RESCALED_LOGITS):
        return "its logits are scaled or capped after the head, which the log-probabilities of a tree do not go through"
    if getattr(config, "attention_dropout", 0.0):
        return f"attention_dropout is {config.attention_dropout}; set it to 0 in the model's config.json"
    window = getattr(config, "sliding_window", None)
    if window and window < max_tokens:
        return f"its sliding window of {window} tokens is below max_tokens_per_microbatch ({max_tokens})"
    return _length_dependent_rotation(config, max_tokens) or _unfit_attention(model_class, config)


def _unfit_attention(model_class: Any, config: PreTrainedConfig) -> str | None:
    """What the attention over a tree says of a forward pass of this model without weights. None also where there can be
    no such pass, because the model looks at values."""
    three, two = (torch.zeros(1, num_tokens, dtype=torch.int64, device="meta") for num_tokens in (3, 2))
    plan = plan_of_no_values()
    try:
        with torch.device("meta"), no_init_weights():
            model = model_class._from_config(copy.deepcopy(config), attn_implementation=TREE, dtype=torch.bfloat16)
        with torch.no_grad():
            model.eval()(input_ids=three, position_ids=three, tree_attention=plan, logits_to_keep=two[0])
    except LearnerError as error:
        return str(error)
    except Exception:  # whatever a family's code raises on the meta device
        return None
    return None


def _length_dependent_rotation(config: PreTrainedConfig, max_tokens: int) -> str | None:
    """Beyond the trained length, `dynamic` and `longrope` rotate all tokens by the length of the longest sample."""
    rotation = getattr(config, "rope_parameters", None) or {}
    if rotation.get("rope_type") not in ("dynamic", "longrope"):
        return None
    trained = rotation.get("original_max_position_embeddings") or config.max_position_embeddings
    if max_tokens <= trained:
        return None
    return (
        f"its {rotation['rope_type']} positions depend on the longest sample past {trained} tokens, "
        f"max_tokens_per_microbatch is {max_tokens}"
    )
