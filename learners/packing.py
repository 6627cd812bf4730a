"""Samples -> packed token trees: a prefix that samples share is computed once, forward and backward.

The turns of a game repeat everything said before, so most tokens of a batch are copies. A tree holds each
distinct prefix once, in depth-first order; a token attends to its ancestors and itself, and its position is
its depth. Log-probabilities and gradients are those of the samples one at a time (a test holds it to 1e-9).

    >>> samples = [TokenSample([1, 2], [3]), TokenSample([1, 2, 3, 4], [5, 6]), TokenSample([9], [1])]
    >>> (tree,) = pack(samples, max_tokens=16)
    >>> tree.token_ids.tolist(), tree.positions.tolist(), tree.parents.tolist()
    ([1, 2, 3, 4, 5, 6, 9, 1], [0, 1, 2, 3, 4, 5, 0, 1], [-1, 0, 1, 2, 3, 4, -1, 6])
    >>> tree.num_tokens, tree.num_flat_tokens, [nodes.tolist() for nodes in tree.predictors]
    (8, 11, [[1], [3, 4], [6]])
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig

from spag_ray.errors import LearnerError

ALIBI_MODEL_TYPES = frozenset({"bloom", "mpt", "baichuan"})
MASKED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True)
class TokenSample:
    """What was read and what was said, as token ids. Raises LearnerError when either is empty."""

    prompt_ids: Sequence[int]
    target_ids: Sequence[int]

    def __post_init__(self) -> None:
        if not len(self.prompt_ids):
            raise LearnerError("a sample's prompt is empty: nothing predicts its first token; start it with BOS")
        if not len(self.target_ids):
            raise LearnerError("a sample has no target tokens: nothing is learned from it; leave it out")

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids, *self.target_ids)


@dataclass(frozen=True)
class TokenTree:
    """One micro-batch: a forest over the distinct prefixes of some samples, in depth-first order.

    token_ids, positions, parents, subtree_ends: [T] int64; position = depth, parent = -1 at a root, and the
    descendants of node i (itself included) are the nodes i .. subtree_ends[i] - 1.
    sample_indices: which of the packed samples these are. For each of them, in that order:
    targets: [len target] its target token ids; predictors: [len target] the nodes whose logits predict them.
    num_flat_tokens: tokens of these samples one by one; num_tokens / num_flat_tokens is what packing saves.
    """

    token_ids: Tensor
    positions: Tensor
    parents: Tensor
    subtree_ends: Tensor
    sample_indices: tuple[int, ...]
    predictors: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    num_flat_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def pack(samples: Sequence[TokenSample], max_tokens: int) -> list[TokenTree]:
    """Trees of at most `max_tokens` distinct tokens that hold every sample once, cut where least is shared.

    Sorted by their ids, samples of one game and seat are neighbours; what one shares with any earlier sample
    it shares with its neighbour. Raises LearnerError for a sample longer than `max_tokens`.
    """
    ids = [sample.token_ids for sample in samples]
    for index, tokens in enumerate(ids):
        if len(tokens) > max_tokens:
            raise LearnerError(
                f"sample {index} has {len(tokens)} tokens, a micro-batch holds {max_tokens}: raise "
                f"learner.max_tokens_per_microbatch to at least {len(tokens)}, or let turns be shorter"
            )
    order = sorted(range(len(ids)), key=ids.__getitem__)
    shared = [0, *(_shared_prefix(ids[left], ids[right]) for left, right in pairwise(order))]
    bins = _cheapest_bins([len(ids[index]) for index in order], shared, max_tokens)
    return [_build_tree(samples, ids, order[start:end], shared[start:end]) for start, end in bins]


def attention_mask(tree: TokenTree) -> Tensor:
    """[T, T] bool: may token i (row) look at token j (column)? Only at its ancestors and itself."""
    nodes = torch.arange(tree.num_tokens, device=tree.subtree_ends.device)
    return (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < tree.subtree_ends[None, :])


def token_logprobs(model: Callable, tree: TokenTree, temperature: float = 1.0) -> list[Tensor]:
    """[len target] log-probabilities of each sample's target tokens, in the order of `tree.sample_indices`.

    One call of `model`, a transformers causal LM that `check_packable` accepts, or a DeepSpeed engine around
    one; its head runs on the predicting nodes alone. float32 (float64 models stay float64), at `temperature`.
    """
    rows, logits = _predictor_logits(model, tree, temperature)
    return _target_logprobs(tree, rows, logits, logits.logsumexp(-1))


def token_logprobs_and_entropies(
    model: Callable, tree: TokenTree, temperature: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """`token_logprobs`, and the entropy in nats of each target token's distribution (without gradient)."""
    rows, logits = _predictor_logits(model, tree, temperature)
    normalisers = logits.logsumexp(-1)
    with torch.no_grad():  # row by row: a second [rows, vocabulary] would double the memory
        pairs = zip(logits, normalisers, strict=True)
        entropies = torch.stack([normaliser - ((row - normaliser).exp() * row).sum() for row, normaliser in pairs])
    split = entropies[rows].split([len(nodes) for nodes in tree.predictors])
    return _target_logprobs(tree, rows, logits, normalisers), list(split)


