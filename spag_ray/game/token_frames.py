"""Token ids of replies and of the text between them, for any game: as chat messages, or as lines.

Each seat's prompt extends its previous prompt token-exactly: previous prompt ids + sampled ids + what the frame puts
between turns. Text between two marks, or after a reply, is tokenised as one, so its ids are those of the whole. A
player's own words are encoded as plain text: `<|im_end|>` in a reply is eight characters to the model, not the end of
a message.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cachetools import LRUCache

from spag_ray.errors import ModelError
from spag_ray.game.turn import Turn, one_line
from spag_ray.tokens import (
    THOUGHT,
    Tokenizer,
    begin_ids,
    begins_anew_after_a_mark,
    chat_text,
    check_marks_are_split,
    end_ids,
    framing_ids,
    holds_a_mark,
    plain_ids,
    template_ids,
    template_parts,
    text_of,
    thought_marks,
)

KEPT_BYTES = 16 * 2**20  # of one renderer; an arena has one for each game
_ENTRY_BYTES = 340  # of the cache's own books for one text
_INT_BYTES = 32  # 28, in blocks of 16


class KeptIds:
    """`plain_ids` of one tokenizer, keeping those of the texts that were asked for last: the rules with their word, and
    the turns of games under way come again and again. `max_bytes`: memory of all that is kept. Threads may share it."""

    def __init__(self, tokenizer: Tokenizer, max_bytes: int = KEPT_BYTES) -> None:
        self._tokenizer = tokenizer
        self._kept: LRUCache[tuple[str, bool], tuple[str, tuple[int, ...]]] = LRUCache(max_bytes, getsizeof=_num_bytes)
        self._lock = threading.Lock()  # around the books only: two threads may tokenise the same text

    def __call__(self, text: str, follows: bool = False) -> tuple[int, ...]:
        with self._lock:
            kept = self._kept.get((text, follows))
        if kept is not None:
            return kept[1]
        ids = plain_ids(self._tokenizer, text, follows)
        with self._lock, contextlib.suppress(ValueError):  # one text is larger than the whole cache: it is not kept
            self._kept[text, follows] = text, ids
        return ids


def _num_bytes(entry: tuple[str, tuple[int, ...]]) -> int:
    text, ids = entry
    return _ENTRY_BYTES + sys.getsizeof(text) + sys.getsizeof(ids) + _INT_BYTES * len(ids)


class TokenFrame:
    """One text, without a frame. A reply is tokenised as a text of its own, as the published method does."""

    opens_thoughts = False  # whether a reply begins within a thought
    renders_anew = False  # whether no prompt continues the one before
    lead = ""  # text between the end of a prompt and the first word of a reply; part of the reply
    thought_end = f"\n{THOUGHT[1]}\n\n"  # what ends a thought, as models write it
    joins_texts = True  # a prompt has the ids of its text as a whole

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.end_ids = end_ids(tokenizer)
        self.tokenizer = tokenizer
        self._framing_ids = framing_ids(tokenizer)
        self._begin = begin_ids(tokenizer)
        self._plain = KeptIds(tokenizer)
        special = thought_marks(tokenizer).values()
        self.thinks = bool(special) and not any(special)  # whatever the game is; special tokens are in no text
        check_marks_are_split(tokenizer)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(sorted({*self.end_ids, *self._framing_ids}))

    @property
    def usual_ends(self) -> tuple[int, ...]:
        """The stop tokens that models use to end a reply, and that add no text to it."""
        return self.end_ids

    @property
    def closing_ids(self) -> tuple[int, ...]:
        """What ends a thought that the prompt opens; with it a reply begins that has none."""
        return ()

    def reply_ids(self, text: str) -> tuple[int, ...]:
        """A reply as the policy should sample it: the text and the token that ends it."""
        return (*self._said(self.lead + text), self.end_ids[0])

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """The answer to a query outside the game (an SFT row), with the token that ends it."""
        return self.reply_ids(text)

    def spelled_ids(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A reply of one line as it is usually spelled, and with a space more or less before it; both with an end."""
        return self.answer_ids(text), self.answer_ids(f" {text}")

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of a reply, without tokens that frame messages and outer white space."""
        return text_of(self.tokenizer, token_ids).strip()

    def query_ids(self, query: str) -> tuple[int, ...]:
        """A question outside the game (an SFT row), up to where its answer begins."""
        return self._begin + self._plain(query)

    def whole_ids(self, messages: Sequence[Mapping[str, str]], seat: int = 0) -> tuple[int, ...]:
        """Messages up to where a reply of `seat` begins, tokenised as one text: what `prompt` has to give in pieces."""
        return self._begin + self._plain("".join(message["content"] for message in messages))

    def _said(self, text: str) -> tuple[int, ...]:
        """Text with which a reply begins, after what ends a thought that the prompt opens."""
        return self._plain(text)

    def _begun(self, text: str) -> tuple[int, ...]:
        """Text with which what is said in a reply begins."""
        return self._said(text)

    def _own(self, turn: Turn) -> tuple[int, ...]:
        """The prompt and the reply of a turn, without the token that ended it. A mark in its place is not copied on."""
        said = turn.token_ids
        return turn.prompt_ids + (said[:-1] if said and said[-1] in self._framing_ids else said)


class ChatFrame(TokenFrame):
    """The tokenizer's chat template; each seat sees its own turns as the assistant's.

    A template that knows thoughts (Qwen3's, DeepSeek-R1's) marks them in every game. If it opens one itself where a
    reply begins, or puts an empty one before earlier replies, no prompt continues the one before: each is rendered
    anew (`renders_anew`).

    The template is split once, with marks in place of the contents. A template that changes earlier messages (drops or
    rewords them) is refused, because the next prompt would differ from the text that was played; and so is one whose
    pieces the tokenizer cuts in another way than the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        opening, to_reply, self.lead, to_user, opened, past = _chat_glue(tokenizer)
        self.renders_anew = opened != past
        self._opening = template_parts(tokenizer, opening)
        self._to_reply = template_parts(tokenizer, to_reply)
        self._opened = template_parts(tokenizer, opened)
        self._past = template_parts(tokenizer, past)
        self.opens_thoughts = bool(opened) and THOUGHT[1] not in opened
        _, mark, rest = past.partition(THOUGHT[1])
        closing = mark + rest if mark else f"{THOUGHT[1]}\n\n"
        self._closing = template_parts(tokenizer, closing) if self.opens_thoughts else []
        self.thought_end = f"\n{closing}"
        if template_parts(tokenizer, to_reply + self.lead) == self._to_reply:
            self.lead = ""  # the mark before it takes it
        close = template_parts(tokenizer, to_user)
        end = next((part for part in close if isinstance(part, int)), None)
        self._tail = "" if end is None else "".join(map(str, close[: close.index(end)]))
        if end is None or self._tail.strip():
            raise ModelError(
                "the chat template ends a reply with text, not with a token of the tokenizer, so nothing tells where "
                "a sampled reply ends; set `prompts: flat`"
            )
        self._to_user = close[close.index(end) + 1 :]
        self.end_ids = tuple(dict.fromkeys((end, *self.end_ids)))
        self._framing_ids |= {end}
        self._begins_anew = begins_anew_after_a_mark(tokenizer)
        self._around_heard = self._glue_around_heard()
        if self.opens_thoughts and any(thought_marks(tokenizer).values()):
            raise ModelError(
                f"the chat template opens a thought, and {THOUGHT[1]} is a special token, which no text of a reply "
                "shows, so thoughts could not be told from words; take the thought out of the template"
            )
        self.thinks |= self.opens_thoughts
        self._check_whole()

    @property
    def closing_ids(self) -> tuple[int, ...]:
        return self._joined(*self._closing, begins=False)

    def reply_ids(self, text: str) -> tuple[int, ...]:
        return super().reply_ids(text + self._tail)

    def after(self, turn: Turn, heard: str) -> tuple[int, ...]:
        """The prompt and the reply of a turn and the other side's message, up to where the next reply begins."""
        before, opening, closing, behind = self._around_heard
        text_ids = self._plain(opening + heard + closing, not self._begins_anew)
        return (*self._own(turn), self.end_ids[0], *before, *text_ids, *behind)

    def query_ids(self, query: str) -> tuple[int, ...]:
        return self._joined(*self._opening, query, *self._to_reply, *self._opened)

    def whole_ids(self, messages: Sequence[Mapping[str, str]], seat: int = 0) -> tuple[int, ...]:
        return template_ids(self.tokenizer, chat_text(self.tokenizer, [each["content"].strip() for each in messages]))

    def _dialogue(self, contents: Sequence[str]) -> tuple[int, ...]:
        """Messages by turns of the user and the assistant, the last one the user's, up to where a reply begins."""
        parts = [*self._opening, contents[0]]
        for reply, heard in zip(contents[1::2], contents[2::2], strict=True):
            parts += [*self._to_reply, self.lead, *self._past, reply + self._tail, self.end_ids[0]]
            parts += [*self._to_user, heard]
        return self._joined(*parts, *self._to_reply, *self._opened)

    def _said(self, text: str) -> tuple[int, ...]:
        if self._closing and text.startswith(THOUGHT[0]):  # which the prompt has opened
            return self._begun(text.removeprefix(THOUGHT[0]))
        return self.closing_ids + self._begun(text)

    def _begun(self, text: str) -> tuple[int, ...]:
        before = self._closing or self._opened or self._to_reply
        after_mark = bool(before) and isinstance(before[-1], int)
        return self._plain(text, not (after_mark and self._begins_anew))

    def _joined(self, *parts: str | int, begins: bool = True) -> tuple[int, ...]:
        """Text and marks. Neighbouring texts are one. `begins`: as at the beginning of a text."""
        ids: list[int] = []
        text = ""
        for part in parts:
            if isinstance(part, str):
                text += part
                continue
            ids += self._plain(text, not begins) if text else ()
            ids.append(part)
            begins, text = self._begins_anew, ""
        ids += self._plain(text, not begins) if text else ()
        return tuple(ids)

    def _glue_around_heard(self) -> tuple[tuple[int, ...], str, str, tuple[int, ...]]:
        """(ids, text before a message, text after it, ids) between a reply and where the next one begins: the texts
        are tokenised with the message, the rest never changes."""
        last = max((place for place, part in enumerate(self._to_user) if isinstance(part, int)), default=-1) + 1
        first = next((place for place, part in enumerate(self._to_reply) if isinstance(part, int)), len(self._to_reply))
        texts = "".join(map(str, self._to_user[last:])), "".join(map(str, self._to_reply[:first]))
        before = self._joined(*self._to_user[:last], begins=self._begins_anew)
        return before, *texts, self._joined(*self._to_reply[first:])

    def _check_whole(self) -> None:
        if any(holds_a_mark(self.tokenizer, text) for text in _SAMPLES):  # the pieces split it, the whole does not
            return
        whole = self.whole_ids([{"content": text} for text in _SAMPLES])
        pieces = self._dialogue(_SAMPLES) if self.renders_anew else self.query_ids(_SAMPLES[0])
        for reply, heard in () if self.renders_anew else zip(_SAMPLES[1::2], _SAMPLES[2::2], strict=True):
            pieces += self.reply_ids(reply)
            pieces += self._joined(*self._to_user, heard, *self._to_reply, begins=self._begins_anew)
        pieces = pieces[: len(whole)]
        if pieces != whole[: len(pieces)]:
            raise ModelError(
                "the tokenizer cuts a dialogue of the chat template in another way than its pieces, near "
                f"{first_difference(self.tokenizer, pieces, whole)!r}, so a game would not have the tokens that its "
                "text has; set `prompts: flat`"
            )


