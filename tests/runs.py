"""Small whole runs, for the tests that need one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from rich.console import Console

from spag_ray.config import RunConfig, parse_config


def tiny_run(model: Path, words: Path, **changes: Any) -> RunConfig:
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
    return parse_config(config)


def stream_run(model: Path, words: Path, num_parts: int, **changes: Any) -> RunConfig:
    """`num_parts` versions of 8 games each, by two vLLM engines."""
    config: dict[str, Any] = {
        "schedule": "stream",
        "stream": {"games_per_version": 8, "max_lag": 3},
        "imitation": {"enabled": False},
        "engine": {"num_engines": 2, "num_cpus": 0.25, "turn_timeout_s": 20},
        "learner": {"num_cpus": 0.5, "timeout_s": 20},
        # It stays what it is, and every game but a tie is learned from: no run ends because nothing was decided.
        "game": {"breach": "penalise"},
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


def quiet() -> Console:
    return Console(quiet=True)


def records_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


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
