"""How long a stream's buffer takes to restart, by the length of its log.

    python -m benchmarks.stream_restart [--games 1000000] [--folder DIR]

It puts that many games of two short turns through the buffer and its log, without engines. Then it opens the stream
again twice: from the cursor's mark, and from the whole log as version 0.1 did (a cursor without a mark). Resident
memory is that of this process. JSON is the last line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from actors.league import Opponents
from cluster.buffer.buffer_actor import StreamSpec
from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.buffer.stream import STAGE, GameStream
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.game.words import WordsOfGame, WordStream

PER_VERSION = 1000
WORDS = tuple(f"word{number}" for number in range(1000))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="for the log; a temporary one otherwise")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(json.dumps(measured(Path(folder), whole_versions(options.games))))


def whole_versions(num_games: int) -> int:
    """The games that are played of so many: those of whole versions, one at least."""
    return max(num_games // PER_VERSION, 1) * PER_VERSION


def measured(folder: Path, num_games: int) -> dict[str, Any]:
    began = time.perf_counter()
    cursor = written(folder, num_games)
    found: dict[str, Any] = {"games": num_games, "write_s": round(time.perf_counter() - began, 1)}
    found["log_mb"] = round(sum(path.stat().st_size for path in folder.glob("*.log")) / 1e6)
    for name, given in (("mark", cursor), ("whole", {**cursor, "log": None})):
        before, began = psutil.Process().memory_info().rss, time.perf_counter()
        buffer = ReplayBuffer(str(folder))
        buffer.open_stream(a_stream(), given)
        found[f"restart_from_{name}_s"] = round(time.perf_counter() - began, 3)
        found[f"restart_from_{name}_mb"] = round((psutil.Process().memory_info().rss - before) / 1e6, 1)
        assert buffer.count(STAGE).num_games == num_games, "it knows of all games"
        print(found, flush=True)
    return found


def a_stream() -> GameStream:
    return GameStream(words(), StreamConfig(games_per_version=PER_VERSION, max_lag=1), {"policy": 0}, 0)


def words(given: Iterable[str] = WORDS) -> WordStream:
    """A stream of Taboo's words."""
    return WordStream([WordsOfGame("taboo", 1.0, tuple(given))], 0)


def stream_spec(config: StreamConfig, given: Iterable[str] = WORDS) -> StreamSpec:
    """What opens the stream of a buffer's actor."""
    return StreamSpec(words(given), config, 0, Opponents(0), {"policy": 0})


def written(folder: Path, num_games: int) -> dict[str, Any]:
    """The cursor of a stream after this many games."""
    buffer, stream = ReplayBuffer(str(folder)), a_stream()
    buffer.open_stream(stream, None)
    for version in range(num_games // PER_VERSION):
        tasks = stream.lease("arena", PER_VERSION)
        buffer.add([encode(a_game(task.number, task.scenario, version)) for task in tasks])
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
    cursor: dict[str, Any] = json.loads(json.dumps(stream.cursor()))
    return cursor


def a_game(number: int, word: str, version: int) -> Episode:
    ids = tuple(range(12))
    turns = (
        Turn(Role.ATTACKER, "Think of water.", ids, (2, 3), (-0.5, -0.2), "policy", version, version),
        Turn(Role.DEFENDER, "I know the word!", ids, (2, 3), (-0.5, -0.1), "policy", version, version),
    )
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS, 2, "wrong", 1, (0, 4))
    return Episode(f"stream/{number}", number, STAGE, word, 3, "strict", 1.0, turns, verdict)


if __name__ == "__main__":
    main()
