"""Token ids of replies and of the text between them, for any game: as chat messages, or as lines.

Each seat's prompt extends its previous prompt token-exactly: previous prompt ids + sampled ids + what the frame puts
between turns. A player's own words are encoded as plain text: `<|im_end|>` in a reply is eight characters to the model,
not the end of a message.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache

from cachetools import LRUCache

from spag_ray.errors import ModelError
from spag_ray.game.turn import Turn
from spag_ray.tokens import Tokenizer, begin_ids, chat_text, end_id, framing_ids, plain_ids, template_ids

KEPT_BYTES = 16 * 2**20  # of one renderer; an arena has one for each game
_ENTRY_BYTES = 280  # of the cache's own books for one text
_INT_BYTES = 32  # 28, in blocks of 16


class KeptIds:
    """`plain_ids` of one tokenizer, keeping those of the texts that were asked for last: the rules with their word, and
    the turns of games under way come again and again. `max_bytes`: memory of all that is kept. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, max_bytes: int = KEPT_BYTES) -> None:
        self._tokenizer = tokenizer
        self._kept: LRUCache[str, tuple[str, tuple[int, ...]]] = LRUCache(max_bytes, getsizeof=_num_bytes)
        self._lock = threading.Lock()  # around the books only: two threads may tokenise the same text

    def __call__(self, text: str) -> tuple[int, ...]:
        with self._lock:
            kept = self._kept.get(text)
        if kept is not None:
            return kept[1]
        ids = plain_ids(self._tokenizer, text)
        with self._lock, contextlib.suppress(ValueError):  # one text is larger than the whole cache: it is not kept
            self._kept[text] = text, ids
        return ids


def _num_bytes(entry: tuple[str, tuple[int, ...]]) -> int:
    text, ids = entry
    return _ENTRY_BYTES + sys.getsizeof(text) + sys.getsizeof(ids) + _INT_BYTES * len(ids)


class TokenFrame:
    """One text, without a frame."""

    lead = ""  # text between the end of a prompt and the first word of a reply; part of the reply

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.end_ids: tuple[int, ...] = (end_id(tokenizer),)
        self.tokenizer = tokenizer
        self._special_ids = framing_ids(tokenizer)
        self._begin = begin_ids(tokenizer)
        self._plain = KeptIds(tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(sorted({*self.end_ids, *self._special_ids}))

    @property
    def usual_ends(self) -> tuple[int, ...]:
        """The stop tokens that models use to end a reply, and that add no text to it."""
        return self.end_ids

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """A reply as the policy should sample it: the text and the token that ends it."""
        return (*self._plain(text), self.end_ids[0])

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """The answer to a query outside the game (an SFT row), with the token that ends it."""
        return self.reply_ids(text)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of a reply, without special tokens and outer white space."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True).strip()


class ChatFrame(TokenFrame):
    """The tokenizer's chat template; each seat sees its own turns as the assistant's.

    The template is split once, with marks in place of the contents. A template that changes earlier messages (drops or
    rewords them) is refused, because the next prompt would differ from the text that was played.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        opening, self._to_reply, self._to_user = _chat_glue(tokenizer)
        self._opening_ids = template_ids(tokenizer, opening)
        self._to_reply_ids = template_ids(tokenizer, self._to_reply)
        self._to_user_ids = template_ids(tokenizer, self._to_user)
        self.end_ids = tuple(dict.fromkeys((self._to_user_ids[0], *self.end_ids)))

    def after(self, turn: Turn) -> tuple[int, ...]:
        """The prompt and the reply of a turn, up to where the next message of the other side begins."""
        said, close = turn.token_ids, self._to_user_ids
        if said and said[-1] == close[0]:
            close = close[1:]
        elif said and said[-1] in self._special_ids:
            said = said[:-1]  # a misplaced token that begins a message; the message is not opened
        return turn.prompt_ids + said + close

    def query_ids(self, query: str) -> tuple[int, ...]:
        """A question outside the game (an SFT row), up to where its answer begins."""
        return self._opening_ids + self._plain(query) + self._to_reply_ids


class LinesFrame(TokenFrame):
    """Lines of text. A reply is the rest of a line. A tokenizer without a token for the end of a line ends lines with
    its end-of-text token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._line_ends = line_ends(tokenizer)
        self._text_end = self.end_ids[0]
        new_line = self._plain("\n")
        self._new_line = new_line if len(new_line) == 1 and new_line[0] in self._line_ends else self.end_ids
        self.end_ids = self._new_line
        self._stop_ids = tuple(sorted({*self._special_ids, self._text_end, *self._line_ends}))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def usual_ends(self) -> tuple[int, ...]:
        blank = self._plain("\n\n")
        return tuple(dict.fromkeys((*self.end_ids, self._text_end, *(blank if len(blank) == 1 else ()))))

    def after(self, turn: Turn) -> tuple[int, ...]:
        """The prompt and the reply of a turn, up to the beginning of the next line."""
        said = turn.token_ids
        if said and said[-1] in self._special_ids:
            said = said[:-1]
        closed = bool(said) and said[-1] in self._line_ends
        return turn.prompt_ids + said + (() if closed else self._new_line)

    def query_ids(self, query: str) -> tuple[int, ...]:
        """A question outside the game, a line end, and then its answer, which may have many lines."""
        return self._begin + self._plain(query) + self._new_line

    def answer_ids(self, text: str) -> tuple[int, ...]:
        return (*self._plain(text), self._text_end)


@lru_cache(maxsize=8)
def line_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens with the end of a line in them (".\\n" is one token to some tokenizers)."""
    every = range(len(tokenizer))
    return frozenset(token for token in every if "\n" in tokenizer.decode([token]))


_MARKS = ("zqfirstzq", "zqsecondzq", "zqthirdzq", "zqfourthzq", "zqfifthzq")


def _chat_glue(tokenizer: Tokenizer) -> tuple[str, str, str]:
    """The parts of a chat template: (before the first message's text, user text -> reply, reply -> next user text)."""
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "the model's tokenizer has no chat template, but `prompts` is `chat`; "
            "set `prompts: flat` (for a base model), or use an instruct model"
        )
    roles = ("user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, _MARKS, strict=True)]

    def render(count: int) -> str:
        return chat_text(tokenizer, messages[:count], "set `prompts: flat`")

    one, two, three = render(1), render(3), render(5)
    if not (two.startswith(one) and three.startswith(two)):
        raise ModelError(
            "the chat template rewrites earlier messages when the dialogue continues, so prompts would differ from "
            "those that were played; set `prompts: flat`, or give the model a template that only appends"
        )
    pieces = [three]
    for mark in _MARKS:
        pieces[-1:] = pieces[-1].split(mark)
    if len(pieces) != len(_MARKS) + 1:
        raise ModelError("the chat template leaves out or repeats the text of a message; set `prompts: flat`")
    opening, to_reply, to_user, *again = pieces
    if not to_user:
        raise ModelError("the chat template puts nothing between a reply and the next message; set `prompts: flat`")
    if again != [to_reply, to_user, to_reply]:
        raise ModelError("the chat template frames later messages differently from the first; set `prompts: flat`")
    return opening, to_reply, to_user
