"""The learner: real DeepSpeed ranks on a tiny model."""

import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import loading
from tests.support.listening import free_ports
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.parallel

SCRIPT = """
import json, os, sys
import torch
from dataclasses import replace
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad
from learners.engine import World
from learners.learner import Learner
from spag_ray.training_data.shares import Batch, shares_of
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.training_data.samples import GameSample, Sample, with_column
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.game.rules import Role
from spag_ray.weights.snapshot import checksum

model, out, options, objective, rank, size, port = sys.argv[1:]
torch.set_num_threads(1)
defaults = {"dtype": "float32", "max_tokens_per_microbatch": 200, "bucket_bytes": 30000}
config = LearnerConfig(**defaults | json.loads(options))
world = World(int(rank), int(size), int(rank), f"127.0.0.1:{port}")
learner = Learner(model, config, ObjectiveConfig(name=objective, unsaid_coeff=0.3), world)
trains = all(module.training for module in learner._engine.module.modules())

def game(number):
    role = Role.ATTACKER if number % 3 else Role.DEFENDER
    prompt, turns = (1, 40, 5, 6, 7, 2, 1, 39, 8 + number), []
    for turn in range(1 + number % 3):
        target = (9 + turn, 10 + number, 11, 2)
        turns.append(Sample(prompt, target, 0.3 + 0.1 * turn, (-3.0, -3.5, -2.0, -1.0)))
        prompt = prompt + target + (1, 20 + turn, 2)
    words = [Sample((*turn.prompt_ids, 41, 42), (50 + number, 12, 2)[number % 2:], 1.0) for turn in turns]
    unsaid = tuple((Sample(turn.prompt_ids, (45,), 1.0),) for turn in turns)
    return GameSample(str(number), role, 0.5 + number / 4, tuple(turns), tuple(words[number // 3:]), unsaid)

games = [game(number) for number in range(6)]
games.append(replace(games[2], episode_id="tie", role=None, turns=()))
sft = [Sample((1, 30, 31, 2), (32, 33, 2), 1.0)]

def scored(games):
    turns = [turn for one in games for turn in one.turns]
    shares = shares_of([turn.num_tokens for turn in turns], world.size)
    scores = learner.score([turns[index] for index in shares[world.rank]], stand_in=turns[0])
    gathered = [None] * world.size
    torch.distributed.all_gather_object(gathered, scores)
    merged = {index: values for own, found in zip(shares, gathered) for index, values in zip(own, found)}
    return with_column(games, "old_logprobs", [merged[index] for index in range(len(turns))])

gradients, update = [], learner._engine.step
def step(rate):
    trained = [parameter for _, parameter in learner._engine.inner_module.named_parameters() if parameter.requires_grad]
    whole = [safe_get_full_grad(parameter) for parameter in trained]
    gradients.append(torch.cat([gradient.flatten().float() for gradient in whole]))
    return update(rate)
learner._engine.step = step

stage = StageSpec("self_play", 9, 1e-3, 0.2, 0.4)
learner.begin_stage(stage)
whole = Batch(tuple(scored(games)), tuple(sft))
batch = whole.shares(world.size)[world.rank]
reports = [learner.step(batch) for _ in range(3)]
turn = replace(whole.games[0].turns[0], old_logprobs=(float("nan"),) * 4)
poisoned = Batch((replace(whole.games[0], turns=(turn,)),)).shares(world.size)[world.rank]
def checksums():
    buckets = [learner.bucket(index) for index in range(learner.num_buckets)]
    return [bucket.checksum for bucket in buckets if bucket is not None]
before = checksums()
bad = learner.step(poisoned)
kept = checksums()
after = learner.step(batch)
buckets = [learner.bucket(index) for index in range(learner.num_buckets)]
learner.save_model(out)
parameters = list(learner._engine.inner_module.named_parameters())
adapters = {name: safe_get_full_fp32_param(parameter).cpu() for name, parameter in parameters if "lora_" in name}
tempered = []
for temperature in (1.0, 1.7):
    learner.begin_stage(replace(stage, learning_rate=0.0, temperature=temperature))
    tempered.append(learner.step(batch))
if rank == "0":
    torch.save(gradients[0], out + ".gradient")
    torch.save(adapters, out + ".adapters")
    print("RESULT " + json.dumps({
        "reports": [vars(report) for report in reports], "bad": vars(bad), "after": vars(after),
        "tempered": [vars(report) for report in tempered], "trains": trains,
        "before": before, "kept": kept,
        "checksums": [bucket.checksum for bucket in buckets],
        "tensors": sum(len(bucket.tensors) for bucket in buckets), "num_tensors": learner.num_tensors,
        "largest": max(len(bucket.payload) for bucket in buckets if len(bucket.tensors) > 1)}))
# A run ends its ranks by killing them; gloo's threads do not always outlast the interpreter's own end.
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""


def run_ranks(model: Path, out: Path, objective: str = "spag", size: int = 1, **options: object) -> dict[str, Any]:
    """The script above on `size` ranks, each a process of its own as in a run; what rank 0 found."""
    (port,) = free_ports(1)
    arguments = [str(model), str(out), json.dumps(options), objective]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), *arguments, str(rank), str(size), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
    line = next(line for line in outputs[0].splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.fixture(scope="module")
def one_rank(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("learner") / "model"
    return {**run_ranks(tiny_model, out), "model": out}


def test_the_loss_falls_on_a_batch_that_is_learned_again(one_rank: dict[str, Any]) -> None:
    losses = [report["loss"] for report in one_rank["reports"]]
    assert losses[2] < losses[0]
    assert all(report["gradient_norm"] > 0 for report in one_rank["reports"])


def test_before_the_first_step_nothing_is_clipped_and_nothing_has_diverged(one_rank: dict[str, Any]) -> None:
    first = one_rank["reports"][0]
    assert first["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert first["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert first["clip_fraction"] == 0.0
    assert one_rank["reports"][2]["kl_loss"] > 0


def test_shared_prefixes_are_computed_once(one_rank: dict[str, Any]) -> None:
    first = one_rank["reports"][0]
    assert first["num_unique_tokens"] < first["num_flat_tokens"]


def test_every_tensor_is_exported_once_in_buckets_of_the_capped_size(one_rank: dict[str, Any]) -> None:
    assert one_rank["tensors"] == one_rank["num_tensors"]
    assert len(one_rank["checksums"]) > 2
    assert one_rank["largest"] <= 30000


def test_the_saved_model_is_the_one_that_was_exported(one_rank: dict[str, Any], tiny_model: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from actors.models import load_tokenizer

    saved = AutoModelForCausalLM.from_pretrained(one_rank["model"], dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    moved = [not torch.equal(a, b) for a, b in zip(saved.parameters(), before.parameters(), strict=True)]
    assert all(moved)
    assert load_tokenizer(str(one_rank["model"])).chat_template


@pytest.mark.parametrize(
    ("size", "options"),
    [
        pytest.param(1, {"max_tokens_per_microbatch": 40}, id="four micro-steps"),
        pytest.param(2, {"zero_stage": 2}, id="two ranks, zero-2", marks=pytest.mark.long),
        pytest.param(2, {"zero_stage": 3}, id="two ranks, zero-3"),
        pytest.param(1, {"packing": "none"}, id="padded rows"),
        pytest.param(1, {"gradient_checkpointing": True}, id="gradient checkpointing"),
        pytest.param(1, {"compile": "layers"}, id="compiled layers", marks=pytest.mark.long),  # test_compiling.py
        pytest.param(1, {"zero_stage": 0}, id="zero-0", marks=pytest.mark.long),
        pytest.param(2, {}, id="two ranks, zero-1", marks=pytest.mark.long),
        pytest.param(1, {"deepspeed": "zero2_offload"}, id="zero-2, offloaded", marks=pytest.mark.long),
        pytest.param(2, {"deepspeed": "zero3_offload"}, id="two ranks, zero-3, offloaded", marks=pytest.mark.long),
    ],
)
def test_the_same_update_for_any_micro_batches_ranks_and_zero_stage(
    one_rank: dict[str, Any], tiny_model: Path, tmp_path: Path, size: int, options: dict[str, Any]
) -> None:
    other = run_ranks(tiny_model, tmp_path / "other", size=size, **options)
    ours, theirs = (torch.load(f"{folder}.gradient") for folder in (one_rank["model"], tmp_path / "other"))
    assert ((ours - theirs).norm() / ours.norm()).item() <= 1e-5
    for one, another in zip(one_rank["reports"], other["reports"], strict=True):
        assert another["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert another["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)
    assert other["bad"]["skipped"]
    assert not other["after"]["skipped"]
    assert other["kept"] == other["before"] != other["checksums"]
    assert math.isfinite(other["after"]["loss"])


def test_layers_are_in_training_mode_before_anything_was_scored(one_rank: dict[str, Any]) -> None:
    """Models load in eval mode, in which transformers keeps all activations whatever gradient_checkpointing says."""
    assert one_rank["trains"]


def test_a_step_without_a_finite_gradient_is_skipped_and_the_next_one_learns(one_rank: dict[str, Any]) -> None:
    assert one_rank["bad"]["skipped"]
    assert math.isnan(one_rank["bad"]["loss"])
    assert one_rank["after"]["loss"] < one_rank["reports"][0]["loss"]
    assert math.isfinite(one_rank["after"]["gradient_norm"])


@pytest.mark.long  # the CPU Adam of DeepSpeed is compiled
def test_offloaded_gradients_of_a_skipped_step_do_not_come_back(tiny_model: Path, tmp_path: Path) -> None:
    """In bfloat16 DeepSpeed sums them in a buffer that it clears in a step, but not when it skips one."""
    found = run_ranks(tiny_model, tmp_path / "out", deepspeed="zero2_offload", dtype="bfloat16")
    assert found["bad"]["skipped"]
    assert not found["after"]["skipped"]
    assert math.isfinite(found["after"]["gradient_norm"])


def test_the_report_tells_ratio_gap_entropy_and_role_weights(one_rank: dict[str, Any]) -> None:
    first, last = one_rank["reports"][0], one_rank["reports"][2]
    assert 0 < first["entropy"] < 10
    assert first["gap_mean"] > 0
    assert first["gap_max"] >= first["gap_mean"]
    assert first["gap_k3"] > 0
    assert last["ratio_max"] > last["ratio_mean"]
    assert first["attacker_weight"] == pytest.approx(1.25)
    assert first["defender_weight"] == pytest.approx(0.875)
    assert first["unique_share"] == pytest.approx(first["num_unique_tokens"] / first["num_flat_tokens"])
    assert 0 < first["compute_s"] < first["seconds"]


@pytest.mark.parametrize("packing", ["trees", "none"])
def test_instruction_data_is_learned_at_temperature_1_whatever_games_are_sampled_at(
    packing: str, one_rank: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    found = one_rank if packing == "trees" else run_ranks(tiny_model, tmp_path / "m", packing="none")
    plain, tempered = found["tempered"]
    assert tempered["sft_loss"] == pytest.approx(plain["sft_loss"], rel=1e-6)
    assert tempered["entropy"] > 1.01 * plain["entropy"], "of the games' turns, under a flatter softmax"


def test_the_word_is_learned_or_unlearned_at_temperature_1_in_any_game(one_rank: dict[str, Any]) -> None:
    plain, tempered = one_rank["tempered"]
    assert tempered["listening_loss"] == pytest.approx(plain["listening_loss"], rel=1e-6)
    first, last = one_rank["reports"][0], one_rank["reports"][2]
    assert tempered["unsaid_loss"] == pytest.approx(plain["unsaid_loss"], rel=1e-6)
    terms = ("policy_loss", "kl_loss", "sft_loss", "listening_loss", "unsaid_loss")
    assert first["loss"] == pytest.approx(sum(first[term] for term in terms), rel=1e-9)
    assert first["listening_loss"] > last["listening_loss"] > 0
    assert first["listening_nats"] > last["listening_nats"]
    assert first["num_listened"] == 6
    assert first["unsaid_loss"] > last["unsaid_loss"] > 0


def test_bfloat16_and_the_published_objective_train_too(tiny_model: Path, tmp_path: Path) -> None:
    reports = run_ranks(tiny_model, tmp_path / "b", dtype="bfloat16", objective="published")["reports"]
    assert all(math.isfinite(report["loss"]) for report in reports)
    assert reports[2]["loss"] != reports[0]["loss"]


def test_adapters_alone_are_trained_and_the_merged_model_has_the_names_and_the_learned_weights(
    tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lora"
    found = run_ranks(tiny_model, out, lora={"rank": 4, "alpha": 8})
    assert found["reports"][2]["loss"] < found["reports"][0]["loss"]
    saved, before = (load_file(folder / "model.safetensors") for folder in (out, tiny_model))
    assert saved.keys() == before.keys()
    assert found["num_tensors"] == len(before)
    moved = {name for name in before if not torch.equal(saved[name].float(), before[name].float())}
    assert any("q_proj" in name for name in moved)
    assert not any("embed" in name or "norm" in name for name in moved)


@pytest.mark.parametrize(("zero_stage", "tied"), [(1, True), (3, False)])
def test_frozen_embeddings_stay_and_every_other_matrix_is_trained(tmp_path: Path, zero_stage: int, tied: bool) -> None:
    model = make_tiny_model(tmp_path / "model", tie_word_embeddings=tied)
    found = run_ranks(model, tmp_path / "f", freeze_embeddings=True, zero_stage=zero_stage)
    assert found["reports"][2]["loss"] < found["reports"][0]["loss"]
    saved, before = (load_file(folder / "model.safetensors") for folder in (tmp_path / "f", model))
    assert saved.keys() == before.keys()
    same = {name for name in before if torch.equal(saved[name].float(), before[name].float())}
    expected = {"model.embed_tokens.weight"} if tied else {"model.embed_tokens.weight", "lm_head.weight"}
    assert {name for name in same if "norm" not in name} == expected


def test_a_zero3_rank_takes_its_part_of_a_model_into_memory_and_no_more(tmp_path: Path) -> None:
    """Four ranks, each with a quarter, what a rank needs besides, and a weight or two for a moment."""
    num_bytes = loading.write_model(tmp_path, layers=10, hidden_size=1024, stored=torch.float32)
    found = loading.measure(str(tmp_path), "parts", 4, num_bytes)
    assert 0.25 <= found["end"] <= 0.4, found
    assert found["peak"] <= 0.5, found


def test_two_zero3_ranks_learn_the_same_adapters_as_one(tiny_model: Path, tmp_path: Path) -> None:
    lora = {"rank": 4, "alpha": 8}
    one = run_ranks(tiny_model, tmp_path / "one", lora=lora)
    two = run_ranks(tiny_model, tmp_path / "two", size=2, lora=lora, zero_stage=3)
    assert two["reports"][2]["loss"] == pytest.approx(one["reports"][2]["loss"], rel=1e-3)
    ours, theirs = (torch.load(f"{tmp_path / name}.adapters") for name in ("one", "two"))
    assert ours.keys() == theirs.keys()
    assert len(ours) >= 8
    for name, adapter in ours.items():
        assert adapter.any(), "B begins at 0 and has been learned"
        assert ((adapter - theirs[name]).norm() / adapter.norm()).item() < 1e-3, name
