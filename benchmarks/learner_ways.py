"""Two ways to train on the same games: the published one, and this program's learner. The third is trl_grpo.py."""

from __future__ import annotations

import importlib
import os
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from learners.objectives import IGNORED_LABEL, published_offline_po_loss
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.host.cpu_features import fast_dtype
from spag_ray.training_data.listened_turns import count_leading, spread
from spag_ray.training_data.samples import GameSample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec

KL_COEFF, SFT_COEFF, CLIP_RANGE, LEARNING_RATE = 0.2, 0.5, 0.2, 2e-6
LISTENING_COEFF = 0.5
GAMES_PER_STEP = 16


@dataclass(frozen=True)
class Timing:
    """Training on `num_games`. `num_row_tokens`: of the rows, prompts and replies, each by itself; the same for every
    way. `num_tokens`: that the way computed for them, with padding or without repeated prefixes. `num_targets`: of the
    replies. `compute_s`: of `seconds`, in forward and backward, where that is known."""

    seconds: float
    num_games: float
    num_row_tokens: int
    num_tokens: int
    num_targets: int
    compute_s: float = 0.0

    @classmethod
    def of(cls, games: Sequence[GameSample], seconds: float, num_tokens: int, compute_s: float = 0.0) -> Timing:
        turns = [turn for game in games for turn in game.turns]
        num_row_tokens, num_targets = sum(t.num_tokens for t in turns), sum(len(t.target_ids) for t in turns)
        return cls(seconds, len(games), num_row_tokens, num_tokens, num_targets, compute_s)


class Way(ABC):
    """A way to train. Its process has no other use: what it takes of memory is the way's, from when `modules` are
    imported. They are imported here and not before, because DeepSpeed looks for GPUs, and a process that has could not
    be forked."""

    def __init__(self, device: str, *modules: str) -> None:
        self.device = torch.device(device)
        if device == "cuda":  # one GPU, also where there are more: TRL refuses several in one process
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        for module in modules:
            importlib.import_module(module)
        self._rss_at_start = psutil.Process().memory_info().rss

    @abstractmethod
    def train(self, games: Sequence[GameSample]) -> Timing: ...

    def peak_gib(self) -> float:
        """The largest memory until now: of the GPU, or of this process above what its imports took."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**30
        peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return (peak - self._rss_at_start) / 2**30

    def synchronized(self) -> float:
        """The time when the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


class Baseline(Way):
    """The published way of training, in a straightforward implementation."""

    def __init__(self, model: str, device: str, dtype: torch.dtype | None = None) -> None:
        super().__init__(device)
        dtype = dtype or getattr(torch, fast_dtype(on_gpu=self.device.type == "cuda"))
        self.model = _loaded(model, dtype).to(self.device)
        self.reference = _loaded(model, dtype).to(self.device).eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)

    def gradients(self, games: Sequence[GameSample]) -> int:
        """Adds the gradient of the mean loss over all winner's turns; returns the tokens it computed."""
        num_turns = sum(len(game.turns) for game in games)
        num_tokens = 0
        for padded in padded_batches(games):
            batch = {name: tensor.to(self.device) for name, tensor in padded.items()}
            inputs = {"input_ids": batch["token_ids"], "attention_mask": batch["mask"], "use_cache": False}
            with torch.no_grad():
                reference_logits = self.reference(**inputs).logits
            logits = self.model(**inputs).logits
            loss = published_offline_po_loss(
                logits,
                reference_logits,
                batch["labels"],
                batch["rewards"],
                batch["weights"],
                torch.zeros_like(batch["weights"]),
                KL_COEFF,
                SFT_COEFF,
                CLIP_RANGE,
            )
            (loss * len(batch["labels"]) / num_turns).backward()
            num_tokens += batch["token_ids"].numel()
        return num_tokens

    def train(self, games: Sequence[GameSample]) -> Timing:
        began = self.synchronized()
        num_tokens = 0
        for start in range(0, len(games), GAMES_PER_STEP):
            num_tokens += self.gradients(games[start : start + GAMES_PER_STEP])
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return Timing.of(games, self.synchronized() - began, num_tokens)


