"""Many games at once over any policies; judged episodes are yielded as they finish.

    TaskSource --> GameTask --> [prompt -> pool.ask -> Turn -> referee]* --> Episode
                    ^ one coroutine per game; `games_in_flight` of them, a finished one is replaced at once

An arena knows the Policy protocol, not where a policy runs. The pool selects the engine for a turn (pool.py). Requests
of all games to a remote policy at the same time are sent as one call (cluster/rollout/remote_policy.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

import numpy as np

from actors.policy import Completion, GameView, Pairs, Request, Sampling, Score
from actors.pool import EnginePool, Member
from spag_ray.config.objective import Heard
from spag_ray.episodes.episode import Episode
from spag_ray.errors import EngineError, ModelError
from spag_ray.game.game_form import asking, fact_of, out_of_room, verdict_of
from spag_ray.game.protocol import SEATS, TABOO, Game, Guessing, guesser_of, seat_to_move
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, Verdict
from spag_ray.game.turn import Turn

log = logging.getLogger(__name__)

LISTENER = "listener"  # a player of no seat


@dataclass(frozen=True)
class GameTask:
    """A game to be played. `number` orders games and, with `seed`, determines every random draw in it; `attacker` and
    `defender` name players of the arena. `could_have_known`: after a game of a hidden fact, the engine of the seat that
    guesses scores the fact at each of its turns (Turn.word_logprob). `game`: its name."""

    number: int
    scenario: str
    stage: str
    seed: int = 0
    attacker: str = "attacker"
    defender: str = "defender"
    could_have_known: bool = False
    game: str = TABOO

    @property
    def episode_id(self) -> str:
        return f"{self.stage}/{self.number:06d}"

    def player(self, role: Role) -> str:
        return self.attacker if role is Role.ATTACKER else self.defender


class TaskSource(Protocol):
    """A source of games."""

    async def take(self, count: int) -> list[GameTask]:
        """Up to `count` games; waits until there is at least one. Empty after the last game."""
        ...


class TaskList:
    """A fixed list of games."""

    def __init__(self, tasks: Sequence[GameTask]) -> None:
        self._tasks = list(reversed(tasks))

    async def take(self, count: int) -> list[GameTask]:
        return [self._tasks.pop() for _ in range(min(count, len(self._tasks)))]


@dataclass(frozen=True)
class Player:
    """A player of a seat: the engines of a policy, how it is prompted, how it samples, whether it can score, and which
    of its engines' adapters it plays, or whose weights they take for it. `policy` stamps its turns, by default the
    pool's."""

    pool: EnginePool
    renderer: Renderer
    sampling: Sampling
    can_score: bool = True
    adapter: str | None = None
    policy: str | None = None


@dataclass(frozen=True)
class Rules:
    """A game, its `name` in the configuration, and `style`, how its messages become a prompt (styles.py);
    `template_kwargs`: what chat templates are given besides. `heard`: as what a listener scores its hidden fact in
    games of self-play (objective.gain_event); None without a listener."""

    game: Game
    name: str
    style: str = "chat"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    heard: Heard | None = None

    @property
    def max_turns(self) -> int:
        return self.game.max_turns

    @property
    def variant(self) -> str:
        """Which of the game's rule sets is played; "" if it has only one."""
        return getattr(self.game, "rule_set", None) or ""

    @property
    def guesser(self) -> Role | None:
        """The seat that guesses a hidden fact, in a game that has one."""
        return guesser_of(self.game)


class Seats:
    """The engines of one game: one per policy; a policy that plays itself uses one engine for both seats. The game
    leaves them when its block ends."""

    def __init__(self) -> None:
        self._members: dict[EnginePool, Member] = {}

    async def take(self, pool: EnginePool) -> None:
        """An engine of this pool, if it has none of it yet."""
        if pool not in self._members:
            self._members[pool] = await pool.seat()

    async def ask(self, pool: EnginePool, request: Request) -> Completion:
        await self.take(pool)
        return await pool.ask(self._members[pool], request, lambda new: self._members.update({pool: new}))

    async def score(self, player: Player, sequences: Pairs) -> list[Score]:
        return await player.pool.score(self._members[player.pool], sequences, player.adapter)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool, member in self._members.items():
            pool.leave(member)


