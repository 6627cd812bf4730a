"""The first games of episode logs as Markdown, without selection, in the order in which words were given out.

    python -m benchmarks.first_games runs/proof/spag/seed-2/episodes/eval-imitated.log [LOG ...] [--games 5]

In brackets, if it was measured: the probability that a guess at that turn would have been right.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn


def shown(episode: Episode) -> Iterator[str]:
    verdict = episode.verdict
    yield f"**{episode.scenario}**: {verdict.outcome} ({verdict.end_reason})"
    yield ""
    for turn in episode.turns:
        said = " ".join(turn.text.split()) or "(nothing)"
        yield f"- {'A' if turn.role is Role.ATTACKER else 'D'}: {said}{probability(turn)}"
    yield ""


def probability(turn: Turn) -> str:
    return "" if turn.word_logprob is None else f" [{math.exp(turn.word_logprob):.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--games", type=int, default=5)
    options = parser.parse_args()
    for path in options.logs:
        print(f"### {path.stem}\n")
        for episode in islice(sorted(read_log(path), key=lambda each: each.number), options.games):
            print("\n".join(shown(episode)))


if __name__ == "__main__":
    main()
