"""The learner: one real DeepSpeed rank on a tiny model."""

import contextlib
import glob
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from deepspeed.runtime.zero.utils import ZeRORuntimeException
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from learners.engine import _TAG, TrainingEngine, World
from learners.learner import Learner
from learners.model_folder import check_saveable, load_model, load_model_in_parts, write_model
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import LearnerError, ModelError
from spag_ray.families.auto import AutoConfig, AutoModelForCausalLM
from spag_ray.results.saved_models import is_complete
from spag_ray.training_data.samples import Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec


def test_weights_of_another_architecture_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    config = json.loads((broken / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"missing keys, such as model\.layers\.2"):
        load_model(str(broken), torch.float32, "sdpa")


def in_parts(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Module, list[str]]:
    """Read by one process that divides nothing, and which weights it was handed one by one."""
    taken: list[torch.Tensor] = []

    def take(parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        parameter.data.copy_(whole)
        taken.append(parameter)

    model = load_model_in_parts(str(folder), dtype, "sdpa", contextlib.nullcontext, take)
    return model, [name for name, each in model.named_parameters() if any(each is one for one in taken)]


def assert_same_model(one: Any, other: Any) -> None:
    for mine, theirs in (
        (one.named_parameters(), other.named_parameters()),
        (one.named_buffers(), other.named_buffers()),
    ):
        expected = dict(theirs)
        for name, tensor in mine:
            assert torch.equal(tensor, expected[name]), name
            assert tensor.dtype == expected.pop(name).dtype, name
        assert not expected
    one.config.name_or_path = other.config.name_or_path  # the folder
    assert one.config.to_dict() == other.config.to_dict()
    assert one.training == other.training
    assert one.generation_config.to_dict() == other.generation_config.to_dict()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_read_weight_by_weight_is_that_of_transformers(tied: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    """From a folder of several files, with a generation_config.json that says more than the config."""
    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    written = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=48, tie_word_embeddings=tied))
    written.generation_config.update(max_length=77, eos_token_id=5)
    written.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2

    model, taken = in_parts(tmp_path, dtype)

    assert_same_model(model, load_model(str(tmp_path), dtype, "sdpa"))
    assert taken == [name for name, _ in model.named_parameters()]


def test_a_folder_whose_weights_have_other_names_is_read_by_transformers(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(  # as the model without a head has them
        {name.removeprefix("model."): each for name, each in weights.items()},
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )

    model, taken = in_parts(tmp_path)

    assert_same_model(model, load_model(str(tiny_model), torch.float32, "sdpa"))
    assert taken == []


@pytest.mark.parametrize("family", ["opt", "gpt2"])
@pytest.mark.parametrize("parts", [False, True])
def test_a_model_that_learns_drops_nothing(family: str, parts: bool, tmp_path: Path) -> None:
    shapes = {
        "opt": {"hidden_size": 16, "ffn_dim": 16, "num_hidden_layers": 1, "word_embed_proj_dim": 16, "dropout": 0.5},
        "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5},
    }
    config = AutoConfig.for_model(family, vocab_size=32, num_attention_heads=2, **shapes[family])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    model: Any = in_parts(tmp_path)[0] if parts else load_model(str(tmp_path), torch.float32, "sdpa")
    ids = torch.arange(8)[None]
    before = model.eval()(ids).logits
    assert torch.equal(model.train()(ids).logits, before)
    kept = model.config.to_dict()
    assert 0.5 in [kept.get(name) for name in ("dropout", "resid_pdrop")], "what is saved says what it said"


def test_what_is_damaged_or_missing_is_refused_when_it_is_read_in_parts_too(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing keys, such as model\.norm"):
        in_parts(tmp_path)
    whole = (tiny_model / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        in_parts(tmp_path)
    with pytest.raises(ModelError, match="no such model folder"):
        in_parts(tmp_path / "nothing")


AS_PUBLISHED = {"temperature": 0.9, "top_p": 0.6}  # Llama 2, Vicuna: without do_sample


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize("parts", [False, True])
def test_sampling_without_do_sample_is_saved(file: str, parts: bool, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").unlink()
    given = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    (folder / file).write_text(json.dumps({**given, **AS_PUBLISHED}))
    check_saveable(str(folder))
    model: Any = in_parts(folder)[0] if parts else load_model(str(folder), torch.float32, "sdpa")
    weights = dict(model.named_parameters())
    write_model(model, weights, str(folder), tmp_path / "saved")
    written = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert {key: written[key] for key in (*AS_PUBLISHED, "do_sample")} == {**AS_PUBLISHED, "do_sample": True}
    assert is_complete(tmp_path / "saved")


@pytest.mark.parametrize(
    "given",
    [
        {"do_sample": False, "temperature": 0.0},
        {"do_sample": False, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "top_h": 0.4},
        {"do_sample": False, "typical_p": 0.9, "epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4},
        {"temperature": 0.0, "top_p": 0.9},
    ],
)
@pytest.mark.parametrize("parts", [False, True])
def test_a_greedy_model_is_saved_greedy(given: dict[str, Any], parts: bool, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **given}))
    check_saveable(str(folder))
    model: Any = in_parts(folder)[0] if parts else load_model(str(folder), torch.float32, "sdpa")
    write_model(model, dict(model.named_parameters()), str(folder), tmp_path / "saved")
    as_read: Any = LlamaForCausalLM.from_pretrained(folder)
    saved: Any = LlamaForCausalLM.from_pretrained(tmp_path / "saved")
    prompt = torch.tensor([[5, 6, 7]])
    expected = as_read.generate(prompt, max_new_tokens=16, do_sample=False)
    for each in (model, saved):
        assert torch.equal(each.generate(prompt, max_new_tokens=16), expected)
    assert saved.generation_config.do_sample == given.get("do_sample")


def test_a_model_that_cannot_be_saved_is_refused_before_it_is_trained(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "generation_config.json").write_text('{"num_beams": 1, "length_penalty": 2.0}')
    with pytest.raises(ModelError, match=r"model: .*can be read, but not saved.*length_penalty") as caught:
        check_saveable(str(folder))
    assert "\n" not in str(caught.value)
    model: Any = load_model(str(folder), torch.float32, "sdpa")
    assert not model.generation_config.do_sample, "it says nothing of sampling"


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.parametrize(("keep_moments", "num_forgotten"), [(False, 4), (True, 2)])
def test_rounds_keep_adams_moments_if_they_are_told_to(
    keep_moments: bool, num_forgotten: int, is_resumed: bool, tmp_path: Path
) -> None:
    """Not those of imitation, which stepped for other losses."""
    forgotten: list[str] = []
    saved: list[dict[str, Any]] = []

    class Engine:
        is_partitioned = False

        def forget_moments(self) -> None:
            forgotten.append("all")

        def save(self, folder: str, extra: dict[str, Any]) -> None:
            saved.append(extra)

        def load(self, folder: str) -> dict[str, Any]:
            return saved[-1]

        def check_ranks(self, folder: str, saved: int) -> None:
            assert saved == 1

    def started() -> Any:
        learner: Any = Learner.__new__(Learner)
        learner._config, learner._objective = LearnerConfig(keep_moments=keep_moments), ObjectiveConfig()
        learner._world, learner._stage_start = World(), SimpleNamespace(is_held=False, forget=lambda: None)
        learner._engine, learner._spec, learner._num_steps_done = Engine(), StageSpec("self_play", 1, 0.0, 0.1), 0
        return learner

    learner = started()
    for method in ("imitation", "self_play", "self_play", "self_play"):
        learner.begin_stage(StageSpec(method, 4, 1e-5, 0.1))
        if is_resumed:
            learner.save_state(str(tmp_path))
            learner = started()
            learner.load_state(str(tmp_path))
    assert len(forgotten) == num_forgotten


@pytest.mark.parametrize(("device", "num_trims"), [("cpu", 1), ("cuda", 0)])
def test_scoring_reads_once_and_trims_the_hosts_memory_only_where_the_batches_were_in_it(
    device: str, num_trims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU nothing large is on the host: a trim is 20 ms for nothing. Nor is the GPU's cache emptied: what is freed
    there is used by the next micro-batch, and to empty it waits for all kernels, as every read does."""
    trims: list[str] = []
    reads: list[torch.Tensor] = []

    def read(tensor: torch.Tensor) -> torch.Tensor:
        reads.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "cpu", read)
    monkeypatch.setattr("learners.learner.release_freed_memory", lambda: trims.append("host"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: trims.append("GPU"))
    computed = {place: torch.full((2,), float(place)) for place in range(3)}
    monkeypatch.setattr("learners.learner.token_logprobs", lambda _, each, *__: computed[each.sample_indices[0]])
    learner: Any = Learner.__new__(Learner)
    module = SimpleNamespace(device=torch.device(device), eval=lambda: None, train=lambda: None)
    learner._engine, learner.vocabulary_size = SimpleNamespace(module=module), 4
    passes = [(SimpleNamespace(sample_indices=(place,), lengths=(2,)), True) for place in (2, 0, 1)]
    learner._passes = lambda turns, _: passes

    scores = learner.score([Sample((1,), (2, 3))] * 3)

    assert [own.tolist() for own in scores] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    assert trims == ["host"] * num_trims
    assert len(reads) == 1


def test_a_checkpoint_is_found_in_a_folder_whose_name_is_a_pattern(tmp_path: Path) -> None:
    """DeepSpeed globs the path that it is given, and finds nothing in x[1]."""

    class Globs:
        def load_checkpoint(self, folder: str, tag: str) -> tuple[str | None, dict[str, Any]]:
            found = glob.glob(f"{folder}/{tag}/mp_rank_*_model_states.pt")
            return (found[0], {"step": 7}) if found else (None, {})

    engine = TrainingEngine.__new__(TrainingEngine)
    engine._engine = Globs()
    for name in ("x[1]", "plain"):
        (tmp_path / name / _TAG).mkdir(parents=True)
        with pytest.raises(LearnerError, match="no DeepSpeed checkpoint in it"):
            engine.load(str(tmp_path / name))
        (tmp_path / name / _TAG / "mp_rank_00_model_states.pt").write_bytes(b"")
        assert engine.load(str(tmp_path / name)) == {"step": 7}


def test_a_damaged_checkpoint_is_named_whatever_its_bytes_make_of_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "optimizer.pt"

    class Loads:
        def load_checkpoint(self, folder: str, tag: str) -> Any:
            return folder, torch.load(file, weights_only=False)

    engine = TrainingEngine.__new__(TrainingEngine)
    engine._engine = Loads()
    torch.save({"step": 7}, file)
    whole = file.read_bytes()
    assert engine.load(str(tmp_path)) == {"step": 7}
    for damaged in (bytes(64) + whole[64:], bytes(len(whole)), b"", whole[:-9]):
        file.write_bytes(damaged)
        with pytest.raises(LearnerError, match="DeepSpeed cannot resume from this checkpoint"):
            engine.load(str(tmp_path))


@pytest.mark.parametrize("num_saved", [0, 1, 2])
def test_a_checkpoint_of_another_number_of_ranks_says_which(num_saved: int, tmp_path: Path) -> None:
    """DeepSpeed refuses it with ZeRO before the learner sees how many there were; each rank has written its part."""

    class Refuses:
        def load_checkpoint(self, folder: str, tag: str) -> Any:
            raise ZeRORuntimeException("Automatic adjustment is not currently supported")

    engine = TrainingEngine.__new__(TrainingEngine)
    engine._engine, engine.world = Refuses(), World()
    (tmp_path / _TAG).mkdir()
    for rank in range(num_saved):
        (tmp_path / _TAG / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    told = "has 2 learner ranks, but the group has 1; set learner.num_ranks: 2" if num_saved == 2 else "Automatic"
    with pytest.raises(LearnerError, match=told):
        engine.load(str(tmp_path))


@pytest.mark.parametrize(("enabled", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_the_dtype_that_a_deepspeed_file_sets_is_trained(
    enabled: bool, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this CPU's default is. DeepSpeed trains a bfloat16 model without float32 weights if its file says so."""
    loaded: list[str] = []

    def load(model: str, config: LearnerConfig, world: World) -> None:
        loaded.append(config.dtype)
        raise ModelError("enough")

    monkeypatch.setattr("learners.learner._load", load)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"bf16": {"enabled": enabled}}))
    with pytest.raises(ModelError, match="enough"):
        Learner("model", LearnerConfig(deepspeed=str(file)), ObjectiveConfig(), World())
    assert loaded == [dtype]


def test_a_checkpoint_for_which_there_is_no_memory_is_not_called_damaged(tmp_path: Path) -> None:
    class Full:
        def load_checkpoint(self, folder: str, tag: str) -> Any:
            raise MemoryError

    engine = TrainingEngine.__new__(TrainingEngine)
    engine._engine = Full()
    with pytest.raises(MemoryError):
        engine.load(str(tmp_path))


@pytest.mark.parametrize(
    "work",
    [
        lambda learner: learner.score([]),
        lambda learner: learner.step(Batch(())),
        lambda learner: learner.save_model("model"),
        lambda learner: learner.save_state("state"),
        lambda learner: learner.begin_stage(None),
        lambda learner: learner.bucket(0),
        lambda learner: learner.send(),
    ],
    ids=["score", "step", "save_model", "save_state", "begin_stage", "bucket", "send"],
)
def test_a_learner_that_sleeps_has_no_memory_to_work_with(work: Callable[[Any], object]) -> None:
    learner: Any = Learner.__new__(Learner)
    learner._world, learner._sender = World(), SimpleNamespace(send=lambda: True)
    learner._engine = SimpleNamespace(offload=lambda keep_weights: None)
    learner.sleep()
    with pytest.raises(LearnerError, match="the learner sleeps"):
        work(learner)
    learner.sleep(keep_weights=True)
    assert learner.send()
