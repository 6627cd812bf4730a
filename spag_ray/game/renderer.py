"""What a seat reads, as token ids: a game's messages (protocol.py). Here as one text; styles.py has the other styles.

A prompt extends the seat's last one, if its messages only grow and the style allows it: previous prompt ids + sampled
ids + the tokenised text between. Otherwise it is rendered anew; a turn always keeps the ids that were read and sampled.
Text between two marks, or after a reply, is tokenised as one, so a prompt has the ids of its whole text. A player's own
words are encoded as plain text: `<|im_end|>` in a reply is eight characters to the model, not the end of a message.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cachetools import LRUCache

from spag_ray.errors import ConfigError, InputError, ModelError
from spag_ray.game.game_form import asking, fact_of
from spag_ray.game.protocol import Game, Guessing, Message, marks_of, seat_of, seat_to_move, seats_of
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn, after_thought, without_thought
from spag_ray.tokens import (
    THOUGHT,
    Tokenizer,
    begin_ids,
    check_marks_are_split,
    end_ids,
    framing_ids,
    holds_a_mark,
    plain_ids,
    template_parts,
    text_of,
    thought_marks,
)

KEPT_BYTES = 16 * 2**20  # of one renderer; an arena has one for each game
_ENTRY_BYTES = 340  # of the cache's own books for one text
_INT_BYTES = 32  # 28, in blocks of 16
_NAMES = ["user", "assistant"]


@dataclass(frozen=True)
class Claim:
    """A claim of a hidden fact, to be scored or trained on: it begins with `opening_ids`; `word_ids` are the fact and
    the mark that closes it, the last `num_closing` of them. After the first `num_deciding` tokens it is a claim to a
    referee."""

    opening_ids: tuple[int, ...]
    word_ids: tuple[int, ...]
    num_deciding: int
    num_closing: int = 1

    @property
    def named_ids(self) -> tuple[int, ...]:
        """The fact without the mark."""
        return self.word_ids[: len(self.word_ids) - self.num_closing]


@dataclass(frozen=True)
class Spoken:
    """A word as tokens of a reply: at its `start` (small or capital), or `later`, after a space."""

    start: tuple[tuple[int, ...], ...]
    later: tuple[tuple[int, ...], ...]


def checked_messages(game: Game, seat: int, history: Sequence[str], scenario: str) -> list[Message]:
    """The game's messages for a seat. Raises InputError unless they begin and end with the user's and alternate, and
    those of the assistant are the seat's own turns."""
    messages = list(game.messages(seat, history, scenario))
    _check_messages(game, seat, history, scenario, messages)
    return messages


def _check_messages(game: Game, seat: int, history: Sequence[str], scenario: str, messages: list[Message]) -> None:
    """Raises what `checked_messages` raises for these."""
    contents = [each.get("content") for each in messages]
    said = contents[1::2]
    own = [text for text, mover in zip(history, seats_of(game, history, scenario), strict=True) if mover == seat]
    fault = None
    if len(messages) % 2 == 0 or [each.get("role") for each in messages] != _NAMES * len(said) + _NAMES[:1]:
        fault = "messages must be of user, assistant, user, ..., and end with one of the user"
    elif not all(isinstance(content, str) for content in contents):
        fault = "every message needs a text as its content"
    elif said != own[len(own) - len(said) :]:
        fault = "the assistant's messages must be the seat's own turns, the last ones, in order"
    if fault is not None:
        call = f"messages(seat={seat}, history of {len(history)} turns, {scenario!r})"
        raise InputError(f"{type(game).__name__}.{call}: {fault}")


def _is_continued(messages: list[Message], before: Sequence[Message], said: str) -> bool:
    """Whether these are the messages `before`, then what the seat said, then one that answers it. They need no other
    check then, because those before had theirs when the seat's last turn read them."""
    reply, heard = messages[-2:]
    return (
        [reply.get("role"), heard.get("role")] == ["assistant", "user"]
        and reply.get("content") == said
        and isinstance(heard.get("content"), str)
        and messages[:-2] == list(before)
    )


