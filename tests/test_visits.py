"""What a session reads of a run's folder."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.visits import Visits
from spag_ray.episode import Episode, Turn
from spag_ray.episode_log import EpisodeLog, segments
from spag_ray.errors import InputError
from spag_ray.game import Outcome, Role, Verdict
from spag_ray.wire import encode


def test_the_last_episodes_come_from_the_newest_segments(tmp_path: Path) -> None:
    def write(stage: str, count: int) -> None:
        log = EpisodeLog(tmp_path / "episodes" / f"{stage}.log", segment_bytes=500)
        for number in range(count):
            turn = Turn(Role.ATTACKER, "x", (1,), (2,), (-0.5,), "policy", 1, 1)
            outcome = Outcome.TIED if number % 2 else Outcome.ATTACKER_WINS
            verdict = Verdict(outcome, 1, "r", None, None)
            log.append(encode(Episode(f"{stage}/{number}", number, stage, "river", 2, "strict", 1.0, (turn,), verdict)))

    write("expert", 4)
    write("stream", 12)
    found = segments(tmp_path / "episodes" / "stream.log")
    assert len(found) >= 3
    for age, path in enumerate([*segments(tmp_path / "episodes" / "expert.log"), *found]):
        os.utime(path, (age, age))
    run: Any = SimpleNamespace(folder=tmp_path)

    def numbers(*asked: Any) -> list[tuple[str, int]]:
        return [(each["stage"], each["number"]) for each in Visits(run).episodes(*asked)]

    assert numbers(5, None, None) == [("stream", number) for number in range(7, 12)]
    assert numbers(14, None, None) == [("expert", n) for n in (2, 3)] + [("stream", n) for n in range(12)]
    assert numbers(3, "attacker wins", "stream") == [("stream", number) for number in (6, 8, 10)]
    assert numbers(9, None, "expert") == [("expert", number) for number in range(4)]
    with pytest.raises(InputError, match="there are attacker wins"):
        numbers(1, "won", None)
