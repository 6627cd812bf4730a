"""A frozen external opponent: any server with the OpenAI chat API, called once per turn.

It reads the same rules as every other player, as chat messages: its own turns are the assistant's, the other player's
are the user's. The API returns no token ids, so replies are tokenised with the tokenizer of the opposing policy and
their log-probabilities are 0: its turns are judged, never trained on. Replies are cut at `max_new_tokens` of these
tokens, because the server counts its own tokens or ignores the limit.

An answer without a text whose end the player did not choose is no turn: its thoughts have used up `max_new_tokens`, or
a filter has taken it away. Such a game is a tie, like one whose context is full. A player that has given no text at all
ends the match.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.policy import Completion, GameView, Pairs, Request, Score
from spag_ray.errors import EngineError, ModelError
from spag_ray.game.game_form import asking
from spag_ray.game.protocol import Game, SpeaksInLines, marks_of, seat_of
from spag_ray.game.renderer import checked_messages
from spag_ray.game.turn import after_thought, without_thought
from spag_ray.host.addresses import ask_directly
from spag_ray.tokens import THOUGHT

log = logging.getLogger(__name__)
MAX_ASKED_AT_ONCE = 64
MAX_CHARACTERS_PER_TOKEN = 64  # cut before tokenising: a reply of gigabytes would block every game


@dataclass(frozen=True)
class Endpoint:
    """`url` up to and with /v1; `model`: its name on the server. If the server needs a key, it is read from
    OPENAI_API_KEY in the arena's process."""

    url: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """http://HOST:PORT/v1#MODEL"""
        url, _, model = text.partition("#")
        return cls(url.rstrip("/"), model)


def check_endpoint(endpoint: Endpoint, timeout_s: float = 20.0) -> None:
    """Raises ModelError if the server does not answer, refuses the key, or has no such model."""
    from openai import NotFoundError, OpenAI, OpenAIError

    try:
        ask_directly(endpoint.url)
        with OpenAI(base_url=endpoint.url, api_key=_key(), timeout=timeout_s, max_retries=0) as client:
            served = [str(model.id) for model in client.models.list()]
    except NotFoundError:
        return  # the server does not list models; the first turn will show whether it has this one
    except Exception as error:  # of a page of another kind the client raises what its code happens to
        is_told = isinstance(error, OpenAIError | ValueError)
        reason = f"{error} {error.__cause__ or ''}".strip() if is_told else "its answer is no list of models"
        raise ModelError(
            f"{endpoint.url}: no player there ({reason[:200]}); is it the address up to and with /v1, and is "
            "OPENAI_API_KEY set if it wants a key?"
        ) from error
    if endpoint.model not in served:
        raise ModelError(f"{endpoint.url} serves {', '.join(served[:8]) or 'nothing'}, not {endpoint.model}")


def _key() -> str:
    return os.environ.get("OPENAI_API_KEY") or "none"  # the client refuses to send an empty one


