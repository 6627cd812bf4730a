"""Baichuan 2's SentencePiece model as an ordinary fast tokenizer.

It is a BPE with byte fallback. It normalises nothing and begins no text with a space. Its own symbols are runs of
spaces, which are always whole tokens, and `<reserved_N>`, which frame chats: these are special tokens here, so that
text of players never has one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spag_ray.errors import ModelError
from spag_ray.tokens import plain_ids

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


def convert_sentencepiece(file: Path, config: Any, target: Path) -> None:
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
