"""One turn of a game: what a player read and what it said."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.tokens import THOUGHT


@dataclass(frozen=True)
class Turn:
    """What one player read and said, token by token.

    `prompt_ids` [P] is what the policy read, `token_ids` [L] what it sampled (with the end token, if it sampled
    one), `logprobs` [L] their log-probabilities under the sampling distribution, temperature included.
    `first_version` and `last_version` are the weights that sampled the first and the last token. `word_logprob` (nats):
    log-probability of the target word and its closing mark if the defender had begun a claim here; None if not scored.
    `listener_logprob` (nats): the same of a frozen listener, at each turn of the seat that guesses, and at a game's
    first turn, where it has read the rules alone (objective.information_gain); None if nobody listened, or it failed.
    `forced`: [start, end) of the tokens that nobody sampled, the end of a thought that was longer than
    sampling.max_thought_tokens; their log-probabilities are 0, and no loss sees them.
    """

    role: Role
    text: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy: str
    first_version: int = 0
    last_version: int = 0
    finish_reason: str = "stop"
    word_logprob: float | None = None
    forced: tuple[int, int] | None = None
    listener_logprob: float | None = None

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.token_ids):
            raise InputError(
                f"a turn has {len(self.token_ids)} sampled tokens but {len(self.logprobs)} log-probabilities"
            )
        if not math.isfinite(sum(self.logprobs)):
            raise InputError(f"a turn by policy {self.policy!r} has a log-probability that is not finite")
        for found in (self.word_logprob, self.listener_logprob):
            if found is not None and not -math.inf < found <= 0:
                raise InputError(f"a turn has {found} as the target word's log-probability; it is at most 0")
        if self.forced is not None:
            check_forced(self.forced, len(self.token_ids), "a turn")

    @classmethod
    def unsampled(
        cls, role: Role, text: str, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], policy: str
    ) -> Turn:
        """One whose tokens [L] nobody sampled (a script's, a file's): as if each was certain."""
        return cls(role, text, prompt_ids, token_ids, logprobs=(0.0,) * len(token_ids), policy=policy)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_sampled(self) -> int:
        """Tokens without the forced ones."""
        return self.num_tokens - num_forced(self.forced)

    @property
    def is_sampled(self) -> bool:
        """Whether the run sampled it from weights: log-probabilities of scripted and outside players are all 0."""
        return any(self.logprobs)


def num_forced(forced: tuple[int, int] | None) -> int:
    return 0 if forced is None else forced[1] - forced[0]


def check_forced(forced: tuple[int, int], num_tokens: int, what: str) -> None:
    """Raises InputError unless `forced` is a part of the tokens, and not all of them."""
    start, end = forced
    if not 0 <= start < end <= num_tokens or end - start == num_tokens:
        raise InputError(f"{what} has {num_tokens} tokens, of which {start} to {end} cannot be the forced ones")


def without_thought(marks: tuple[str, str] | None, reply: str, is_ended: bool = False) -> str:
    """What of a reply the other player and the referee get: what follows the thoughts with which it begins. A thought
    that does not end leaves nothing. `is_ended`: the thought was ended for the player, which may have continued it
    and ended it itself, so all up to the last mark is thought.

    >>> marks = "(", ")"
    >>> [without_thought(marks, reply) for reply in ("(river?) (sea?) Is it wet?", "Is it wet (or dry)?", "(river")]
    ['Is it wet?', 'Is it wet (or dry)?', '']
    """
    while marks is not None and reply.startswith(marks[0]):
        rest = reply[len(marks[0]) :]
        reply = (rest.rpartition(marks[1]) if is_ended and marks[1] in rest else rest.partition(marks[1]))[2].strip()
        is_ended = False
    return reply


def after_thought(reply: str, is_open: bool = False) -> str:
    """What a model that thinks says after its thought, as chat templates cut it: after the last mark. `is_open`: the
    template opens the thought, so without a mark all of the reply is thought.

    >>> [after_thought(reply) for reply in ("<think>river?</think> Is it wet?", "river?</think> Is it wet?", "Is it?")]
    ['Is it wet?', 'Is it wet?', 'Is it?']
    """
    _, found, said = reply.rpartition(THOUGHT[1])
    if found:
        return said.strip()
    return "" if is_open or reply.startswith(THOUGHT[0]) else reply


def one_line(text: str) -> str:
    """The same words with single spaces between them."""
    return " ".join(text.split())
