"""What one optimiser step of a learner rank asks of its device, counted on a CPU with a tiny model.

    python -m benchmarks.learner_ops                    about half a minute

The counts are those that a GPU pays for: reads of a value and DeepSpeed's waits (until the GPU has done all that it was
given), ATen calls (each a launch or more), and copies from the host. The last line is JSON.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from learners.attention import TREE
from learners.engine import World
from learners.forward import token_logprobs_and_entropies
from learners.head import TargetHead
from learners.learner import Learner
from learners.packing import pack
from learners.step_sums import StepSums
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import Claiming, GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import Rows

VOCABULARY = 512
OBJECTIVE = ObjectiveConfig(listening_coeff=0.5, claiming_coeff=0.5, unsaid_coeff=0.5)
SPEC = StageSpec("self_play", 100, 1e-5, 0.2, listening_coeff=0.5)


class Counts(TorchDispatchMode):
    """ATen calls by name, in a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.calls[func.name()] += 1
        if func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu":
            self.copies += torch.device(kwargs.get("device") or "cpu").type != "cpu"
        return func(*args, **kwargs)

    @property
    def reads(self) -> int:
        return self.calls["aten::_local_scalar_dense"]


def games_of(num_games: int, num_turns: int = 5) -> list[GameSample]:
    """Games with turns, words that are listened for, claims and unsaid words; every kind that a loss knows."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    games = []
    for number in range(num_games):
        heard, turns, listening, unsaid = ids(40), [], [], []
        for _ in range(num_turns):
            said = ids(20)
            logprobs = [-rng.random() * 3 for _ in said]
            turns.append(Sample(heard, said, 0.5, logprobs, logprobs, logprobs, Role.ATTACKER))
            unsaid.append((Sample(heard + said[:9], ids(2), role=Role.ATTACKER),))
            heard = heard + said + ids(20)
            claiming = Claiming(1, 2) if number % 4 == 0 else None
            listening.append(Sample(heard, ids(4), role=Role.DEFENDER, claiming=claiming))
        game = GameSample(f"game-{number}", Role.ATTACKER, 1.0, tuple(turns), tuple(listening), tuple(unsaid))
        games.append(game)
    return games


@contextmanager
def tiny_learner(**settings: Any) -> Iterator[Learner]:
    """A rank with a random model, as a run makes it."""
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128}
    shape |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    with tempfile.TemporaryDirectory(prefix="spag_ray-ops-") as folder:
        LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)
        config = LearnerConfig.model_validate({"dtype": "float32", "num_threads": 1, **settings})
        learner = Learner(folder, config, OBJECTIVE, World(master=f"127.0.0.1:{20000 + os.getpid() % 9999}"))
        learner.begin_stage(SPEC)
        yield learner


def of_a_step(learner: Learner, num_games: int) -> dict[str, int]:
    """Reads of a value, waits of DeepSpeed for the device, and ATen calls of one optimiser step of this rank."""
    batch = Batch(tuple(games_of(num_games)))
    for _ in range(2):
        learner.step(batch)
    with patch.object(get_accelerator(), "synchronize") as waits, Counts() as counts:
        learner.step(batch)
    # The sums of the step are read by one call of tolist, which a CPU does not dispatch.
    return {"reads": counts.reads + 1, "waits": waits.call_count, "calls": counts.calls.total()}


def of_a_loss(num_turns: int) -> dict[str, int]:
    """ATen calls of the forward of the loss of one micro-batch with this many turns, and as many of each other kind;
    copies to a device of the columns that it reads."""
    batch = Batch(tuple(games_of(num_turns, num_turns=1)))
    rows = Rows.of(batch, OBJECTIVE, SPEC)
    (tree,) = pack(rows.samples, 10**6)
    sums = StepSums(OBJECTIVE, SPEC)
    theta = torch.full((len(tree.targets),), -1.0, requires_grad=True)
    entropies = torch.zeros_like(theta)
    sums.loss(theta, entropies, rows, tree)
    with Counts() as counts:
        sums.loss(theta, entropies, rows, tree)
    return {"turns": num_turns, "calls": counts.calls.total(), "reads": counts.reads}


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def copies_of_a_micro_batch() -> int:
    """Copies from the host to the device in the forward and the loss of one micro-batch, with a model on the meta
    device, where a read of a value is an error."""
    shape: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48}
    config = LlamaConfig(**shape, num_hidden_layers=1, num_attention_heads=2, attn_implementation=TREE)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    TargetHead.install(model)
    rows = Rows.of(Batch(tuple(games_of(2))), OBJECTIVE, SPEC)
    (tree,) = pack(rows.samples, 10**6)
    temperatures = [0.7 + index % 2 for index in range(len(tree.lengths))]
    # FlexAttention refuses the meta device; what stands in for it makes no copies either.
    with Counts() as counts, patch("learners.attention.flex_attention", _attend):
        logprobs, entropies = token_logprobs_and_entropies(model, tree, temperatures)
        StepSums(OBJECTIVE, SPEC).loss(logprobs, entropies, rows, tree).backward()
    return counts.copies


def main() -> None:
    found: dict[str, Any] = {}
    with tiny_learner(max_tokens_per_microbatch=2048) as learner:
        found["step"] = {f"{count} games": of_a_step(learner, count) for count in (8, 64)}
    found["loss"] = [of_a_loss(count) for count in (2, 22, 200)]
    found["copies"] = copies_of_a_micro_batch()
    for name, figures in found.items():
        print(f"{name}: {figures}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
