"""A packed tree gives the log-probabilities and gradients of its samples one at a time, within its budget."""

import copy
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BloomConfig,
    CohereConfig,
    DogeConfig,
    FalconConfig,
    Gemma2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    NemotronConfig,
    Qwen2Config,
    Qwen3Config,
)

from learners.attention import TREE, TreeAttention, ancestor_mask, flex_block_mask, query_blocks, tree_attention_forward
from learners.forward import MicroBatch, token_logprobs, token_logprobs_and_entropies
from learners.head import TargetHead
from learners.packing import TokenTree, check_packable, pack, pad
from spag_ray.errors import InputError, LearnerError
from spag_ray.families.alibi_llama import AlibiLlamaConfig
from spag_ray.families.auto import AutoModelForCausalLM
from spag_ray.training_data.samples import Sample

torch.set_num_threads(1)

TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "initializer_range": 0.3,
}  # fmt: skip
LONG_ROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 512,
    "short_factor": [1.0] * 64, "long_factor": [2.0] * 64,
}  # fmt: skip
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


def tiny_model(config: Any) -> torch.nn.Module:
    """Random weights, float64 throughout: transformers' RMSNorm computes in float32, torch's does not."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
            model.set_submodule(name, norm)
    return model


def reading_trees(model: torch.nn.Module, dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    """A copy of the model as a learner loads it."""
    tree_model = copy.deepcopy(model).to(dtype)
    tree_model.set_attn_implementation(TREE)
    TargetHead.install(tree_model)
    return tree_model


LLAMA = tiny_model(LlamaConfig(**TINY))
LLAMA_TREES = reading_trees(LLAMA)

token_runs = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@st.composite
def games_of_samples(draw: st.DrawFn) -> list[Sample]:
    """Samples that extend a few shared prefixes, repeat each other, and start anew, in any order."""
    prefixes = draw(st.lists(token_runs, min_size=1, max_size=3))
    samples = [
        Sample([*draw(st.sampled_from(prefixes)), *draw(token_runs)], draw(token_runs))
        for _ in range(draw(st.integers(1, 6)))
    ]
    continued = [Sample([*tokens(s), *draw(token_runs)], draw(token_runs)) for s in samples[:2]]
    repeated = [Sample(s.prompt_ids, s.target_ids) for s in samples[:1]]
    return draw(st.permutations(samples + continued + repeated))


def tokens(sample: Sample) -> list[int]:
    return [*sample.prompt_ids, *sample.target_ids]


def by_sample(micro_batch: MicroBatch, values: torch.Tensor) -> dict[int, torch.Tensor]:
    """{sample: its part of the values}"""
    return dict(zip(micro_batch.sample_indices, values.split(micro_batch.lengths), strict=True))


def logprobs_one_at_a_time(model: Any, sample: Sample, temperature: float) -> torch.Tensor:
    ids, start = torch.tensor([tokens(sample)]), len(sample.prompt_ids)
    logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
    return logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), materialize_grads=True))


def assert_packed_equals_flat(
    model: torch.nn.Module,
    samples: Sequence[Sample],
    max_tokens: int,
    temperature: float | list[float] = 1.0,
    tree_model: torch.nn.Module | None = None,
    root_tokens: int | None = None,
) -> None:
    """`temperature`: one for all samples, or one for each."""
    tree_model = tree_model or reading_trees(model)
    weights = [torch.linspace(0.5, 2.0, len(sample.target_ids), dtype=torch.float64) for sample in samples]
    of_each = temperature if isinstance(temperature, list) else [temperature] * len(samples)
    flat = [logprobs_one_at_a_time(model, sample, of_each[index]) for index, sample in enumerate(samples)]
    packed: dict[int, torch.Tensor] = {}
    for tree in pack(samples, max_tokens, root_tokens):
        here = [of_each[index] for index in tree.sample_indices] if isinstance(temperature, list) else temperature
        packed |= by_sample(tree, token_logprobs(tree_model, tree, here))
    for index in range(len(samples)):
        torch.testing.assert_close(packed[index], flat[index], rtol=0, atol=1e-9)
    expected = gradients(model, sum((w * x).sum() for w, x in zip(weights, flat, strict=True)))
    found = gradients(tree_model, sum((weights[i] * x).sum() for i, x in packed.items()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(
    samples=games_of_samples(),
    max_tokens=st.integers(30, 70),
    temperature=st.sampled_from([1.0, 1.2]),
    root_tokens=st.sampled_from([None, 0, 8]),
)
def test_packed_logprobs_and_gradients_are_those_of_one_sample_at_a_time(
    samples: list[Sample], max_tokens: int, temperature: float, root_tokens: int | None
) -> None:
    assert_packed_equals_flat(LLAMA, samples, max_tokens, temperature, LLAMA_TREES, root_tokens)


@settings(max_examples=25)
@given(samples=games_of_samples(), max_tokens=st.integers(30, 70), data=st.data())
def test_each_sample_can_have_a_temperature_of_its_own_also_where_it_shares_a_prefix(
    samples: list[Sample], max_tokens: int, data: st.DataObject
) -> None:
    temperatures = [data.draw(st.sampled_from([1.0, 1.2, 0.5])) for _ in samples]
    assert_packed_equals_flat(LLAMA, samples, max_tokens, temperatures, LLAMA_TREES)


@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**TINY),
        Qwen3Config(**TINY, head_dim=8),
        GPTNeoXConfig(**{k: v for k, v in TINY.items() if k != "num_key_value_heads"}),
    ],
    ids=lambda config: config.model_type,
)
def test_other_families_read_a_tree_exactly_too(config: Any) -> None:
    check_packable(config, max_tokens=64)
    samples = [
        Sample([1, 2, 3], [4, 5]),
        Sample([1, 2, 3, 4, 5, 6], [7]),
        Sample([1, 2, 3], [8, 9, 9]),
        Sample([5], [1, 2]),
    ]
    assert_packed_equals_flat(tiny_model(config), samples, max_tokens=64)


@given(samples=games_of_samples(), max_tokens=st.integers(30, 70))
def test_no_tree_is_over_budget_and_every_sample_is_in_one(samples: list[Sample], max_tokens: int) -> None:
    trees = pack(samples, max_tokens)
    assert all(tree.num_tokens <= max_tokens for tree in trees)
    assert sorted(i for tree in trees for i in tree.sample_indices) == list(range(len(samples)))
    assert sum(tree.num_flat_tokens for tree in trees) == sum(s.num_tokens - 1 for s in samples)
    for tree in trees:
        targets = by_sample(tree, tree.targets)
        for index, nodes in by_sample(tree, tree.predictors).items():
            assert targets[index].tolist() == list(samples[index].target_ids)
            assert path_tokens(tree, nodes[-1].item()) == tokens(samples[index])[:-1]
            assert tree.positions[nodes[0]] == len(samples[index].prompt_ids) - 1


@given(samples=games_of_samples(), max_tokens=st.integers(30, 70))
def test_a_tree_holds_each_distinct_prefix_once_and_sees_only_ancestors(samples: list[Sample], max_tokens: int) -> None:
    for tree in pack(samples, max_tokens):
        read = [tuple(tokens(samples[i])[:-1]) for i in tree.sample_indices]
        assert tree.num_tokens == len({ids[: n + 1] for ids in read for n in range(len(ids))})
        mask = ancestor_mask(tree.subtree_ends)
        for node in range(tree.num_tokens):
            assert mask[node].nonzero().flatten().tolist() == path_nodes(tree, node)


def path_nodes(tree: TokenTree, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node].item()
    return path[::-1]


def path_tokens(tree: TokenTree, node: int) -> list[int]:
    found: list[int] = tree.token_ids[path_nodes(tree, node)].tolist()
    return found


def test_the_samples_of_a_game_stay_together_when_both_games_do_not_fit() -> None:
    rules = [0] * 4
    game_a = [Sample([*rules, *[1] * 3 * t], [1, 1, 1]) for t in range(1, 4)]
    game_b = [Sample([*rules, *[2] * 3 * t], [2, 2, 2]) for t in range(1, 4)]
    trees = pack([s for pair in zip(game_a, game_b, strict=True) for s in pair], max_tokens=20)
    assert [set(tree.sample_indices) for tree in trees] == [{0, 2, 4}, {1, 3, 5}]
    assert [tree.num_tokens for tree in trees] == [15, 15]


def games_with_an_opening(num_games: int, opening: int, turns: int, turn: int) -> list[Sample]:
    """All begin with the same `opening` tokens; each adds `turns` of `turn` tokens, and each of them is trained."""
    return [
        Sample([1] * opening + [2 + game] * (number * turn), [2 + game] * turn)
        for game in range(num_games)
        for number in range(turns)
    ]


def test_an_opening_of_many_games_is_repeated_and_no_game_is_cut() -> None:
    samples = games_with_an_opening(20, opening=4, turns=4, turn=8)
    [once] = pack(samples, max_tokens=1000)
    [several] = pack(samples, max_tokens=1000, root_tokens=100)
    roots = (several.parents == -1).nonzero().flatten().tolist()
    assert (once.parents == -1).sum() == 1
    assert len(roots) == 5  # at every fourth game: 4 of 31 tokens, and the opening
    below = [end - start for start, end in pairwise([*roots, several.num_tokens])]
    assert max(below) < 100 + 32
    assert several.num_tokens == once.num_tokens + 4 * 4
    read = [set(ids.tolist()) - {1} for ids in several.token_ids.split(below)]
    assert sum(len(games) for games in read) == len(set().union(*read)) == 20  # no game is in two of them


def test_an_opening_that_costs_more_than_a_sixteenth_is_repeated_later() -> None:
    samples = games_with_an_opening(20, opening=10, turns=4, turn=8)
    [several] = pack(samples, max_tokens=1000, root_tokens=100)
    roots = (several.parents == -1).nonzero().flatten().tolist()
    below = [end - start for start, end in pairwise([*roots, several.num_tokens])]
    assert len(roots) > 1
    assert min(below[:-1]) >= 160


@pytest.mark.parametrize(("max_tokens", "root_tokens"), [(800, 100), (400, 100), (150, 100)])
def test_repeated_openings_take_no_more_trees_and_stay_within_the_budget(max_tokens: int, root_tokens: int) -> None:
    samples = games_with_an_opening(60, opening=4, turns=4, turn=8)
    once, several = pack(samples, max_tokens), pack(samples, max_tokens, root_tokens)
    assert len(several) <= len(once) + 1
    assert all(tree.num_tokens <= max_tokens for tree in several)
    roots = [int((tree.parents == -1).sum()) for tree in several]
    assert (max(roots) > 1) == (max_tokens >= 2 * root_tokens)


def test_a_tree_may_fill_its_budget_to_the_last_token() -> None:
    samples = [Sample([1, 2], [3, 9]), Sample([1, 2], [4, 9]), Sample([1], [9])]
    assert [tree.num_tokens for tree in pack(samples, max_tokens=4)] == [4]


def test_nothing_to_pack_is_no_tree() -> None:
    assert pack([], max_tokens=8) == []


def test_a_sample_over_the_budget_is_refused_with_its_length_the_budget_and_the_key() -> None:
    with pytest.raises(LearnerError, match=r"sample 1 has 9 tokens.* 8.*max_tokens_per_microbatch"):
        pack([Sample([1], [2]), Sample([1] * 5, [2] * 4)], max_tokens=8)


def test_empty_prompts_and_empty_targets_are_refused() -> None:
    for cut in (pack, pad):
        with pytest.raises(LearnerError, match="prompt is empty"):
            cut([Sample([1], [2]), Sample([], [1])], max_tokens=8)
    with pytest.raises(InputError, match="no target"):
        Sample([1], [])


def test_the_model_is_called_once_and_its_head_runs_on_predicting_nodes_only() -> None:
    samples = [Sample([1, 2, 3, 4], [5, 6]), Sample([1, 2, 3, 4], [7])]
    (tree,) = pack(samples, max_tokens=32)
    seen = []
    handle = LLAMA_TREES.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    token_logprobs(LLAMA_TREES, tree)
    handle.remove()
    assert seen == [(1, 2, 32)], "nodes 4 and 5 predict 5, 6 and 7"


def test_entropies_are_of_the_predicting_distributions_and_without_gradient() -> None:
    sample = Sample([1, 2], [3, 4])
    (tree,) = pack([sample], max_tokens=8)
    logprobs, entropies = token_logprobs_and_entropies(LLAMA_TREES, tree, temperature=1.2)
    rows = (LLAMA(input_ids=torch.tensor([[1, 2, 3]])).logits[0, 1:] / 1.2).log_softmax(-1)
    torch.testing.assert_close(entropies, -(rows.exp() * rows).sum(-1).detach(), rtol=0, atol=1e-9)
    torch.testing.assert_close(logprobs, token_logprobs(LLAMA_TREES, tree, 1.2))
    assert not entropies.requires_grad


def test_half_precision_models_give_float32_logprobs() -> None:
    model = reading_trees(LLAMA, torch.bfloat16)
    (tree,) = pack([Sample([1, 2], [3])], max_tokens=8)
    assert token_logprobs(model, tree).dtype == torch.float32


def a_long_tree(num_games: int = 6, num_turns: int = 4) -> list[Sample]:
    """Games over shared rules, long enough for several query blocks."""
    generator = torch.Generator().manual_seed(0)

    def run(length: int) -> list[int]:
        return torch.randint(0, 64, (length,), generator=generator).tolist()

    rules, samples = run(40), []
    for _ in range(num_games):
        prompt = rules
        for _ in range(num_turns):
            target = run(7)
            samples.append(Sample(prompt, target))
            prompt = prompt + target + run(9)
    return samples


def test_trees_of_several_query_blocks_are_exact_and_compute_fewer_scores_than_a_dense_mask() -> None:
    samples = a_long_tree()
    (tree,) = pack(samples, max_tokens=1024)
    blocks = query_blocks(tree.parents, tree.subtree_ends, torch.float64, block_tokens=64)
    assert sum(blocks.block_sizes) == tree.num_tokens
    assert len(blocks.masks) > 3
    assert sum(mask.numel() for mask in blocks.masks) < tree.num_tokens**2 / 2
    dense = ancestor_mask(tree.subtree_ends)
    keys, start = blocks.keys.split(blocks.num_keys), 0
    rebuilt = torch.zeros_like(dense)
    for seen, mask in zip(keys, blocks.masks, strict=True):
        rebuilt[start : start + len(mask), seen] = mask == 0
        start += len(mask)
    assert torch.equal(rebuilt, dense)
    assert_packed_equals_flat(LLAMA, samples, 1024, tree_model=LLAMA_TREES)


def test_bfloat16_trees_agree_with_one_sample_at_a_time_within_rounding() -> None:
    half, whole = copy.deepcopy(LLAMA).to(torch.bfloat16), reading_trees(LLAMA, torch.bfloat16)
    samples = a_long_tree(num_games=2)
    (tree,) = pack(samples, max_tokens=1024)
    packed = by_sample(tree, token_logprobs(whole, tree))
    exact = [logprobs_one_at_a_time(LLAMA, sample, 1.0) for sample in samples]
    flat = [logprobs_one_at_a_time(half, sample, 1.0) for sample in samples]
    error = max((packed[i] - exact[i]).abs().max().item() for i in range(len(samples)))
    flat_error = max((flat[i] - exact[i]).abs().max().item() for i in range(len(samples)))
    assert error <= 2 * flat_error + 1e-3
    gradient, flat_gradient, exact_gradient = (
        torch.cat([g.double().flatten() for g in gradients(model, sum(values.sum() for values in logprobs))])
        for model, logprobs in ((whole, packed.values()), (half, flat), (LLAMA, exact))
    )
    assert (gradient - exact_gradient).norm() <= 1.5 * (flat_gradient - exact_gradient).norm()


def test_the_gpu_attention_gives_the_same_states_where_a_cpu_can_run_it() -> None:
    samples = a_long_tree(num_games=3)
    (tree,) = pack(samples, max_tokens=1024)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, tree.num_tokens, 16) for heads in (4, 2, 2))
    ours = TreeAttention(query_blocks(tree.parents, tree.subtree_ends, torch.float32, block_tokens=50))
    flex = TreeAttention(block_mask=flex_block_mask(tree.subtree_ends))
    module = torch.nn.Module()
    one, other = (
        tree_attention_forward(module, query, key, value, None, scaling=0.25, tree_attention=plan)[0]
        for plan in (ours, flex)
    )
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
        FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True),
        AlibiLlamaConfig(**TINY),
        MistralConfig(**TINY, sliding_window=8),
        LlamaConfig(**TINY),
    ],
    ids=lambda config: config.model_type,
)
def test_padded_rows_give_the_same_for_models_that_cannot_read_a_tree(config: Any) -> None:
    model = tiny_model(config)
    samples = a_long_tree(num_games=1)
    temperatures = [1.2 if index % 3 else 1.0 for index in range(len(samples))]
    batches = pad(samples, max_tokens=250)
    assert len(batches) > 1
    assert all(rows.num_tokens <= 250 for rows in batches)
    found: dict[int, torch.Tensor] = {}
    for rows in batches:
        here = [temperatures[index] for index in rows.sample_indices]
        found |= by_sample(rows, token_logprobs(model, rows, here))
    for index, sample in enumerate(samples):
        expected = logprobs_one_at_a_time(model, sample, temperatures[index])
        torch.testing.assert_close(found[index], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "trait"),
    [
        (BloomConfig(), "ALiBi"),
        (MptConfig(), "ALiBi"),
        (FalconConfig(alibi=True), "ALiBi"),
        (AlibiLlamaConfig(), "ALiBi"),
        (MambaConfig(), "linear_attention"),
        (MistralConfig(sliding_window=512), "sliding window of 512"),
        (Gemma2Config(), "scaled or capped|scores are capped"),
        (CohereConfig(), "scaled or capped"),
        (NemotronConfig(num_hidden_layers=1, num_key_value_heads=8), "keeps the tree's plan"),
        (DogeConfig(num_hidden_layers=1), "attention masks of its own"),
        (LlamaConfig(attention_dropout=0.1), "attention_dropout"),
        (LlamaConfig(max_position_embeddings=512, rope_parameters=DYNAMIC_ROPE), "dynamic positions"),
        (LlamaConfig(max_position_embeddings=4096, rope_parameters=LONG_ROPE), "longrope positions.*past 512 tokens"),
    ],
)
def test_models_that_cannot_read_a_tree_are_refused_by_trait(config: Any, trait: str) -> None:
    with pytest.raises(LearnerError, match=f"({trait}).*packing: none"):
        check_packable(config, max_tokens=1024)


@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config, MistralConfig, GPTNeoXConfig])
def test_models_that_can_are_let_through(family: Any) -> None:
    check_packable(family(), max_tokens=1024)


def test_models_whose_limits_are_the_budget_are_let_through() -> None:
    check_packable(MistralConfig(sliding_window=1024), max_tokens=1024)
    check_packable(LlamaConfig(max_position_embeddings=1024, rope_parameters=DYNAMIC_ROPE), max_tokens=1024)


def test_entropies_that_are_trained_have_the_same_gradient_in_trees_and_in_rows() -> None:
    samples = [Sample([1, 2, 3], [4, 5]), Sample([1, 2, 3], [6]), Sample([1, 2, 9, 4], [5, 6])]
    gradients = []
    for cut, model in ((pack, LLAMA_TREES), (pad, LLAMA)):
        model.zero_grad()
        for each in cut(samples, max_tokens=32):
            _, entropies = token_logprobs_and_entropies(model, each, 0.8, trains_entropies=True)
            entropies.sum().backward()
        gradients.append({name: one.grad for name, one in model.named_parameters()})
        model.zero_grad()
    trees, rows = gradients
    assert any(one is not None and one.abs().max() > 1e-6 for one in trees.values())
    for name, one in trees.items():
        torch.testing.assert_close(one, rows[name], rtol=0, atol=1e-9)
