"""One rank of the learner group.

    learner = Learner(model, LearnerConfig(), ObjectiveConfig(), World())
    learner.begin_stage("self_play", num_steps=12, learning_rate=2e-6)
    scores = learner.score(turns, temperature=1.0)               # this rank's share, {index: [L]}
    report = learner.step(Batch(games), temperature=1.0)
    buckets = [learner.bucket(index) for index in range(learner.num_buckets)]

Every rank is given the whole global batch and takes its share; all ranks make the same calls in the same order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from learners.batch import Batch, BatchLoss, BatchSums, Method
from learners.engine import TrainingEngine, World, max_over_ranks, sum_over_ranks
from learners.export import Exporter
from learners.packing import TokenSample, TokenTree, check_packable, pack, token_logprobs
from spag_ray.config import LearnerConfig, ObjectiveConfig
from spag_ray.episode import TurnSample
from spag_ray.errors import LearnerError, ModelError
from spag_ray.snapshot import Bucket


@dataclass(frozen=True)
class StepReport:
    """One optimiser step, over all ranks. Losses hold their coefficients; means are over learned turns."""

    step: int
    loss: float
    policy_loss: float
    kl_loss: float
    sft_loss: float
    gradient_norm: float
    learning_rate: float
    clip_fraction: float
    ratio_mean: float
    mismatch_mean: float
    num_target_tokens: int
    num_unique_tokens: int
    num_flat_tokens: int
    seconds: float


@dataclass
class _Stage:
    method: Method
    num_steps: int
    learning_rate: float
    kl_coeff: float
    step: int = field(default=0)


class Learner:
    """See the module's docstring."""

    def __init__(self, model: str, config: LearnerConfig, objective: ObjectiveConfig, world: World) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        torch.manual_seed(0)
        self._config = config
        self._objective = objective
        self._world = world
        self._model_folder = model
        dtype = getattr(torch, config.dtype)
        module = _load_model(model, dtype)
        check_packable(module.config, config.max_tokens_per_microbatch)
        self._engine = TrainingEngine(module, config, world)
        self._exporter = Exporter(self._engine, dtype, config.bucket_bytes)
        self._stage = _Stage("self_play", 1, 0.0, objective.kl_coeff)

    @property
    def num_tensors(self) -> int:
        return self._exporter.num_tensors

    @property
    def num_buckets(self) -> int:
        return self._exporter.num_buckets

    def bucket(self, index: int) -> Bucket | None:
        """Bucket `index` of the weights as they are now, on rank 0; a collective call."""
        return self._exporter.bucket(index)

    def begin_stage(self, method: Method, num_steps: int, learning_rate: float, kl_coeff: float) -> None:
        """A stage is a training run of its own: fresh Adam moments, a fresh warm-up and cosine over `num_steps`."""
        self._engine.forget_moments()
        self._stage = _Stage(method, num_steps, learning_rate, kl_coeff)

    @torch.no_grad()
    def score(self, turns: Sequence[TurnSample], temperature: float = 1.0) -> dict[int, tuple[float, ...]]:
        """Log-probabilities of each turn's tokens under the weights as they are now: {index: [L]} of this rank's
        share. Every rank runs the same number of forward passes."""
        share = share_of([len(turn.prompt_ids) + len(turn.target_ids) for turn in turns], self._world)
        trees, num_micro_steps = self._trees([turns[index] for index in share], turns[0])
        scores: dict[int, tuple[float, ...]] = {}
        self._engine.module.eval()
        for micro_step in range(num_micro_steps):
            tree = trees[min(micro_step, len(trees) - 1)]
            logprobs = token_logprobs(self._engine.module, tree, temperature)
            if micro_step < len(trees) and share:
                for index, values in zip(tree.sample_indices, logprobs, strict=True):
                    scores[share[index]] = tuple(values.float().tolist())
        self._engine.module.train()
        return scores

    def step(self, batch: Batch, temperature: float = 1.0) -> StepReport:
        """One optimiser step on the global batch.

        Raises LearnerError when there is nothing to learn from, or when the loss or the gradient is not finite.
        """
        began = time.perf_counter()
        everything = batch.items
        if not everything:
            raise LearnerError("an optimiser step was asked for on a batch without games and without SFT rows")
        games_share = share_of([game.num_tokens for game in batch.games], self._world)
        rows_share = share_of([len(row.prompt_ids) + len(row.target_ids) for row in batch.sft], self._world)
        mine = Batch(tuple(batch.games[i] for i in games_share), tuple(batch.sft[i] for i in rows_share))
        items = mine.items
        trees, num_micro_steps = self._trees([item.turn for item in items], everything[0].turn)
        sums = BatchSums()
        batch_loss = BatchLoss(batch, self._stage.method, self._objective, self._stage.kl_coeff, sums)
        for micro_step in range(num_micro_steps):
            tree = trees[min(micro_step, len(trees) - 1)]
            logprobs = token_logprobs(self._engine.module, tree, temperature)
            if micro_step < len(trees) and items:
                chosen = [items[index] for index in tree.sample_indices]
                loss = batch_loss.of(chosen, logprobs)
                sums.unique_tokens += tree.num_tokens
                sums.flat_tokens += tree.num_flat_tokens
            else:
                loss = torch.cat(logprobs).sum() * 0.0
            self._engine.backward(loss, last=micro_step == num_micro_steps - 1)
        learning_rate = learning_rate_at(
            self._stage.step, self._stage.num_steps, self._stage.learning_rate, self._config.warmup_share
        )
        total = BatchSums(*sum_over_ranks(list(vars(sums).values())))
        loss_value = total.policy + total.kl + total.sft
        if not math.isfinite(loss_value):
            raise LearnerError(
                f"the loss of step {self._stage.step} is {loss_value}; the weights were left as they were"
            )
        gradient_norm = self._engine.step(learning_rate)
        if not math.isfinite(gradient_norm):
            raise LearnerError(f"the gradient of step {self._stage.step} has norm {gradient_norm}; training stops here")
        self._stage.step += 1
        turns = max(total.turns, 1.0)
        return StepReport(
            step=self._stage.step,
            loss=loss_value,
            policy_loss=total.policy,
            kl_loss=total.kl,
            sft_loss=total.sft,
            gradient_norm=gradient_norm,
            learning_rate=learning_rate,
            clip_fraction=total.clip_fraction / turns,
            ratio_mean=total.ratio / turns,
            mismatch_mean=total.mismatch / turns,
            num_target_tokens=int(total.target_tokens),
            num_unique_tokens=int(total.unique_tokens),
            num_flat_tokens=int(total.flat_tokens),
            seconds=time.perf_counter() - began,
        )

    def save_model(self, folder: str) -> None:
        """The model and its tokenizer as transformers reads them; a collective call, rank 0 writes."""
        state: dict[str, Tensor] = {}
        for index in range(self.num_buckets):
            bucket = self.bucket(index)
            if bucket is None:
                continue
            payload = torch.from_numpy(bucket.payload)
            for spec in bucket.tensors:
                part = payload[spec.offset : spec.offset + spec.num_bytes]
                state[spec.name] = part.view(getattr(torch, spec.dtype)).view(spec.shape).clone()
        if self._world.rank == 0:
            _unwrapped(self._engine.module).save_pretrained(folder, state_dict=state)
            AutoTokenizer.from_pretrained(self._model_folder, local_files_only=True).save_pretrained(folder)

    def _trees(self, turns: Sequence[TurnSample], stand_in: TurnSample) -> tuple[list[TokenTree], int]:
        """This rank's token trees, and how many forward passes every rank makes; a rank without turns gets a tree
        of `stand_in` to take part with."""
        samples = [TokenSample(turn.prompt_ids, turn.target_ids) for turn in turns or [stand_in]]
        trees = pack(samples, self._config.max_tokens_per_microbatch)
        return trees, max_over_ranks(len(trees))


def learning_rate_at(step: int, num_steps: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the first `warmup_share` of the steps, then a cosine to zero; `step` counts from 0."""
    num_warmup = math.ceil(warmup_share * num_steps)
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(num_steps - num_warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


def share_of(sizes: Sequence[int], world: World) -> list[int]:
    """The indices one rank takes, in order: largest first, each to the rank with the least so far."""
    loads = [0] * world.size
    mine = []
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        rank = loads.index(min(loads))
        loads[rank] += sizes[index]
        if rank == world.rank:
            mine.append(index)
    return sorted(mine)


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    return getattr(module, "module", module)


def _load_model(model: str, dtype: torch.dtype) -> torch.nn.Module:
    if not Path(model).is_dir():
        raise ModelError(f"{model}: no such model folder")
    try:
        return AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype, attn_implementation="sdpa", local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ModelError(f"{model}: transformers cannot load this model: {error}") from error
