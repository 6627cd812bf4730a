"""Episode <-> msgpack.

`decode` accepts untrusted bytes: it checks their size, depth, types and decoded size.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import msgpack
from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from spag_ray.episodes.episode import Episode, EpisodeHead
from spag_ray.errors import InputError
from spag_ray.game.protocol import MAX_PAYOFF, TABOO
from spag_ray.game.rules import MAX_END_REASON, EndReason, Outcome, Role, Verdict, end_reason
from spag_ray.game.turn import Turn, num_forced

WIRE_VERSION = 5
MAX_RECORD_BYTES = 16 * 2**20
MAX_PROMPT_TOKENS = 2**22  # of all prompts of an episode: small records may decode to large ones
_SEATS = tuple(Role)
_REASONS = {TABOO: frozenset(EndReason)}  # why games of a game end; those of the others may end with any text
_IDS = "I"  # of the array module: 4 bytes, unsigned
_Count = Annotated[int, Field(ge=0)]
_Span = tuple[_Count, _Count]
_Payoff = Annotated[float, Field(ge=-MAX_PAYOFF, le=MAX_PAYOFF)]
assert sys.byteorder == "little", "records are written in the machine's byte order, which has to be little-endian"


class _Verdict(NamedTuple):
    outcome: str
    end_reason: Annotated[str, Field(max_length=MAX_END_REASON)]
    length: _Count
    reason: str
    turn: _Count | None
    span: _Span | None
    payoffs: tuple[_Payoff | None, _Payoff | None] | None


class _Turn(NamedTuple):
    """`base`: the turn whose prompt and reply the prompt begins with; -1: none. Only some turns have the last two
    values. Nothing is written for the others, so their records are those of earlier versions."""

    seat: _Count
    text: str
    base: int
    prompt: bytes
    tokens: bytes
    logprobs: bytes
    policy: str
    first_version: _Count
    last_version: _Count
    finish_reason: str
    word_logprob: float | None
    forced: _Span | None = None
    listener_logprob: float | None = None


class _Record(TypedDict):
    id: str
    number: _Count
    stage: str
    target_word: str
    max_turns: _Count
    rules: str
    temperature: float
    game: str
    verdict: _Verdict
    turns: list[_Turn]


_RECORD = TypeAdapter(_Record)


def encode(episode: Episode) -> bytes:
    """An episode as msgpack. Token ids are packed as 4 bytes each, log-probabilities as 8. If a prompt begins with an
    earlier prompt and reply of its seat, only the rest is written."""
    verdict = episode.verdict
    # Possible prefix of a later prompt of the same seat: (index of the turn, its prompt and reply).
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
                turn.word_logprob,
                *_last_values(turn),
            )
        )
    record = {
        "v": WIRE_VERSION,
        "id": episode.episode_id,
        "number": episode.number,
        "stage": episode.stage,
        "target_word": episode.scenario,
        "max_turns": episode.max_turns,
        "rules": episode.rules,
        "temperature": episode.temperature,
        "game": episode.game,
        "verdict": (
            str(verdict.outcome),
            str(verdict.end_reason),
            verdict.length,
            verdict.reason,
            verdict.turn,
            verdict.span,
            verdict.payoffs,
        ),
        "turns": turns,
    }
    return msgpack.packb(record)


def _last_values(turn: Turn) -> tuple[Any, ...]:
    """The last values of a `_Turn`, without those that it has not."""
    if turn.listener_logprob is not None:
        return turn.forced, turn.listener_logprob
    return () if turn.forced is None else (turn.forced,)


def read_head(data: bytes) -> EpisodeHead:
    """A record without its tokens and texts, which only `decode` unpacks. Raises InputError."""
    with _faults_named():
        record = _record(data)
        versions: dict[str, int] = {}
        for turn in record["turns"]:
            versions[turn.policy] = min(versions.get(turn.policy, turn.first_version), turn.first_version)
        sizes = (len(turn.tokens) // array(_IDS).itemsize - num_forced(turn.forced) for turn in record["turns"])
        return EpisodeHead(
            number=record["number"],
            stage=record["stage"],
            scenario=record["target_word"],
            verdict=_verdict(record),
            num_turns=len(record["turns"]),
            num_tokens=sum(sizes),
            oldest_versions=versions,
            game=record["game"],
        )


def decode(data: bytes) -> Episode:
    """The inverse of `encode`. Raises InputError on anything else."""
    with _faults_named():
        record = _record(data)
        turns: list[Turn] = []
        num_prompt_tokens = 0
        for each in record["turns"]:
            prompt_ids = _unpacked(_IDS, each.prompt)
            if each.base >= 0:
                prompt_ids = turns[each.base].prompt_ids + turns[each.base].token_ids + prompt_ids
            num_prompt_tokens += len(prompt_ids)
            if num_prompt_tokens > MAX_PROMPT_TOKENS:
                raise InputError(f"an episode record with prompts of more than {MAX_PROMPT_TOKENS} tokens")
            turns.append(
                Turn(
                    role=_SEATS[each.seat],
                    text=each.text,
                    prompt_ids=prompt_ids,
                    token_ids=_unpacked(_IDS, each.tokens),
                    logprobs=_unpacked("d", each.logprobs),
                    policy=each.policy,
                    first_version=each.first_version,
                    last_version=each.last_version,
                    finish_reason=each.finish_reason,
                    word_logprob=each.word_logprob,
                    forced=each.forced,
                    listener_logprob=each.listener_logprob,
                )
            )
        return Episode(
            episode_id=record["id"],
            number=record["number"],
            stage=record["stage"],
            scenario=record["target_word"],
            max_turns=record["max_turns"],
            rules=record["rules"],
            temperature=record["temperature"],
            turns=tuple(turns),
            verdict=_verdict(record),
            game=record["game"],
        )


@contextlib.contextmanager
def _faults_named() -> Iterator[None]:
    """Raise InputError instead of any error that an invalid record causes."""
    try:
        yield
    except InputError:
        raise
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(f"not an episode record: {where}: {fault['msg']}") from error
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not an episode record: {type(error).__name__}: {error}") from error


def _record(data: bytes) -> _Record:
    if len(data) > MAX_RECORD_BYTES:
        raise InputError(f"an episode record of {len(data)} bytes is larger than {MAX_RECORD_BYTES}")
    record: dict[str, Any] = msgpack.unpackb(data, strict_map_key=True, use_list=False)
    if record["v"] != WIRE_VERSION:
        raise InputError(f"an episode of wire version {record['v']!r}; this build reads version {WIRE_VERSION}")
    return _RECORD.validate_python(record | {"turns": list(record["turns"])}, strict=True)


def _verdict(record: _Record) -> Verdict:
    found, why = record["verdict"], record["verdict"].end_reason
    known = _REASONS.get(record["game"])
    if known is not None and why not in known:
        raise ValueError(f"{why!r} ends no game of {record['game']}")
    ended = Outcome(found.outcome), end_reason(why), found.length, found.reason
    return Verdict(*ended, turn=found.turn, span=found.span, payoffs=found.payoffs)


def _unpacked(kind: str, data: bytes) -> tuple[Any, ...]:
    numbers = array(kind)
    numbers.frombytes(data)
    return tuple(numbers)
