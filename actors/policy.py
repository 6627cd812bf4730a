"""Policy: what an arena asks for turns, whoever answers.

The loop that calls it:

    completions = await policy.generate([Request(request_id, prompt_ids, sampling)])
    scores = await policy.score([(prompt_ids, target_ids)], temperature=1.0)
    await policy.load(snapshot)         # new weights; the next completion is stamped with snapshot.version
    await policy.sleep(); await policy.wake()
    await policy.close()

Three implementations keep one contract (tests/unit/play/test_policy_contract.py): vllm_policy, transformers_policy,
scripted_policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from spag_ray.game.rules import Role
from spag_ray.weights.snapshot import Snapshot

WakePart = Literal["all", "weights", "kv_cache"]


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 is greedy. A token of `stop_token_ids` ends the reply and is part of it. `seed`
    makes one request repeatable."""

    temperature: float = 1.0
    max_new_tokens: int = 256
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class GameView:
    """What the asked player knows of the game, in words; the defender's `target_word` is None."""

    role: Role
    target_word: str | None
    history: tuple[tuple[Role, str], ...]
    max_turns: int


@dataclass(frozen=True)
class Request:
    """One turn to be played: `prompt_ids` [P] for engines, `view` for players that think in words."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    view: GameView | None = None


@dataclass(frozen=True)
class Completion:
    """`token_ids` [L] as sampled, the end token included when it was sampled; `logprobs` [L] under the sampling
    distribution, temperature included. `finish_reason` is "stop" (end token), "length" (max_new_tokens) or
    "context" (the context was full before either; a prompt that fills it gets no tokens)."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    first_version: int
    last_version: int
    finish_reason: str


@dataclass(frozen=True)
class Score:
    """What a policy thinks of given tokens: their `logprobs` [L]; `is_greedy` if nowhere another token is more probable
    (a tie counts as greedy)."""

    logprobs: tuple[float, ...]
    is_greedy: bool


class Policy(Protocol):
    """See the module's docstring. `version` is that of the weights in use."""

    name: str

    @property
    def version(self) -> int: ...

    @property
    def is_dead(self) -> bool:
        """Whether it can never answer again, because a process behind it has ended."""
        return False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order asked. Requests are independent: several calls may be under way at once."""
        ...

    async def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0
    ) -> list[Score]:
        """For each (prompt_ids [P], target_ids [L]), P >= 1: every target token given the prompt and the targets before
        it, under the softmax at `temperature`."""
        ...

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        """Take new weights, once the turns under way have ended, or `in_flight`: they are paused and go on under the
        new weights (where the implementation can do that). Raises WeightSyncError on a checksum or a tensor that does
        not fit; the policy is then not to be used any more."""
        ...

    async def sleep(self) -> None: ...

    async def wake(self, part: WakePart = "all") -> None:
        """`weights` alone, to take new ones before the rest (`kv_cache`) is woken; engines without the distinction
        wake whole either way."""
        ...

    async def close(self) -> None: ...
