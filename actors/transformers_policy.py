"""transformers' own forward pass behind Policy: slow, portable, and the reference in the contract tests.

Sequences are decoded one at a time, so greedy play does not depend on other requests: the same prompt always gives the
same tokens and log-probabilities.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from actors.policy import Completion, Pairs, Request, Sampling, Score, WakePart, refuse_adapter, refuse_greedy
from spag_ray.channels.buckets import tensors_of
from spag_ray.errors import EngineError, WeightSyncError
from spag_ray.families.auto import file_name, read_model
from spag_ray.weights.snapshot import Snapshot


class TransformersPolicy:
    """A causal LM in this process; `dtype` float32 or bfloat16. Raises ModelError if it cannot be read whole."""

    def __init__(
        self, model: str, dtype: str = "float32", max_model_len: int = 2048, name: str = "policy", version: int = 0
    ) -> None:
        self.name = name
        self.version = version
        self._max_model_len = max_model_len
        self._model = read_model(model, dtype=getattr(torch, dtype)).eval()
        self._lock = asyncio.Lock()

    is_dead = False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        completions = []
        for request in requests:
            refuse_adapter(self.name, request.adapter)
            async with self._lock:
                completions.append(await asyncio.to_thread(self._generate_one, request))
        return completions

    @torch.inference_mode()
    def _generate_one(self, request: Request) -> Completion:
        sampling = request.sampling
        room = min(sampling.max_new_tokens, self._max_model_len - len(request.prompt_ids))
        if room < 1:
            return Completion.unsampled(request.request_id, (), "context", self.version)
        generator = torch.Generator()
        if sampling.seed is not None:
            generator.manual_seed(sampling.seed)
        else:
            generator.seed()
        step, cache = torch.tensor([request.prompt_ids]), None
        tokens: list[int] = []
        logprobs: list[float] = []
        while len(tokens) < room and not (tokens and tokens[-1] in sampling.stop_token_ids):
            output = self._model(input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            distribution = _distribution(output.logits[0, -1].float(), sampling)
            if sampling.temperature == 0:
                token = int(distribution.argmax())
            else:
                token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
            tokens.append(token)
            logprobs.append(float(distribution[token]))
            step = torch.tensor([[token]])
        stopped = tokens[-1] in sampling.stop_token_ids
        reason = "stop" if stopped else "length" if room == sampling.max_new_tokens else "context"
        return Completion(
            request.request_id,
            tuple(tokens),
            tuple(logprobs),
            first_version=self.version,
            last_version=self.version,
            finish_reason=reason,
        )

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        refuse_adapter(self.name, adapter)
        refuse_greedy(temperature)
        scores = []
        for prompt, target in sequences:
            if (length := len(prompt) + len(target)) > self._max_model_len:
                raise EngineError(f"{self.name}: {length} tokens to score, but max_model_len is {self._max_model_len}")
            async with self._lock:
                scores.append(await asyncio.to_thread(self._score_one, prompt, target, temperature))
        return scores

    @torch.inference_mode()
    def _score_one(self, prompt: Sequence[int], target: Sequence[int], temperature: float) -> Score:
        logits = self._model(torch.tensor([[*prompt, *target]]), logits_to_keep=len(target) + 1).logits[0, :-1]
        logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
        found = logprobs.gather(1, torch.tensor(target, dtype=torch.long)[:, None])[:, 0]
        return Score(tuple(found.tolist()), bool((found >= logprobs.amax(1)).all()))

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        if snapshot.adapter is not None:
            raise WeightSyncError(
                f"policy {self.name} takes whole weights; set learner.lora.export: merged, or engine.kind: vllm"
            )
        named = file_name(self._model)
        parameters = {named(name): parameter for name, parameter in self._model.named_parameters()}
        missing = set(parameters)
        async with self._lock:
            async for bucket in snapshot.buckets():
                bucket.verify()
                for name, tensor in tensors_of(torch.from_numpy(bucket.payload.copy()), bucket.tensors):
                    if name not in parameters or parameters[name].shape != tensor.shape:
                        raise WeightSyncError(
                            f"policy {self.name}: tensor {name} {tuple(tensor.shape)} does not fit its model"
                        )
                    parameters[name].data.copy_(tensor)
                    missing.discard(name)
            if missing:
                raise WeightSyncError(
                    f"policy {self.name}: the snapshot lacks {len(missing)} tensors, first {min(missing)}"
                )
            self.version = snapshot.version

    async def sleep(self) -> None:
        """Does nothing: there is no cache between calls."""

    async def wake(self, part: WakePart = "all") -> None:
        """See `sleep`."""

    async def close(self) -> None:
        """Nothing outlives the object."""


def _distribution(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Log-probabilities [vocabulary] that are sampled from: temperature, then top-k, then top-p."""
    if sampling.temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.numel():
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1.0:
        ordered, order = logits.softmax(-1).sort(descending=True)
        outside = order[(ordered.cumsum(0) - ordered) > sampling.top_p]
        logits = logits.index_fill(0, outside, -torch.inf)
    return torch.log_softmax(logits, dim=-1)
