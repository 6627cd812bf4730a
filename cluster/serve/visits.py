"""The games of the visitors of a page: each has a secret id, which only the browser that began it knows.

A game's state for the page is plain data (`Visit.view`). It has the target word, or what the other seat must not know,
only when this seat may know it or the game has ended.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from actors.arena import GameTask, Player, Rules, Seats, ended_game, play_turn, role_to_move, verdict_after
from cluster.serve.opponents import BusyError, Opponents
from spag_ray.episodes.episode import Episode
from spag_ray.errors import GameError, InputError, ModelError, SpagError
from spag_ray.game.game_form import asking, chosen_scenario, out_of_room
from spag_ray.game.protocol import SEATS, Guessing, Hides, Ordered, seat_of
from spag_ray.game.renderer import checked_messages
from spag_ray.game.rules import Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.results.game_names import GameNames
from spag_ray.results.report.tokens import Aligner

log = logging.getLogger(__name__)
GAME_FAULT = "the game cannot go on: a fault in its own code; the terminal of the server says more"
STAGE = "visit"  # of the episodes that are kept
PERSON = "person"
MAX_CHARACTERS = 500  # of a person's turn
MAX_VISITS = 500  # the one that was not asked for longest is forgotten
MAX_PENDING = 32  # games in which a model has something to do
MAX_PENDING_EACH = 8  # of them those of one visitor
AWAY_S = 180.0  # no model is asked for a visitor who did not look for so long; a hidden tab looks once a minute
READ_WAIT_S = 30.0  # how long a turn waits for its model's tokenizer, in an answer that has guard.ANSWER_S


@dataclass(frozen=True)
class Hindsight:
    """How the model saw a game that has ended, at temperature 1. `logprobs`: for each turn, those of its tokens [L], of
    the person's turns too; none of a turn that its context does not hold. `known` {turn: probability of the target
    word, had its player claimed a word there}."""

    logprobs: tuple[tuple[float, ...], ...]
    known: dict[int, float]


class PersonGame:
    """A game between a person and a model, kept token by token, so that it can be logged like any other.

    game = PersonGame(task, Role.ATTACKER, rules)
    game.say("It has a bed and runs.", player)
    await game.reply(player)                       # the model's turn; game.verdict is set once the game has ended
    hindsight = await game.look_back(player, 1024)
    """

    def __init__(self, task: GameTask, person: Role, rules: Rules) -> None:
        self.task = task
        self.person = person
        self.rules = rules
        self.turns: list[Turn] = []
        self.verdict: Verdict | None = None

    @property
    def to_move(self) -> Role | None:
        """The seat whose turn it is; None after the end."""
        return None if self.verdict is not None else role_to_move(self.turns, self.task, self.rules)

    def say(self, text: str, player: Player) -> None:
        """The person's turn; `player` is the model's. Raises InputError for a text that is no turn."""
        if self.to_move is not self.person:
            raise InputError("it is not your turn")
        text = " ".join(text.split())
        if not text:
            raise InputError("say something: an empty turn breaks the rules")
        if len(text) > MAX_CHARACTERS:
            raise InputError(f"a turn has at most {MAX_CHARACTERS} characters; this one has {len(text)}")
        self._add(player.renderer.told_turn(self.turns, self.person, text, self.task.scenario, PERSON))

    async def reply(self, player: Player) -> None:
        """The model's turn. Raises EngineError when it does not answer; it can be asked again."""
        with Seats() as seats:
            turn = await play_turn(
                self.task, self.turns, self.person.other, player=player, rules=self.rules, seats=seats
            )
        if turn is None:
            self.verdict = out_of_room(self.person.other, len(self.turns))
        else:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        self.turns.append(turn)
        self.verdict = verdict_after(self.turns, self.task, self.rules)

    async def look_back(self, player: Player, max_model_len: int) -> Hindsight:
        """The model's probabilities of what was said, and of the word at each turn of the defender, as far as they fit
        into its context. Raises EngineError."""
        asked: list[tuple[Sequence[int], Sequence[int]]] = [(turn.prompt_ids, turn.token_ids) for turn in self.turns]
        game, guesser, claim = self.rules.game, self.rules.guesser, None
        places = [place for place, turn in enumerate(self.turns) if turn.role is guesser]
        try:
            if isinstance(game, Guessing) and places:
                claim = player.renderer.claim(game.fact(self.task.scenario))
        except ModelError:  # the tokenizer joins the word to the text beside it
            pass
        if claim is not None:
            asked += [(self.turns[place].prompt_ids + claim.opening_ids, claim.word_ids) for place in places]
        fits = [place for place, sequence in enumerate(asked) if sum(map(len, sequence)) < max_model_len]
        with Seats() as seats:
            await seats.take(player.pool)
            found = dict(zip(fits, await seats.score(player, [asked[place] for place in fits]), strict=True))
        logprobs = [found[place].logprobs if place in found else () for place in range(len(self.turns))]
        known = {
            turn: math.exp(min(sum(found[place].logprobs), 0.0))
            for place, turn in enumerate(places if claim is not None else (), len(self.turns))
            if place in found
        }
        return Hindsight(tuple(logprobs), known)

    def episode(self, number: int, temperature: float, known: dict[int, float]) -> Episode:
        """The game as it is logged. The person's turns have no probabilities, neither of their tokens nor of the
        word: the model did not play them."""
        if self.verdict is None:
            raise InputError("a game is kept after its end")
        turns = list(self.turns)
        for place, share in known.items():
            if turns[place].role is not self.person and share > 0:
                turns[place] = replace(turns[place], word_logprob=math.log(share))
        return ended_game(replace(self.task, number=number), self.rules, turns, self.verdict, temperature)


