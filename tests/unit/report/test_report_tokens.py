"""Which characters each token wrote, for the kinds of tokenizers that models come with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from spag_ray.results.report.tokens import Aligner


def byte_level() -> Tokenizer:
    """A token a byte, and one for " the"; as GPT-2, Llama 3 and Qwen have them, without their merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
    vocabulary |= {"th": 256, "the": 257, "Ġthe": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Words with "▁" for the space before them, other characters as bytes; as Llama 2 and Mistral have them."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁cat", "cat", "s", "!"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


def decoding(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    return lambda token_ids: tokenizer.decode(list(token_ids), skip_special_tokens=True)


def cut(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str] | None:
    """The text in pieces, one a token."""
    text = decoding(tokenizer)(token_ids).strip()
    lengths = Aligner(decoding(tokenizer)).lengths(token_ids, text)
    if lengths is None:
        return None
    assert sum(lengths) == len(text)
    assert len(lengths) == len(token_ids)
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    return [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def test_a_token_is_where_it_stands() -> None:
    tokenizer = byte_level()
    assert cut(tokenizer, tokenizer.encode("Is the").ids) == ["I", "s", " the"]


def test_white_space_around_the_text_and_special_tokens_are_nobodys() -> None:
    tokenizer = byte_level()
    assert cut(tokenizer, tokenizer.encode(" the hat  <|end|>").ids) == ["the", " ", "h", "a", "t", "", "", ""]
    end = tokenizer.token_to_id("<|end|>")
    assert end is not None
    assert cut(tokenizer, [end, *tokenizer.encode(" a").ids]) == ["", "", "a"]
    assert cut(tokenizer, [end]) == [""]
    assert cut(tokenizer, []) == []


@pytest.mark.parametrize("text", ["naïve café", "😀 the 😀", "日本語", "a\ufffdb", "👩‍👩‍👧 the"])
@pytest.mark.parametrize("make", [byte_level, byte_fallback])
def test_a_character_of_several_tokens_is_its_last_ones(make: Callable[[], Tokenizer], text: str) -> None:
    tokenizer = make()
    ids = tokenizer.encode(text).ids if make is byte_level else [1 + byte for byte in text.encode()]
    pieces = cut(tokenizer, ids)
    assert pieces is not None
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= len(" the")


def test_text_that_ends_within_a_character_is_read() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("the 😀").ids[:-2]
    pieces = cut(tokenizer, ids)
    assert pieces is not None
    assert "".join(pieces) == "the \ufffd"


def test_words_with_a_space_before_them() -> None:
    tokenizer = byte_fallback()
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[token] for token in ("▁the", "▁cat", "s", "!", "</s>")]
    assert cut(tokenizer, ids) == ["the", " cat", "s", "!", ""]
    assert cut(tokenizer, ids[1:]) == ["cat", "s", "!", ""], "also where another turn came first"


def test_another_tokenizers_tokens_are_not_taken_for_ours() -> None:
    ours, theirs = decoding(byte_level()), byte_level().encode("the hat").ids
    assert Aligner(ours).lengths(theirs[:-1], "the hat") is None
    assert Aligner(ours).lengths([999_999], "the hat") is None
    assert Aligner(ours).lengths([], "the hat") is None


def test_bytes_that_make_no_text_are_given_up_early() -> None:
    asked = []

    def decode(token_ids: Sequence[int]) -> str:
        asked.append(len(token_ids))
        return decoding(byte_level())(token_ids)

    half = byte_level().encode("😀").ids[0]
    assert Aligner(decode).lengths([half] * 5000, "the hat") is None
    assert sum(asked) < 2 * 5000


@settings(max_examples=200)
@given(st.text(max_size=20), st.booleans())
def test_every_text_is_cut_into_its_tokens(text: str, is_byte_level: bool) -> None:
    tokenizer = byte_level() if is_byte_level else byte_fallback()
    ids = tokenizer.encode(text).ids if is_byte_level else [1 + byte for byte in text.encode()]
    pieces = cut(tokenizer, ids)
    assert pieces is not None
    assert "".join(pieces) == text.strip()


def test_a_thought_before_the_text_has_no_characters_in_it() -> None:
    tokenizer = byte_level()
    ids = tokenizer.encode("[ow] Is the cow<|end|>").ids
    aligner = Aligner(decoding(tokenizer))
    assert aligner.thought(ids, "Is the cow") == "[ow]"
    lengths = aligner.lengths(ids, "Is the cow")
    assert lengths is not None
    assert sum(lengths) == len("Is the cow")
    assert not any(lengths[:5])
    assert aligner.thought(ids, "[ow] Is the cow") == ""
    assert aligner.lengths(ids, "another text") is None
