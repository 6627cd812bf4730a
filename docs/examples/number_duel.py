"""Number duel: a game of your own in one file (docs/games.md).

Each seat has a secret number from 1 to 9. Both say "high" or "low" about it, true or not. Then the first seat bets
that its own number is "above" or "below" the other one. It wins if the bet is right, else the second seat wins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from spag_ray.game.protocol import History, Message, Ruling, breach, win

NUMBERS = range(1, 10)
CLAIMS, BETS = ("high", "low"), ("above", "below")
LOSS = ((-2.0, None), (None, -2.0))  # of a wrong word, by seat: more than a lost game; the other seat learns nothing

RULES = (
    "Number duel. Two players have different secret numbers from 1 to 9. Each says high or low about its own number, "
    "true or not. Then the first player bets that its number is above or below the other one."
)


class NumberDuel:
    """A scenario is both numbers, such as "7 3": that of the first seat, then that of the second."""

    seats = ("bettor", "bluffer")
    max_turns = 2  # of each seat; the game ends with the third turn
    is_exhaustive = False  # some pairs are held out, to be evaluated on

    def scenarios(self) -> Sequence[str]:
        return [f"{first} {second}" for first, second in itertools.permutations(NUMBERS, 2)]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        """The rules once; before each turn what the other player said, the own number, and what can be said."""
        messages: list[Message] = []
        for turn in range(seat, len(history) + 1, 2):
            heard = f"The other player says {history[turn - 1]}.\n" if turn > 0 else ""
            asked = f"{heard}{told(scenario, seat)} Say {' or '.join(words(turn))}:"
            messages.append({"role": "user", "content": asked if messages else f"{RULES}\n{asked}"})
            if turn < len(history):
                messages.append({"role": "assistant", "content": history[turn]})
        return messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        turn, said = len(history) - 1, history[-1].strip(" .!").lower()
        if said not in words(turn):
            return breach(turn % 2, "wrong word", LOSS[turn % 2], reason=f"{' or '.join(words(turn))} was expected")
        if turn < 2:
            return None
        first, second = numbers(scenario)
        is_right = (said == "above") == (first > second)
        return win(0 if is_right else 1, "right bet" if is_right else "wrong bet", reason=f"{first} against {second}")

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        """Optional: what `spag_ray.game.check` looks for in the messages of this seat."""
        return [told(scenario, 1 - seat)]

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """Optional: what imitation starts with. Claims at random; in five games of six the likelier bet."""
        likelier = "above" if numbers(scenario)[seat] >= 5 else "below"
        return likelier if len(history) == 2 and rng.random() < 0.65 else rng.choice(words(len(history)))


def words(turn: int) -> tuple[str, str]:
    """What can be said in this turn; turns count from 0."""
    return BETS if turn == 2 else CLAIMS


def numbers(scenario: str) -> tuple[int, int]:
    first, second = scenario.split()
    return int(first), int(second)


def told(scenario: str, seat: int) -> str:
    return f"Your number is {numbers(scenario)[seat]}."
