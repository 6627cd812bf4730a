"""Policy: the interface through which an arena gets turns.

Three implementations pass one contract test (tests/unit/play/test_policy_contract.py): vllm_policy,
transformers_policy, scripted_policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from spag_ray.config.parts import SamplingConfig
from spag_ray.errors import EngineError
from spag_ray.game.rules import Role
from spag_ray.results.lines import EngineFigures
from spag_ray.weights.snapshot import Snapshot

WakePart = Literal["all", "weights", "kv_cache"]
Pairs: TypeAlias = Sequence[tuple[Sequence[int], Sequence[int]]]  # prompt ids [P], ids to score [L]


LOADING = "loading the model"  # what the start of an engine does after its imports


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 is greedy. A token of `stop_token_ids` ends the reply and is part of it. `seed`
    makes one request repeatable. `max_thought_tokens` is an arena's affair: it asks once more after a thought that was
    too long."""

    temperature: float = 1.0
    max_new_tokens: int = 256
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    max_thought_tokens: int | None = None

    @classmethod
    def of(cls, config: SamplingConfig, temperature: float) -> Sampling:
        """What a configuration says, at another temperature."""
        return cls(
            temperature, config.max_new_tokens, config.top_k, config.top_p, max_thought_tokens=config.max_thought_tokens
        )


@dataclass(frozen=True)
class GameView:
    """The game as text, for players that are no models. `scenario`: for the game itself, which says what this seat may
    know of it."""

    role: Role
    history: tuple[str, ...]
    scenario: str


@dataclass(frozen=True)
class Request:
    """One turn to be played: `prompt_ids` [P] for engines, `view` for players that think in words. `adapter` names one
    of the adapters that an engine holds beside its model."""

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    view: GameView | None = None
    adapter: str | None = None


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

    @classmethod
    def unsampled(
        cls, request_id: str, token_ids: tuple[int, ...], finish_reason: str = "stop", version: int = 0
    ) -> Completion:
        """One whose tokens, if any, no model sampled here: as if each was certain."""
        logprobs = (0.0,) * len(token_ids)
        return cls(
            request_id, token_ids, logprobs, first_version=version, last_version=version, finish_reason=finish_reason
        )


@dataclass(frozen=True)
class Score:
    """A policy's score of given tokens: their `logprobs` [L]; `is_greedy` if no other token is more probable at any
    position (a tie counts as greedy)."""

    logprobs: tuple[float, ...]
    is_greedy: bool


def refuse_adapter(policy: str, adapter: str | None) -> None:
    """Raises EngineError if a request to a policy that has no adapters names one."""
    if adapter is not None:
        raise EngineError(f"{policy} holds no adapter {adapter!r}: it has none; engines of engine.kind: vllm have them")


def refuse_greedy(temperature: float) -> None:
    """Raises EngineError if there is no softmax at this temperature."""
    if not temperature > 0:
        raise EngineError(f"nothing can be scored at temperature {temperature:g}; it has to be above 0")


@runtime_checkable
class Measured(Protocol):
    """A policy that measures itself: vLLM's."""

    def take_figures(self) -> EngineFigures:
        """Since the last call."""
        ...


class Policy(Protocol):
    """What an arena asks for turns and for scores."""

    name: str

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Completions in the order of the requests. Calls are independent: several may run at once. Raises EngineError
        for an adapter that is not held."""
        ...

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        """For each (prompt_ids [P], target_ids [L]), P >= 1: every target token given the prompt and the targets before
        it, under the softmax at `temperature`. `adapter` as in a request."""
        ...


class LoadedPolicy(Policy, Protocol):
    """A policy whose model this process has loaded, as an engine's actor holds it: it takes new weights, and lends its
    memory to a learner while it sleeps. `version` is that of the weights in use."""

    @property
    def version(self) -> int: ...

    @property
    def is_dead(self) -> bool:
        """Whether it can no longer answer because its process has ended."""
        ...

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        """Load new weights after the current turns. With `in_flight` the turns are paused and continue with the new
        weights (if the implementation supports it). Later completions are stamped with `snapshot.version`. Raises
        WeightSyncError on a wrong checksum or tensor; the policy must not be used after that."""
        ...

    async def sleep(self) -> None: ...

    async def wake(self, part: WakePart = "all") -> None:
        """`weights` wakes only the weights, so that new ones can be loaded before the rest (`kv_cache`). Engines
        without this distinction wake fully."""
        ...

    async def close(self) -> None: ...
