"""What a session reads of a run's folder."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import console
from cluster.run.run import last_episodes
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog, segments
from spag_ray.episodes.wire import encode
from spag_ray.errors import InputError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.plain_yaml import parse_settings


def test_the_last_episodes_come_from_the_newest_segments(tmp_path: Path) -> None:
    def write(stage: str, count: int) -> None:
        log = EpisodeLog(tmp_path / "episodes" / f"{stage}.log", segment_bytes=500)
        for number in range(count):
            turn = Turn(Role.ATTACKER, "x", (1,), (2,), (-0.5,), "policy", 1, 1)
            outcome = Outcome.TIED if number % 2 else Outcome.ATTACKER_WINS
            verdict = Verdict(outcome, EndReason.OTHER, 1, "r", None, None)
            log.append(encode(Episode(f"{stage}/{number}", number, stage, "river", 2, "strict", 1.0, (turn,), verdict)))

    write("expert", 4)
    write("stream", 12)
    found = segments(tmp_path / "episodes" / "stream.log")
    assert len(found) >= 3
    for age, path in enumerate([*segments(tmp_path / "episodes" / "expert.log"), *found]):
        os.utime(path, (age, age))

    def numbers(*asked: Any) -> list[tuple[str, int]]:
        return [(each["stage"], each["number"]) for each in last_episodes(tmp_path, *asked)]

    assert numbers(5, None, None) == [("stream", number) for number in range(7, 12)]
    assert numbers(14, None, None) == [("expert", n) for n in (2, 3)] + [("stream", n) for n in range(12)]
    assert numbers(3, "attacker wins", "stream") == [("stream", number) for number in (6, 8, 10)]
    assert numbers(9, None, "expert") == [("expert", number) for number in range(4)]
    write("match-qwen2+5@spag-2", 2)
    assert numbers(9, None, "match-qwen2+5@spag-2") == [("match-qwen2+5@spag-2", number) for number in range(2)]
    with pytest.raises(InputError, match="there are attacker wins"):
        numbers(1, "won", None)


def test_a_run_that_a_session_starts_has_the_dtypes_of_the_clusters_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the session's machine would make it slow, or refuse to continue it."""
    sent: list[Any] = []

    def answered(*given: Any) -> list[str]:
        sent.append(given)
        return []

    def remote(_: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *given: given))

    monkeypatch.setattr(console.ray, "remote", remote)
    monkeypatch.setattr(console, "get", answered)
    for name in ("_connect", "attach"):
        monkeypatch.setattr(console, name, lambda *_, **__: None)
    monkeypatch.setattr(console, "runs_here", list)
    console.launch("quickstart", "ray://head:10001", "/shared/run", overrides=["engine.dtype=float32"])
    (((text, folder, resume), _),) = sent
    settings = parse_settings(text, "sent")
    assert (settings["engine"]["dtype"], folder, resume) == ("float32", "/shared/run", False)
    assert "dtype" not in settings["learner"]


def test_a_session_imports_nothing_that_its_environment_lacks() -> None:
    lacking = {"numpy", "torch", "transformers", "vllm", "deepspeed", "xxhash", "wordfreq", "choix", "scipy", "plotly"}
    code = f"import sys, cluster.console\nprint(sorted({lacking!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[]\n"
