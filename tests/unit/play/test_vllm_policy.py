"""What of VllmPolicy only a GPU takes: answers as vLLM's runner for GPUs gives them, made by that runner's own code."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.sample import prompt_logprob
from vllm.v1.worker.gpu.sample.prompt_logprob import PromptLogprobsWorker

from actors.vllm_policy import VllmPolicy, _engine_arguments
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError
from spag_ray.families.alibi_llama import AlibiLlamaConfig

WORDS, WIDTH = 11, 5
ENDED = SimpleNamespace(finish_reason="length")
TABLE = torch.randn(WORDS, WIDTH, generator=torch.Generator().manual_seed(0))


def exact(tokens: list[int]) -> torch.Tensor:
    """[tokens - 1] of a model that sees one token."""
    logits = TABLE[tokens] @ TABLE.T
    return logits[:-1].log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def scores_without_triton(logits: torch.Tensor, num_logprobs: int, ids: torch.Tensor, **_: Any) -> LogprobsTensors:
    each = torch.cat([ids[:, None], logits.topk(num_logprobs).indices], 1)
    ranks = (logits >= logits.gather(1, ids[:, None])).sum(1)
    return LogprobsTensors(each, logits.log_softmax(-1).gather(1, each), ranks)


class EngineOnAGpu:
    """Computes prompts in parts of `chunk` tokens; `num_cached` of each are in its prefix cache."""

    def __init__(self, num_cached: int, chunk: int) -> None:
        self._num_cached, self._chunk = num_cached, chunk
        self.num_asked = 0

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        self.num_asked += 1
        tokens = prompt["prompt_token_ids"]
        num_cached = 0 if params.skip_reading_prefix_cache else self._num_cached
        worker, one = PromptLogprobsWorker(4, torch.device("cpu")), np.array([0])
        worker.add_request(request_id, 0, params)
        lists = LogprobsProcessor.from_new_request(None, SimpleNamespace(sampling_params=params))
        for begin in range(num_cached, len(tokens), self._chunk):
            here = tokens[begin : begin + self._chunk]
            batch = SimpleNamespace(
                req_ids=[request_id],
                num_tokens=len(here),
                idx_mapping=torch.tensor(one),
                idx_mapping_np=one,
                query_start_loc=torch.tensor([0, len(here)]),
                query_start_loc_np=np.array([0, len(here)]),
                num_scheduled_tokens=np.array([len(here)]),
                num_computed_prefill_tokens_np=np.array([begin]),
                prefill_len_np=np.array([len(tokens)]),
            )
            found = worker.compute_prompt_logprobs(
                lambda hidden: hidden @ TABLE.T,
                TABLE[here],
                batch,
                torch.tensor([tokens]),
                torch.tensor([begin]),
                np.array([len(tokens)]),
            )
            if (tensors := found.get(request_id)) is not None:
                lists._update_prompt_logprobs(tensors)
        yield SimpleNamespace(
            prompt_logprobs=lists.prompt_logprobs, num_cached_tokens=num_cached, finished=True, outputs=[ENDED]
        )


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(num_tokens: int, _starts: Any, _mapping: Any, computed: Any, all_ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([all_ids[0], all_ids[0][:1]])[computed[0] + 1 :][:num_tokens]  # what follows is not read

    monkeypatch.setattr(prompt_logprob, "get_prompt_logprobs_token_ids", ids)
    monkeypatch.setattr(prompt_logprob, "compute_topk_scores", scores_without_triton)


@pytest.mark.usefixtures("without_triton")
@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize(("num_cached", "num_asked"), [(0, 1), (4, 1), (8, 2)])
async def test_a_score_is_of_its_target_however_much_of_the_prompt_is_cached(
    num_cached: int, num_asked: int, chunk: int
) -> None:
    """A GPU's runner lists the log-probabilities of computed tokens alone, a CPU's of all."""
    prompt, target = [3, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5]
    engine = EngineOnAGpu(num_cached, chunk)
    (found,) = await VllmPolicy(engine, "gpu", 0, 512, on_cpu=False).score([(prompt, target)])
    expected = exact([*prompt, *target])[-len(target) :]
    assert found.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    assert engine.num_asked == num_asked, "what the cache has of a target is computed again"


def test_attention_with_alibi_is_planned_for_the_kernel_that_computes_it(tmp_path: Path, tiny_model: Path) -> None:
    """Where vLLM prefers FlashAttention 3, it makes a plan for that (FlashAttentionMetadataBuilder); layers with ALiBi
    take version 2, which refuses it (flash_attn_varlen_func)."""
    AlibiLlamaConfig(hidden_size=48, num_attention_heads=6).save_pretrained(tmp_path)
    config = EngineConfig(num_gpus=1)
    assert _engine_arguments(str(tmp_path), config, 0, on_cpu=False).attention_config.flash_attn_version == 2
    assert _engine_arguments(str(tiny_model), config, 0, on_cpu=False).attention_config.flash_attn_version is None
    chosen = EngineConfig(num_gpus=1, vllm={"attention_config": {"backend": "TRITON_ATTN"}})
    assert _engine_arguments(str(tmp_path), chosen, 0, on_cpu=False).attention_config.flash_attn_version is None


async def test_what_a_models_configuration_says_wrongly_is_told_in_one_line(tmp_path: Path, tiny_model: Path) -> None:
    """huggingface_hub, which checks it, raises a kind of its own."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": "abc"}))
    with pytest.raises(EngineError, match=rf"vLLM cannot load {tmp_path}: .*expected int, got str"):
        await VllmPolicy.start(str(tmp_path), EngineConfig(kv_cache_gib=0.01, max_model_len=64))
