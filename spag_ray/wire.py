"""Episode <-> msgpack, and the episode log on disk.

A record of the log is: 4 bytes length, 4 bytes CRC-32 (both big-endian), then that many bytes of msgpack. It is
appended and flushed before an episode is acknowledged; a torn tail is cut when the log is opened again.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from spag_ray.episode import Episode, Turn
from spag_ray.errors import InputError
from spag_ray.game import Outcome, Role, Verdict

WIRE_VERSION = 2
MAX_RECORD_BYTES = 16 * 2**20
_HEADER = struct.Struct(">II")
_SEATS = tuple(Role)
_IDS = "I"  # of the array module: 4 bytes, unsigned
assert sys.byteorder == "little", "records are written in the machine's byte order, which has to be little-endian"


def encode(episode: Episode) -> bytes:
    """An episode as msgpack. Token ids are packed as 4 bytes each, log-probabilities as 8; of a prompt that begins with
    all that its seat read and said before, only the rest is written."""
    verdict = episode.verdict
    # What a later prompt of the same seat may begin with: (index of the turn, its prompt and reply).
    read: dict[Role, tuple[int, tuple[int, ...]]] = {}
    turns = []
    for index, turn in enumerate(episode.turns):
        base, prompt = -1, turn.prompt_ids
        if turn.role in read:
            before, ids = read[turn.role]
            if prompt[: len(ids)] == ids:
                base, prompt = before, prompt[len(ids) :]
        read[turn.role] = (index, turn.prompt_ids + turn.token_ids)
        turns.append(
            (
                _SEATS.index(turn.role),
                turn.text,
                base,
                array(_IDS, prompt).tobytes(),
                array(_IDS, turn.token_ids).tobytes(),
                array("d", turn.logprobs).tobytes(),
                turn.policy,
                turn.first_version,
                turn.last_version,
                turn.finish_reason,
            )
        )
    record = {
        "v": WIRE_VERSION,
        "id": episode.episode_id,
        "number": episode.number,
        "stage": episode.stage,
        "target_word": episode.target_word,
        "max_turns": episode.max_turns,
        "rules": episode.rules,
        "temperature": episode.temperature,
        "verdict": (str(verdict.outcome), verdict.length, verdict.reason, verdict.turn, verdict.span),
        "turns": turns,
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
        turns: list[Turn] = []
        for seat, text, base, prompt, tokens, logprobs, policy, first, last, finish in record["turns"]:
            prompt_ids = _unpacked(_IDS, prompt)
            if base >= 0:
                prompt_ids = turns[base].prompt_ids + turns[base].token_ids + prompt_ids
            if len(prompt_ids) > MAX_RECORD_BYTES // 4:  # each turn may name all before it: what is small may grow
                raise InputError(f"an episode record with a prompt of {len(prompt_ids)} tokens")
            turns.append(
                Turn(
                    _SEATS[seat],
                    str(text),
                    prompt_ids,
                    _unpacked(_IDS, tokens),
                    _unpacked("d", logprobs),
                    str(policy),
                    int(first),
                    int(last),
                    str(finish),
                )
            )
        return Episode(
            episode_id=str(record["id"]),
            number=int(record["number"]),
            stage=str(record["stage"]),
            target_word=str(record["target_word"]),
            max_turns=int(record["max_turns"]),
            rules=str(record["rules"]),
            temperature=float(record["temperature"]),
            turns=tuple(turns),
            verdict=Verdict(Outcome(outcome), int(length), str(reason), turn_index, tuple(span) if span else None),
        )
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not an episode record: {type(error).__name__}: {error}") from error


def _unpacked(kind: str, data: bytes) -> tuple:
    numbers = array(kind)
    numbers.frombytes(data)
    return tuple(numbers)


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

    def append(self, *records: bytes) -> None:
        """The records are on the disk when this returns."""
        self._file.write(b"".join(_HEADER.pack(len(data), zlib.crc32(data)) + data for data in records))
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
