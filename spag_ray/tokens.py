"""Text -> token ids: of players, of chat templates, where texts join.

A reply is plain text to a model: `<|im_end|>` in it is eight characters, not the end of a message. All text of players,
files of games and instruction data goes through `plain_ids`. Where texts join, their ids are those of the whole:

    plain_ids(tokenizer, "It flows.") + plain_ids(tokenizer, " <|im_end|>", follows=True)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

from spag_ray.errors import ModelError, reason_of

PUBLISHED_MAX_TOKENS = 2048  # of a row with its answer
THOUGHT = ("<think>", "</think>")  # the marks of models that think by their chat template


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that rendering uses."""

    eos_token_id: int | None
    chat_template: Any

    def __len__(self) -> int: ...
    def __hash__(self) -> int: ...
    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], **options: Any) -> str: ...
    @property
    def all_special_ids(self) -> list[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...
    def apply_chat_template(self, conversation: list[dict[str, str]], **options: Any) -> Any: ...


def plain_ids(tokenizer: Tokenizer, text: str, follows: bool = False) -> tuple[int, ...]:
    """Text from a player or a file: every added token in it is split into ordinary characters. If it `follows` other
    text, no space is put before its first word, as SentencePiece does at the beginning of a text."""
    encode = _plain_encoder(tokenizer)
    if follows and text and _begins_with_a_space(tokenizer):
        return tuple(_after_other_text(encode, text))
    return tuple(encode(text))


def template_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Text that a chat template wrote: added tokens in it are tokens. Never for text of players."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def template_parts(tokenizer: Tokenizer, text: str) -> list[str | int]:
    """Text that a chat template wrote, as the marks in it (their ids) and the text between them."""
    pattern, marks = _mark_pattern(tokenizer)
    found: list[str | int] = []
    takes_space = False
    for place, piece in enumerate(pattern.split(text)):  # marks are at the odd places
        if place % 2:
            token, added = marks[piece]
            if added.lstrip and found and isinstance(found[-1], str):  # the mark takes the white space beside it
                found[-1] = found[-1].rstrip()
            found.append(token)
            takes_space = added.rstrip
        else:
            found.append(piece.lstrip() if takes_space else piece)
    return [part for part in found if part != ""]


def chat_text(tokenizer: Tokenizer, contents: Sequence[str], remedy: str = "set `prompts: flat`") -> str:
    """The chat template's text of messages, by turns the user's and the assistant's, up to where a reply begins. Raises
    ModelError with the reason of a template that refuses them or that is broken, and with the remedy."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    try:
        given = getattr(tokenizer, "template_kwargs", {})
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **given))
    except Exception as error:  # a template raises whatever its author wrote, and Jinja its own kinds
        raise ModelError(
            f"the chat template refuses messages of `user` and `assistant` in turns: {reason_of(error)}; {remedy}, or "
            "give the model a template that takes them"
        ) from error


def published_ids(
    tokenizer: Tokenizer, prompt: str, reply: str, most: int = PUBLISHED_MAX_TOKENS
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt, reply) as the published method trains on them: BOS (where the tokenizer has one) and the prompt; the
    reply, tokenised as a text of its own, without outer white space, and EOS. Cut from the left at `most` tokens of
    both."""
    asked = (*begin_ids(tokenizer), *plain_ids(tokenizer, prompt))
    said = (*plain_ids(tokenizer, reply.strip()), end_ids(tokenizer)[0])
    return asked[-max(most - len(said), 1) :], said[-(most - 1) :]


def text_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """The text of token ids, without the tokens that frame messages."""
    framing = framing_ids(tokenizer)
    return tokenizer.decode([token for token in token_ids if token not in framing], skip_special_tokens=True)


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that a text begins with, if the tokenizer has one."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return () if bos is None else (bos,)


def end_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a text: the tokenizer's, then those that the model's folder names for generation
    (actors.models.load_tokenizer). Raises ModelError when the tokenizer has none."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    return tuple(dict.fromkeys((tokenizer.eos_token_id, *getattr(tokenizer, "generation_end_ids", ()))))


@lru_cache(maxsize=8)
def framing_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that frame messages and texts: special tokens, what the chat template writes, what ends a text. Without
    the token for unknown words, which a player may say, and marks of thoughts, unless they are special tokens."""
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    written: list[str | int] = []
    if getattr(tokenizer, "chat_template", None):
        with suppress(ModelError):  # who needs it says so (ChatRenderer)
            written = template_parts(tokenizer, chat_text(tokenizer, ("a", "b", "c")))
    marks = {*special, *tokenizer.all_special_ids, *(part for part in written if isinstance(part, int))}
    thought = thought_marks(tokenizer).keys() - special
    ends = () if tokenizer.eos_token_id is None else end_ids(tokenizer)
    return frozenset(marks - {getattr(tokenizer, "unk_token_id", None)} - thought) | {*ends}


def thought_marks(tokenizer: Tokenizer) -> dict[int, bool]:
    """{token that marks a thought: whether it is a special token}, of a tokenizer that has such tokens."""
    return {token: added.special for token, added in tokenizer.added_tokens_decoder.items() if str(added) in THOUGHT}


def holds_a_mark(tokenizer: Tokenizer, text: str) -> bool:
    """Whether a text has the text of an added token in it, which a model may sample for it."""
    return any(isinstance(part, int) for part in template_parts(tokenizer, text))


@lru_cache(maxsize=8)
def check_marks_are_split(tokenizer: Tokenizer) -> None:
    """Raises ModelError if a player who writes the text of a mark would make the mark."""
    _, marks = _mark_pattern(tokenizer)
    unknown = getattr(tokenizer, "unk_token_id", None)
    known = {token: name for name, (token, _) in marks.items() if token != unknown}
    found = {token for text in ("".join(marks), " ".join(marks)) for token in plain_ids(tokenizer, text)} & known.keys()
    if found:
        raise ModelError(
            f"the tokenizer reads {known[min(found)]!r} in a player's text as a token that frames messages, so a "
            "player could open a message; use a model whose tokenizer can split it"
        )


@lru_cache(maxsize=8)
def begins_anew_after_a_mark(tokenizer: Tokenizer) -> bool:
    """Whether text after a mark is tokenised as at the beginning of a text: older SentencePiece layouts do so."""
    end = tokenizer.eos_token_id
    if end is None or end not in tokenizer.added_tokens_decoder or not _begins_with_a_space(tokenizer):
        return False
    text = f"{tokenizer.added_tokens_decoder[end]}{_PROBE}"
    return template_ids(tokenizer, text) == (end, *plain_ids(tokenizer, _PROBE))


_PROBE = "zq"
_OTHER_TEXT = ("\n", "|", "。", "a")  # what no token joins to the text after it, in most vocabularies


@lru_cache(maxsize=8)
def _plain_encoder(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Text -> ids without any mark: a fast tokenizer's vocabulary without its added tokens. (`split_special_tokens`
    splits those alone that have the flag `special`.) Added tokens of white space are text, not marks."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return lambda text: tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    bare = type(backend)(backend.model)  # shares the vocabulary
    bare.normalizer, bare.pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    spaces = {token: added for token, added in tokenizer.added_tokens_decoder.items() if _is_space(added)}
    bare.add_tokens(list(spaces.values()))
    own = {bare.token_to_id(str(added)): token for token, added in spaces.items()}
    return lambda text: [own.get(token, token) for token in bare.encode(text, add_special_tokens=False).ids]


@lru_cache(maxsize=8)
def _begins_with_a_space(tokenizer: Tokenizer) -> bool:
    encode = _plain_encoder(tokenizer)
    return encode(_PROBE) != _after_other_text(encode, _PROBE)


def _after_other_text(encode: Callable[[str], list[int]], text: str) -> list[int]:
    for before in _OTHER_TEXT:
        head, whole = encode(before), encode(before + text)
        if head and whole[: len(head)] == head:
            return whole[len(head) :]
    raise ModelError(f"the tokenizer joins {text[:40]!r} to any text before it; use a model with another tokenizer")


@lru_cache(maxsize=8)
def _mark_pattern(tokenizer: Tokenizer) -> tuple[re.Pattern[str], dict[str, tuple[int, Any]]]:
    """What finds the added tokens in a text, the longest first, and {text: (id, added token)}."""
    added = {str(each): (token, each) for token, each in tokenizer.added_tokens_decoder.items() if not _is_space(each)}
    names = sorted(added, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, names))})" if names else "((?!))"), added


def _is_space(added: Any) -> bool:
    return not str(added).replace("▁", " ").strip()