async def play_game(task: GameTask, players: Mapping[str, Player], rules: Rules) -> Episode:
    """Play one game to its verdict. If the context is full before a reply ends, the game is a tie. If there is a player
    LISTENER, it then scores the hidden fact after each hint (Turn.listener_logprob). Raises EngineError when all tries
    of a turn failed."""
    turns: list[Turn] = []
    with Seats() as seats:
        while True:
            role = role_to_move(turns, task, rules)
            turn = await play_turn(task, turns, role, player=players[task.player(role)], rules=rules, seats=seats)
            if turn is None:
                verdict = out_of_room(role, len(turns))
                break
            turns.append(turn)
            if (found := verdict_after(turns, task, rules)) is not None:
                verdict = found
                break
        if task.could_have_known:
            turns = await _with_fact_scored(turns, task, players, rules, seats)
        if LISTENER in players:
            turns = await _listened_to(turns, task, players[LISTENER], rules, seats)
    return ended_game(task, rules, turns, verdict, players[task.attacker].sampling.temperature)


def ended_game(task: GameTask, rules: Rules, turns: Sequence[Turn], verdict: Verdict, temperature: float) -> Episode:
    """A game as it is logged."""
    return Episode(
        episode_id=task.episode_id,
        number=task.number,
        stage=task.stage,
        scenario=task.scenario,
        max_turns=rules.max_turns,
        rules=rules.variant,
        temperature=temperature,
        turns=tuple(turns),
        verdict=verdict,
        game=rules.name,
    )


async def answer(
    task: GameTask, texts: Sequence[str], role: Role, player: Player, rules: Rules
) -> tuple[list[str], Verdict | None, Role | None]:
    """The answer of the player, who has `role`, in a game against a person or other outsider. `texts` are the turns so
    far. Returns them with the player's next turn, if it is its turn; the verdict, if the game is over; and else the
    role that moves next."""
    turns: list[Turn] = []
    for text in texts:
        mover = role_to_move(turns, task, rules)
        turns.append(player.renderer.told_turn(turns, mover, text, task.scenario, "somebody"))
    verdict = verdict_after(turns, task, rules) if turns else None
    if verdict is None and role_to_move(turns, task, rules) is role:
        with Seats() as seats:
            turn = await play_turn(task, turns, role, player=player, rules=rules, seats=seats)
        if turn is None:
            return list(texts), out_of_room(role, len(turns)), None
        turns.append(turn)
        verdict = verdict_after(turns, task, rules)
    return [turn.text for turn in turns], verdict, None if verdict else role_to_move(turns, task, rules)


def role_to_move(turns: Sequence[Turn], task: GameTask, rules: Rules) -> Role:
    """The seat of the next turn in a game that is not over."""
    texts = [turn.text for turn in turns]
    with asking(rules.game, "to_move", texts, task.scenario):
        return SEATS[seat_to_move(rules.game, texts, task.scenario)]


