"""Model folders that a run can start with, and folders that it cannot: what people have on their disks, made tiny."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.tiny_model import make_tiny_model

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 4400000\n"
WANTS_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('a system message\nis wanted') }}{% endif %}"
    "{% for message in messages %}<|start|>{{ message['content'] }}<|end|>{% endfor %}"
)


def change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def quantized(**config: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "config.json", quantization_config=config)


def shard(folder: Path, max_shard_size: str = "60KB") -> list[Path]:
    """The weights in several files, as transformers writes those of a large model."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return sorted(folder.glob("model-*.safetensors"))


def in_shards(folder: Path) -> None:
    shard(folder)


def without_a_shard(folder: Path) -> None:
    shard(folder)[1].unlink()


def damaged_index(folder: Path) -> None:
    shard(folder)
    (folder / "model.safetensors.index.json").write_text("[]")


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def own_code(folder: Path) -> None:
    change_json(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "configuration_mine.MyConfig"})
    (folder / "configuration_mine.py").write_text("raise SystemExit('this code was run')\n")


def more_tokens(folder: Path, special: bool = False) -> None:
    """Tokens added to the tokenizer, but not to the model."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    if special:
        tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    else:
        tokenizer.add_tokens(["lagoon", "summit"])
    tokenizer.save_pretrained(folder)


def adapter_alone(folder: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(target_modules=["q_proj"]))
    shutil.rmtree(folder)
    model.save_pretrained(str(folder))


def template(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(text)

    return change


def as_dtype(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, name))
        model.save_pretrained(folder)

    return change


def beside_its_shards(folder: Path) -> None:
    """Llama's and Mistral's folders: the same weights again, under the names of their authors' code."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file({f"original.{name}": weight for name, weight in weights.items()}, folder / "consolidated.safetensors")
    shard(folder)


def untied(folder: Path) -> None:
    make_tiny_model(folder, tie_word_embeddings=False)


# What is done to a tiny model's folder -> what is said of it.
CANNOT_START: dict[str, tuple[Callable[[Path], None], str]] = {
    "awq": (quantized(quant_method="awq", bits=4, group_size=128), r"quantised \(awq; .* give the model that"),
    "gptq": (quantized(quant_method="gptq", bits=4), r"quantised \(gptq; .* give the model that"),
    "bitsandbytes": (quantized(quant_method="bitsandbytes", load_in_4bit=True), r"quantised \(bitsandbytes; "),
    "missing shard": (without_a_shard, r"1 of the \d files .* missing, such as model-00002-of-\S+; copy the model"),
    "pointer": (lambda folder: _write(folder / "model.safetensors", POINTER), r"pointer of Git LFS.*git lfs pull"),
    "own code": (own_code, r"this model needs code of its own .*, which is never run"),
    "ids without embedding": (more_tokens, r"2 tokens without an embedding, such as 'lagoon' with id 56.*has 56"),
    "long context": (
        lambda folder: change_json(folder / "config.json", max_position_embeddings=128),
        r"engine\.max_model_len is 512, but the model's limit is 128 tokens \(max_position_embeddings",
    ),
    "raising template": (
        template(WANTS_SYSTEM),
        r"chat template refuses .*a system message; is wanted; set `prompts: f",
    ),
    "adapter alone": (adapter_alone, r"an adapter is no model: merge it into its base"),
    # Others of their kinds:
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"has no weights; copy model\.safetensors"),
    "cut off": (cut_off, r"cannot load this model: .*file not fully covered; copy the model again"),
    "tokenizer is a pointer": (
        lambda folder: _write(folder / "tokenizer.json", POINTER),
        r"tokenizer\.json is a pointer",
    ),
    "tokenizer of own code": (
        lambda folder: change_json(
            folder / "tokenizer_config.json",
            tokenizer_class="MyTokenizer",
            auto_map={"AutoTokenizer": ["tokenization_mine.MyTokenizer", None]},
        ),
        r"this tokenizer needs code of its own .*, which is never run",
    ),
    "damaged tokenizer": (lambda folder: _write(folder / "tokenizer.json", "{"), r"the tokenizer cannot be read: "),
    "damaged index": (damaged_index, r"not an index of weights \(TypeError\); copy the model again"),
    "compressed": (
        quantized(quant_method="compressed-tensors", format="float-quantized"),
        r"compressed-tensors; quant",
    ),
    "fp8": (quantized(quant_method="fp8"), r"quantised \(fp8; "),
    "another embedding": (
        lambda folder: change_json(folder / "config.json", vocab_size=64),
        r"weights are not those of the llama model.*1 mismatched keys, such as .*embed_tokens",
    ),
    "unknown family": (
        lambda folder: change_json(folder / "config.json", model_type="mine"),
        r"cannot read config\.json: .*model type `mine`",
    ),
    "broken template": (
        template("{% for message in messages %}{{ message"),
        r"chat template refuses .*: .*; set `promp",
    ),
    "silent template": (
        template("{% for message in messages %}{{ message.role }}{% endfor %}"),
        r"leaves out or repeats",
    ),
    "bare template": (
        template("{% for message in messages %}{{ message.content }}{% endfor %}"),
        r"puts nothing between a reply and the next message",
    ),
}
CAN_START: dict[str, Callable[[Path], None]] = {
    "plain": lambda folder: None,
    "sharded": in_shards,
    "beside its shards": beside_its_shards,
    "untied": untied,
    "bfloat16": as_dtype("bfloat16"),
    "a padding token": lambda folder: more_tokens(folder, special=True),
    "known family with code": lambda folder: change_json(
        folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"}
    ),
    "more embeddings": lambda folder: _with_more_embeddings(folder),
}


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def _with_more_embeddings(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(64)
    model.save_pretrained(folder)
