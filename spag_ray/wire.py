"""Episode <-> msgpack.

`decode` takes bytes from anywhere: their size, depth and types are checked, and what they would grow to.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgpack

from spag_ray.episode import Episode, Turn
from spag_ray.errors import InputError
from spag_ray.game import Outcome, Role, Verdict

WIRE_VERSION = 2
MAX_RECORD_BYTES = 16 * 2**20
MAX_PROMPT_TOKENS = 2**22  # of an episode's prompts together: what is small may grow, as each turn may name another
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
        num_prompt_tokens = 0
        for seat, text, base, prompt, tokens, logprobs, policy, first, last, finish in record["turns"]:
            prompt_ids = _unpacked(_IDS, prompt)
            if base >= 0:
                prompt_ids = turns[base].prompt_ids + turns[base].token_ids + prompt_ids
            num_prompt_tokens += len(prompt_ids)
            if num_prompt_tokens > MAX_PROMPT_TOKENS:
                raise InputError(f"an episode record with prompts of more than {MAX_PROMPT_TOKENS} tokens")
            turns.append(
                Turn(
                    _SEATS[_whole(seat)],
                    _text(text),
                    prompt_ids,
                    _unpacked(_IDS, tokens),
                    _unpacked("d", logprobs),
                    _text(policy),
                    _whole(first),
                    _whole(last),
                    _text(finish),
                )
            )
        return Episode(
            episode_id=_text(record["id"]),
            number=_whole(record["number"]),
            stage=_text(record["stage"]),
            target_word=_text(record["target_word"]),
            max_turns=_whole(record["max_turns"]),
            rules=_text(record["rules"]),
            temperature=_number(record["temperature"]),
            turns=tuple(turns),
            verdict=Verdict(
                Outcome(outcome),
                _whole(length),
                _text(reason),
                None if turn_index is None else _whole(turn_index),
                None if span is None else _span(span),
            ),
        )
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not an episode record: {type(error).__name__}: {error}") from error


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__} where a text belongs")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r:.40} where a count belongs")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"a {type(value).__name__} where a number belongs")
    return float(value)


def _span(value: Any) -> tuple[int, int]:
    begin, end = value
    return _whole(begin), _whole(end)


def _unpacked(kind: str, data: Any) -> tuple:
    if type(data) is not bytes:
        raise TypeError(f"a {type(data).__name__} where bytes belong")
    numbers = array(kind)
    numbers.frombytes(data)
    return tuple(numbers)
