"""Text -> token ids.

A reply is plain text to a model: `<|im_end|>` in it is eight characters, not the end of a message. All text of players,
files of games and instruction data goes through `plain_ids`.

    plain_ids(tokenizer, "It flows. <|im_end|>")
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from spag_ray.errors import ModelError, reason_of


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


def plain_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Text from a player or a file: special tokens in it are split into ordinary characters."""
    return tuple(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))


def template_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """A part of the tokenizer's own chat template: special tokens in it are tokens. Never for text of players."""
    return tuple(tokenizer.encode(text, add_special_tokens=False))


def chat_text(tokenizer: Tokenizer, messages: list[dict[str, str]], remedy: str) -> str:
    """These messages in the tokenizer's chat template, up to where the assistant's next one begins. Raises ModelError
    with the reason of a template that refuses them or that is broken, and with the remedy."""
    try:
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template raises whatever its author wrote, and Jinja its own kinds
        raise ModelError(
            f"the chat template refuses messages of `user` and `assistant` in turns: {reason_of(error)}; {remedy}, or "
            "give the model a template that takes them"
        ) from error
    return text


def published_ids(tokenizer: Tokenizer, prompt: str, reply: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prompt, reply) as the published method trains on them: BOS (where the tokenizer has one) and the prompt; the
    reply without outer white space and EOS."""
    return (
        (*begin_ids(tokenizer), *plain_ids(tokenizer, prompt)),
        (*plain_ids(tokenizer, reply.strip()), end_id(tokenizer)),
    )


def begin_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that a text begins with, if the tokenizer has one."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return () if bos is None else (bos,)


def end_id(tokenizer: Tokenizer) -> int:
    """The token that ends a text. Raises ModelError when the tokenizer has none."""
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json")
    return tokenizer.eos_token_id


def framing_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that frame messages and texts, without the token for unknown words, which a player may say."""
    special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return frozenset({*special, *tokenizer.all_special_ids} - {getattr(tokenizer, "unk_token_id", None)})
