"""What a player reads: a prompt file (prompt_file.py) and the dialogue, rendered to token ids.

Three styles. `chat` extends a seat's last prompt token-exactly: previous prompt ids + sampled ids + the tokenised glue
of the tokenizer's chat template. `lines` does the same without a template: rules, then one line per turn. `flat` has
rules, dialogue and an instruction as one text. Texts that join are tokenised as one, so a prompt has the ids of its
whole text. A player's own words are encoded as plain text: `<|im_end|>` in a reply is eight characters to the model,
not the end of a message.

    renderer = make_renderer(load_template("chat"), tokenizer, max_turns=5)
    ids = renderer.prompt(turns, Role.ATTACKER, "river")
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from spag_ray.errors import ConfigError, ModelError
from spag_ray.game.prompt_file import CLAIMS, PromptTemplate
from spag_ray.game.rules import Role, next_role
from spag_ray.game.token_frames import ChatFrame, LinesFrame, TokenFrame
from spag_ray.game.turn import Turn
from spag_ray.tokens import Tokenizer, holds_a_mark


@dataclass(frozen=True)
class Claim:
    """A defender's guess of one word, to be scored or trained on: it begins with `opening_ids`; `word_ids` are the word
    and the mark that closes it, the last `num_closing` of them. After the first `num_deciding` tokens it is a claim to
    a referee."""

    opening_ids: tuple[int, ...]
    word_ids: tuple[int, ...]
    num_deciding: int
    num_closing: int = 1

    @property
    def named_ids(self) -> tuple[int, ...]:
        """The word without the mark."""
        return self.word_ids[: len(self.word_ids) - self.num_closing]


@dataclass(frozen=True)
class Spoken:
    """A word as tokens of a reply: at its `start` (small or capital), or `later`, after a space."""

    start: tuple[tuple[int, ...], ...]
    later: tuple[tuple[int, ...], ...]


class Renderer(Protocol):
    """Dialogue -> token ids of the next prompt; a pure function of the turns so far. `end_ids` are the regular end of a
    reply. Sampling stops at any of `stop_ids`, so a player cannot open another message. `usual_ends`: those of them
    that models use and that add no text to a reply."""

    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def stop_ids(self) -> tuple[int, ...]: ...
    @property
    def usual_ends(self) -> tuple[int, ...]: ...
    @property
    def joins_texts(self) -> bool: ...

    def prompt(self, turns: Sequence[Turn], role: Role, target_word: str) -> tuple[int, ...]: ...
    def query_ids(self, query: str) -> tuple[int, ...]: ...
    def reply_ids(self, text: str) -> tuple[int, ...]: ...
    def answer_ids(self, text: str) -> tuple[int, ...]: ...
    def claim(self, word: str) -> Claim: ...
    def spoken(self, word: str) -> Spoken: ...
    def num_private(self, turn: Turn) -> int: ...
    def text_of(self, token_ids: Sequence[int]) -> str: ...
    def whole_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]: ...


def chat_messages(
    template: PromptTemplate,
    said: Sequence[tuple[Role, str]],
    role: Role,
    target_word: str,
    max_turns: int,
) -> list[dict[str, str]]:
    """The prompt of ChatRenderer as messages, for a player behind a chat API. Other templates give one message."""
    if template.style == "flat":
        text = _flat_text(template, said, role, target_word, max_turns, wording=0)
        return [{"role": "user", "content": text}]
    if template.style == "lines":
        rules = template.rules(role, target_word, max_turns) + template.separator + template.history_title
        lines = [template.spoken_line(speaker, text) for speaker, text in said]
        return [{"role": "user", "content": "\n".join([rules, *lines, template.spoken_line(role, "")])}]
    messages = [{"role": "user", "content": _heard_first(template.rules(role, target_word, max_turns), "")}]
    for speaker, text in said:
        if speaker is role:
            messages.append({"role": "assistant", "content": text})
        elif len(messages) == 1:
            messages[0]["content"] = _heard_first(messages[0]["content"], text)
        else:
            messages.append({"role": "user", "content": text})
    return messages


def make_renderer(template: PromptTemplate, tokenizer: Tokenizer, max_turns: int, wording: int = 0) -> Renderer:
    """The renderer of a template's style."""
    renderers: dict[str, type[ChatRenderer] | type[FlatRenderer] | type[LinesRenderer]]
    renderers = {"chat": ChatRenderer, "flat": FlatRenderer, "lines": LinesRenderer}
    return renderers[template.style](template, tokenizer, max_turns, wording)


