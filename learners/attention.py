"""Attention over a token tree, computed only for keys that a query attends to.

A dense mask over a tree of many games costs more than the sharing saves: every token is multiplied with every
other, then masked. In depth-first order, a run of consecutive nodes attends only to the path to its first node and
to the run itself. So queries are cut into blocks, and each block gets only its own keys. The cost of attention then
grows with the number of games, not with its square.

    plan = plan_attention(tree.parents, tree.subtree_ends, device, dtype)
    model(input_ids=..., position_ids=..., tree_attention=plan)        a model loaded with attn_implementation=TREE

On a GPU the same mask is a FlexAttention block mask, which skips empty blocks by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig

from spag_ray.errors import LearnerError

TREE = "token_tree"
# Smaller blocks read fewer masked keys, larger ones call the kernel less often; 256 was fastest on the CPUs measured.
BLOCK_TOKENS = 256
# Queries and keys of one block of a GPU's mask. Triton's tiles of 128 have to divide it, so smaller ones are refused;
# gpu-check ("attention layouts") measures larger ones.
FLEX_BLOCK_TOKENS = 128


@dataclass(frozen=True)
class QueryBlocks:
    """Queries in blocks of `block_sizes` tokens, in order. `keys`: the nodes that each block attends to, concatenated,
    `num_keys` of each; `masks`: [block size, its keys] each, 0 where a query sees a key and -inf elsewhere."""

    block_sizes: tuple[int, ...]
    keys: Tensor
    num_keys: tuple[int, ...]
    masks: tuple[Tensor, ...]


@dataclass(frozen=True)
class TreeAttention:
    """How one tree attends: QueryBlocks on a CPU, FlexAttention's BlockMask on a GPU."""

    query_blocks: QueryBlocks | None = None
    block_mask: Any = None


def ancestor_mask(subtree_ends: Tensor) -> Tensor:
    """[T, T] bool: may token i (row) attend to token j (column)? Only to its ancestors and itself."""
    nodes = torch.arange(len(subtree_ends), device=subtree_ends.device)
    return (nodes[None, :] <= nodes[:, None]) & (nodes[:, None] < subtree_ends[None, :])


def plan_attention(parents: Tensor, subtree_ends: Tensor, device: torch.device, dtype: torch.dtype) -> TreeAttention:
    """The plan of a tree for a model of `dtype` on `device`. parents, subtree_ends: [T], see packing.TokenTree."""
    if device.type == "cpu":
        return TreeAttention(query_blocks=query_blocks(parents, subtree_ends, dtype))
    return TreeAttention(block_mask=flex_block_mask(subtree_ends.to(device)))


def plan_of_no_values() -> TreeAttention:
    """The plan of a root and its two children for a model without weights, on torch's meta device."""
    plan = query_blocks(torch.tensor([-1, 0, 0]), torch.tensor([3, 2, 3]), torch.bfloat16)
    masks = tuple(mask.to("meta") for mask in plan.masks)
    return TreeAttention(query_blocks=replace(plan, keys=plan.keys.to("meta"), masks=masks))


def query_blocks(
    parents: Tensor, subtree_ends: Tensor, dtype: torch.dtype, block_tokens: int = BLOCK_TOKENS
) -> QueryBlocks:
    """Blocks that hold every query once, each with all keys that its queries may attend to."""
    above = parents.tolist()
    sizes, keys, masks = [], [], []
    for start in range(0, len(above), block_tokens):
        end = min(start + block_tokens, len(above))
        path = []  # nodes before `start` that the block attends to are all on the path to `start`
        node = above[start]
        while node >= 0:
            path.append(node)
            node = above[node]
        seen = torch.tensor([*reversed(path), *range(start, end)])
        queries = torch.arange(start, end)[:, None]
        hidden = (seen[None, :] > queries) | (queries >= subtree_ends[seen][None, :])
        sizes.append(end - start)
        keys.append(seen)
        masks.append(torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf))
    return QueryBlocks(tuple(sizes), torch.cat(keys), tuple(len(seen) for seen in keys), tuple(masks))