class LinesFrame(TokenFrame):
    """Lines of text. A reply is the rest of a line. A tokenizer without a token for the end of a line ends lines with
    its end-of-text token."""

    thought_end = THOUGHT[1]  # the end of a line would end the reply

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._line_ends = line_ends(tokenizer)
        self._text_ends = self.end_ids
        new_line = self._plain("\n", follows=True)
        self.joins_texts = len(new_line) == 1 and new_line[0] in self._line_ends
        self._new_line = new_line if self.joins_texts else self._text_ends[:1]
        self.end_ids = self._new_line
        self._stop_ids = tuple(sorted({*self._framing_ids, *self._text_ends, *self._line_ends}))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def usual_ends(self) -> tuple[int, ...]:
        blank = self._plain("\n\n", follows=True)
        return tuple(dict.fromkeys((*self.end_ids, *self._text_ends, *(blank if len(blank) == 1 else ()))))

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The line as the other player reads it, and so the referee too."""
        return one_line(super().text_of(token_ids))

    def reply_ids(self, text: str) -> tuple[int, ...]:
        line = self.lead + one_line(text)
        ids = self._plain(f"{line}\n", follows=True)  # ".\n" is one token to some tokenizers
        return ids if self.joins_texts and ids[-1] in self._line_ends else super().reply_ids(one_line(text))

    def query_ids(self, query: str) -> tuple[int, ...]:
        """A question outside the game, a line end, and then its answer, which may have many lines."""
        return self._begin + self._lines(query, "")

    def answer_ids(self, text: str) -> tuple[int, ...]:
        return (*self._said(text), self._text_ends[0])

    def spelled_ids(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        other = text if self.lead else f" {text}"
        return self.answer_ids(self.lead + text), self.answer_ids(other)

    def after(self, turn: Turn, *lines: str) -> tuple[int, ...]:
        """The prompt and the reply of a turn, closed as a line, and the lines after it, the last one not ended."""
        own = self._own(turn)
        closed = len(own) > len(turn.prompt_ids) and own[-1] in self._line_ends
        return own + (() if closed else self._new_line) + self._lines(*lines, follows=True)

    def _lines(self, *lines: str, follows: bool = False) -> tuple[int, ...]:
        """Lines, the last one not ended."""
        if self.joins_texts:
            return self._plain("\n".join(lines), follows)
        ids = self._plain(lines[0], follows)
        for line in lines[1:]:
            ids += self._new_line + self._plain(line, follows=True)
        return ids

    def _said(self, text: str) -> tuple[int, ...]:
        return self._plain(text, follows=True)


@lru_cache(maxsize=8)
def line_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens with the end of a line in them (".\\n" is one token to some tokenizers)."""
    every = range(len(tokenizer))
    return frozenset(token for token in every if "\n" in tokenizer.decode([token]))