async def play_all(
    source: TaskSource,
    play: Callable[[GameTask], Coroutine[Any, Any, Episode]],
    games_in_flight: int,
    max_tries: int = 2,
) -> AsyncIterator[Episode]:
    """Play all games of `source`, at most `games_in_flight` at once, and yield episodes as they finish.

    A slow consumer slows play down: a new game starts only when a finished episode is taken. A game that failed with
    EngineError is restarted until it was tried `max_tries` times. After that, and on any other exception, the other
    games are cancelled and the exception is raised.
    """
    finished: asyncio.Queue[tuple[GameTask, asyncio.Task[Episode]]] = asyncio.Queue()
    running: set[asyncio.Task[Episode]] = set()
    tries: Counter[str] = Counter()
    wake = asyncio.Event()

    def begin(task: GameTask) -> None:
        game = asyncio.create_task(play(task))
        running.add(game)
        game.add_done_callback(lambda done: end(task, done))

    def end(task: GameTask, game: asyncio.Task[Episode]) -> None:
        finished.put_nowait((task, game))
        wake.set()

    feeding: asyncio.Task[list[GameTask]] | None = None
    at_end = False
    try:
        while True:
            if feeding is None and not at_end and len(running) < games_in_flight:
                feeding = asyncio.create_task(source.take(games_in_flight - len(running)))
                feeding.add_done_callback(lambda _: wake.set())
            if feeding is None and not running:
                return
            await wake.wait()
            wake.clear()
            if feeding is not None and feeding.done():
                tasks = feeding.result()
                feeding = None
                at_end = not tasks
                for task in tasks:
                    begin(task)
            while not finished.empty():
                task, game = finished.get_nowait()
                running.discard(game)
                error = game.exception()
                if error is None:
                    tries.pop(task.episode_id, None)
                    yield game.result()
                    continue
                tries[task.episode_id] += 1
                if not isinstance(error, EngineError) or tries[task.episode_id] == max_tries:
                    raise error
                log.warning("%s is restarted: %s", task.episode_id, error)
                begin(task)
    finally:
        unfinished: list[asyncio.Task[Any]] = [*running, *([feeding] if feeding is not None else [])]
        for task_left in unfinished:
            task_left.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)


async def play_turn(
    task: GameTask, turns: Sequence[Turn], role: Role, player: Player, rules: Rules, seats: Seats
) -> Turn | None:
    """The player's next turn; None if the context was full before the turn ended."""
    prompt_ids = player.renderer.prompt(turns, role, task.scenario)
    request = Request(
        request_id=f"{task.episode_id}/{len(turns)}",
        prompt_ids=prompt_ids,
        sampling=replace(player.sampling, seed=_turn_seed(task, len(turns)), stop_token_ids=player.renderer.stop_ids),
        view=GameView(role, tuple(turn.text for turn in turns), task.scenario),
        adapter=player.adapter,
    )
    completion, forced = await _reply(player, request, seats)
    if completion.finish_reason == "context":
        return None
    return Turn(
        role=role,
        text=player.renderer.text_of(completion.token_ids, forced is not None),
        prompt_ids=prompt_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        policy=player.policy or player.pool.policy_name,
        first_version=completion.first_version,
        last_version=completion.last_version,
        finish_reason=completion.finish_reason,
        forced=forced,
    )


async def _reply(player: Player, request: Request, seats: Seats) -> tuple[Completion, tuple[int, int] | None]:
    """The reply, and which of its tokens were forced. With a limit to thoughts, a player is asked for as many tokens
    first. A thought that has not ended then is ended for it, and it speaks with the tokens that are left."""
    sampling = request.sampling
    most = sampling.max_thought_tokens
    if most is None or not player.renderer.has_thoughts:
        return await seats.ask(player.pool, request), None
    begun = await seats.ask(player.pool, replace(request, sampling=replace(sampling, max_new_tokens=most)))
    if begun.finish_reason != "length":
        return begun, None
    num_begun, ending = len(begun.token_ids), player.renderer.end_of_thought(begun.token_ids)
    rest = replace(
        request,
        request_id=f"{request.request_id}/said",
        prompt_ids=(*request.prompt_ids, *begun.token_ids, *ending),
        sampling=replace(
            sampling,
            max_new_tokens=max(1, sampling.max_new_tokens - num_begun - len(ending)),
            seed=None if sampling.seed is None else sampling.seed ^ 1,  # other numbers than the thought was drawn with
        ),
    )
    said = await seats.ask(player.pool, rest)
    whole = replace(
        said,
        request_id=request.request_id,
        token_ids=(*begun.token_ids, *ending, *said.token_ids),
        logprobs=(*begun.logprobs, *(0.0 for _ in ending), *said.logprobs),
        # The game may have moved to an engine with older weights in between.
        first_version=min(begun.first_version, said.first_version),
        last_version=max(begun.last_version, said.last_version),
    )
    return whole, (num_begun, num_begun + len(ending)) if ending else None


