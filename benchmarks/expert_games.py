"""How the scripted expert's games end: every word of a deck once per seed, without a model.

    python -m benchmarks.expert_games [--deck everyday] [--seeds 3] [--max-turns 4]          seconds

The last line is JSON: the share of each ending, the mean number of turns of both players, and how many games.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

from actors.policy import GameView
from actors.scripted_policy import ScriptedPolicy
from spag_ray.game.decks import Deck, load_deck
from spag_ray.game.rules import Role, next_role
from spag_ray.judge import judge_turn


def expert_games(deck: Deck, seed: int = 0, max_turns: int = 4) -> tuple[Counter[str], int]:
    """({how it ended: games}, total number of turns) for one game per word with the strict referee."""
    policy = ScriptedPolicy(deck, encode=lambda text: [0], seed=seed)
    ends: Counter[str] = Counter()
    num_turns = 0
    for word in deck:
        history: list[tuple[Role, str]] = []
        verdict = None
        while verdict is None and len(history) < 2 * max_turns:
            role = next_role(len(history))
            view = GameView(role, word if role is Role.ATTACKER else None, tuple(history), max_turns)
            history.append((role, policy.reply(view, word)))
            verdict = judge_turn(history[-1][1], len(history) - 1, word, "strict")
        ends["tied" if verdict is None else f"{verdict.outcome}: {verdict.end_reason}"] += 1
        num_turns += len(history)
    return ends, num_turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deck", default="everyday")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-turns", type=int, default=4)
    options = parser.parse_args()
    deck = load_deck(options.deck)
    ends: Counter[str] = Counter()
    num_turns = 0
    for seed in range(options.seeds):
        found, turns = expert_games(deck, seed, options.max_turns)
        ends += found
        num_turns += turns
    shares = {end: round(number / ends.total(), 3) for end, number in ends.most_common()}
    print(json.dumps({"games": ends.total(), "turns": round(num_turns / ends.total(), 2), "ends": shares}))


if __name__ == "__main__":
    main()
