"""Which two-player environments of TextArena can be played, as the table of docs/appendix/textarena.md.

    python -m benchmarks.textarena_games > table.md          minutes, one core; two processes compare their games
    python -m benchmarks.textarena_games KuhnPoker-v0        some of them alone

Of each environment the first registered variant is played: games by the scripted seats, the conformance suite, and the
same games in a second process with another order of sets (PYTHONHASHSEED).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import textarena

from spag_ray.errors import SpagError
from spag_ray.game import check
from spag_ray.game.game_form import verdict_of
from spag_ray.games.textarena_game import TextArenaGame

NUM_GAMES, NUM_CHECKED, SECONDS = 10, 3, 3.0
TOO_SLOW_S = 60
_FOR_MORE_OR_LESS = "it is not for two players"


@dataclass
class Row:
    """`fault`: why it is not played; empty if it passes. `games`: {end of a game: how many} of the scripted seats."""

    env_id: str
    variants: list[str]
    fault: str = ""
    turns: int = 0
    is_exhaustive: bool = False
    games: dict[str, int] | None = None
    digest: str = ""

    def line(self) -> str:
        others = f" (and {', '.join(self.variants)})" if self.variants else ""
        if self.fault:
            return f"| `{self.env_id}`{others} | no | {self.fault} |"
        ends = ", ".join(f"{count} {end}" for end, count in sorted((self.games or {}).items()))
        seeds = "draws nothing" if self.is_exhaustive else "seeds"
        return f"| `{self.env_id}`{others} | yes | {seeds}; {self.turns} turns each at most; {ends} |"


class _TooSlowError(BaseException):
    """Not an Exception, which tables take for an error of the environment."""


def survey(names: Sequence[str], is_again: bool) -> list[Row]:
    """Rows of all environments that are for two players, or cannot tell; of those in `names` alone, if there are any.
    `is_again`: only the games are played."""
    families: dict[str, list[str]] = {}
    for env_id in sorted(textarena.envs.registration.ENV_REGISTRY):
        if not env_id.endswith(("-raw", "-train")):
            families.setdefault(env_id.partition("-v0")[0], []).append(env_id)
    signal.signal(signal.SIGPROF, _stop)
    rows = []
    for env_ids in families.values():
        env_id = next((each for each in env_ids if each.endswith("-v0")), env_ids[0])
        if names and env_id not in names:
            continue
        rest = [each.removeprefix(env_id.partition("-v0")[0] + "-v0") for each in env_ids if each != env_id]
        row = Row(env_id, [f"`{each}`" for each in rest])
        signal.setitimer(signal.ITIMER_PROF, TOO_SLOW_S)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # some environments print
                _play(row, is_again)
        except SpagError as error:
            row.fault = str(error).removeprefix(f"game.env: {env_id}: ").removeprefix(f"textarena:{env_id}: ")
        except _TooSlowError:
            row.fault = f"{NUM_CHECKED} games of the suite take over {TOO_SLOW_S} s of a core"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(row.env_id, row.fault or row.games, file=sys.stderr, flush=True)
        if _FOR_MORE_OR_LESS not in row.fault:
            rows.append(row)
    return rows


def _play(row: Row, is_again: bool) -> None:
    game = TextArenaGame(row.env_id)
    row.turns, row.is_exhaustive = game.max_turns, game.is_exhaustive
    ends: Counter[str] = Counter()
    digest = hashlib.sha256()
    until = time.process_time() + SECONDS
    for number in range(NUM_GAMES):
        scenario, rng = str(0 if game.is_exhaustive else number), random.Random(number)
        history: list[str] = []
        while (verdict := verdict_of(game, history, scenario) if history else None) is None:
            history.append(game.scripted(game.to_move(history, scenario), history, scenario, rng))
        ends[str(verdict.end_reason)] += 1
        if number < 2:  # a number of games that every machine reaches
            digest.update(repr((history, verdict)).encode())
        elif time.process_time() > until:
            break
    row.games, row.digest = dict(ends), digest.hexdigest()
    if is_again:
        return
    if faults := check(lambda: TextArenaGame(row.env_id), NUM_CHECKED):
        row.fault = f"conformance suite: {faults[0]:.160}"


def _stop(*_: object) -> NoReturn:
    raise _TooSlowError


def main() -> None:
    names = [name for name in sys.argv[1:] if name != "--again"]
    if "--again" in sys.argv[1:]:
        print(json.dumps({row.env_id: row.digest for row in survey(names, is_again=True)}))
        return
    rows = survey(names, is_again=False)
    command = [sys.executable, "-m", "benchmarks.textarena_games", "--again", *names]
    environment = os.environ | {"PYTHONHASHSEED": "2"}
    again = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    for row in rows:
        if not row.fault and row.digest != again[row.env_id]:
            row.fault = "the same seed and moves give other games in another process"
    print("| environment | played | |\n|---|---|---|")
    for row in sorted(rows, key=lambda row: (bool(row.fault), row.fault.split(" (")[0], row.env_id)):
        print(row.line())


if __name__ == "__main__":
    main()
