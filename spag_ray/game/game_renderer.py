"""Prompts of a game (protocol.py) as token ids: its messages in a tokenizer's chat template, or as lines of text.

    renderer = game_renderer(KuhnPoker(), tokenizer, "lines")
    ids = renderer.prompt(turns, Role.ATTACKER, "KJ")

If what a seat reads only grows from turn to turn, its prompt extends its previous prompt and the sampled tokens. If a
game changes earlier messages, the prompt is rendered anew; a turn always keeps the ids that were read and sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spag_ray.errors import ConfigError, InputError
from spag_ray.game.prompt_file import one_line
from spag_ray.game.prompts import Claim, Renderer, Spoken
from spag_ray.game.protocol import Game, Message, seat_of
from spag_ray.game.rules import Role, next_role
from spag_ray.game.token_frames import ChatFrame, LinesFrame, TokenFrame
from spag_ray.game.turn import Turn
from spag_ray.tokens import Tokenizer

STYLES = ("chat", "lines")


def game_renderer(game: Game, tokenizer: Tokenizer, style: str) -> Renderer:
    """The renderer of a style, `chat` or `lines`."""
    renderers: Mapping[str, type[_GameChat] | type[_GameLines]] = {"chat": _GameChat, "lines": _GameLines}
    return renderers[style](game, tokenizer)


def checked_messages(game: Game, seat: int, history: Sequence[str], scenario: str) -> list[Message]:
    """The game's messages for a seat. Raises InputError unless they begin and end with the user's and alternate, and
    those of the assistant are the seat's own turns."""
    messages = list(game.messages(seat, history, scenario))
    name = f"{type(game).__name__}.messages(seat={seat}, history of {len(history)} turns, {scenario!r})"
    expected = ["user", "assistant"] * len(messages)
    if len(messages) % 2 == 0 or [each.get("role") for each in messages] != expected[: len(messages)]:
        raise InputError(f"{name}: messages must be of user, assistant, user, ..., and end with one of the user")
    if not all(isinstance(each.get("content"), str) for each in messages):
        raise InputError(f"{name}: every message needs a text as its content")
    said = [each["content"] for each in messages[1::2]]
    own = [text for index, text in enumerate(history) if index % 2 == seat]
    if said != own[len(own) - len(said) :]:
        raise InputError(f"{name}: the assistant's messages must be the seat's own turns, the last ones, in order")
    return messages


class _GameFrame(TokenFrame):
    """What both styles share."""

    def __init__(self, game: Game, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._game = game

    def prompt(self, turns: Sequence[Turn], role: Role, target_word: str) -> tuple[int, ...]:
        """`target_word` is the game's scenario."""
        assert next_role(len(turns)) is role, "it is the other player's turn"
        seat, texts = seat_of(role), [self._heard(turn.text) for turn in turns]
        messages = checked_messages(self._game, seat, texts, target_word)
        own = len(turns) - 2  # the seat's previous turn
        if own >= 0:
            before = checked_messages(self._game, seat, texts[:own], target_word)
            if messages[:-2] == before and messages[-2]["content"] == texts[own]:
                return self._continued(turns[own], messages[-1]["content"])
        return self._rendered([each["content"] for each in messages])

    def _heard(self, text: str) -> str:
        return text

    def _continued(self, turn: Turn, heard: str) -> tuple[int, ...]:
        raise NotImplementedError

    def _rendered(self, contents: Sequence[str]) -> tuple[int, ...]:
        raise NotImplementedError

    def claim(self, word: str) -> Claim:
        raise ConfigError("only Adversarial Taboo has claims (game.name: taboo)")

    def num_private(self, turn: Turn) -> int:
        """0, because only prompt files of Taboo have marks for thoughts."""
        return 0

    def spoken(self, word: str) -> Spoken:
        raise ConfigError("only Adversarial Taboo has words that must not be said (game.name: taboo)")


class _GameChat(_GameFrame, ChatFrame):
    def _continued(self, turn: Turn, heard: str) -> tuple[int, ...]:
        return self.after(turn, heard.strip())

    def _rendered(self, contents: Sequence[str]) -> tuple[int, ...]:
        return self._dialogue([content.strip() for content in contents])


class _GameLines(_GameFrame, LinesFrame):
    """A message is as many lines as it has; a reply is one line. The other player's text is put into one line."""

    def _heard(self, text: str) -> str:
        return one_line(text)

    def _continued(self, turn: Turn, heard: str) -> tuple[int, ...]:
        return self.after(turn, heard, "")

    def _rendered(self, contents: Sequence[str]) -> tuple[int, ...]:
        return self._begin + self._lines(*contents, "")

    def whole_ids(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return self._begin + self._plain("".join(f"{message['content']}\n" for message in messages))
