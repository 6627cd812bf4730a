"""Tokenizers with the layout, the added tokens and the chat template of known families.

SmolLM2's own comes from its package. `llama2`, `llama2-json` and `mistral` have the SentencePiece models of
mistral_common, in the layouts that transformers gives them. The byte-level families are trained on this project's own
text, with the family's pre-tokenizer. `chatml` and `llama` have a token per byte.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from actors.models import BUILT_IN, load_tokenizer, resolve_model

ROOT = Path(__file__).resolve().parents[2]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin_of_text|>{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
INST = (
    "{% for message in messages %}{% if message['role'] == 'user' %}<s>[INST] {{ message['content'] | trim }} [/INST]"
    "{% else %} {{ message['content'] | trim }} </s>{% endif %}{% endfor %}"
)
INST_TOKENS = (
    "<s>{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }}[/INST]"
    "{% else %} {{ message['content'] | trim }}</s>{% endif %}{% endfor %}"
)
BARS = (
    "<｜begin▁of▁sentence｜>{% for message in messages %}"
    "{% if message['role'] == 'user' %}<｜User｜>{{ message['content'] }}"
    "{% else %}<｜Assistant｜>{{ message['content'] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
# As templates of models that may think: earlier replies lose their thoughts. OPENING: what the template itself puts
# where a reply begins. PAST: what it puts before earlier replies.
THINKS = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ 'PAST' if message['role'] == 'assistant' }}"
    "{{ message['content'].split('</think>')[-1].lstrip('\n') if not loop.last else message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nOPENING{% endif %}"
)
FAMILIES = {
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama": (
        LLAMA,
        ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"],
        "<|eot_id|>",
    ),
}
# A word with one mark before it, runs of digits (Llama 3: of up to three), punctuation with the line ends after it.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
REAL = ("llama2", "llama2-json", "mistral", "qwen", "llama3", "smollm2", "deepseek")


@cache
def tokenizer_of(family: str) -> Any:
    """The tokenizer of a family."""
    if family == "smollm2":
        return load_tokenizer(resolve_model(BUILT_IN))
    if family in _MADE:
        return _MADE[family]()
    template, special, end = FAMILIES[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={character: n for n, character in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=end)
    tokenizer.chat_template = template
    return tokenizer


def sentencepiece_model(file: str) -> tuple[dict[str, int], list[tuple[str, str]], list[str]]:
    """(vocabulary, merges, control tokens) of a SentencePiece BPE that mistral_common brings."""
    import mistral_common
    from transformers.convert_slow_tokenizer import SentencePieceExtractor
    from transformers.tokenization_utils_base import generate_merges

    proto = SentencePieceExtractor(str(Path(mistral_common.__file__).parent / "data" / file)).proto
    vocabulary = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merges = generate_merges(vocabulary, {piece.piece: piece.score for piece in proto.pieces})
    return vocabulary, merges, [piece.piece for piece in proto.pieces if piece.type in (2, 3)]


def sentencepiece_of(file: str, template: str, layout: str) -> Any:
    """`layout`: `first` or `always`, when a tokenizer of today's transformers puts a space before a text; `json`, the
    same as the normalizer of older tokenizer.json files."""
    vocabulary, merges, control = sentencepiece_model(file)
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if layout == "json":
        raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=layout, split=False)
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    return tokenizer


def byte_level_of(
    template: str, special: list[str], marks: list[str], end: str, digits: int = 1, begin: str | None = None
) -> Any:
    """`marks`: added tokens that are not special ones."""
    raw = Tokenizer(models.BPE(ignore_merges=digits > 1))
    raw.normalizer = normalizers.NFC() if digits == 1 else None
    words = WORDS.replace("DIGITS", str(digits))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=6000, show_progress=False, initial_alphabet=alphabet))
    raw.add_special_tokens(special)
    raw.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    names = {} if begin is None else {"bos_token": begin}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=end, **names)
    tokenizer.chat_template = template
    return tokenizer


def thinking_of(opening: str, past: str = "") -> Any:
    special, marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<think>", "</think>"]
    template = THINKS.replace("OPENING", opening).replace("PAST", past)
    return byte_level_of(template, special, marks, "<|im_end|>")


QWEN = "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou answer.<|im_end|>\n{% endif %}" + CHATML
_MADE: dict[str, Callable[[], Any]] = {
    "llama2": lambda: sentencepiece_of("tokenizer.model.v1", INST, "first"),
    "llama2-always": lambda: sentencepiece_of("tokenizer.model.v1", INST, "always"),
    "llama2-json": lambda: sentencepiece_of("tokenizer.model.v1", INST, "json"),
    "mistral": lambda: sentencepiece_of("mistral_instruct_tokenizer_240323.model.v3", INST_TOKENS, "first"),
    "qwen": lambda: byte_level_of(
        QWEN, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>", "</tool_call>"], "<|im_end|>"
    ),
    "hybrid": lambda: thinking_of(""),
    "thinking": lambda: thinking_of("<think>\n"),
    "no-thought": lambda: thinking_of("<think>\n\n</think>\n\n"),
    "empty-past": lambda: thinking_of("", "<think></think>"),
    "closed-past": lambda: thinking_of("<think>", "</think>"),
    "open-past": lambda: thinking_of("<think>\n", "<think>\n"),
    "same-past": lambda: thinking_of("<think></think>", "<think></think>"),
    "llama3": lambda: byte_level_of(LLAMA, FAMILIES["llama"][1], [], "<|eot_id|>", 3, "<|begin_of_text|>"),
    "deepseek": lambda: byte_level_of(
        BARS,
        ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        ["<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"],
        "<｜end▁of▁sentence｜>",
        3,
        "<｜begin▁of▁sentence｜>",
    ),
}