class Renderer:
    """A pure function of the turns so far. This is the style `flat`: all messages as one text, after the tokenizer's
    BOS token if it has one. A reply is tokenised as a text of its own, as the published method does.

    `end_ids` are the regular end of a reply. Sampling stops at any of `stop_ids`, so a player cannot open another
    message. `usual_ends`: those of them that models use and that add no text to a reply."""

    opens_thoughts = False  # whether a reply begins within a thought
    renders_anew = False  # whether no prompt continues the one before
    lead = ""  # text between the end of a prompt and the first word of a reply; part of the reply
    thought_end = f"\n{THOUGHT[1]}\n\n"  # what ends a thought, as models write it
    joins_texts = True  # a prompt has the ids of its text as a whole

    def __init__(self, game: Game, tokenizer: Tokenizer) -> None:
        self.game = game
        self._marks = marks_of(game)
        self.end_ids = end_ids(tokenizer)
        self.tokenizer = tokenizer
        self._framing_ids = framing_ids(tokenizer)
        self._begin = begin_ids(tokenizer)
        self._plain = KeptIds(tokenizer)
        special = thought_marks(tokenizer).values()
        self.thinks = bool(special) and not any(special)  # whatever the game is; special tokens are in no text
        check_marks_are_split(tokenizer)

    def prompt(self, turns: Sequence[Turn], role: Role, scenario: str) -> tuple[int, ...]:
        """What a seat reads before its next turn."""
        seat, texts = seat_of(role), [self._heard(turn.text) for turn in turns]
        assert seat_to_move(self.game, texts, scenario) == seat, "it is the other player's turn"
        with asking(self.game, "messages", texts, scenario):
            messages = list(self.game.messages(seat, texts, scenario))
        own = next((place for place in range(len(turns) - 1, -1, -1) if turns[place].role is role), None)
        if own is not None and len(messages) > 1:
            with asking(self.game, "messages", texts[:own], scenario):
                before = self.game.messages(seat, texts[:own], scenario)
            if _is_continued(messages, before, texts[own]):
                longer = self._continued(self._without_thought(turns[own]), messages[-1]["content"], seat)
                if longer is not None:
                    return longer
        _check_messages(self.game, seat, texts, scenario, messages)
        return self._rendered([each["content"] for each in messages], seat)

    def opening(self, role: Role, scenario: str) -> tuple[int, ...]:
        """What a seat would read before anything was said, whoever opens the game. Raises what the game's `messages`
        raise if they have nothing for the seat then."""
        messages = checked_messages(self.game, seat_of(role), (), scenario)
        return self._rendered([each["content"] for each in messages], seat_of(role))

    def told_turn(self, turns: Sequence[Turn], role: Role, text: str, scenario: str, policy: str) -> Turn:
        """A turn of `role` that came as text, after `turns`, with the prompt that this seat would have read. Nobody
        sampled its tokens, so their log-probabilities are 0."""
        ids = self.reply_ids(text)
        return Turn.unsampled(role, text, self.prompt(turns, role, scenario), ids, policy)

    def _heard(self, text: str) -> str:
        return text

    def _continued(self, turn: Turn, heard: str, seat: int) -> tuple[int, ...] | None:
        """The prompt that extends that of the seat's last turn; None in a style in which none does."""
        return None

    def _rendered(self, contents: Sequence[str], seat: int) -> tuple[int, ...]:
        return self.query_ids("\n".join(contents))

    def claim(self, fact: str) -> Claim:
        """The claim that names this fact, in pieces. Raises ModelError if the pieces' tokens differ from those of the
        whole claim, because no player would sample the scored tokens then; ConfigError if nobody guesses in the
        game."""
        game = self.game
        if not isinstance(game, Guessing):
            raise ConfigError(f"{type(game).__name__} has no claims; only a game with a hidden fact has (`Guessing`)")
        opening, closing = f"{self.lead}{game.claim}".split("{word}")
        before = " " * (len(opening) - len(opening.rstrip(" ")))  # a space belongs to the fact's first token
        opening_ids = self._said(opening.rstrip(" "))
        closing_ids = self._plain(closing, follows=True)
        named_ids = self._plain(before + fact, follows=True)
        whole = opening + fact + closing
        is_in_pieces = opening_ids + named_ids + closing_ids == self._said(whole)
        reply, num_open = self.reply_ids(whole.removeprefix(self.lead)), len(opening_ids + named_ids)
        if reply[: num_open + len(closing_ids)] != opening_ids + named_ids + closing_ids:  # its end takes in the mark
            is_in_pieces &= reply[:num_open] == opening_ids + named_ids
            closing_ids = reply[num_open:-1] if reply[-1] in self.end_ids else reply[num_open:]
        word_ids = named_ids + closing_ids
        if not is_in_pieces or holds_a_mark(self.tokenizer, whole):
            raise ModelError(
                f"the tokenizer joins {fact!r} to the text beside it in the claim {game.claim!r}, so no "
                "player would sample these tokens; choose another `claim` in the prompt file"
            )
        head, found, _ = opening.partition(game.claims_from)
        deciding = self._said(head + found)
        is_piece = bool(found) and opening_ids[: len(deciding)] == deciding
        num_deciding = len(deciding) if is_piece else len(opening_ids)
        return Claim(opening_ids, word_ids, num_deciding, len(closing_ids))

    def claim_of(self, scenario: str) -> Claim:
        """`claim` of the fact that a scenario hides."""
        return self.claim(fact_of(self.game, scenario) if isinstance(self.game, Guessing) else scenario)

    def spoken(self, word: str) -> Spoken:
        """The tokens that would say this word in a reply."""
        start = dict.fromkeys((self._begun(self.lead + word), self._begun(self.lead + word.capitalize())))
        return Spoken(tuple(start), (self._plain(f" {word}", follows=True),))

    @cached_property
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

    def query_ids(self, query: str) -> tuple[int, ...]:
        """A question outside the game (an SFT row), up to where its answer begins."""
        return self._begin + self._plain(query)

    def whole_ids(self, messages: Sequence[Mapping[str, str]], seat: int = 0) -> tuple[int, ...]:
        """Messages up to where a reply of `seat` begins, tokenised as one text: what `prompt` has to give in pieces."""
        return self._begin + self._plain("".join(message["content"] for message in messages))

    def text_of(self, token_ids: Sequence[int], is_ended: bool = False) -> str:
        """The public text of a reply, without special tokens and outer white space. `is_ended`: its thought was ended
        for the player (`Turn.forced`)."""
        return self.public(self._whole_text(token_ids), is_ended)

    def public(self, reply: str, is_ended: bool = False) -> str:
        """What of the text of a reply the other player and the referee get: a model may think of its own accord, and
        then as the game wants it to."""
        if self.thinks and (self.opens_thoughts or reply.startswith(THOUGHT[0])):
            reply = after_thought(reply, self.opens_thoughts)
        return without_thought(self._marks, reply, is_ended)

    @property
    def has_thoughts(self) -> bool:
        """Whether a reply may begin with a thought: the model's own, or the game's."""
        return self.thinks or self._marks is not None

    def end_of_thought(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """What ends the thought in which a reply is after these tokens; nothing if it is in none."""
        reply = self._whole_text(token_ids)
        if self.thinks and (self.opens_thoughts or reply.startswith(THOUGHT[0])):
            if THOUGHT[1] not in reply:
                return self._with_marks(self.thought_end)
            reply = after_thought(reply)
        if self._marks is None:
            return ()
        begin, end = self._marks
        while reply.startswith(begin):
            _, found, reply = reply[len(begin) :].partition(end)
            if not found:
                return self._with_marks(end)
            reply = reply.strip()
        return ()

    def _with_marks(self, text: str) -> tuple[int, ...]:
        """Text within a reply, with marks as the tokens that a model samples for them."""
        found: list[int] = []
        for part in template_parts(self.tokenizer, text):
            found += [part] if isinstance(part, int) else self._plain(part, follows=True)
        return tuple(found)

    def _without_thought(self, turn: Turn) -> Turn:
        """A turn of this seat as it reads it later: its own words if it began with a thought, else unchanged."""
        # In this order: reading a turn's tokens is most of the time of a prompt.
        if not (self.thinks or self._marks) or self._whole_text(turn.token_ids) == turn.text:
            return turn
        said = self.reply_ids(turn.text)
        return replace(turn, token_ids=said, logprobs=(0.0,) * len(said), forced=None)

    def num_private(self, turn: Turn) -> int:
        """Tokens of a turn before its public text: its thought with both marks, and the white space after it. All of
        them if the thought does not end; 0 if the turn does not begin with one."""
        text_of, ids = self._whole_text, turn.token_ids
        whole = text_of(ids)
        if whole == turn.text or self.public(whole, turn.forced is not None) != turn.text:
            return 0
        if not turn.text:
            return len(ids)
        begin = len(whole) - len(turn.text)  # of the public text in the whole, which ends with it

        def length(end: int) -> int:
            return len(text_of(ids[:end]))

        # Bisected, because every look decodes a whole beginning of the turn: both are false up to a token, then true.
        ends = range(len(ids) + 1)
        closed = bisect_left(ends, True, key=lambda end: length(end) >= len(whole[:begin].rstrip()))
        speaks = bisect_left(ends, True, key=lambda end: length(end) > begin)
        return max(closed, speaks - 1)

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

    def _whole_text(self, token_ids: Sequence[int]) -> str:
        """The text of a reply with its thought, without tokens that frame messages and outer white space."""
        return text_of(self.tokenizer, token_ids).strip()


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


def first_difference(tokenizer: Tokenizer, ids: Sequence[int], whole: Sequence[int]) -> str:
    """The text around the first token of `whole` that `ids` do not have there."""
    same = next((place for place, pair in enumerate(zip(ids, whole, strict=False)) if pair[0] != pair[1]), len(ids))
    return tokenizer.decode(list(whole[max(same - 3, 0) : same + 3]))