class EndpointPolicy:
    """`game`: its messages are what the server reads, as other players do in this `style`. `encode(text) -> token ids`
    as reply_ids of a renderer."""

    def __init__(
        self,
        endpoint: Endpoint,
        game: Game,
        encode: Callable[[str], Sequence[int]],
        timeout_s: float = 600.0,
        style: str = "chat",
        max_retries: int = 3,
    ) -> None:
        """`max_retries`: after pauses of at most 8 s, if a server is away or busy; what it refuses is final."""
        from openai import AsyncOpenAI

        ask_directly(endpoint.url)
        self.name = endpoint.model
        self._endpoint = endpoint
        self._game = game
        self._style = style
        self._opens_thoughts = False  # whether its chat template does, so that answers begin within one
        self._encode = encode
        self._client = AsyncOpenAI(base_url=endpoint.url, api_key=_key(), timeout=timeout_s, max_retries=max_retries)
        self._places = asyncio.Semaphore(MAX_ASKED_AT_ONCE)
        self._has_answered = False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return list(await asyncio.gather(*(self._answer(request) for request in requests)))

    async def _answer(self, request: Request) -> Completion:
        if request.view is None:
            raise EngineError("an endpoint plays from a GameView; the request carries none")
        async with self._places:
            text, reason = await self._ask(request.view, request)
        limit = request.sampling.max_new_tokens
        if reason == "context":
            self._note_cut(request)
            return Completion.unsampled(request.request_id, (), reason)
        self._has_answered = True
        tokens = tuple(self._encode(text[: limit * MAX_CHARACTERS_PER_TOKEN]))
        if len(tokens) > limit or len(text) > limit * MAX_CHARACTERS_PER_TOKEN:
            tokens, reason = tokens[:limit], "length"
        return Completion.unsampled(request.request_id, tokens, reason)

    def _note_cut(self, request: Request) -> None:
        """Raises EngineError if there has been no text yet: the turn is asked again, and the match ends after the last
        try. Once there was one, a cut answer is an answer, because some words take more thought than others."""
        told = f"sampling.max_new_tokens ({request.sampling.max_new_tokens}) is its budget, thoughts included"
        if not self._has_answered:
            raise EngineError(
                f"{self._endpoint.url}: {self._endpoint.model} has given no text, only answers that were cut: {told}; "
                "raise it, or switch the model's thinking off"
            )
        log.warning("%s: %s gave no text; %s", request.request_id, self._endpoint.model, told)

    def _messages(self, view: GameView) -> list[dict[str, str]]:
        seat = seat_of(view.role)
        with asking(self._game, "messages", view.history, view.scenario):
            messages = [dict(each) for each in checked_messages(self._game, seat, list(view.history), view.scenario)]
        if self._style == "lines" and isinstance(self._game, SpeaksInLines):
            messages[-1]["content"] += f"\n{self._game.line_start(seat)}"
        return messages

    async def _ask(self, view: GameView, request: Request) -> tuple[str, str]:
        from openai import OpenAIError

        sampling, messages = request.sampling, self._messages(view)
        try:
            answer = await self._client.chat.completions.create(
                model=self._endpoint.model,
                messages=messages,  # type: ignore[arg-type]
                temperature=sampling.temperature,
                max_tokens=sampling.max_new_tokens,
                top_p=1.0 if sampling.top_p is None else sampling.top_p,
                seed=sampling.seed,
            )
        except (OpenAIError, ValueError) as error:  # ValueError: a body that is no JSON
            reason = " ".join(str(error).split())[:300]
            raise EngineError(f"{self._endpoint.url}: {self._endpoint.model} gave no answer: {reason}") from error
        return self._said(answer)

    def _said(self, answer: Any) -> tuple[str, str]:
        """(text, finish reason) of an answer whose form is not yet checked; the reason is `context` if the answer was
        cut before it said anything. null is never what a player says."""
        choice = next(iter(getattr(answer, "choices", None) or ()), None)
        message = getattr(choice, "message", None)
        content = getattr(message, "content", None)
        text = content or ""
        if message is None or not isinstance(text, str):
            raise EngineError(f"{self._endpoint.url}: {self._endpoint.model} gave an answer without a text in it")
        # JSON can carry half of a surrogate pair, which tokenizers reject.
        text = text.strip().encode("utf-8", errors="replace").decode("utf-8")
        reason = getattr(choice, "finish_reason", None)
        if reason in ("abort", "error"):  # vLLM's and SGLang's, as they end
            raise EngineError(f"{self._endpoint.url}: {self._endpoint.model} did not finish its answer ({reason})")
        marks = marks_of(self._game)
        if marks is None or not text.startswith(marks[0]):  # it may think although, or before, the game wants it to
            self._opens_thoughts |= THOUGHT[1] in text and not text.startswith(THOUGHT[0])
            if self._opens_thoughts and reason == "length" and THOUGHT[1] not in text:
                return "", "context"  # the chat template has opened a thought, which was cut
            text = after_thought(text)
        text = without_thought(marks, text)  # else a limit of its tokens could cut within the thought
        if not text and (content is None or reason not in ("stop", None)):
            return "", "context"
        return text, "length" if reason == "length" else "stop"

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        raise EngineError("an endpoint gives no probabilities of given tokens")

    async def close(self) -> None:
        await self._client.close()