class _TabooFrame(TokenFrame):
    """The pieces of Taboo that every style has; comes before the style's frame among the bases."""

    def __init__(self, template: PromptTemplate, tokenizer: Tokenizer, max_turns: int, wording: int = 0) -> None:
        if not 0 <= wording < len(template.wordings):
            raise ConfigError(f"wording {wording} was asked for, but the template has {len(template.wordings)}")
        super().__init__(tokenizer)
        self.template = template
        self.max_turns = max_turns
        self.wording = wording

    def _rules(self, role: Role, target_word: str) -> str:
        return self.template.rules(role, target_word, self.max_turns, self.wording)

    def claim(self, word: str) -> Claim:
        """The claim that names this word, in pieces. Raises ModelError if the pieces' tokens differ from those of the
        whole claim, because no player would sample the scored tokens then."""
        opening, closing = f"{self.lead}{self.template.claim}".split("{word}")
        before = " " * (len(opening) - len(opening.rstrip(" ")))  # a space belongs to the word's first token
        opening_ids = self._said(opening.rstrip(" "))
        closing_ids = self._plain(closing, follows=True)
        word_ids = self._plain(before + word, follows=True) + closing_ids
        whole = opening + word + closing
        if opening_ids + word_ids != self._said(whole) or holds_a_mark(self.tokenizer, whole):
            raise ModelError(
                f"the tokenizer joins {word!r} to the text beside it in the claim {self.template.claim!r}, so no "
                "player would sample these tokens; choose another `claim` in the prompt file"
            )
        head, found, _ = opening.partition(CLAIMS)
        deciding = self._said(head + found)
        is_piece = bool(found) and opening_ids[: len(deciding)] == deciding
        num_deciding = len(deciding) if is_piece else len(opening_ids)
        return Claim(opening_ids, word_ids, num_deciding, len(closing_ids))

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The public text of a reply, without special tokens and outer white space."""
        return self.template.public(super().text_of(token_ids))

    def _without_thought(self, turn: Turn) -> Turn:
        """A turn of this seat as it reads it later: its own words if it began with a thought, else unchanged."""
        if self.template.thought is None or super().text_of(turn.token_ids) == turn.text:
            return turn
        said = self.reply_ids(turn.text)
        return replace(turn, token_ids=said, logprobs=(0.0,) * len(said))

    def num_private(self, turn: Turn) -> int:
        """Tokens of a turn before its public text: its thought with both marks, and the white space after it. All of
        them if the thought does not end; 0 if the turn does not begin with one."""
        marks, text_of, ids = self.template.marks, super().text_of, turn.token_ids
        if marks is None or text_of(ids) == turn.text or not text_of(ids).startswith(marks[0]):
            return 0

        def after_opening(end: int) -> str:
            return text_of(ids[:end])[len(marks[0]) :]

        # Bisected, because every look decodes a whole beginning of the turn: both are false up to a token, then true.
        ends = range(len(ids) + 1)
        closed = bisect_left(ends, True, key=lambda end: marks[1] in after_opening(end))
        speaks = bisect_left(ends, True, key=lambda end: bool(after_opening(end).partition(marks[1])[2].strip()))
        return min(len(ids), max(closed, speaks - 1))

    def spoken(self, word: str) -> Spoken:
        """The tokens that would say this word in a reply."""
        start = dict.fromkeys((self._said(self.lead + word), self._said(self.lead + word.capitalize())))
        return Spoken(tuple(start), (self._plain(f" {word}", follows=True),))


class ChatRenderer(_TabooFrame, ChatFrame):
    """The tokenizer's chat template; each seat sees its own lines as the assistant's."""

    def prompt(self, turns: Sequence[Turn], role: Role, target_word: str) -> tuple[int, ...]:
        assert next_role(len(turns)) is role, "it is the other player's turn"
        own = [turn for turn in turns if turn.role is role]
        if own:
            return self.after(self._without_thought(own[-1]), turns[-1].text)
        return self._dialogue([_heard_first(self._rules(role, target_word), turns[-1].text if turns else "")])


class FlatRenderer(_TabooFrame):
    """Rules + dialogue + instruction as one text, after the tokenizer's BOS token if it has one."""

    def prompt(self, turns: Sequence[Turn], role: Role, target_word: str) -> tuple[int, ...]:
        said = [(turn.role, turn.text) for turn in turns]
        return self.query_ids(_flat_text(self.template, said, role, target_word, self.max_turns, self.wording))

    @staticmethod
    def query_text(
        template: PromptTemplate,
        history: Sequence[Mapping[str, str]],
        role: Role,
        target_word: str,
        max_turns: int,
    ) -> str:
        """The prompt as text, for the published training-data files (their field "query")."""
        said = [(Role(turn["role"]), turn["content"]) for turn in history]
        return _flat_text(template, said, role, target_word, max_turns, wording=0)

    def query_ids(self, query: str) -> tuple[int, ...]:
        return self._begin + self._plain(query)


class LinesRenderer(_TabooFrame, LinesFrame):
    """Rules, then a line a turn; a reply is the rest of a line that begins with the player's name.

    Each seat's prompt extends its previous prompt token by token, so a game is one chain of tokens for each seat. The
    other player's text is put into one line: it cannot open lines of its own.
    """

    lead = " "

    def prompt(self, turns: Sequence[Turn], role: Role, target_word: str) -> tuple[int, ...]:
        assert next_role(len(turns)) is role, "it is the other player's turn"
        own = [turn for turn in turns if turn.role is role]
        line = self.template.spoken_line
        lines = [line(turns[-1].role, turns[-1].text)] if turns else []
        lines.append(line(role, ""))
        if own:
            return self.after(self._without_thought(own[-1]), *lines)
        rules = self._rules(role, target_word) + self.template.separator + self.template.history_title
        return self._begin + self._lines(rules, *lines)


def _heard_first(rules: str, heard: str) -> str:
    """A seat's first message in a chat, without outer white space, which some templates drop."""
    return f"{rules.strip()}\n\n{heard}".strip()


def _flat_text(
    template: PromptTemplate,
    said: Sequence[tuple[Role, str]],
    role: Role,
    target_word: str,
    max_turns: int,
    wording: int,
) -> str:
    """The `flat` layout."""
    pieces = [template.rules(role, target_word, max_turns, wording) + template.separator]
    if said:
        pieces.append(template.history_title)
        for speaker, text in said:
            pieces.append("\n" + template.line.format(speaker=template.speakers[speaker], text=text))
    else:
        pieces.append(template.empty_history)
    pieces.append(template.separator + template.instruction(role, target_word, max_turns) + "\n")
    return "".join(pieces)
