"""Episode <-> msgpack, and the episode log on disk.

A record of the log is: 4 bytes length, 4 bytes CRC-32 (both big-endian), then that many bytes of msgpack. It is
appended and flushed before an episode is acknowledged; a torn tail is cut when the log is opened again.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from spag_ray.episode import Episode, Turn
from spag_ray.errors import InputError
from spag_ray.game import Outcome, Role, Verdict

WIRE_VERSION = 1
MAX_RECORD_BYTES = 16 * 2**20
_HEADER = struct.Struct(">II")


def encode(episode: Episode) -> bytes:
    """An episode as msgpack; tuples become arrays."""
    verdict = episode.verdict
    record = {
        "v": WIRE_VERSION,
        "id": episode.episode_id,
        "number": episode.number,
        "stage": episode.stage,
        "target_word": episode.target_word,
        "max_turns": episode.max_turns,
        "rules": episode.rules,
        "temperature": episode.temperature,
        "verdict": [str(verdict.outcome), verdict.length, verdict.reason, verdict.turn, verdict.span],
        "turns": [
            [
                str(turn.role),
                turn.text,
                turn.prompt_ids,
                turn.token_ids,
                turn.logprobs,
                turn.policy,
                turn.first_version,
                turn.last_version,
                turn.finish_reason,
            ]
            for turn in episode.turns
        ],
    }
    return msgpack.packb(record)


def decode(data: bytes) -> Episode:
    """The inverse of `encode`. Raises InputError on anything else."""
    if len(data) > MAX_RECORD_BYTES:
        raise InputError(f"an episode record of {len(data)} bytes is larger than {MAX_RECORD_BYTES}")
    try:
        record: dict[str, Any] = msgpack.unpackb(data, strict_map_key=True)
        if record["v"] != WIRE_VERSION:
            raise InputError(f"an episode of wire version {record['v']!r}; this build reads version {WIRE_VERSION}")
        outcome, length, reason, turn_index, span = record["verdict"]
        turns = tuple(
            Turn(
                role=Role(role),
                text=str(text),
                prompt_ids=tuple(map(int, prompt_ids)),
                token_ids=tuple(map(int, token_ids)),
                logprobs=tuple(map(float, logprobs)),
                policy=str(policy),
                first_version=int(first),
                last_version=int(last),
                finish_reason=str(finish),
            )
            for role, text, prompt_ids, token_ids, logprobs, policy, first, last, finish in record["turns"]
        )
        return Episode(
            episode_id=str(record["id"]),
            number=int(record["number"]),
            stage=str(record["stage"]),
            target_word=str(record["target_word"]),
            max_turns=int(record["max_turns"]),
            rules=str(record["rules"]),
            temperature=float(record["temperature"]),
            turns=turns,
            verdict=Verdict(Outcome(outcome), int(length), str(reason), turn_index, tuple(span) if span else None),
        )
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not an episode record: {type(error).__name__}: {error}") from error


class EpisodeLog:
    """An append-only file of records. Opening it cuts a torn tail; `num_cut_bytes` says how much."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        good = sum(_HEADER.size + len(data) for data in _records(path)) if path.exists() else 0
        self.num_cut_bytes = path.stat().st_size - good if path.exists() else 0
        self._file = path.open("ab")
        if self.num_cut_bytes:
            self._file.truncate(good)

    def append(self, data: bytes) -> None:
        """One record, on its way to the disk when this returns."""
        self._file.write(_HEADER.pack(len(data), zlib.crc32(data)) + data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> Iterator[Episode]:
    """Every whole episode of a log, one at a time, up to a torn tail."""
    for data in _records(path):
        yield decode(data)


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, crc = _HEADER.unpack(header)
            if length > MAX_RECORD_BYTES:
                return
            data = file.read(length)
            if len(data) < length or zlib.crc32(data) != crc:
                return
            yield data
