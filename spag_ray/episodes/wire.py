"""Episode <-> msgpack.

`decode` accepts untrusted bytes: it checks their size, depth, types and decoded size.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgpack

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
_T = TypeVar("_T")
_IDS = "I"  # of the array module: 4 bytes, unsigned
assert sys.byteorder == "little", "records are written in the machine's byte order, which has to be little-endian"


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
    """What only some turns have: forced tokens, and what a listener gave the word. Nothing is written for the others,
    so their records are those of earlier versions."""
    if turn.listener_logprob is not None:
        return turn.forced, turn.listener_logprob
    return () if turn.forced is None else (turn.forced,)


def read_head(data: bytes) -> EpisodeHead:
    """A record without its tokens and texts, which only `decode` unpacks and checks. Raises InputError."""
    with _faults_named():
        record = _record(data)
        versions: dict[str, int] = {}
        num_token_bytes, num_not_sampled = 0, 0
        for _, _, _, _, tokens, _, policy, first, _, _, _, *more in record["turns"]:
            num_token_bytes += len(_bytes(tokens))
            num_not_sampled += num_forced(_last(*more)[0])
            versions[_text(policy)] = min(versions.get(policy, _whole(first)), first)
        return EpisodeHead(
            number=_whole(record["number"]),
            stage=_text(record["stage"]),
            scenario=_text(record["target_word"]),
            verdict=_verdict(record),
            num_turns=len(record["turns"]),
            num_tokens=num_token_bytes // array(_IDS).itemsize - num_not_sampled,
            oldest_versions=versions,
            game=_text(record["game"]),
        )


def decode(data: bytes) -> Episode:
    """The inverse of `encode`. Raises InputError on anything else."""
    with _faults_named():
        record = _record(data)
        verdict = _verdict(record)
        turns: list[Turn] = []
        num_prompt_tokens = 0
        for seat, text, base, prompt, tokens, logprobs, policy, first, last, finish, word_logprob, *more in record[
            "turns"
        ]:
            prompt_ids = _unpacked(_IDS, prompt)
            if base >= 0:
                prompt_ids = turns[base].prompt_ids + turns[base].token_ids + prompt_ids
            num_prompt_tokens += len(prompt_ids)
            forced, listener_logprob = _last(*more)
            if num_prompt_tokens > MAX_PROMPT_TOKENS:
                raise InputError(f"an episode record with prompts of more than {MAX_PROMPT_TOKENS} tokens")
            turns.append(
                Turn(
                    role=_SEATS[_whole(seat)],
                    text=_text(text),
                    prompt_ids=prompt_ids,
                    token_ids=_unpacked(_IDS, tokens),
                    logprobs=_unpacked("d", logprobs),
                    policy=_text(policy),
                    first_version=_whole(first),
                    last_version=_whole(last),
                    finish_reason=_text(finish),
                    word_logprob=_if_there(_number, word_logprob),
                    forced=forced,
                    listener_logprob=listener_logprob,
                )
            )
        return Episode(
            episode_id=_text(record["id"]),
            number=_whole(record["number"]),
            stage=_text(record["stage"]),
            scenario=_text(record["target_word"]),
            max_turns=_whole(record["max_turns"]),
            rules=_text(record["rules"]),
            temperature=_number(record["temperature"]),
            turns=tuple(turns),
            verdict=verdict,
            game=_text(record["game"]),
        )


def _last(forced: Any = None, listener_logprob: Any = None) -> tuple[tuple[int, int] | None, float | None]:
    """The inverse of `_last_values`."""
    return _if_there(_span, forced), _if_there(_number, listener_logprob)


@contextlib.contextmanager
def _faults_named() -> Iterator[None]:
    """Raise InputError instead of any error that an invalid record causes."""
    try:
        yield
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, msgpack.exceptions.UnpackException) as error:
        raise InputError(f"not an episode record: {type(error).__name__}: {error}") from error


def _record(data: bytes) -> dict[str, Any]:
    if len(data) > MAX_RECORD_BYTES:
        raise InputError(f"an episode record of {len(data)} bytes is larger than {MAX_RECORD_BYTES}")
    record: dict[str, Any] = msgpack.unpackb(data, strict_map_key=True)
    if record["v"] != WIRE_VERSION:
        raise InputError(f"an episode of wire version {record['v']!r}; this build reads version {WIRE_VERSION}")
    return record


def _verdict(record: dict[str, Any]) -> Verdict:
    outcome, end_reason, length, reason, turn_index, span, payoffs = record["verdict"]
    return Verdict(
        outcome=Outcome(outcome),
        end_reason=_end_reason(record, end_reason),
        length=_whole(length),
        reason=_text(reason),
        turn=_if_there(_whole, turn_index),
        span=_if_there(_span, span),
        payoffs=_if_there(_payoffs, payoffs),
    )


def _end_reason(record: dict[str, Any], value: Any) -> EndReason | str:
    if len(_text(value)) > MAX_END_REASON:
        raise ValueError(f"an end reason of {len(value)} characters; at most {MAX_END_REASON} are read")
    known = _REASONS.get(_text(record["game"]))
    if known is not None and value not in known:
        raise ValueError(f"{value!r} ends no game of {record['game']}")
    return end_reason(value)


def _if_there(checked: Callable[[Any], _T], value: Any) -> _T | None:
    return None if value is None else checked(value)


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


def _payoffs(value: Any) -> tuple[float | None, float | None]:
    attacker, defender = value
    return _if_there(_payoff, attacker), _if_there(_payoff, defender)


def _payoff(value: Any) -> float:
    if not abs(payoff := _number(value)) <= MAX_PAYOFF:
        raise ValueError(f"a payoff of {payoff}; it is from -{MAX_PAYOFF:g} to {MAX_PAYOFF:g}")
    return payoff


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise TypeError(f"a {type(value).__name__} where bytes belong")
    return value


def _unpacked(kind: str, data: Any) -> tuple[Any, ...]:
    numbers = array(kind)
    numbers.frombytes(_bytes(data))
    return tuple(numbers)