class Table:
    """What is played: the rules, the names of its seats, and the words or scenarios that are given out."""

    def __init__(self, rules: Rules, names: GameNames, scenarios: Sequence[str]) -> None:
        self.rules = rules
        self.names = names
        self.claim = rules.game.claim if isinstance(rules.game, Guessing) else ""  # with {word} in it
        self._scenarios = scenarios

    @functools.cached_property
    def _hides(self) -> list[bool]:
        """[seats] Whether the game says of some scenario what is hidden from the seat."""
        hidden = getattr(self.rules.game, "hidden", lambda *_: ())
        with asking(self.rules.game, "hidden"):
            return [any(list(hidden(seat, scenario)) for scenario in self._scenarios) for seat in (0, 1)]

    def may_choose(self, role: Role) -> bool:
        """Whether a person in this seat may choose the scenario: not if that tells what the seat must not know."""
        return not isinstance(self.rules.game, Hides) or self.may_see(role)

    def may_see(self, role: Role) -> bool:
        """Whether a person in this seat may see the scenario that was drawn: only where the game says what is hidden,
        never anything from this seat, and from the other one something. If it says nothing of either seat, such as of
        one deal, neither may know the scenario: a card that is dealt later is hidden from both."""
        if not isinstance(self.rules.game, Hides) or role is self.rules.guesser:
            return False
        seat = seat_of(role)
        return not self._hides[seat] and (self._hides[1 - seat] or self.rules.guesser is not None)

    def tells(self, history: Sequence[str], place: int, role: Role, scenario: str) -> bool:
        """Whether a person in this seat may read the other's turn at `place` before the end. Not where seats move at
        once: what this seat reads next would be the same after another turn. A game that says who moves next, or in
        which that cannot be tried, tells in its own messages what was done."""
        game, seat = self.rules.game, seat_of(role)
        if self.rules.guesser is not None:
            return True
        if isinstance(game, Ordered):
            return False
        *before, said = history[: place + 1]
        legal: Callable[..., Sequence[str]] = getattr(game, "legal", lambda *_: [f"{said} and more"])
        try:
            others = [text for text in legal(before, scenario) if text != said]
            reads = [list(game.messages(seat, [*before, text], scenario)) for text in (said, *others[:1])]
        except Exception:  # a game of the user's own
            return False
        return len(reads) > 1 and reads[0] != reads[1]

    def given(self) -> str:
        return random.choice(self._scenarios)

    def chosen(self, text: str, role: Role) -> str:
        """The word or scenario that a person chose. Raises InputError if the game refuses it."""
        if not self.may_choose(role):
            raise InputError(f"the {self.names.seat(role)} may not know the {self.names.scenario}, so it is given")
        return chosen_scenario(self.rules.game, text, self.names.name)


@dataclass
class Visit:
    """A game of a visitor. `visitor`: whose it is; "" if visitors cannot be told apart. `fault`: why the model did not
    answer; it can be asked again. `is_asking`: its call to the model has begun, which cannot take it back."""

    id: str
    stage: str
    game: PersonGame
    visitor: str = ""
    fault: str | None = None
    hindsight: Hindsight | None = None
    keeping: asyncio.Task[None] | None = None
    is_asking: bool = False
    work: asyncio.Task[None] | None = None
    seen_at: float = field(default_factory=time.monotonic)

    @property
    def is_kept(self) -> bool:
        return self.keeping is not None and self.keeping.done() and self.keeping.exception() is None


