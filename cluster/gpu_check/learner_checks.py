"""Checks of the learner: attention over trees, the head, the optimiser's states, memory, sleep, export."""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from cluster.gpu_check.check import GIB, SHAPES, Finding, Told, model_folder, seconds, synchronize

MODULES = ("torch", "transformers", "safetensors")
LEARNER = (*MODULES, "deepspeed", "accelerate", "pydantic", "msgpack")
LENGTHS = (40, 300, 1024, 2048, 4096, 8192)
MOST_ERROR = 0.02  # relative to a norm, in bfloat16
WIDTHS = (64, 128)  # of heads; kernels for 128 take twice the shared memory
TOKENS = 4096  # per micro-batch
LAYOUT_LENGTHS = (512, 1024, 2048, 4096, 8192)
# Candidates for learners.attention.FLEX_BLOCK_TOKENS.
BLOCK_TOKENS = (128, 256)
# Tokens that all games of `games_of` share, and those that each adds to a tree.
OPENING, A_GAME = 60, 168


def games_of(num_games: int, vocabulary: int) -> list[list[Any]]:
    """Samples of four turns of 24 tokens by game: each turn reads everything that was said before."""
    from spag_ray.training_data.samples import Sample

    rng = random.Random(0)

    def said(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocabulary) for _ in range(count))

    games = []
    opening = said(60)
    for _ in range(num_games):
        heard, samples = opening, []
        for _ in range(4):
            target = said(24)
            samples.append(Sample(heard, target))
            heard = heard + target + said(24)
        games.append(samples)
    return games


