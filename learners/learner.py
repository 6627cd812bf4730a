"""One rank of the learner group.

Every rank receives its share of the turns or of the global batch (shares.py). All ranks make the same calls in the
same order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learners.attention import TREE, check_compiles
from learners.deepspeed_config import deepspeed_config, dtype_of, loads_in_parts
from learners.engine import Partition, TrainingEngine, World, gathered_over_ranks
from learners.export import Exporter, for_engines, whole_weights
from learners.forward import MicroBatch, token_logprobs, token_logprobs_and_entropies
from learners.head import TargetHead
from learners.lora import adapter_config, adapter_weights, save_adapter, with_adapters
from learners.model_folder import load_model, load_model_in_parts, write_model
from learners.packing import ROOT_TOKENS, check_packable, pack, pad
from learners.stage_start import StageStart
from learners.step_sums import StepSums, step_report
from learners.utilization import StepCost, Utilization, matrix_rate, moment, seconds_between
from spag_ray.channels.base import Link, Sender, find
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import LearnerError
from spag_ray.host.memory import keep_freed_memory, release_freed_memory
from spag_ray.results.lines import StepReport
from spag_ray.results.saved_models import writing
from spag_ray.training_data.samples import Sample
from spag_ray.training_data.shares import Batch, check_turns
from spag_ray.training_data.stage_spec import StageSpec, learning_rate_at
from spag_ray.training_data.terms import Rows
from spag_ray.weights.snapshot import Bucket
from spag_ray.weights.weight_files import StoredWeights

_NO_SCORES = np.zeros(0, np.float32)


class Learner:
    """See the module's docstring."""

    _is_asleep = False
    _holds_weights = True  # asleep or not, to be sent

    def __init__(self, model: str, config: LearnerConfig, objective: ObjectiveConfig, world: World) -> None:
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        torch.manual_seed(0)
        config = config.model_copy(update={"dtype": dtype_of(deepspeed_config(config))})
        self._config = config
        self._objective = objective
        self._world = world
        self._model_folder = model
        dtype = getattr(torch, config.dtype)
        # Measured while the GPU is empty. An engine on the same one has started by now, and measures no memory.
        rate = matrix_rate(torch.device("cuda", world.local_rank)) if torch.cuda.is_available() else None
        module = self._base_model = _load(model, config, world)  # without the adapters that may come around it
        keep_freed_memory()
        if config.packing == "trees":
            check_packable(module.config, config.microbatch_tokens)
            if torch.cuda.is_available():
                check_compiles(module.config, dtype, torch.device("cuda"))
            TargetHead.install(module)
        self.vocabulary_size = module.get_input_embeddings().num_embeddings
        if config.checkpoints_gradients:
            module.gradient_checkpointing_enable({"use_reentrant": False})
        if config.freeze_embeddings:
            for layer in (module.get_input_embeddings(), module.get_output_embeddings()):
                if layer is not None:
                    layer.requires_grad_(False)
        if config.lora is not None:
            module = with_adapters(module, config.lora)
        self._gpus = None if rate is None else Utilization(StepCost.of(module), rate, world.size)
        self._engine = TrainingEngine(module, config, world)
        self._engine.module.train()  # models load in eval mode, in which layers keep all activations
        whole = whole_weights(module, config.lora)
        self._whole = Exporter(self._engine, whole, dtype, config.bucket_bytes)
        publishes_adapter = config.lora is not None and config.lora.export == "adapter"
        # peft's adapter_config.json, when adapters are published instead of whole weights.
        self.adapter = adapter_config(module) if publishes_adapter else None
        published = adapter_weights(module) if publishes_adapter else for_engines(self._base_model, whole)
        self._published = Exporter(self._engine, published, dtype, config.bucket_bytes)
        self.num_tensors, self.num_buckets = self._published.num_tensors, self._published.num_buckets
        self.num_bytes = self._published.num_bytes
        self._stage_start = StageStart(self._engine)
        self._spec = StageSpec("self_play", 1, 0.0, objective.kl_coeff)
        self._num_steps_done = 0
        self._sender: Sender | None = None

    def bucket(self, index: int) -> Bucket | None:
        """Bucket `index` of the published current weights, on rank 0; a collective call. Valid until the next call."""
        self._must_be_awake("to export its weights", or_hold_weights=True)
        return self._published.bucket(index)

    def begin_stage(self, spec: StageSpec) -> None:
        """A stage is a training run of its own: fresh Adam moments, a fresh warm-up and cosine over its steps. With
        learner.keep_moments, a round keeps the moments of the round before; those of imitation are of other losses."""
        self._must_be_awake("to begin a stage")
        if not self._config.keep_moments or spec.method != self._spec.method:
            self._engine.forget_moments()
        self._spec, self._num_steps_done = spec, 0

    def continue_stage(self, spec: StageSpec) -> None:
        """The stage continues, perhaps with another number of steps in all."""
        self._spec = spec

    def keep_reference(self) -> None:
        """Make the current weights those of `score_reference`."""
        self._stage_start.take()

    def move_reference(self, share: float) -> None:
        """Make the weights of `score_reference` an average: `share` of them, the rest of the current weights."""
        self._must_be_awake("to average its weights")
        self._stage_start.move(share)

    def load_reference(self, folder: str) -> bool:
        """Make a saved model's weights those of `score_reference`. A saved model has its adapters merged, so adapters
        come from the loaded checkpoint. If it has none, the current ones are used and False is returned."""
        if self._config.lora is None:
            stored = StoredWeights.of(Path(folder))
            if stored is not None and stored.are_those_of(self._whole.shapes()):
                self._stage_start.read(stored)
            else:
                module = load_model(folder, getattr(torch, self._config.dtype), "sdpa")
                self._stage_start.read(dict(module.named_parameters()))
            release_freed_memory()
            return True
        is_known = self._stage_start.is_held
        if not is_known:
            self._stage_start.take()
        return is_known

    @torch.no_grad()
    def score(
        self, turns: Sequence[Sample], temperature: float = 1.0, stand_in: Sample | None = None
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities [L] of the tokens of each of this rank's turns under the current weights. Every rank runs
        the same number of forward passes; one without turns runs them on `stand_in`.

        Raises LearnerError for tokens beyond the vocabulary and for a turn that no micro-batch can hold.
        """
        self._must_be_awake("to score turns")
        check_turns(turns, self.vocabulary_size)
        scores, order = [_NO_SCORES] * len(turns), list[int]()
        lengths, computed = list[int](), list[Tensor]()
        self._engine.module.eval()
        for micro_batch, counts in self._passes(turns, stand_in):
            logprobs = token_logprobs(self._engine.module, micro_batch, temperature)
            if counts:
                order += micro_batch.sample_indices
                lengths += micro_batch.lengths
                computed.append(logprobs.float())
        self._engine.module.train()
        if computed:  # read once: after each pass, a GPU would be waited for before the next one is given to it
            values = torch.cat(computed).cpu().numpy()
            for index, own in zip(order, np.split(values, np.cumsum(lengths)[:-1]), strict=True):
                scores[index] = own
        if self._engine.module.device.type == "cpu":  # on a GPU, no micro-batch was in the host's memory
            release_freed_memory()
        return scores

    def score_reference(
        self, turns: Sequence[Sample], temperature: float = 1.0, stand_in: Sample | None = None
    ) -> list[NDArray[np.float32]]:
        """`score` under the weights of `keep_reference`, `load_reference` or `move_reference`."""
        with self._stage_start.in_place():
            return self.score(turns, temperature, stand_in)

    @torch.no_grad()
    def score_here(self, turn: Sample) -> list[float]:
        """Log-probabilities [L] of one turn at temperature 1, computed whole on every rank."""
        check_turns([turn], self.vocabulary_size)
        ((micro_batch, _),) = self._passes([turn], None)
        self._engine.module.eval()
        logprobs = token_logprobs(self._engine.module, micro_batch, 1.0)
        self._engine.module.train()
        return logprobs.tolist()

    def step(self, batch: Batch, at_start: bool = False) -> StepReport:
        """One optimiser step on the global batch, of which `batch` is this rank's share. If the loss or gradient is not
        finite, the weights do not change and the report has `skipped`. With `at_start`, turns need no old
        log-probabilities: the current weights' are used.

        Nothing waits for a GPU before its optimiser step. Raises LearnerError when the batch is empty.
        """
        began = time.perf_counter()
        assert batch.whole is not None or self._world.size == 1, "a rank of several takes its share of a batch"
        self._must_be_awake("to take a step")
        rows = Rows.of(batch, self._objective, self._spec)
        if not rows.samples and batch.stand_in is None:
            raise LearnerError("an optimiser step needs a batch with games or SFT rows")
        passes = self._passes(rows.samples, batch.stand_in)
        sums = StepSums(self._objective, self._spec, at_start)
        compute_began = moment(self._engine.device)
        for number, (micro_batch, counts) in enumerate(passes, 1):
            # A rank without samples computes a placeholder, at any temperature.
            at = rows.temperatures[list(micro_batch.sample_indices)].tolist() if rows.samples else 1.0
            logprobs, entropies = token_logprobs_and_entropies(
                self._engine.module, micro_batch, at, self._objective.entropy_coeff > 0
            )
            loss = sums.loss(logprobs, entropies, rows, micro_batch) if counts else logprobs.sum() * 0.0
            self._engine.backward(loss, last=number == len(passes))
        computed = moment(self._engine.device)
        learning_rate = learning_rate_at(
            self._num_steps_done, self._spec.num_steps, self._spec.learning_rate, self._config.warmup_share
        )
        gradient_norm = self._engine.step(learning_rate)
        self._num_steps_done += 1
        own, norm = sums.read(gradient_norm)
        own.maxima["compute_s"] = seconds_between(compute_began, computed)
        if self._engine.device.type == "cuda":
            own.maxima["gpu_memory_bytes"] = torch.cuda.max_memory_allocated(self._engine.device)
        return step_report(
            own.over_ranks(gathered_over_ranks),
            batch.counts,
            self._objective,
            self._spec,
            step=self._num_steps_done,
            gradient_norm=norm,
            learning_rate=learning_rate,
            seconds=time.perf_counter() - began,
            gpus=self._gpus,
        )

    def save_model(self, folder: str, adapter_alone: bool = False) -> None:
        """The model and its tokenizer as transformers reads them, or the published adapter as peft reads it, whole or
        not at all; a collective call, rank 0 writes. Raises RunFolderError if the folder cannot be written."""
        self._must_be_awake("to save a model")
        release_freed_memory()
        state: dict[str, Tensor] = {}
        for name, weight in (self._published if adapter_alone else self._whole).each():
            if self._world.rank == 0:
                state[name] = weight.to("cpu")
        if self._world.rank == 0:
            with writing(Path(folder)) as partial:
                if adapter_alone:
                    assert self.adapter is not None, "whole weights are published"
                    save_adapter(str(partial), state, self.adapter)
                else:
                    write_model(self._base_model, state, self._model_folder, partial)
        release_freed_memory()

    def open_channel(self, channel: str, client: Any, address: str, world_size: int, timeout_s: float) -> None:
        """Prepare to send the published weights to the engines behind `client`. Called by every rank, and again after
        the engines have changed; see spag_ray/channels/base.py."""
        if self._sender is not None:
            self._sender.close()
        link = Link(self._world.rank, address, world_size, self._config.bucket_bytes, timeout_s)
        self._sender = find(channel).sender(self._published, client, link)  # `abort_sending` may come during `open`
        self._sender.open()

    def send(self) -> bool:
        """Send the current weights to the engines of the open channel; a collective call. False if the channel
        broke."""
        assert self._sender is not None
        self._must_be_awake("to send its weights", or_hold_weights=True)
        return self._sender.send()

    def abort_sending(self) -> bool:
        """Called from another thread when an engine is gone for which `open_channel` or `send` may be waiting. Returns
        whether the channel broke by that."""
        return self._sender is not None and self._sender.abort()

    def save_state(self, folder: str) -> None:
        """Write weights, optimiser, the stage's progress, and reference weights that no saved model has (adapters, an
        average), to resume from. A collective call; every rank writes its part."""
        self._must_be_awake("to save its state")
        stage = {**asdict(self._spec), "step": self._num_steps_done}
        self._engine.save(folder, {"stage": stage, "num_ranks": self._world.size})
        is_saved_nowhere = self._config.lora is not None or self._objective.kl_reference_average is not None
        is_own = self._engine.is_partitioned or self._world.rank == 0  # without parts, all ranks hold the same
        if is_saved_nowhere and is_own and self._stage_start.is_held:
            self._stage_start.save(self._reference_file(folder))

    def load_state(self, folder: str) -> StageSpec:
        """The inverse of `save_state`; returns the stage that had begun (without its name and temperature, if an
        earlier version saved it). Raises LearnerError when the group has another number of ranks."""
        extra = self._engine.load(folder)
        self._engine.check_ranks(folder, extra["num_ranks"])
        stage = dict(extra["stage"])
        self._num_steps_done = stage.pop("step")
        self._spec = StageSpec(**stage)
        self._stage_start.forget()
        if self._reference_file(folder).exists():
            self._stage_start.load(self._reference_file(folder))
        return self._spec

    def _reference_file(self, folder: str) -> Path:
        rank = self._world.rank if self._engine.is_partitioned else 0
        return Path(folder) / f"stage-start-{rank}.safetensors"

    def sleep(self, keep_weights: bool = False) -> None:
        """Free the GPU's memory, and unused host memory, for other processes. Call `wake` before any other work. With
        `keep_weights` the weights can still be sent."""
        self._engine.offload(keep_weights)
        self._is_asleep, self._holds_weights = True, keep_weights
        release_freed_memory()

    def _must_be_awake(self, to: str, or_hold_weights: bool = False) -> None:
        """Raises LearnerError in sleep, also on CPUs, where nothing is put away."""
        if self._is_asleep and not (or_hold_weights and self._holds_weights):
            raise LearnerError(f"the learner sleeps, and its memory may be elsewhere: wake it first, {to}")

    def wake(self) -> None:
        if self._is_asleep:
            self._engine.reload()
        self._is_asleep, self._holds_weights = False, True

    def _passes(self, turns: Sequence[Sample], stand_in: Sample | None) -> list[tuple[MicroBatch, bool]]:
        """The forward passes of this rank, as many as of every other, to take part in collective calls: its
        micro-batches, and others that do not count (False), of `stand_in` on a rank without turns."""
        own = [*turns] if turns or stand_in is None else [stand_in]
        assert own, "a rank without turns needs a stand-in to take part"
        budget = self._config.microbatch_tokens
        cut: list[MicroBatch]
        if self._config.packing == "trees":
            cut = [*pack(own, budget, ROOT_TOKENS if self._engine.device.type == "cuda" else None)]
        else:
            cut = [*pad(own, budget)]
        num_more = int(gathered_over_ranks([len(cut)]).max()) - len(cut)
        return [(each, bool(turns)) for each in cut] + [(cut[-1], False)] * num_more


def _load(folder: str, config: LearnerConfig, world: World) -> torch.nn.Module:
    """The model that is trained. Raises ModelError."""
    dtype, attention = getattr(torch, config.dtype), TREE if config.packing == "trees" else "sdpa"
    if not loads_in_parts(deepspeed_config(config)["zero_optimization"]):
        return load_model(folder, dtype, attention)
    partition = Partition(config, world)
    module = load_model_in_parts(folder, dtype, attention, partition.applied, partition.take)
    release_freed_memory()  # of whole weights, each held briefly
    return module