class Visits:
    """All games. `keeps`: whether a finished game can be kept. Used in one event loop, so what happens between two
    `await` is one step."""

    def __init__(self, table: Table, opponents: Opponents, keeps: bool = False) -> None:
        self.table = table
        self._opponents = opponents
        self._keeps = keeps
        self._visits: OrderedDict[str, Visit] = OrderedDict()  # the one that was asked for longest ago comes first
        self._pending: dict[str, Visit] = {}  # those with work, in the order in which it came
        self._number = 0

    async def begin(self, seat: int, stage: str, scenario: str | None, visitor: str = "") -> Visit:
        """A new game of a person in a seat, 0 or 1. Raises InputError for a seat, a stage or a word that cannot be,
        BusyError."""
        if seat not in (0, 1):
            raise InputError("there are two seats, 0 and 1")
        role = SEATS[seat]
        self._opponents.find(stage, role.other)
        word = self.table.chosen(scenario, role) if scenario else self.table.given()
        self._check_pending(visitor)
        self._number += 1
        task = GameTask(self._number, word, STAGE, seed=secrets.randbits(62))
        visit = Visit(secrets.token_urlsafe(16), stage, PersonGame(task, role, self.table.rules), visitor)
        self._visits[visit.id] = visit
        if len(self._visits) > MAX_VISITS:
            self._forget_one()
        self._go_on(visit)
        return visit

    def find(self, name: str) -> Visit:
        """Raises KeyError."""
        visit = self._visits[name]
        visit.seen_at = time.monotonic()
        self._visits.move_to_end(name)
        return visit

    async def say(self, visit: Visit, text: str) -> None:
        """The person's turn; the model's follows in the background. Raises InputError and BusyError."""
        try:
            async with asyncio.timeout(READ_WAIT_S):
                player = await self._opponents.silent(visit.stage)
        except TimeoutError:
            raise BusyError(
                f"{visit.stage} is still read from the disk, so your turn was not taken; send it again in a moment"
            ) from None
        if visit.id not in self._pending:
            self._check_pending(visit.visitor)  # before the turn is made: it would stay without an answer
        visit.game.say(text, player)
        self._go_on(visit)

    def ask_again(self, visit: Visit) -> None:
        """Raises BusyError."""
        if visit.fault is not None:
            self._check_pending(visit.visitor)
            self._go_on(visit)

    def close(self) -> None:
        """Asks no model from now on: one that ends with the server has not failed."""
        for visit in list(self._pending.values()):
            if visit.work is not None:
                visit.work.cancel()

    def _check_pending(self, visitor: str) -> None:
        num_own = sum(each.visitor == visitor for each in self._pending.values())
        if len(self._pending) >= MAX_PENDING or (visitor and num_own >= MAX_PENDING_EACH):
            raise BusyError("too many games wait for a model at the moment; try it again in a minute")

    def _forget_one(self) -> None:
        """The oldest game of the visitor with the most: nobody loses a game because another begins hundreds."""
        (visitor, _), *_ = Counter(each.visitor for each in self._visits.values()).most_common(1)
        visit = next(each for each in self._visits.values() if each.visitor == visitor)
        del self._visits[visit.id]
        if visit.work is not None and not visit.is_asking:
            visit.work.cancel()
            self._pending.pop(visit.id, None)

    def _go_on(self, visit: Visit) -> None:
        """What the model has to do next, if there is something: its turn, or a look back at the whole game."""
        if visit.id not in self._visits or (visit.work is not None and not visit.work.done()):
            return
        visit.fault = None
        self._pending[visit.id] = visit
        visit.work = asyncio.create_task(self._guarded(visit))

    async def _work(self, visit: Visit) -> None:
        game = visit.game
        if game.to_move is game.person and not self._opponents.is_loaded(visit.stage):
            async with self._opponents.asked(visit.stage):  # while the person thinks
                pass
        if game.to_move is game.person:  # else it has spoken meanwhile
            return
        async with self._opponents.asked(visit.stage) as player:
            if time.monotonic() - visit.seen_at > AWAY_S:
                raise InputError("the page was closed or asleep when its turn came")
            visit.is_asking = True
            while game.to_move is game.person.other:  # it may have several turns in a row
                await game.reply(player)
            if game.verdict is not None and game.turns and visit.hindsight is None and visit.id in self._visits:
                visit.hindsight = await game.look_back(player, self._opponents.max_model_len)

    async def _guarded(self, visit: Visit) -> None:
        """A fault is told on the page; nothing else notices it."""
        try:
            await self._work(visit)
        except GameError as error:  # it has what is hidden
            visit.fault = GAME_FAULT
            log.error("game %d: %s", visit.game.task.number, error)
        except SpagError as error:
            visit.fault = " ".join(str(error).split())[:500]
            log.warning("game %d: %s", visit.game.task.number, visit.fault)
        except Exception as error:  # the page must not wait for ever, and the log has the rest
            visit.fault = f"the game cannot go on: {type(error).__name__}; the terminal of the server says more"
            log.exception("game %d", visit.game.task.number)
        finally:
            visit.is_asking = False
            self._pending.pop(visit.id, None)

    def _num_before(self, visit: Visit) -> int:
        """How many games the model answers before this one."""
        if visit.id not in self._pending:
            return 0
        before = takewhile(lambda each: each is not visit, self._pending.values())
        return sum(each.stage == visit.stage for each in before)

    def episode(self, visit: Visit, number: int) -> Episode:
        known = {} if visit.hindsight is None else visit.hindsight.known
        return visit.game.episode(number, self._opponents.temperature, known)

    async def view(self, visit: Visit) -> dict[str, Any]:
        """The state of a game as the page shows it. Waits for nothing that is slow: without the first answer, nobody
        would know the game's id."""
        game, names = visit.game, self.table.names
        over, to_move = game.verdict is not None, game.to_move
        is_known = over or self.table.may_see(game.person)
        # Tokens are shown after the look back, for which the tokenizer was read.
        aligner = None if visit.hindsight is None else (await self._opponents.frame(visit.stage))[1]
        return {
            "id": visit.id,
            "seat": seat_of(game.person),
            "stage": visit.stage,
            "maxTurns": 2 * self.table.rules.max_turns,
            "scenario": game.task.scenario if is_known else None,
            "reads": None if over else self._reads(game),
            "turns": [self._turn(visit, place, aligner) for place in range(len(game.turns))],
            "toMove": None if to_move is None else "person" if to_move is game.person else "model",
            "isLoading": not self._opponents.is_loaded(visit.stage),
            "numBefore": self._num_before(visit),
            "fault": visit.fault,
            "over": self._over(game, names),
            "looksBack": over and visit.hindsight is None and visit.fault is None,
            "mayKeep": self._keeps and over,
            "isKept": visit.is_kept,
        }

    def _reads(self, game: PersonGame) -> str | None:
        """What the person's seat reads before its turn. The page itself explains a game in which one seat guesses."""
        if self.table.rules.guesser is not None or game.to_move is not game.person:
            return None
        history, scenario = [turn.text for turn in game.turns], game.task.scenario
        with asking(self.table.rules.game, "messages", history, scenario):
            return checked_messages(self.table.rules.game, seat_of(game.person), history, scenario)[-1]["content"]

    def _over(self, game: PersonGame, names: GameNames) -> dict[str, Any] | None:
        if (verdict := game.verdict) is None:
            return None
        return {
            "score": verdict.outcome.score(game.person),
            "outcome": names.outcome(verdict.outcome),
            "reason": verdict.reason,
            "decided": verdict.turn,
            "span": verdict.span,
            "payoffs": verdict.payoffs,
        }

    def _turn(self, visit: Visit, place: int, aligner: Aligner | None) -> dict[str, Any]:
        """`text`: None if the person must not know it yet. `lengths`: characters of each token, `surprise`: minus its
        log-probability in nats, `thought`: what the player wrote before the text for itself alone; after the end."""
        game, turn = visit.game, visit.game.turns[place]
        is_told = game.verdict is not None or turn.role is game.person
        if not is_told:
            history = [each.text for each in game.turns]
            is_told = self.table.tells(history, place, game.person, game.task.scenario)
        text = turn.text if is_told else None
        found: dict[str, Any] = {"text": text, "seat": seat_of(turn.role), "finish": turn.finish_reason}
        if visit.hindsight is None or aligner is None:
            return found
        logprobs = visit.hindsight.logprobs[place]
        located = aligner.locate(turn.token_ids, turn.text)
        known = visit.hindsight.known.get(place, 0.0)
        if not all(map(math.isfinite, (*logprobs, known))):  # of a model that diverged; JSON has no such numbers
            return found
        if located is not None and logprobs:
            found |= {"lengths": located.lengths, "surprise": [round(-each, 3) + 0.0 for each in logprobs]}
            if located.thought:
                found["thought"] = located.thought
        if logprobs:
            found["mean"] = round(sum(logprobs) / len(logprobs), 3)
        if place in visit.hindsight.known:
            found["known"] = float(f"{known:.3g}")
        return found
