"""Token trees against padded rows, by the length of a tree: where `learner.packing: trees` is the faster."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from cluster.gpu_check.check import SHAPES, Finding, Told, seconds
from cluster.gpu_check.learner_checks import games_of, speeds

LENGTHS = (512, 1024, 2048, 4096, 8192)
# Candidates for learners.attention.FLEX_BLOCK_TOKENS.
BLOCK_TOKENS = (128, 256)
# Tokens that all games of `games_of` share, and those that each adds to a tree.
OPENING, A_GAME = 60, 168


def layouts(told: Told) -> Finding:
    """Milliseconds forward and backward, for the same games in both layouts: of the attention alone (4 heads of 64) and
    of one whole layer of the shape, which also computes the tokens that padded rows repeat. A tree needs a mask too,
    once for all layers. There is no wrong result: the figures decide how `learner.packing` should be set."""
    from learners import attention

    figures: dict[str, float] = {}
    told_lines, faster_from = [], None
    default = attention.FLEX_BLOCK_TOKENS
    for length in LENGTHS if told.on_gpu else (250, 500):
        samples = list(itertools.chain(*games_of(-(-(length - OPENING) // A_GAME), 512)))
        for block_tokens in BLOCK_TOKENS if told.on_gpu else (default,):
            try:
                attention.FLEX_BLOCK_TOKENS = block_tokens
                found = _times(told, samples)
            finally:
                attention.FLEX_BLOCK_TOKENS = default
            of_blocks = "" if block_tokens == default else f"_blocks_{block_tokens}"
            figures |= {f"{name}_{length}{of_blocks}": value for name, value in found.items()}
            if block_tokens == default:
                tree_ms = found["tree_layer_ms"] + found["mask_ms"] / SHAPES[told.shape]["num_hidden_layers"]
                faster = tree_ms < found["padded_layer_ms"]
                faster_from = (faster_from or length) if faster else None
                told_lines.append(f"{length}: {tree_ms:.2f} / {found['padded_layer_ms']:.2f}")
    verdict = "nowhere" if faster_from is None else f"from {faster_from} tokens"
    text = f"ms of a layer, tree / padded rows: {', '.join(told_lines)}; trees are faster {verdict}"
    return Finding(True, text, figures | {"faster_from_tokens": float(faster_from or 0)})


def _times(told: Told, samples: list[Any]) -> dict[str, float]:
    from transformers import AutoConfig, AutoModel

    from learners.attention import TREE, plan_attention
    from learners.packing import pack, pad

    [tree] = pack(samples, max_tokens=100_000)
    rows = pad(samples, tree.num_tokens)  # micro-batches of as many tokens as the tree
    device = torch.device(told.device)
    shape = SHAPES[told.shape] | {"num_hidden_layers": 1, "vocab_size": 512}

    def layer(implementation: str) -> Any:
        config = AutoConfig.for_model(**shape)
        return AutoModel.from_config(config, dtype=torch.bfloat16, attn_implementation=implementation).to(device)

    def plan() -> Any:
        return plan_attention(tree.parents, tree.subtree_ends, device, torch.bfloat16)

    in_trees, padded, planned = layer(TREE), layer("sdpa"), plan()
    token_ids, positions = tree.token_ids.to(device)[None], tree.positions.to(device)[None]
    padded_ids = [each.token_ids.to(device) for each in rows]

    def of_tree() -> None:
        out = in_trees(input_ids=token_ids, position_ids=positions, tree_attention=planned, use_cache=False)
        out.last_hidden_state.sum().backward()

    def of_rows() -> None:
        for ids in padded_ids:
            padded(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()

    tree_ms, padded_ms = speeds(tree, samples, told.device)
    return {
        "tree_tokens": float(tree.num_tokens),
        "padded_tokens": float(sum(each.num_tokens for each in rows)),
        "tree_ms": tree_ms,
        "padded_ms": padded_ms,
        "tree_layer_ms": 1000 * seconds(of_tree, told.device),
        "padded_layer_ms": 1000 * seconds(of_rows, told.device),
        "mask_ms": 1000 * seconds(plan, told.device),
    }
