"""Which characters each token wrote, for the kinds of tokenizers that models come with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from actors.models import load_tokenizer
from cluster.commands.report import decoder
from spag_ray.episodes.log import read_log
from spag_ray.game.turn import without_thought
from spag_ray.games.taboo.prompt_file import PromptTemplate, Wording
from spag_ray.results.report.tokens import Aligner
from tests.support.report_page import page_of
from tests.support.report_runs import make_run, write_log


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
    located = Aligner(decoding(tokenizer)).locate(token_ids, text)
    if located is None:
        return None
    thought, lengths = located
    assert thought == ""
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
    assert Aligner(ours).locate(theirs[:-1], "the hat") is None
    assert Aligner(ours).locate([999_999], "the hat") is None
    assert Aligner(ours).locate([], "the hat") is None


def test_bytes_that_make_no_text_are_given_up_early() -> None:
    asked = []

    def decode(token_ids: Sequence[int]) -> str:
        asked.append(len(token_ids))
        return decoding(byte_level())(token_ids)

    half = byte_level().encode("😀").ids[0]
    assert Aligner(decode).locate([half] * 5000, "the hat") is None
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
    template = PromptTemplate(style="chat", wordings=(Wording(attacker="", defender=""),), thought="[{thought}]")
    located = Aligner(decoding(tokenizer), partial(without_thought, template.marks)).locate(ids, "Is the cow")
    assert located is not None
    assert located.thought == "[ow]"
    assert sum(located.lengths) == len("Is the cow")
    assert not any(located.lengths[:4])
    unended = tokenizer.encode("[ow Is the cow").ids
    assert Aligner(decoding(tokenizer), partial(without_thought, template.marks)).locate(unended, "") == (
        "[ow Is the cow",
        [0] * len(unended),
    )


@pytest.mark.parametrize("text", ["Is the cow", "cow", ""])
def test_only_what_the_marks_set_apart_is_a_thought(text: str) -> None:
    """What ends with the text is not enough: another tokenizer's tokens may."""
    tokenizer = byte_level()
    assert Aligner(decoding(tokenizer)).locate(tokenizer.encode("[ow] Is the cow").ids, text) is None


def test_thoughts_are_on_the_page_and_without_the_prompt_file_their_turns_are_not_shaded(
    tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    prompts, run = tmp_path / "thinks.yaml", tmp_path / "run"
    prompts.write_text(
        "style: chat\nthought: 'think {thought} .'\n"
        "wordings: [{attacker: 'Hint at {target_word}.', defender: Guess.}]\n"
    )
    make_run(run, tiny_model, words, prompts=str(prompts))
    ids = tuple(load_tokenizer(str(tiny_model)).encode("think the king . is it red ?", add_special_tokens=False))
    text = "is it red ?"
    episode, *_ = read_log(run / "episodes" / "spag-1.log")
    thinks = replace(episode.turns[0], text=text, token_ids=ids, logprobs=(-0.5,) * len(ids))
    (run / "episodes" / "spag-1.log").unlink()
    write_log(run, "spag-1", [replace(episode, turns=(thinks, *episode.turns[1:]))])

    def shown() -> dict[str, Any]:
        games = page_of(run, decode=decoder(run, Console(quiet=True))).games()
        return next(game["turns"][0] for game in games if game["turns"][0]["text"] == text)

    assert shown()["thought"] == "think the king ."
    assert sum(shown()["lengths"]) == len(text)
    prompts.unlink()
    assert not {"thought", "lengths"} & shown().keys()
