"""A folder of Baichuan 2 as it is published -> a model folder without code of its own.

    converted = convert(Path("Baichuan2-13B-Base"), Path("baichuan2-13b"))

The 7B, which has rotary positions, becomes a Llama; the 13B, which has ALiBi, becomes the model of alibi_llama.py. Two
layers differ from theirs. `W_pack` [3d, d] is q_proj, k_proj and v_proj [d, d], one below the other. The head divides
each of its rows by the row's L2 norm before it is used (NormHead, arXiv 2309.10305); here this is done once, in at
least float32, and rounded to the stored dtype.

Weights are mapped from their files, converted one at a time, and written whenever SHARD_BYTES of them are ready.

The SentencePiece model becomes an ordinary fast tokenizer. It is a BPE with byte fallback. It normalises nothing and
begins no text with a space. Its own symbols are runs of spaces, which are always whole tokens, and `<reserved_N>`,
which frame chats: these are special tokens here, so that text of players never has one.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from spag_ray.errors import ModelError
from spag_ray.families.alibi_llama import AlibiLlamaConfig, AlibiLlamaForCausalLM
from spag_ray.families.auto import AutoModelForCausalLM
from spag_ray.host.whole_files import open_as_folder, refuse_existing, whole
from spag_ray.tokens import plain_ids

SHARD_BYTES = 2**30
NORM_ROWS = 4096  # of the head, normalised at a time
FIRST_BAICHUAN_VOCABULARY = 64000
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OTHERS = ("hidden_act", "initializer_range", "rms_norm_eps", "bos_token_id", "eos_token_id", "pad_token_id")
COMPUTED = ("rotary_emb.inv_freq", "future_mask")  # tensors that follow from the configuration


BPE = 2  # in SentencePiece's trainer_spec.model_type
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # types of pieces

# Ids on these are compared with SentencePiece's own.
SAMPLES = (
    "It flows past the old town.",
    " a space before,  two within,    four, and one at the end ",
    "3.14159 + 2024 = 2027.14159",
    "def f(x):\n\treturn {\n        'a': x,\n    }\n\n",
    "我知道这个词了！它是“河流”。",
    "naïve Ångström, Привет, ひらがな, 한국어, 🦜𝔘",
    "",
)


@dataclass(frozen=True)
class Converted:
    model_type: str
    num_tensors: int
    num_files: int


def convert(source: Path, target: Path) -> Converted:
    """Write `target`: config.json, safetensors with their index, a fast tokenizer. It appears only when it is complete.

    Raises ModelError if `source` is not a complete folder of Baichuan 2, or if `target` exists or cannot be written.
    """
    refuse_existing(target, ModelError)
    config = _converted_config(source)
    if not (source / "tokenizer.model").is_file():
        raise ModelError(f"{source}: no tokenizer.model in this folder; copy it there")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with whole(target) as aside:
            aside.mkdir()
            _convert_sentencepiece(source / "tokenizer.model", config, aside)
            files = _write_weights(source, config, aside)
            config.save_pretrained(aside)
            open_as_folder(aside)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{target} cannot be written: {error}") from error
    return Converted(config.model_type, len(files), len(set(files.values())))


def _converted_config(source: Path) -> LlamaConfig:
    try:
        given: Any = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{source}: not a folder of Baichuan 2: config.json: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{source}/config.json is not valid JSON: {error}") from error
    model_type = given.get("model_type") if isinstance(given, dict) else None
    if model_type != "baichuan":
        raise ModelError(f"{source}: not a folder of Baichuan 2: its model_type is {model_type}")
    if missing := [key for key in SIZES if not isinstance(given.get(key), int)]:
        raise ModelError(f"{source}/config.json has no {missing[0]}")
    if given["vocab_size"] == FIRST_BAICHUAN_VOCABULARY:
        raise ModelError(f"{source}: the first Baichuan, whose head is another; only Baichuan 2 is converted")
    kept = {key: given[key] for key in (*SIZES, *OTHERS) if key in given}
    # Only the 7B's configuration has this key; the 13B's says in `model_max_length` what it was trained with.
    if length := given.get("max_position_embeddings"):
        return LlamaConfig(**kept, max_position_embeddings=length, architectures=["LlamaForCausalLM"])
    length = given.get("model_max_length", 4096)
    return AlibiLlamaConfig(**kept, max_position_embeddings=length, architectures=[AlibiLlamaForCausalLM.__name__])


def _write_weights(source: Path, config: LlamaConfig, target: Path) -> dict[str, str]:
    """{tensor: its file}. Raises ModelError for weights that are not those of `config`."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    missing = {name: parameter.shape for name, parameter in model.named_parameters()}
    shards: list[list[str]] = []
    ready: dict[str, Tensor] = {}
    total = 0

    def write() -> None:
        save_file(ready, target / f"{len(shards)}", metadata={"format": "pt"})
        shards.append(list(ready))
        ready.clear()

    for name, tensor in _converted_weights(source):
        shape = missing.pop(name, None)
        if shape != tensor.shape:
            raise ModelError(
                f"{source}: {name} {list(tensor.shape)} is no weight of the model that config.json describes"
            )
        if ready and sum(each.nbytes for each in ready.values()) + tensor.nbytes > SHARD_BYTES:
            write()
        ready[name] = tensor
        total += tensor.nbytes
        config.dtype = tensor.dtype
    if missing:
        raise ModelError(f"{source}: its weights lack {len(missing)} tensors, such as {min(missing)}; copy all files")
    write()
    files: dict[str, str] = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        (target / f"{index}").rename(target / file)
        files |= dict.fromkeys(names, file)
    written = {"metadata": {"total_size": total}, "weight_map": files}
    (target / "model.safetensors.index.json").write_text(json.dumps(written, indent=2), encoding="utf-8")
    return files


