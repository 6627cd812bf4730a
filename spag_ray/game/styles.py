"""The styles of prompts: `chat`, the tokenizer's chat template; `lines`, one line per turn; `flat`, everything as one
text (renderer.py).

    renderer = game_renderer(KuhnPoker(), tokenizer, "lines")
    ids = renderer.prompt(turns, Role.ATTACKER, "KJ")
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from spag_ray.errors import ModelError
from spag_ray.game.protocol import Game, SpeaksInLines
from spag_ray.game.renderer import Renderer, first_difference
from spag_ray.game.turn import Turn, one_line
from spag_ray.tokens import (
    THOUGHT,
    Tokenizer,
    begins_anew_after_a_mark,
    chat_text,
    holds_a_mark,
    template_ids,
    template_parts,
    thought_marks,
)


def game_renderer(game: Game, tokenizer: Tokenizer, style: str) -> Renderer:
    """The renderer of a style, `chat`, `lines` or `flat`."""
    return {"chat": ChatRenderer, "lines": LinesRenderer, "flat": Renderer}[style](game, tokenizer)


class ChatRenderer(Renderer):
    """The tokenizer's chat template; each seat sees its own turns as the assistant's.

    A template that knows thoughts (Qwen3's, DeepSeek-R1's) marks them in every game. If it opens one itself where a
    reply begins, or puts an empty one before earlier replies, no prompt continues the one before: each is rendered
    anew (`renders_anew`).

    The template is split once, with marks in place of the contents. A template that changes earlier messages (drops or
    rewords them) is refused, because the next prompt would differ from the text that was played; and so is one whose
    pieces the tokenizer cuts in another way than the whole.
    """

    def __init__(self, game: Game, tokenizer: Tokenizer) -> None:
        super().__init__(game, tokenizer)
        opening, to_reply, self.lead, to_user, opened, past = _chat_glue(tokenizer)
        self.renders_anew = opened != past
        self._opening, self._to_reply, self._opened, self._past = (
            template_parts(tokenizer, part) for part in (opening, to_reply, opened, past)
        )
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
        self._around_heard = self._glue_after_reply()
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

    def query_ids(self, query: str) -> tuple[int, ...]:
        return self._joined(*self._opening, query, *self._to_reply, *self._opened)

    def whole_ids(self, messages: Sequence[Mapping[str, str]], seat: int = 0) -> tuple[int, ...]:
        return template_ids(self.tokenizer, chat_text(self.tokenizer, [each["content"].strip() for each in messages]))

    def _continued(self, turn: Turn, heard: str, seat: int) -> tuple[int, ...] | None:
        """The prompt and the reply of a turn and the other side's message, up to where the next reply begins."""
        if self.renders_anew:
            return None
        return self._own(turn) + self.end_ids[:1] + self._after_reply(heard.strip())

    def _rendered(self, contents: Sequence[str], seat: int) -> tuple[int, ...]:
        """Messages by turns of the user and the assistant, the last one the user's, up to where a reply begins."""
        first, *later = (content.strip() for content in contents)
        parts = [*self._opening, first]
        for reply, heard in zip(later[::2], later[1::2], strict=True):
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

    def _after_reply(self, heard: str) -> tuple[int, ...]:
        """The other side's message, from the end of a reply up to where the next one begins."""
        before, opening, closing, after = self._around_heard
        text = opening + heard + closing
        return before + (self._plain(text, not self._begins_anew) if text else ()) + after

    def _glue_after_reply(self) -> tuple[tuple[int, ...], str, str, tuple[int, ...]]:
        """What stands around a message after a reply: the ids up to the last mark before it, the text from there, the
        text up to the first mark after it, the ids from there. Made once: every turn needs it."""
        last = max((place for place, part in enumerate(self._to_user) if isinstance(part, int)), default=-1)
        first = next((place for place, part in enumerate(self._to_reply) if isinstance(part, int)), len(self._to_reply))
        before = self._joined(*self._to_user[: last + 1], begins=self._begins_anew)
        opening, closing = "".join(map(str, self._to_user[last + 1 :])), "".join(map(str, self._to_reply[:first]))
        return before, opening, closing, self._joined(*self._to_reply[first:])

    def _check_whole(self) -> None:
        if any(holds_a_mark(self.tokenizer, text) for text in _SAMPLES):  # the pieces split it, the whole does not
            return
        whole = self.whole_ids([{"content": text} for text in _SAMPLES])
        pieces = self._rendered(_SAMPLES, 0) if self.renders_anew else self.query_ids(_SAMPLES[0])
        for reply, heard in () if self.renders_anew else zip(_SAMPLES[1::2], _SAMPLES[2::2], strict=True):
            pieces += self.reply_ids(reply) + self._after_reply(heard)
        pieces = pieces[: len(whole)]
        if pieces != whole[: len(pieces)]:
            raise ModelError(
                "the tokenizer cuts a dialogue of the chat template in another way than its pieces, near "
                f"{first_difference(self.tokenizer, pieces, whole)!r}, so a game would not have the tokens that its "
                "text has; set `prompts: flat`"
            )