def first_difference(tokenizer: Tokenizer, ids: Sequence[int], whole: Sequence[int]) -> str:
    """The text around the first token of `whole` that `ids` do not have there."""
    same = next((place for place, pair in enumerate(zip(ids, whole, strict=False)) if pair[0] != pair[1]), len(ids))
    return tokenizer.decode(list(whole[max(same - 3, 0) : same + 3]))


_MARKS = ("zqfirstzq", "zqsecondzq", "zqthirdzq", "zqfourthzq", "zqfifthzq")
_SAMPLES = ("Guess: what flows?", "It is 3 km long.", "river", "Is it `wet`?", "I know (2024)!")


class _ChatGlue(NamedTuple):
    """The parts of a chat template: before the first message's text, between a user's text and where a reply begins,
    white space before the reply's text, between a reply and the next user's text. `opened`, `past`: what of a thought
    is where a reply is sampled, and where an earlier reply begins, if these differ."""

    opening: str
    to_reply: str
    lead: str
    to_user: str
    opened: str
    past: str


def _chat_glue(tokenizer: Tokenizer) -> _ChatGlue:
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(
            "the model's tokenizer has no chat template, but `prompts` is `chat`; "
            "set `prompts: flat` (for a base model), or use an instruct model"
        )
    texts = [(chat_text(tokenizer, _MARKS[:count]), _MARKS[count - 1]) for count in (1, 3, 5)]
    whole, _ = texts[-1]
    lacks_text = ModelError("the chat template leaves out or repeats the text of a message; set `prompts: flat`")
    if not all(mark in text for text, mark in texts):
        raise lacks_text
    heads, _, tails = zip(*(text.rpartition(mark) for text, mark in texts), strict=True)
    if not all(whole.startswith(head + mark) for head, (_, mark) in zip(heads, texts, strict=True)):
        raise ModelError(
            "the chat template rewrites earlier messages when the dialogue continues, so prompts would differ from "
            "those that were played; set `prompts: flat`, or give the model a template that only appends"
        )
    pieces = [whole]
    for mark in _MARKS:
        pieces[-1:] = pieces[-1].split(mark)
    if len(pieces) != len(_MARKS) + 1:
        raise lacks_text
    opening, to_reply, to_user, *again, asked = pieces
    if not to_user:
        raise ModelError("the chat template puts nothing between a reply and the next message; set `prompts: flat`")
    if again != [to_reply, to_user] or {*tails} != {asked}:
        raise ModelError("the chat template frames later messages differently from the first; set `prompts: flat`")
    opened = past = ""
    if asked.rfind(THOUGHT[0]) > asked.rfind(THOUGHT[1]) and to_reply.startswith(asked):
        raise ModelError(
            "the chat template opens a thought where a reply begins, and before earlier replies, which have none; set "
            "`prompts: flat`, or take the thought out of the template"
        )
    if to_reply.removeprefix(asked).strip():
        (asked, opened), (to_reply, past) = _from_thought(asked), _from_thought(to_reply)
    lead = to_reply.removeprefix(asked)
    if lead.strip() or any(text.replace(THOUGHT[0], "").replace(THOUGHT[1], "").strip() for text in (opened, past)):
        raise ModelError(
            f"the chat template puts {to_reply + past!r} before an earlier reply and {asked + opened!r} where a reply "
            "begins, so a reply would have to begin with the template's own text; set `prompts: flat`"
        )
    trimmed = asked.rstrip(" ")  # a space belongs to the first word after it
    return _ChatGlue(opening, trimmed, asked[len(trimmed) :] + lead, to_user, opened, past)


def _from_thought(text: str) -> tuple[str, str]:
    """(text up to its first mark of a thought, the rest)."""
    place = min((found for mark in THOUGHT if (found := text.find(mark)) >= 0), default=len(text))
    return text[:place], text[place:]
