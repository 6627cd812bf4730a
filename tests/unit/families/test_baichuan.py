"""`spag-ray convert`: a converted folder computes what Baichuan 2's formula does with the published weights."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import spag_ray.families.baichuan
from actors.models import load_tokenizer, resolve_model
from cluster.cli import app
from cluster.guarded import run_guarded
from spag_ray.errors import ModelError
from spag_ray.families.auto import AutoModelForCausalLM
from spag_ray.families.baichuan import convert
from spag_ray.tokens import plain_ids
from tests.support.baichuan import RESERVED, SENTENCES, make_baichuan
from tests.support.tiny_model import make_tiny_model


def published_logits(weights: dict[str, Tensor], token_ids: list[int], alibi: bool) -> Tensor:
    """[tokens, vocabulary] by the formula of Baichuan 2, with 6 heads of 32 and 2 layers. Norms and angles are float32
    there, whatever the weights are."""
    num_tokens, heads = len(token_ids), 6
    place = torch.arange(num_tokens)
    distance = place[:, None] - place[None, :]
    # 4 slopes of 2^-2, 2^-4 .. for a power of two heads; the rest are every second one of the slopes of 8 heads.
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]).double()
    angles = place[:, None].float() * (1.0 / 10000.0 ** (torch.arange(0, 32, 2).float() / 32))
    cos, sin = torch.cat([angles, angles], 1).cos().double(), torch.cat([angles, angles], 1).sin().double()

    def normed(rows: Tensor, weight: Tensor) -> Tensor:
        small = rows.float()
        return weight * (small * (small.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).double()

    def rotated(rows: Tensor) -> Tensor:
        return rows * cos + torch.cat([-rows[:, 16:], rows[:, :16]], dim=1) * sin

    hidden = weights["model.embed_tokens.weight"][token_ids]
    for layer in range(2):
        own = {name.split(f"layers.{layer}.")[-1]: each for name, each in weights.items()}
        rows = normed(hidden, own["input_layernorm.weight"])
        queries, keys, values = (rows @ own["self_attn.W_pack.weight"].T).split(192, dim=1)
        outputs = []
        for head in range(heads):
            query, key, value = (each[:, 32 * head : 32 * head + 32] for each in (queries, keys, values))
            if alibi:
                scores = query @ key.T / 32**0.5 - slopes[head] * distance
            else:
                scores = rotated(query) @ rotated(key).T / 32**0.5
            outputs.append(scores.masked_fill(distance < 0, -torch.inf).softmax(-1) @ value)
        hidden = hidden + torch.cat(outputs, dim=1) @ own["self_attn.o_proj.weight"].T
        rows = normed(hidden, own["post_attention_layernorm.weight"])
        gated = torch.nn.functional.silu(rows @ own["mlp.gate_proj.weight"].T) * (rows @ own["mlp.up_proj.weight"].T)
        hidden = hidden + gated @ own["mlp.down_proj.weight"].T
    head_weight = weights["lm_head.weight"]
    unit_rows = head_weight / head_weight.pow(2).sum(1, keepdim=True).sqrt()
    return normed(hidden, weights["model.norm.weight"]) @ unit_rows.T


@pytest.mark.parametrize("as_bin", [True, False])
@pytest.mark.parametrize("alibi", [True, False])
def test_a_converted_model_computes_the_published_formula(alibi: bool, as_bin: bool, tmp_path: Path) -> None:
    weights = make_baichuan(tmp_path / "source", alibi, torch.float64, as_bin)
    made = convert(tmp_path / "source", tmp_path / "target")
    assert made.model_type == ("alibi_llama" if alibi else "llama")
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "target", dtype=torch.float64).eval()
    token_ids = [1, *range(300, 360)]
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0]
    torch.testing.assert_close(logits, published_logits(weights, token_ids, alibi), rtol=0, atol=1e-9)
    assert model.config.max_position_embeddings == 1024
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (1, 2, 0)


def test_weights_keep_their_dtype_and_are_exact(tmp_path: Path) -> None:
    weights = make_baichuan(tmp_path / "source", True, torch.bfloat16)
    convert(tmp_path / "source", tmp_path / "target")
    written = load_file(tmp_path / "target" / "model-00001-of-00001.safetensors")
    packed = weights.pop("model.layers.1.self_attn.W_pack.weight")
    for number, part in enumerate("qkv"):
        rows = packed[192 * number : 192 * number + 192]
        assert torch.equal(written[f"model.layers.1.self_attn.{part}_proj.weight"], rows)
    head = weights.pop("lm_head.weight").double()
    assert torch.equal(written["lm_head.weight"], (head / head.norm(dim=1, keepdim=True)).bfloat16())
    assert all(torch.equal(written[name], each) for name, each in weights.items() if "W_pack" not in name)
    assert json.loads((tmp_path / "target" / "config.json").read_text())["dtype"] == "bfloat16"


def test_weights_are_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spag_ray.families.baichuan, "SHARD_BYTES", 50_000)
    monkeypatch.setattr(spag_ray.families.baichuan, "NORM_ROWS", 7)
    make_baichuan(tmp_path / "source", True)
    made = convert(tmp_path / "source", tmp_path / "target")
    index = json.loads((tmp_path / "target" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "target").glob("*.safetensors"))
    assert made.num_files == len(files) > 2
    tensors: dict[str, Tensor] = {}
    for file in files:
        here = load_file(file)
        assert len(here) == 1 or sum(each.nbytes for each in here.values()) <= 50_000
        assert {index["weight_map"][name] for name in here} == {file.name}
        tensors |= here
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in tensors.values())
    assert tensors["lm_head.weight"].norm(dim=1) == pytest.approx(torch.ones(len(tensors["lm_head.weight"])), abs=1e-6)


def test_the_tokenizer_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    import sentencepiece

    make_baichuan(tmp_path / "source", True)
    convert(tmp_path / "source", tmp_path / "target")
    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source" / "tokenizer.model"))
    tokenizer = load_tokenizer(resolve_model(str(tmp_path / "target")))
    assert len(tokenizer) == reference.vocab_size()
    pieces = [reference.id_to_piece(number).replace("▁", " ") for number in range(3, reference.vocab_size())]
    texts = [*SENTENCES, *(piece for piece in pieces if not piece.startswith("<"))]
    texts += [f"{left}{right}\n {right}   {left}" for left, right in zip(texts, reversed(texts), strict=True)]
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == text
    assert [tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token] == ["<s>", "</s>", "<unk>"]
    framed = f"{RESERVED[1]}I know{RESERVED[2]}"
    assert tokenizer.encode(framed) == reference.encode(framed)
    assert not set(plain_ids(tokenizer, framed + "</s>")) & set(tokenizer.convert_tokens_to_ids([*RESERVED, "</s>"]))


class RunsCode:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("code-was-run"),)


def change(source: Path, **keys: int) -> None:
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | keys))


FILES = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
SPOILED: dict[str, tuple[Any, str]] = {  # what is done to the folder, and what is told
    "no folder": (lambda source: source.rename(source.with_name("elsewhere")), "not a folder of Baichuan 2"),
    "no configuration": (lambda source: (source / "config.json").unlink(), "not a folder of Baichuan 2"),
    "another model": (make_tiny_model, "its model_type is llama"),
    "broken JSON": (lambda source: (source / "config.json").write_text("{"), "not valid JSON"),
    "another JSON": (lambda source: (source / "config.json").write_text("[]"), "not a folder of Baichuan 2"),
    "no sizes": (lambda source: (source / "config.json").write_text('{"model_type": "baichuan"}'), "has no vocab_size"),
    "the first Baichuan": (lambda source: change(source, vocab_size=64000), "only Baichuan 2"),
    "other sizes": (lambda source: change(source, hidden_size=54), "no weight of the model that config.json describes"),
    "no tokenizer": (lambda source: (source / "tokenizer.model").unlink(), "no tokenizer.model"),
    "a damaged tokenizer": (
        lambda source: (source / "tokenizer.model").write_bytes(b"\xff" * 100),
        "not a SentencePiece model",
    ),
    "no weights": (lambda source: [file.unlink() for file in source.glob("*.bin")], "no weights in this folder"),
    "one file missing": (lambda source: (source / FILES[1]).unlink(), "lack 8 tensors"),
    "damaged weights": (lambda source: os.truncate(source / FILES[1], 5000), f"{FILES[1]}: its weights cannot be read"),
    "weights with code": (
        lambda source: torch.save({"model.norm.weight": RunsCode()}, source / FILES[0]),
        f"{FILES[0]}: its weights cannot be read",
    ),
    "quantised weights": (
        lambda source: torch.save({"model.norm.weight.absmax": torch.ones(3)}, source / FILES[0]),
        "absmax",
    ),
    "the target exists": (lambda source: source.with_name("target").mkdir(), "nothing is overwritten"),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_what_cannot_be_converted_is_one_line(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spoil, message = SPOILED[fault]
    make_baichuan(tmp_path / "source", True)
    spoil(tmp_path / "source")
    before = sorted(tmp_path.iterdir())
    capsys.readouterr()
    assert run_guarded(lambda **options: app(["convert", "source", "target"], **options)) == 2
    error = capsys.readouterr().err
    assert error.startswith("spag-ray: ")
    assert error.count("\n") == 1
    assert message in error
    assert sorted(tmp_path.iterdir()) == before, "nothing half-written is left, and no code was run"


def test_a_tokenizer_that_would_give_other_ids_is_refused(tmp_path: Path) -> None:
    """SentencePiece models whose texts begin with a space are none of Baichuan 2."""
    make_baichuan(tmp_path / "source", True, add_dummy_prefix=True)
    with pytest.raises(ModelError, match="other ids for 'It flows"):
        convert(tmp_path / "source", tmp_path / "target")


def test_a_folder_as_published_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    make_baichuan(tmp_path, False)
    with pytest.raises(ModelError, match=f"spag-ray convert {tmp_path} TARGET"):
        resolve_model(str(tmp_path))
