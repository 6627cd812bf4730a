"""Games that say who moves next: one in which a seat keeps the turn, and one in which both choose at once."""

import random
from collections.abc import Sequence

from spag_ray.game.protocol import History, Message, Ruling, breach, tie, win


class Stairs:
    """The seat to move says `go`, climbs a step and keeps the turn, or says `stop`. Three steps win. A scenario is the
    seat that opens."""

    seats = ("left", "right")
    max_turns = 4
    is_exhaustive = True

    def scenarios(self) -> Sequence[str]:
        return ["0", "1"]

    def to_move(self, history: History, scenario: str) -> int:
        return (int(scenario) + list(history).count("stop")) % 2

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        """The rules once; before each turn of the seat what the other one said since its last."""
        messages: list[Message] = []
        heard = ["Three steps win."]
        for index in range(len(history) + 1):
            if self.to_move(history[:index], scenario) != seat:
                heard.append(f"The other player: {history[index]}")
                continue
            messages.append({"role": "user", "content": "\n".join([*heard, "go or stop?"])})
            heard = []
            if index < len(history):
                messages.append({"role": "assistant", "content": history[index]})
        return messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        mover = self.to_move(history[:-1], scenario)
        if history[-1] not in ("go", "stop"):
            return breach(mover)
        steps = sum(text == "go" and self.to_move(history[:i], scenario) == mover for i, text in enumerate(history))
        return win(mover, "climbed") if steps == 3 else None

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        return rng.choice(("go", "stop"))


class Pennies:
    """Matching pennies, two rounds: both choose in secret, and read the choices when both have chosen. Seat 0 is asked
    first in the first round, seat 1 in the second, so seat 1 has two turns in a row."""

    seats = ("same", "different")
    max_turns = 2
    is_exhaustive = True

    def scenarios(self) -> Sequence[str]:
        return ["pennies"]

    def to_move(self, history: History, scenario: str) -> int:
        return (0, 1, 1, 0)[len(history)]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        mine = 0 if seat == 0 else 1  # the seat's turn in the first round
        opening = {"role": "user", "content": f"You win if the choices are {self.seats[seat]}. heads or tails?"}
        if len(history) < 2:
            return [opening]
        told = f"The choices were {history[0]} and {history[1]}. heads or tails?"
        return [opening, {"role": "assistant", "content": history[mine]}, {"role": "user", "content": told}]

    def rule(self, history: History, scenario: str) -> Ruling | None:
        if history[-1] not in ("heads", "tails"):
            return breach(self.to_move(history[:-1], scenario))
        if len(history) < 4:
            return None
        matches = (history[0] == history[1]) + (history[2] == history[3])
        return tie() if matches == 1 else win(0 if matches == 2 else 1)

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        return rng.choice(("heads", "tails"))
