"""A game whose messages do not grow and whose players think, and a function that plays a seat."""

import random
from collections.abc import Sequence

from spag_ray.game.protocol import History, Message, Ruling, win


class Forgetful:
    """A seat reads the last turn alone; replies begin with a thought in brackets."""

    seats = ("one", "other")
    max_turns = 3
    is_exhaustive = True
    thought_marks = ("(", ")")

    def scenarios(self) -> Sequence[str]:
        return ["-"]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        return [{"role": "user", "content": f"turn {len(history)}, you heard: {history[-1] if history else ''}"}]

    def rule(self, history: History, scenario: str) -> Ruling | None:
        return win(0) if len(history) == 5 else None


def hums(seat: int, messages: Sequence[Message], rng: random.Random) -> str:
    return f"hum {seat} {len(messages)}"