def attention(told: Told) -> Finding:
    """Forward and backward in bfloat16 against dense float32, and the speed against padded rows."""
    from learners.packing import pack

    lengths = LENGTHS if told.on_gpu else LENGTHS[:2]
    worst, figures = 0.0, {}
    for length in lengths:
        samples = list(itertools.chain(*games_of(length // 150 + 1, 1000)))
        tree = pack(samples, max_tokens=10 * length)[0]
        ends = tree.subtree_ends.clamp(max=length)[:length]
        for width in WIDTHS if length == lengths[0] else WIDTHS[:1]:
            worst = max(worst, _attend(tree.parents[:length], ends, told.device, width))
    samples = list(itertools.chain(*games_of(20, 1000)))
    [tree] = pack(samples, max_tokens=100_000)
    figures["tree_ms"], figures["padded_ms"] = speeds(tree, samples, told.device)
    figures["worst_error"] = worst
    figures["speedup"] = figures["padded_ms"] / figures["tree_ms"]
    text = (
        f"{len(lengths)} lengths to {lengths[-1]}: error at most {worst:.4f} of the norm; {tree.num_tokens} tokens in "
        f"{figures['tree_ms']:.2f} ms, padded {figures['padded_ms']:.2f} ms"
    )
    return Finding(worst <= MOST_ERROR, text, figures)


def _heads(num_tokens: int, device: str, dtype: torch.dtype, width: int = WIDTHS[0]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, heads, num_tokens, width, device=device, dtype=dtype) for heads in (4, 2, 2)]


def _attend(parents: Tensor, subtree_ends: Tensor, device: str, width: int) -> float:
    """The largest error of output and gradients, relative to their norms."""
    from learners.attention import ancestor_mask, plan_attention, tree_attention_forward

    given, scale = _heads(len(parents), device, torch.bfloat16, width), width**-0.5
    query, key, value = (state.clone().requires_grad_() for state in given)
    plan = plan_attention(parents, subtree_ends, torch.device(device), torch.bfloat16)
    out, _ = tree_attention_forward(torch.nn.Module(), query, key, value, None, scaling=scale, tree_attention=plan)
    weights = torch.randn_like(out)
    (out * weights).sum().backward()

    exact = [state.float().requires_grad_() for state in given]
    keys, values = (state.repeat_interleave(2, 1) for state in exact[1:])
    mask = ancestor_mask(subtree_ends).to(device)
    dense = scaled_dot_product_attention(exact[0], keys, values, attn_mask=mask, scale=scale).transpose(1, 2)
    (dense * weights.float()).sum().backward()

    pairs = [(out, dense), *((mine.grad, other.grad) for mine, other in zip((query, key, value), exact, strict=True))]
    return max(float((mine.float() - other).detach().norm() / other.detach().norm()) for mine, other in pairs)


def speeds(tree: Any, samples: Sequence[Any], device: str) -> tuple[float, float]:
    """Milliseconds of forward and backward: over the tree, and over one padded row per sample."""
    from learners.attention import plan_attention, tree_attention_forward

    plan = plan_attention(tree.parents, tree.subtree_ends, torch.device(device), torch.bfloat16)
    query, key, value = (state.requires_grad_() for state in _heads(tree.num_tokens, device, torch.bfloat16))
    longest = max(sample.num_tokens for sample in samples)
    shape = (len(samples), 4, longest, 64)
    queries, keys, values = (
        torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )

    def of_tree() -> None:
        out, _ = tree_attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.125, tree_attention=plan)
        out.sum().backward()

    def of_rows() -> None:
        scaled_dot_product_attention(queries, keys, values, is_causal=True).sum().backward()

    return 1000 * seconds(of_tree, device), 1000 * seconds(of_rows, device)


def layouts(told: Told) -> Finding:
    """Token trees against padded rows, by the length of a tree: where `learner.packing: trees` is the faster.

    Milliseconds forward and backward, for the same games in both layouts: of the attention alone (4 heads of 64) and
    of one whole layer of the shape, which also computes the tokens that padded rows repeat. A tree needs a mask too,
    once for all layers. There is no wrong result: the figures decide how `learner.packing` should be set."""
    from learners import attention

    figures: dict[str, float] = {}
    told_lines, faster_from = [], None
    default = attention.FLEX_BLOCK_TOKENS
    for length in LAYOUT_LENGTHS if told.on_gpu else (250, 500):
        samples = list(itertools.chain(*games_of(-(-(length - OPENING) // A_GAME), 512)))
        for block_tokens in BLOCK_TOKENS if told.on_gpu else (default,):
            try:
                attention.FLEX_BLOCK_TOKENS = block_tokens
                found = _layout_times(told, samples)
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


def _layout_times(told: Told, samples: list[Any]) -> dict[str, float]:
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


def head(told: Told) -> Finding:
    """Log-probabilities and gradients against a softmax over whole logits. The head's loop must not wait for the
    GPU."""
    from learners.head import Targets, _TargetLogprobs

    shape = SHAPES[told.shape]
    num_rows, width, words = 1000, shape["hidden_size"], shape["vocab_size"]
    torch.manual_seed(0)
    hidden = torch.randn(num_rows, width, device=told.device, dtype=torch.bfloat16, requires_grad=True)
    weight = (0.02 * torch.randn(words, width, device=told.device)).bfloat16().requires_grad_()
    rows, ids = torch.randint(num_rows, (1500,)), torch.randint(words, (1500,))
    rows, ids, places, counts = Targets.of(rows, ids, num_rows)
    targets = Targets(rows.to(told.device), ids.to(told.device), places.to(told.device), counts)
    coefficients = torch.randn(len(rows), device=told.device)

    def ask() -> Tensor:
        logprobs, _ = _TargetLogprobs.apply(hidden, weight, None, targets, 0.7, True)
        return logprobs

    logprobs = ask()
    (logprobs * coefficients).sum().backward()
    exact = (hidden @ weight.T).float().div(0.7).log_softmax(-1)[targets.rows, targets.ids]
    # A few errors may be larger: a kernel that sums in another order may round a logit to the next bfloat16.
    error = float((logprobs - exact).detach().abs().quantile(0.99))
    expected = torch.autograd.grad((exact * coefficients).sum(), [hidden, weight])
    gradients = zip((hidden.grad, weight.grad), expected, strict=True)
    gradient_error = max(float((mine - other).float().norm() / other.float().norm()) for mine, other in gradients)
    synchronize(told.device)
    if told.on_gpu:
        torch.cuda.set_sync_debug_mode("error")
    try:
        ask().sum().backward()
    except RuntimeError as error_found:
        return Finding(False, f"its loop waits for the GPU: {str(error_found).splitlines()[0]}")
    finally:
        if told.on_gpu:
            torch.cuda.set_sync_debug_mode("default")
    took = 1000 * seconds(lambda: ask().sum().backward(), told.device)
    figures = {"error_nats": error, "gradient_error": gradient_error, "ms": took}
    text = (
        f"{num_rows} rows x {words} words in {took:.1f} ms, error of 99 in 100 at most {error:.5f} nats, of gradients "
        f"{gradient_error:.4f} of the norm, no wait in its loop"
    )
    return Finding(error < 0.01 and gradient_error <= MOST_ERROR, text, figures)


def learner(told: Told, **options: Any) -> Finding:
    """Scoring, three steps on one batch, and the peak memory against the plan."""
    rank, config = _rank(told, **options)
    batch = _batch(told)
    if told.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    rank.begin_stage(_imitation())
    turns = [turn for game in batch.games for turn in game.turns]
    scores = rank.score(turns)
    reports = [rank.step(batch) for _ in range(3)]
    losses = [report.loss for report in reports]
    passed = len(scores) == len(turns) and losses[2] < losses[0] and not any(report.skipped for report in reports)
    figures = {"first_loss": losses[0], "last_loss": losses[2], "step_s": min(report.seconds for report in reports)}
    figures["tokens_per_s"] = reports[-1].num_unique_tokens / figures["step_s"]
    figures["planned_gib"] = planned_bytes(told.shape, config) / GIB
    text = f"loss {losses[0]:.3f} -> {losses[2]:.3f}, {figures['tokens_per_s']:,.0f} tokens/s"
    if told.on_gpu:
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        text += f", at most {figures['peak_gib']:.1f} GiB, planned {figures['planned_gib']:.1f}"
        passed = passed and figures["peak_gib"] <= 1.1 * figures["planned_gib"]
    return Finding(passed, text, figures)


def sleep(told: Told, **options: Any) -> Finding:
    """How much memory a sleep frees, and whether the next steps equal those of a learner that did not sleep.

    DeepSpeed never frees an engine's memory within a process. So the first learner sleeps again before the second one,
    which needs the memory, is made. ZeRO-1, as in the configurations for one GPU.
    """
    losses = []
    freed = held = 0.0
    for sleeps in (True, False):
        before = _gib_allocated(told)
        rank, _ = _rank(told, **options)
        batch = _batch(told)
        rank.begin_stage(_imitation())
        rank.step(batch)
        if sleeps:
            awake = _gib_allocated(told)
            rank.sleep()
            held, freed = awake - before, awake - _gib_allocated(told)
            rank.wake()
        losses.append([rank.step(batch).loss for _ in range(2)])
        if sleeps:
            rank.sleep()
    same = all(abs(one - other) <= 1e-3 * abs(one) for one, other in zip(*losses, strict=True))
    text = f"{freed:.1f} of {held:.1f} GiB left the GPU; next losses {losses[0]}, without a sleep {losses[1]}"
    return Finding(same and (not told.on_gpu or freed > 0.9 * held), text, {"freed_gib": freed, "held_gib": held})


def _gib_allocated(told: Told) -> float:
    return torch.cuda.memory_allocated() / GIB if told.on_gpu else 0.0


def export(told: Told) -> Finding:
    """Weights to the host, bucket by bucket: first only copied, then also hashed on both sides, if xxhash is
    installed."""
    rank, _ = _rank(told, zero_stage=2)

    def copied() -> None:
        for index in range(rank.num_buckets):
            assert rank._published.copied(index) is not None

    def hashed() -> None:
        for index in range(rank.num_buckets):
            bucket = rank.bucket(index)
            assert bucket is not None
            bucket.verify()

    num_gb, took = rank.num_bytes / 1e9, seconds(copied, told.device, times=2)
    figures = {"seconds": took, "gb_per_s": num_gb / took}
    text = f"{num_gb:.2f} GB in {took:.2f} s, {num_gb / took:.1f} GB/s"
    if importlib.util.find_spec("xxhash") is None:
        return Finding(True, f"{text}; not hashed, xxhash is not installed", figures)
    figures["hashed_gb_per_s"] = num_gb / seconds(hashed, told.device, times=2)
    return Finding(True, f"{text}; {figures['hashed_gb_per_s']:.1f} GB/s with each byte hashed twice", figures)


def fresh_moments(told: Told) -> Finding:
    """A stage begins with Adam's moments and step counts at zero, also with DeepSpeed's CPU Adam."""
    rank, _ = _rank(told, deepspeed="zero2_offload")
    batch = _batch(told)
    rank.begin_stage(_imitation())
    rank.step(batch)
    rank.step(batch)
    inner = getattr(rank._engine._optimizer, "optimizer", rank._engine._optimizer)

    def largest() -> float:
        values = [value for state in inner.state.values() for value in state.values()]
        return max((float(torch.as_tensor(value).abs().max()) for value in values), default=0.0)

    before = largest()
    rank.begin_stage(_imitation())
    after = largest()
    text = f"largest moment or step count {before:g} before, {after:g} after the start of a stage"
    return Finding(before > 0 and after == 0, text)


def _rank(told: Told, **options: Any) -> tuple[Any, Any]:
    """A learner group with one rank, and its configuration."""
    from learners.engine import World
    from learners.learner import Learner
    from spag_ray.config.objective import ObjectiveConfig
    from spag_ray.config.parts import LearnerConfig

    config = LearnerConfig(
        max_tokens_per_microbatch=TOKENS, gradient_checkpointing=True, num_gpus=float(told.on_gpu), **options
    )
    return Learner(model_folder(told), config, ObjectiveConfig(), World(master="127.0.0.1:0")), config


def _imitation() -> Any:
    from spag_ray.training_data.stage_spec import StageSpec

    return StageSpec("imitation", num_steps=3, learning_rate=1e-3, kl_coeff=0.0)


def _batch(told: Told) -> Any:
    from spag_ray.game.rules import Role
    from spag_ray.training_data.samples import GameSample
    from spag_ray.training_data.shares import Batch

    games = games_of(16 if told.on_gpu else 2, SHAPES[told.shape]["vocab_size"])
    return Batch(tuple(GameSample(str(number), Role.ATTACKER, 1.0, tuple(own)) for number, own in enumerate(games)))


def planned_bytes(shape: str, config: Any) -> int:
    """The plan for the memory of one learner rank, for a model of SHAPES."""
    from cluster.planning.memory import learner_memory
    from cluster.planning.model_size import ModelSize, count_parameters
    from spag_ray.config.parts import ModelShape
    from spag_ray.config.run import RunConfig

    known = ModelShape(**SHAPES[shape])
    run = RunConfig().model_copy(update={"learner": config})
    return learner_memory(run, ModelSize(count_parameters(known), "random", known)).num_bytes
