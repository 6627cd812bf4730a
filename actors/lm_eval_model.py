"""A policy's engines as a model of lm-evaluation-harness: tasks are evaluated on the run's own engines.

How a task is evaluated:

    with asyncio.Runner() as runner:
        model = PolicyModel([policy], tokenizer, max_model_len=1024, at_once=64, run=runner.run)
        lm_eval.evaluator.evaluate(model, tasks)

    loglikelihood   text -> token ids, cut from the left -> chunks -> Policy.score of any free engine
    generate_until  text -> token ids, cut from the left -> Policy.generate, SLICE tokens at a time, until a stop string
                    is in the text: engines know stop tokens, no stop strings
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jinja2 import TemplateError
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from actors.policy import Policy, Request, Sampling, Score
from spag_ray.errors import ConfigError, EngineGoneError, InputError, ModelError
from spag_ray.tokens import end_ids, text_of

SLICE = 48  # tokens; those sampled beyond a stop string are discarded, and each slice costs one more request
MAX_NEW_TOKENS = 256  # if a task does not set it; the harness's own default
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # all mean the same
_KNOWN = {*_LENGTHS, "until", "do_sample", "temperature", "top_k", "top_p"}

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Pair = tuple[list[int], list[int]]


class PolicyModel(TemplateLM):
    """`policies`: engines that play the same weights and share the work, `at_once` sequences each at a time.
    `max_length` as the harness defines it: the longest input whose next token can still be scored."""

    def __init__(
        self,
        policies: Sequence[Policy],
        tokenizer: Any,
        max_model_len: int,
        at_once: int,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.max_length = max_model_len - 2  # the scored token comes on top, and engines sample one after it
        self.num_cut = 0  # contexts that did not fit and lost their beginning
        self.num_done = 0
        self.num_asked = 0
        self._policies = list(policies)
        self._at_once = at_once
        self._run = run
        self._names = (f"evaluation-{uuid.uuid4().hex[:12]}-{number}" for number in itertools.count())
        if tokenizer.eos_token_id is None:
            raise ModelError(f"{tokenizer.name_or_path}: its tokenizer has no end token, which evaluation needs")

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        first: int | None = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        if add_special_tokens is None:
            first = self.tokenizer.decode([self.prefix_token_id])
            add_special_tokens = not (first and string.startswith(first))  # a chat template may already have added it
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        return ids

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Leaves out the system message if the template does not support one."""
        try:
            return self._chat_text(chat_history, add_generation_prompt)
        except TemplateError:
            without = [message for message in chat_history if message["role"] != "system"]
            return self._chat_text(without, add_generation_prompt)

    def _chat_text(self, messages: list[dict[str, str]], add_generation_prompt: bool) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            **getattr(self.tokenizer, "template_kwargs", {}),
        )
        return text

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        pairs = [self._fitted(context, continuation) for _, context, continuation in requests]
        size = max(1, min(self._at_once, len(pairs) // (2 * len(self._policies))))
        chunks = [pairs[start : start + size] for start in range(0, len(pairs), size)]
        scored = self._ask(_score, chunks, 2, len(pairs))  # one chunk is read while another waits
        return [(sum(score.logprobs), score.is_greedy) for scores in scored for score in scores]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """A text longer than the context is read in windows; no token is scored twice."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for (text,) in (request.args for request in requests):
            ids = self.tok_encode(text)
            found = utils.get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
            pairs = [utils.make_disjoint_window(pair) for pair in found]
            windows += [(None, context, continuation) for context, continuation in pairs]
            counts.append(len(pairs))
        answers = iter(self._loglikelihood_tokens(windows))
        return [sum(logprob for logprob, _ in itertools.islice(answers, count)) for count in counts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        asked = [self._generation(index, *request.args) for index, request in enumerate(requests)]
        return self._ask(self._generate, asked, 2 * self._at_once, len(asked))

    def _fitted(self, context: list[int], continuation: list[int]) -> Pair:
        """The pair with its context cut from the left to fit."""
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise ConfigError(
                f"a task has an answer of {len(continuation)} tokens, engine.max_model_len {self.max_length + 2} has "
                "no room for it and a context; raise it"
            )
        return self._cut(context, room), continuation

    def _generation(self, index: int, context: str, options: dict[str, Any]) -> tuple[list[int], Sampling, list[str]]:
        sampling, stops = sampling_of(options, index, self.tokenizer)
        room = self.max_length - sampling.max_new_tokens
        if room < 1:
            raise ConfigError(
                f"a task generates up to {sampling.max_new_tokens} tokens, engine.max_model_len "
                f"{self.max_length + 2} leaves no room for its context; raise it"
            )
        return self._cut(self.tok_encode(context), room), sampling, stops

    def _cut(self, context: list[int], room: int) -> list[int]:
        self.num_cut += len(context) > room
        return context[-room:]

    async def _generate(self, policy: Policy, asked: tuple[list[int], Sampling, list[str]]) -> str:
        context, sampling, stops = asked
        ids: list[int] = []
        while True:
            seed = None if sampling.seed is None else sampling.seed + len(ids)
            part = replace(sampling, max_new_tokens=min(SLICE, sampling.max_new_tokens - len(ids)), seed=seed)
            (completion,) = await policy.generate([Request(next(self._names), (*context, *ids), part)])
            is_over = completion.finish_reason != "length"
            ids += completion.token_ids[:-1] if completion.finish_reason == "stop" else completion.token_ids
            text = text_of(self.tokenizer, ids)
            if places := [place for place in map(text.find, stops) if place >= 0]:
                return text[: min(places)]
            if is_over or len(ids) >= sampling.max_new_tokens:
                return text

    def _ask(
        self, work: Callable[[Policy, Item], Awaitable[Answer]], items: Sequence[Item], each: int, total: int
    ) -> list[Answer]:
        self.num_done, self.num_asked = 0, total

        def count(answer: Answer) -> None:
            self.num_done += len(answer) if isinstance(answer, list) else 1

        answers: list[Answer] = self._run(share(self._policies, work, items, each, count))
        return answers


async def share(
    policies: list[Policy],
    work: Callable[[Policy, Item], Awaitable[Answer]],
    items: Sequence[Item],
    each: int,
    done: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Run `work` on every item with any of the policies, at most `each` items per policy at a time. The answers are in
    the order of the items. If a policy's engine dies, it is removed from the list and others take over its items.

    Raises EngineGoneError when none is left.
    """
    waiting = deque(enumerate(items))
    answers: dict[int, Answer] = {}
    lost: list[EngineGoneError] = []

    async def worker(policy: Policy) -> None:
        while waiting and policy in policies:
            index, item = waiting.popleft()
            try:
                answers[index] = await work(policy, item)
            except EngineGoneError as error:
                waiting.appendleft((index, item))
                lost.append(error)
                if policy in policies:
                    policies.remove(policy)
                return
            done(answers[index])

    while len(answers) < len(items):
        if not policies:
            raise lost[-1]
        try:
            async with asyncio.TaskGroup() as group:
                for policy in policies:
                    for _ in range(min(each, len(waiting))):
                        group.create_task(worker(policy))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return [answers[index] for index in range(len(items))]


def sampling_of(options: dict[str, Any], seed: int, tokenizer: Any) -> tuple[Sampling, list[str]]:
    """(how to sample, stop strings) of a task's generation options, with the harness's defaults: greedy.

    Raises InputError for an option that engines do not have.
    """
    asked = {name: value for name, value in options.items() if value is not None and (name, value) != ("num_beams", 1)}
    if unknown := sorted(set(asked) - _KNOWN):
        raise InputError(f"a task asks for generation with {', '.join(unknown)}, which a run's engines do not have")
    until = asked.get("until", [])
    stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    does_sample = asked.get("do_sample")
    temperature = 0.0 if does_sample is False else float(asked.get("temperature", 1.0 if does_sample else 0.0))
    top_k, top_p = int(asked.get("top_k", 0)), asked.get("top_p")
    special = [tokenizer.convert_tokens_to_ids(stop) for stop in stops if stop in tokenizer.all_special_tokens]
    sampling = Sampling(
        temperature,
        next((int(asked[name]) for name in _LENGTHS if name in asked), MAX_NEW_TOKENS),
        top_k if temperature and top_k > 0 else None,
        top_p=float(top_p) if temperature and top_p is not None else None,
        seed=seed if temperature else None,
        stop_token_ids=tuple({*end_ids(tokenizer), *special}),
    )
    return sampling, stops


async def _score(policy: Policy, pairs: list[Pair]) -> list[Score]:
    return await policy.score(pairs, temperature=1.0)