async def _with_fact_scored(
    turns: list[Turn], task: GameTask, players: Mapping[str, Player], rules: Rules, seats: Seats
) -> list[Turn]:
    """The turns, those of the seat that guesses with `word_logprob`. If scoring fails, the game is kept without it."""
    game = rules.game
    if not isinstance(game, Guessing):
        return turns
    guesser = SEATS[game.guesser]
    player = players[task.player(guesser)]
    places = [place for place, turn in enumerate(turns) if turn.role is guesser]
    if not (places and player.can_score):
        return turns
    try:
        claim = player.renderer.claim(fact_of(game, task.scenario))
        asked = [(turns[place].prompt_ids + claim.opening_ids, claim.word_ids) for place in places]
        scores = await seats.score(player, asked)
    except (EngineError, ModelError) as error:
        log.warning("%s: the fact was not scored: %s", task.episode_id, error)
        return turns
    found = list(turns)
    for place, score in zip(places, scores, strict=True):
        word_logprob = sum(score.logprobs)
        if math.isfinite(word_logprob):
            found[place] = replace(found[place], word_logprob=min(word_logprob, 0.0))
    return found


async def _listened_to(turns: list[Turn], task: GameTask, listener: Player, rules: Rules, seats: Seats) -> list[Turn]:
    """The turns, the first one and those of the seat that guesses with `listener_logprob`. If one of them cannot be
    scored, the game is kept without any: a gain over two hints would be taken for that of one."""
    game = rules.game
    if not (turns and isinstance(game, Guessing)):
        return turns
    try:
        ways = _ways_to_say(listener.renderer, fact_of(game, task.scenario), rules.heard)
        prompts = _listeners_prompts(turns, SEATS[game.guesser], task.scenario, listener.renderer)
        await seats.take(listener.pool)
        asked = [(prompt + opening, said) for prompt in prompts.values() for opening, said in ways]
        scores = [sum(score.logprobs) for score in await seats.score(listener, asked)]
    except (EngineError, ModelError) as error:
        log.warning("%s: the listener did not score the fact: %s", task.episode_id, error)
        return turns
    if not all(map(math.isfinite, scores)):
        log.warning("%s: the listener's scores are not all finite", task.episode_id)
        return turns
    # The probability that it is said in any of the ways is the sum of theirs.
    found = np.logaddexp.reduce(np.array(scores).reshape(-1, len(ways)), axis=1).tolist()
    scored = dict(zip(prompts, found, strict=True))
    return [
        replace(turn, listener_logprob=min(scored[place], 0.0)) if place in scored else turn
        for place, turn in enumerate(turns)
    ]


def _ways_to_say(renderer: Renderer, fact: str, heard: Heard | None) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """How the listener may say the fact, each (what its reply begins with, what is scored after that): in its claim, or
    as the first word of a plain reply, small or capital. No two of them can be the same reply."""
    if heard == "reply":
        return [((), said) for said in renderer.spoken(fact).start]
    claim = renderer.claim(fact)
    return [(claim.opening_ids, claim.word_ids)]


def _listeners_prompts(
    turns: Sequence[Turn], guesser: Role, scenario: str, renderer: Renderer
) -> dict[int, tuple[int, ...]]:
    """{index of a turn: what the seat that guesses reads before it}, for the first turn and each of that seat. It is
    read from texts, because the tokens of a turn may be another model's."""
    heard: list[Turn] = []
    prompts = {}
    for place, turn in enumerate(turns):
        if turn.role is guesser:
            prompts[place] = renderer.prompt(heard, guesser, scenario)
        elif place == 0:
            prompts[place] = renderer.opening(guesser, scenario)
        ids = renderer.reply_ids(turn.text)
        heard.append(Turn.unsampled(turn.role, turn.text, prompts.get(place, ()), ids, turn.policy))
    return prompts


def verdict_after(turns: Sequence[Turn], task: GameTask, rules: Rules) -> Verdict | None:
    """The verdict after the last turn; None if the game continues."""
    return verdict_of(rules.game, [turn.text for turn in turns], task.scenario)


def _turn_seed(task: GameTask, turn: int) -> int:
    """A separate 63-bit seed for every turn of every game of a run."""
    digest = hashlib.blake2b(f"{task.seed}/{task.episode_id}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
