"""Episodes made by hand."""

from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome, Verdict, next_role
from spag_ray.game.turn import Turn


def game(number: int, outcome: Outcome, num_turns: int = 4, decided_by: int | None = None) -> Episode:
    turns = tuple(Turn(next_role(i), "x", (1, 2), (3, 4), (-0.5, -0.5), "p") for i in range(num_turns))
    verdict = Verdict(outcome, EndReason.OTHER, num_turns, "r", decided_by, None)
    return Episode(f"s/{number}", number, "s", "cat", 5, "strict", 1.0, turns, verdict)