def check_packable(config: PreTrainedConfig, max_tokens: int) -> None:
    """Raises LearnerError when this model cannot read a tree of `max_tokens` exactly, with the trait."""
    trait = _unpackable_trait(config, max_tokens)
    if trait:
        raise LearnerError(
            f"cannot pack samples into trees for {config.model_type!r}: {trait}; choose a model with plain "
            "attention and position ids (Llama, Qwen, Mistral, GPT-NeoX, SmolLM)"
        )


def _shared_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


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
    samples: Sequence[TokenSample],
    ids: Sequence[tuple[int, ...]],
    order: Sequence[int],
    shared: Sequence[int],
) -> TokenTree:
    token_ids: list[int] = []
    positions: list[int] = []
    parents: list[int] = []
    path: list[int] = []  # nodes of the sample added last, root first
    predictors, targets = [], []
    for rank, index in enumerate(order):
        tokens, prompt_length = ids[index], len(samples[index].prompt_ids)
        kept = shared[rank] if rank else 0
        path = path[:kept] + list(range(len(token_ids), len(token_ids) + len(tokens) - kept))
        token_ids += tokens[kept:]
        positions += range(kept, len(tokens))
        parents += [path[depth - 1] if depth else -1 for depth in range(kept, len(tokens))]
        predictors.append(torch.tensor(path[prompt_length - 1 : -1]))
        targets.append(torch.tensor(tokens[prompt_length:]))
    return TokenTree(
        token_ids=torch.tensor(token_ids),
        positions=torch.tensor(positions),
        parents=torch.tensor(parents),
        subtree_ends=torch.tensor(_subtree_ends(parents)),
        sample_indices=tuple(order),
        predictors=tuple(predictors),
        targets=tuple(targets),
        num_flat_tokens=sum(len(ids[index]) for index in order),
    )


def _subtree_ends(parents: Sequence[int]) -> list[int]:
    """Depth-first order: a node ends where its last child ends, and children come after it."""
    ends = [node + 1 for node in range(len(parents))]
    for node in range(len(parents) - 1, -1, -1):
        if parents[node] >= 0:
            ends[parents[node]] = max(ends[parents[node]], ends[node])
    return ends


def _predictor_logits(model: Any, tree: TokenTree, temperature: float) -> tuple[Tensor, Tensor]:
    """Every target token's row, and the logits [rows, vocabulary] of the distinct predicting nodes."""
    device = model.device
    nodes, rows = torch.cat(tree.predictors).unique(return_inverse=True)
    output = model(
        input_ids=tree.token_ids.to(device)[None],
        position_ids=tree.positions.to(device)[None],
        attention_mask=attention_mask(tree).to(device)[None, None],
        use_cache=False,
        logits_to_keep=nodes.to(device),
    )
    logits = output.logits[0]
    if logits.dtype != torch.float64:
        logits = logits.float()
    return rows.to(device), logits if temperature == 1.0 else logits / temperature


def _target_logprobs(tree: TokenTree, rows: Tensor, logits: Tensor, normalisers: Tensor) -> list[Tensor]:
    targets = torch.cat(tree.targets).to(logits.device)
    logprobs = logits[rows, targets] - normalisers[rows]
    return list(logprobs.split([len(nodes) for nodes in tree.targets]))


def _unpackable_trait(config: PreTrainedConfig, max_tokens: int) -> str | None:
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if model_class is None:
        return "transformers knows no causal language model of this type"
    if config.model_type in ALIBI_MODEL_TYPES or getattr(config, "alibi", False):
        return "its attention is biased by distance in the row (ALiBi), which is no distance in a tree"
    layer_types = set(getattr(config, "layer_types", None) or ())
    if model_class._is_stateful or layer_types - MASKED_LAYER_TYPES:
        return f"it has layers that take no attention mask ({', '.join(sorted(layer_types)) or 'recurrent'})"
    missing = {"position_ids", "logits_to_keep"} - inspect.signature(model_class.forward).parameters.keys()
    if missing:
        return f"its forward takes no {' and no '.join(sorted(missing))}"
    attention = config._attn_implementation or ("sdpa" if model_class._supports_sdpa else "eager")
    if attention != "sdpa":
        return f"a tree mask needs the attention implementation 'sdpa', this is {attention!r}"
    window = getattr(config, "sliding_window", None)
    if window and window < max_tokens:
        return f"its sliding window of {window} tokens is below max_tokens_per_microbatch ({max_tokens})"
    return _length_dependent_rotation(config, max_tokens)


def _length_dependent_rotation(config: PreTrainedConfig, max_tokens: int) -> str | None:
    """`dynamic` and `longrope` turn all tokens by the longest sample among them, past the trained length."""
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