def flex_block_mask(subtree_ends: Tensor) -> Any:
    """`ancestor_mask` as FlexAttention's BlockMask; it can be made on any device but is faster only on a GPU."""
    return (_compiled_block_mask() if subtree_ends.is_cuda else _block_mask)(subtree_ends)


def _block_mask(subtree_ends: Tensor) -> Any:
    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < subtree_ends[key])

    num_tokens, device = len(subtree_ends), str(subtree_ends.device)
    # A global number is a constant of the compiled graph; an argument would become a variable size.
    return create_block_mask(sees, None, None, num_tokens, num_tokens, device=device, BLOCK_SIZE=FLEX_BLOCK_TOKENS)


@cache
def _compiled_block_mask() -> Any:
    # Uncompiled, every micro-batch would write the whole [T, T] mask several times. Two graphs are enough for all
    # lengths: one block or several.
    return torch.compile(_block_mask, dynamic=True, fullgraph=True)


def tree_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    tree_attention: TreeAttention | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    query [1, heads, T, d], key and value [1, key heads, T, d] -> [1, T, heads, d].

    Raises LearnerError for a model that asks for more than a tree's attention computes (packing.check_packable).
    """
    if tree_attention is None:
        raise LearnerError("its forward keeps the tree's plan from its attention")
    if attention_mask is not None:
        raise LearnerError("it computes attention masks of its own")
    if softcap is not None or s_aux is not None:
        raise LearnerError("its attention scores are capped or share a sink, which the tree attention does not compute")
    assert not dropout, "packing.check_packable refuses such models"
    groups = query.shape[1] // key.shape[1]
    if tree_attention.query_blocks is None:
        # Inside a compiled layer (engine.compile_layers) it is compiled with the layer.
        is_alone = query.is_cuda and not torch.compiler.is_compiling()
        attend = _compiled_flex_attention() if is_alone else flex_attention
        out = attend(query, key, value, block_mask=tree_attention.block_mask, scale=scaling, enable_gqa=groups > 1)
        return out.transpose(1, 2).contiguous(), None
    return _in_query_blocks(query, key, value, tree_attention.query_blocks, scaling), None


@torch.compiler.disable  # every tree has other blocks, and would be compiled again
def _in_query_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: QueryBlocks, scaling: float | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    # Query heads that share a key head are rows of one product: fewer and larger ones, and no copies of the keys.
    queries = query.unflatten(1, (-1, groups)).split(blocks.block_sizes, 3)
    keys, values = (states.index_select(2, blocks.keys).split(blocks.num_keys, 2) for states in (key, value))
    outs = [
        scaled_dot_product_attention(
            some.flatten(2, 3), seen, states, attn_mask=mask.repeat(groups, 1), scale=scaling
        ).unflatten(2, (groups, -1))
        for some, seen, states, mask in zip(queries, keys, values, blocks.masks, strict=True)
    ]
    return torch.cat(outs, 3).flatten(1, 2).transpose(1, 2).contiguous()


@cache
def _compiled_flex_attention() -> Any:
    # Four graphs are enough for all lengths: one block or several, with and without gradient. With `fullgraph`, a
    # length that needs more graphs than Dynamo's limit is an error, not an uncompiled run with many times the memory.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def check_compiles(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Compile a GPU's attention for a model of this shape, forward and backward, before any work is done.

    Raises LearnerError if this machine cannot compile it.
    """
    num_heads = config.num_attention_heads
    num_key_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    num_tokens = 256
    query, key, value = (
        torch.zeros(1, heads, num_tokens, head_dim, dtype=dtype, device=device, requires_grad=True)
        for heads in (num_heads, num_key_heads, num_key_heads)
    )
    try:
        mask = flex_block_mask(torch.full((num_tokens,), num_tokens, device=device))
        out = _compiled_flex_attention()(query, key, value, block_mask=mask, enable_gqa=num_heads > num_key_heads)
        out.sum().backward()
    except (RuntimeError, ImportError, OSError, ValueError) as error:
        raise LearnerError(
            "attention over token trees (FlexAttention) cannot be compiled here; set learner.packing: none, or fix it: "
            f"{str(error).strip().splitlines()[0]}"
        ) from error


AttentionInterface.register(TREE, tree_attention_forward)
