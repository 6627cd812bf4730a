"""TRL's GRPOTrainer over given rows: what a user would pick on one machine, for benchmarks/learner.py.

TRL asks its `rollout_func` for prompts and completions, and gets those of the games in place of generated ones. All the
rest is TRL's own code with its own defaults: padding (prompts on the left, completions on the right, to the longest of
the step), the reference model's forward pass (beta is not 0), advantages within groups of 8, the loss, 8 rows a
micro-batch, clipping, AdamW, float32 weights under bfloat16 autocast. Two things are set as in the learner's run: the
coefficients, and no gradient checkpointing, which TRL has on by default and which costs a forward pass more.

A step is timed from `on_step_begin` to `on_step_end`, so neither loading nor the set-up of the trainer is in it.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.learner_ways import CLIP_RANGE, KL_COEFF, LEARNING_RATE, Timing, Way
from spag_ray.host.cpu_features import fast_dtype
from spag_ray.training_data.samples import GameSample, Sample

ROWS = 8  # of a micro-batch, and of a group: TRL's defaults
NOT_INSTALLED = "trl is not installed: the extra `peers`, locked in requirements/peers.txt"


def why_not() -> str:
    """Why TRL cannot be measured here; "" if it can."""
    return NOT_INSTALLED if importlib.util.find_spec("trl") is None else ""


class Grpo(Way):
    """Trains one step over the rows of the games, of which it takes a multiple of ROWS."""

    def __init__(self, model: str, device: str) -> None:
        super().__init__(device, "trl.trainer.grpo_trainer")
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)

    def train(self, games: Sequence[GameSample]) -> Timing:
        rows = [turn for game in games for turn in game.turns]
        rows = rows[: len(rows) // ROWS * ROWS]
        if not rows:
            raise ValueError(f"TRL's groups have {ROWS} rows; give it more games")
        with tempfile.TemporaryDirectory() as folder:
            seconds = self._one_step(rows, folder)
        longest = max(len(row.prompt_ids) for row in rows) + max(len(row.target_ids) for row in rows)
        num_row_tokens, num_targets = sum(row.num_tokens for row in rows), sum(len(row.target_ids) for row in rows)
        share = len(rows) / sum(len(game.turns) for game in games)
        return Timing(seconds, share * len(games), num_row_tokens, len(rows) * longest, num_targets)

    def _one_step(self, rows: Sequence[Sample], folder: str) -> float:
        """Seconds of it."""
        from datasets import Dataset
        from transformers import PrinterCallback, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        way, moments = self, list[float]()
        os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # rollout_func is experimental

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                moments.append(way.synchronized())

            on_step_end = on_step_begin

        def given(prompts: Sequence[str], _: Any) -> dict[str, Any]:
            assert len(prompts) == len(rows), "one generation serves the step"
            return {
                "prompt_ids": [list(row.prompt_ids) for row in rows],
                "completion_ids": [list(row.target_ids) for row in rows],
                "logprobs": None,
                "advantage": [row.advantage for row in rows],
            }

        def reward(advantage: list[float], **_: Any) -> list[float]:
            return advantage

        config = GRPOConfig(
            folder,
            max_steps=1,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=len(rows) // ROWS,
            num_generations=ROWS,
            max_completion_length=max(len(row.target_ids) for row in rows),
            beta=KL_COEFF,
            epsilon=CLIP_RANGE,
            learning_rate=LEARNING_RATE,
            gradient_checkpointing=False,
            use_cpu=self.device.type == "cpu",
            bf16=fast_dtype(on_gpu=self.device.type == "cuda") == "bfloat16",
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        prompts = Dataset.from_dict({"prompt": [f"group {group}" for group in range(len(rows) // ROWS)]})
        trainer = GRPOTrainer(
            self._model,
            reward,
            config,
            prompts,
            processing_class=self._tokenizer,
            callbacks=[Clock()],
            rollout_func=given,
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        began, ended = moments
        return ended - began
