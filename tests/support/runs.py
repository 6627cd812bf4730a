"""Small whole runs, for the tests that need one."""

import contextlib
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console

from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig


def tiny_run(model: Path, words: Path, /, **changes: Any) -> RunConfig:
    config: dict[str, Any] = {
        "model": str(model),
        "game": {"max_turns": 2},
        "words": {"source": str(words), "num_held_out": 2},
        "sampling": {"temperature": 1.0, "max_new_tokens": 10},
        "engine": {"dtype": "float32", "max_model_len": 512, "kv_cache_gib": 0.1, "max_num_seqs": 16},
        "learner": {"dtype": "float32", "num_threads": 1, "bucket_bytes": 50_000},
        "imitation": {"games": 12, "batch_games": 4, "learning_rate": 1e-2},
        "self_play": {"rounds": 2, "games_per_round": 24, "batch_games": 4, "learning_rate": 1e-3},
        "evaluation": {"games": 6},
    }
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(config.get(key), dict) else value
    if "games" in config:
        del config["game"]
    return parse_config(config)


def wait_until_dead(method: Any, *arguments: Any) -> None:
    """Ray kills in its own time: a call to an actor's method that comes just after may still be answered."""

    def ask_for_20_s() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            ray.get(method.remote(*arguments), timeout=20)
            time.sleep(0.05)

    with pytest.raises(ray.exceptions.RayActorError):
        ask_for_20_s()


# Breaches are trained on: the turn that broke the rules is pushed down.
PENALISED = {"attacker_breach": [-0.2, None], "defender_breach": [None, -0.2]}


def stream_run(model: Path, words: Path, num_parts: int, **changes: Any) -> RunConfig:
    """`num_parts` versions of 8 games each, by two vLLM engines."""
    config: dict[str, Any] = {
        "schedule": "stream",
        "stream": {"games_per_version": 8, "max_lag": 3},
        "imitation": {"enabled": False},
        "engine": {"num_engines": 2, "num_cpus": 0.25, "turn_timeout_s": 20},
        "learner": {"num_cpus": 0.5, "timeout_s": 20},
        # It stays what it is, and every game but a tie is trained on: no run ends because nothing was decided.
        "game": {"payoffs": PENALISED},
        "objective": {"learn_from": "both"},
        "self_play": {"rounds": 1, "games_per_round": 8 * num_parts, "games_in_flight": 8, "learning_rate": 1e-7},
        "checkpoint": {"every_versions": 5},
        "supervision": {"max_restarts": 100, "heartbeat_timeout_s": 8},
        "sync": {"timeout_s": 60},
        "evaluation": {"games": 0},
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value}
    return tiny_run(model, words, **config)


def colocated_run(model: Path, words: Path, num_rounds: int, batch_games: int) -> RunConfig:
    """Rounds of 24 games by two vLLM engines, which sleep while the learner has their devices."""
    return tiny_run(
        model,
        words,
        placement="colocated",
        engine={"num_engines": 2, "num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        game={"payoffs": PENALISED},
        imitation={"enabled": False},
        self_play={"rounds": num_rounds, "games_per_round": 24, "batch_games": batch_games},
        supervision={"max_restarts": 100, "heartbeat_timeout_s": 8},
        evaluation={"games": 0},
    )


def quiet() -> Console:
    return Console(quiet=True)


def records_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Of metrics.jsonl, which a run may be writing: a last line without its end is not there yet."""
    whole, _, _ = (folder / "metrics.jsonl").read_text().rpartition("\n")
    return [line for line in map(json.loads, whole.splitlines()) if line["kind"] == kind]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return records_of(folder, "step")


def drawn_by_tensorboard(folder: Path) -> dict[str, list[tuple[int, float | str]]]:
    """{tag: (step, value) in the order of a run's event files}, every record checked."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    drawn: dict[str, list[tuple[int, float | str]]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            length, check = struct.unpack_from("<QI", data, at)
            record = data[at + 12 : at + 12 + length]
            if len(data) < at + 16 + length:
                break  # torn by a kill
            assert check == masked_crc32c(data[at : at + 8])
            assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(record)
            at += 16 + length
            event = Event.FromString(record)
            for value in event.summary.value:
                is_text = value.HasField("tensor")
                shown = value.tensor.string_val[0].decode() if is_text else value.simple_value
                drawn.setdefault(value.tag, []).append((event.step, shown))
    return drawn


@contextlib.contextmanager
def begun(file: Path, folder: Path, num_syncs: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`spag-ray train` in a process group of its own, as a shell starts it, once it has published so many versions."""
    command = [sys.executable, "-m", "spag_ray", "train", str(file), "--run-dir", str(folder), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as process:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").exists() or len(records_of(folder, "sync")) < num_syncs:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.2)
        yield process


def told_to_stop(process: subprocess.Popen[str]) -> str:
    """SIGTERM; what it printed."""
    told = time.monotonic()
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert time.monotonic() - told < 45
    return output


def said(log: Path) -> list[list[str]]:
    from spag_ray.episodes.log import read_log

    episodes = sorted(read_log(log), key=lambda episode: episode.number)
    return [[turn.text for turn in episode.turns] for episode in episodes]
