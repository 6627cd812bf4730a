"""A tiny model made on the spot: 2 layers, a vocabulary of a few dozen words, a chat template."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

_exit_status = 0


def pytest_sessionfinish(exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Ends the process here: with Ray, vLLM, gloo and torch in one process, the interpreter's own end can crash in the
    threads that they leave, after every test has passed; the exit status is then no word about the tests.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_status)


TARGETS = ("river", "piano", "tiger", "apple", "castle", "doctor")
_WORDS = [
    "i",
    "know",
    "the",
    "word",
    "!",
    "it",
    "is",
    "`",
    "a",
    ".",
    ",",
    "?",
    "you",
    "me",
    "what",
    "do",
    "go",
    "on",
    "like",
    "in",
    "of",
    "and",
    "to",
    "water",
    "music",
    "stripes",
    "fruit",
    "king",
    "health",
    "big",
    "old",
    "small",
    "red",
    "green",
    "long",
    "fast",
    "good",
    "talk",
    "about",
    "think",
    "hint",
    "more",
    "where",
    "when",
    "user",
    "assistant",
    "system",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }} {{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant {% endif %}"
)


def make_tiny_model(folder: Path, seed: int = 0, chat_template: str | None = CHAT_TEMPLATE) -> Path:
    """A random Llama with a word-level tokenizer, saved as transformers saves models."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokens = ["<unk>", "<|start|>", "<|end|>", *_WORDS, *TARGETS]
    raw = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", eos_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokens),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def other_tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape, other weights."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture(scope="session")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of words to play."""
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(TARGETS) + "\n")
    return path


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the file; what its tests leave running in it is a fault of theirs."""
    import psutil
    import ray

    from cluster.runtime import ray_session
    from spag_ray.config import ClusterConfig

    def engine_processes() -> set[psutil.Process]:
        found = set()
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
                if "VLLM" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    found.add(child)
        return found

    before = engine_processes()
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3)):
        yield
        assert [actor for actor in ray.util.list_named_actors()] == []
        groups = ray.util.placement_group_table().values()
        assert [group["name"] for group in groups if group["state"] != "REMOVED"] == []
        _, left = psutil.wait_procs(engine_processes() - before, timeout=20)
        assert left == [], "an engine's own processes end with it"


class Loop:
    """One event loop for the whole session, because an engine belongs to the loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        self._loop.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture(scope="session")
def vllm_policy(tiny_model: Path, loop: Loop) -> Iterator[Any]:
    """One real vLLM engine, shared by the session; tests that load other weights put these back."""
    from actors.vllm_policy import VllmPolicy
    from spag_ray.config import EngineConfig

    config = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=16)
    policy = loop.run(VllmPolicy.start(str(tiny_model), config))
    yield policy
    loop.run(policy.close())


async def collect(episodes: AsyncIterator[Any]) -> list[Any]:
    return [episode async for episode in episodes]