class LinesRenderer(Renderer):
    """Lines of text. A reply is one line, or the rest of one that begins with the game's own words (SpeaksInLines). The
    other player's text is put into one line: it cannot open lines of its own. A tokenizer without a token for the end
    of a line ends lines with its end-of-text token."""

    thought_end = THOUGHT[1]  # the end of a line would end the reply

    def __init__(self, game: Game, tokenizer: Tokenizer) -> None:
        super().__init__(game, tokenizer)
        if self._marks is not None:  # as they are in a line
            begin, end = (re.sub(r"\s+", " ", mark) for mark in self._marks)
            if not end.strip():
                raise ModelError(
                    f"thoughts of {type(game).__name__} end with white space, of which lines have much; let them end "
                    "with a mark, or choose another prompt_style"
                )
            self._marks = begin, end
        self._starts = [game.line_start(seat) for seat in (0, 1)] if isinstance(game, SpeaksInLines) else ["", ""]
        self.lead = " " if all(self._starts) else ""
        self._line_ends = line_ends(tokenizer)
        self._text_ends = self.end_ids
        new_line = self._plain("\n", follows=True)
        self.joins_texts = len(new_line) == 1 and new_line[0] in self._line_ends
        self._new_line = new_line if self.joins_texts else self._text_ends[:1]
        self.end_ids = self._new_line
        self.stop_ids = tuple(sorted({*self._framing_ids, *self._text_ends, *self._line_ends}))

    @property
    def usual_ends(self) -> tuple[int, ...]:
        blank = self._plain("\n\n", follows=True)
        return tuple(dict.fromkeys((*self.end_ids, *self._text_ends, *(blank if len(blank) == 1 else ()))))

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

    def whole_ids(self, messages: Sequence[Mapping[str, str]], seat: int = 0) -> tuple[int, ...]:
        return self._begin + self._plain("\n".join(self._written([each["content"] for each in messages], seat)))

    def _heard(self, text: str) -> str:
        return one_line(text)

    def _whole_text(self, token_ids: Sequence[int]) -> str:
        """The line as the other player reads it, and so the referee too."""
        return one_line(super()._whole_text(token_ids))

    def _continued(self, turn: Turn, heard: str, seat: int) -> tuple[int, ...]:
        """The prompt and the reply of a turn, closed as a line, and the lines after it, the last one not ended."""
        own = self._own(turn)
        closed = len(own) > len(turn.prompt_ids) and own[-1] in self._line_ends
        return own + (() if closed else self._new_line) + self._lines(heard, self._starts[seat], follows=True)

    def _rendered(self, contents: Sequence[str], seat: int) -> tuple[int, ...]:
        return self._begin + self._lines(*self._written(contents, seat))

    def _written(self, contents: Sequence[str], seat: int) -> list[str]:
        own, other = (self._starts[each] + self.lead for each in (seat, 1 - seat))
        opening, heard = contents[0], []
        if other and (found := opening.rfind(f"\n{other}")) >= 0:  # a line that was heard ends as a line, rules do not
            opening, heard = opening[:found], [opening[found + 1 :]]
        rest = [own + text if place % 2 == 0 else text for place, text in enumerate(contents[1:])]
        return [opening, *heard, *rest, self._starts[seat]]

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


_MARKS = ("zqfirstzq", "zqsecondzq", "zqthirdzq", "zqfourthzq", "zqfifthzq")
_SAMPLES = ("Guess: what flows?", "It is 3 km long.", "river", "Is it `wet`?", "I know (2024)!")


def _chat_glue(tokenizer: Tokenizer) -> tuple[str, str, str, str, str, str]:
    """The parts of a chat template: before the first message's text, between a user's text and where a reply begins,
    white space before the reply's text, between a reply and the next user's text; what of a thought is where a reply is
    sampled, and where an earlier reply begins, if these differ."""
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
    return opening, trimmed, asked[len(trimmed) :] + lead, to_user, opened, past


def _from_thought(text: str) -> tuple[str, str]:
    """(text up to its first mark of a thought, the rest)."""
    place = min((found for mark in THOUGHT if (found := text.find(mark)) >= 0), default=len(text))
    return text[:place], text[place:]


@lru_cache(maxsize=8)
def line_ends(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens with the end of a line in them (".\\n" is one token to some tokenizers)."""
    every = range(len(tokenizer))
    return frozenset(token for token in every if "\n" in tokenizer.decode([token]))