def padded_batches(games: Sequence[GameSample], size: int = 2) -> Iterator[dict[str, Tensor]]:
    """Batches of the published trainer: rows in the order of the games, padded to the longest of the batch."""
    rows = [(turn, game.weight) for game in games for turn in game.turns]
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        longest = max(turn.num_tokens for turn, _ in some)
        token_ids = torch.zeros(len(some), longest, dtype=torch.int64)
        labels = torch.full((len(some), longest), IGNORED_LABEL)
        mask = torch.zeros(len(some), longest, dtype=torch.int64)
        for row, (turn, _) in enumerate(some):
            ids = torch.tensor([*turn.prompt_ids, *turn.target_ids])
            token_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
            labels[row, len(turn.prompt_ids) : len(ids)] = torch.tensor(turn.target_ids)
        yield {
            "token_ids": token_ids,
            "labels": labels,
            "mask": mask,
            "rewards": torch.tensor([turn.advantage for turn, _ in some]),
            "weights": torch.tensor([weight for _, weight in some]),
        }


def _loaded(model: str, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype, local_files_only=True)


class Ours(Way):
    """The learner, as a run uses it."""

    def __init__(self, model: str, max_tokens: int, device: str = "cpu") -> None:
        super().__init__(device, "learners.learner")
        from learners.engine import World
        from learners.learner import Learner

        self.learner = Learner(
            model,
            # Everything else has a run's defaults.
            LearnerConfig(max_tokens_per_microbatch=max_tokens, dtype=fast_dtype(on_gpu=self.device.type == "cuda")),
            ObjectiveConfig(loss="published", kl_coeff=KL_COEFF, sft_coeff=SFT_COEFF, clip_range=CLIP_RANGE),
            World(master="127.0.0.1:0"),
        )

    def scored(self, games: Sequence[GameSample]) -> list[GameSample]:
        turns = [turn for game in games for turn in game.turns]
        scores = self.learner.score(turns)
        done = iter([replace(turn, old_logprobs=scores[index]) for index, turn in enumerate(turns)])
        return [replace(game, turns=tuple(next(done) for _ in game.turns)) for game in games]

    def train(self, games: Sequence[GameSample]) -> Timing:
        began = self.synchronized()
        compute_s = 0.0
        ready = list(games)
        if len(games) > GAMES_PER_STEP:  # in the first step the learner is its own reference
            ready[GAMES_PER_STEP:] = self.scored(games[GAMES_PER_STEP:])
            compute_s = time.perf_counter() - began
        steps = spread(ready, GAMES_PER_STEP, -(-count_leading(ready) // GAMES_PER_STEP))
        self.learner.begin_stage(StageSpec("self_play", len(steps), LEARNING_RATE, KL_COEFF, LISTENING_COEFF))
        num_tokens = 0
        for index, step in enumerate(steps):
            report = self.learner.step(Batch(tuple(step)), at_start=index == 0)
            num_tokens += report.num_unique_tokens
            compute_s += report.compute_s
        return Timing.of(games, self.synchronized() - began, num_tokens, compute_s)

    def seconds_per_added_game(self, games: Sequence[GameSample], sizes: Sequence[int], repeats: int = 3) -> Any:
        """{n: seconds that each game after the first adds to one step over n of them}, the best of some repeats."""
        best = {}
        for size in sizes:
            self.learner.begin_stage(StageSpec("self_play", repeats, LEARNING_RATE, KL_COEFF))
            ready = self.scored(games[:size])
            best[size] = min(self.learner.step(Batch(tuple(ready))).seconds for _ in range(repeats))
        first = best[sizes[0]]
        return {size: round((best[size] - first) / (size - 1), 3) for size in sizes[1:]}
