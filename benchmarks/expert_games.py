"""How the scripted expert's games end: every word of a deck once per seed, without a model.

    python -m benchmarks.expert_games [--deck everyday] [--seeds 3] [--max-turns 4]          seconds

The last line is JSON: the share of each ending, the mean number of turns of both players, and how many games.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter

from spag_ray.game.protocol import seat_to_move
from spag_ray.game.rules import Outcome
from spag_ray.games.taboo.decks import Deck, load_deck
from spag_ray.games.taboo.game import TabooGame


def expert_games(deck: Deck, seed: int = 0, max_turns: int = 4) -> tuple[Counter[str], int]:
    """({how it ended: games}, total number of turns) for one game per word with the strict referee."""
    game = TabooGame(max_turns=max_turns).with_cards(deck)
    ends: Counter[str] = Counter()
    num_turns = 0
    for word in deck:
        history: list[str] = []
        ruling = None
        while ruling is None:
            rng = random.Random(f"{seed}/{word}/{len(history)}")
            history.append(game.scripted(seat_to_move(game, history, word), history, word, rng))
            ruling = game.rule(history, word)
        ends["tied" if ruling.outcome is Outcome.TIED else f"{ruling.outcome}: {ruling.end_reason}"] += 1
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