def _converted_weights(source: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors as Llama has them."""
    for name, tensor in _stored_weights(source):
        if name.endswith(".W_pack.weight"):
            for part, rows in zip("qkv", tensor.chunk(3), strict=False):
                yield name.replace("W_pack", f"{part}_proj"), rows.clone()
        elif name == "lm_head.weight":
            yield name, torch.cat([_normalised(rows) for rows in tensor.split(NORM_ROWS)])
        elif not name.endswith(COMPUTED):
            yield name, tensor


def _normalised(rows: Tensor) -> Tensor:
    """Each row divided by its L2 norm; a row of zeros stays."""
    exact = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return torch.nn.functional.normalize(exact).to(rows.dtype)


def _stored_weights(source: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the folder's safetensors, or of its .bin files if it has none. No file can run code."""
    files = sorted(source.glob("*.safetensors")) or sorted(source.glob("*.bin"))
    if not files:
        raise ModelError(f"{source}: no weights in this folder, neither *.safetensors nor *.bin")
    for path in files:
        try:
            if path.suffix == ".bin":
                yield from torch.load(path, map_location="cpu", weights_only=True, mmap=True).items()
            else:
                with safe_open(path, framework="pt") as file:
                    for name in file.keys():  # noqa: SIM118 (not a dict)
                        yield name, file.get_tensor(name)
        except (OSError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ModelError(f"{path}: its weights cannot be read: {reason}") from error


def _convert_sentencepiece(file: Path, config: Any, target: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json into `target`. The ids of `config` are those of the begin, end and
    padding tokens.

    Raises ModelError if the file is damaged, of another kind, or if the result differs from SentencePiece.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import SentencePieceProcessor
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import SentencePieceExtractor, SpmConverter, generate_merges

    try:
        proto = SentencePieceExtractor(str(file)).proto
        reference = SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError, DecodeError) as error:
        raise ModelError(f"{file}: not a SentencePiece model; copy it again") from error
    if proto.trainer_spec.model_type != BPE:
        raise ModelError(f"{file}: not a BPE model, which those of Baichuan 2 are")
    if len(proto.pieces) > config.vocab_size:
        raise ModelError(f"{file}: {len(proto.pieces)} tokens, but the model has {config.vocab_size}")
    normal = {piece.piece: number for number, piece in enumerate(proto.pieces) if piece.type == NORMAL}
    merges = generate_merges(normal, {piece: proto.pieces[number].score for piece, number in normal.items()})
    vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    fast = SpmConverter.build_tokenizer_from_spm_proto(proto, vocabulary, merges)
    for piece in proto.pieces:
        # SentencePiece writes spaces as \u2581 before it looks for pieces, so it never finds one with a space in it.
        if piece.type in (CONTROL, USER_DEFINED) and " " not in piece.piece:
            is_special = piece.type == CONTROL or (piece.piece.startswith("<") and piece.piece.endswith(">"))
            fast.add_tokens([AddedToken(piece.piece, special=is_special, normalized=not is_special)])
    names = {"bos_token": config.bos_token_id, "eos_token": config.eos_token_id, "pad_token": config.pad_token_id}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        unk_token=proto.trainer_spec.unk_piece,
        clean_up_tokenization_spaces=False,
        **{name: proto.pieces[number].piece for name, number in names.items() if number is not None},
    )
    for text in SAMPLES:
        if list(plain_ids(tokenizer, text)) != reference.encode(text):
            raise ModelError(f"{file}: as a fast tokenizer it gives other ids for {text!r}; it cannot be converted")
    tokenizer.save_pretrained(target)
