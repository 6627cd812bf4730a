"""An expert that plays from the cards of a deck: the source of imitation, and an opponent that needs no model.

    expert = ScriptedPolicy(load_deck("everyday"), encode=renderer.reply_ids)
    expert.reply(view)                                    # "It goes with toast and bread."

The attacker hints with one or two clues of the word's card, and sometimes asks a question whose natural answer is the
word. The defender asks questions or comments, sometimes falls for such a question, and claims a word when the clues so
far fit only one card. docs/self_play.md has a table of how its games end.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from actors import expert_lines as lines
from actors.policy import Completion, GameView, Request, Score, WakePart
from spag_ray.errors import EngineError
from spag_ray.game.deck_file import Card
from spag_ray.game.protocol import Game, Scripted, seat_of
from spag_ray.game.rules import Role
from spag_ray.weights.snapshot import Snapshot

_LONGEST_CLUE = 3  # words
_MOST_TELLING = 4  # a card lists its best clues first: hints are drawn from this many of the unused ones


@dataclass(frozen=True)
class Habits:
    """The expert's habits, as probabilities per turn.

    `asks`: the attacker asks a question that leads to the word, from its second turn on. `pairs`: it gives two clues
    instead of one. `walks_in`: the defender answers such a question with the word. `waits`: it asks again although only
    one card fits. `last_guess`: on its last turn it claims one of the cards that fit best. `min_clues`: clues of that
    card heard before any claim, or all that it has; half as many on its last turn.
    """

    asks: float = 0.25
    pairs: float = 0.8
    walks_in: float = 0.5
    waits: float = 0.4
    last_guess: float = 0.3
    min_clues: int = 6


class ScriptedPolicy:
    """`cards`: word -> its card. `encode(text) -> token ids` makes replies token-exact for a learner's tokenizer.
    `claim`: the prompt file's, with {word} in it. The same game and seed give the same reply."""

    version = 0

    def __init__(
        self,
        cards: Mapping[str, Card],
        encode: Callable[[str], Sequence[int]],
        name: str = "scripted",
        claim: str = "I know the word! It is `{word}`",
        habits: Habits = Habits(),
        seed: int = 0,
    ) -> None:
        self.name = name
        self._cards = cards
        self._encode = encode
        self._claim = claim if claim.endswith(("!", ".")) else f"{claim}!"
        self._habits = habits
        self._seed = seed
        self._words_of: dict[tuple[str, ...], list[str]] = {}
        self._answers: dict[str, str] = {}
        for word, card in cards.items():
            for clue in dict.fromkeys(_words(clue) for clue in card.clues):
                self._words_of.setdefault(clue, []).append(word)
            self._answers |= {trap.ask: trap.answer for trap in card.traps}

    is_dead = False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        if request.view is None:
            raise EngineError("a scripted policy plays from a GameView; the request carries none")
        tokens = tuple(self._encode(self.reply(request.view, request.request_id)))
        return Completion(request.request_id, tokens, (0.0,) * len(tokens), 0, 0, "stop")

    def reply(self, view: GameView, request_id: str = "") -> str:
        """Its reply, a function of the game, the request's id and the seed."""
        rng = random.Random(f"{self._seed}/{request_id}/{len(view.history)}")
        return self._attack(view, rng) if view.role is Role.ATTACKER else self._defend(view, rng)

    def _attack(self, view: GameView, rng: random.Random) -> str:
        word = view.target_word
        assert word is not None, "an attacker is told the word"
        card = self._cards.get(word, Card(word, ()))
        said = {text for role, text in view.history if role is Role.ATTACKER}
        known = set(_phrases(" ".join(sorted(said))))
        fresh = [clue for clue in card.clues if word[:4] not in clue.lower() and _words(clue) not in known]
        fresh = rng.sample(fresh[:_MOST_TELLING], min(len(fresh), _MOST_TELLING))
        if said and rng.random() < self._habits.asks:
            questions = [trap.ask for trap in card.traps if trap.ask not in said]
            if questions and rng.random() < 0.7:
                return rng.choice(questions)
            if len(fresh) > 1:
                return _fill(rng.choice(lines.CLUE_QUESTIONS), *fresh[:2])
        if len(fresh) > 1 and rng.random() < self._habits.pairs:
            return _fill(rng.choice(lines.TWO_CLUES), *fresh[:2])
        if fresh:
            return _fill(rng.choice(lines.ONE_CLUE), fresh[0])
        return rng.choice(lines.NOTHING_LEFT)

    def _defend(self, view: GameView, rng: random.Random) -> str:
        habits = self._habits
        heard_lines = [text for role, text in view.history if role is Role.ATTACKER]
        heard = list(dict.fromkeys(clue for text in heard_lines for clue in _phrases(text) if clue in self._words_of))
        scores = Counter(word for clue in heard for word in self._words_of[clue])
        best = sorted(word for word, score in scores.items() if score == max(scores.values()))
        answer = self._trap_answer(heard_lines[-1], best, rng)
        if answer is not None and rng.random() < habits.walks_in:
            return answer
        is_last = len(view.history) >= 2 * view.max_turns - 1
        if len(best) == 1 and rng.random() >= habits.waits:
            word = best[0]
            needed = habits.min_clues // 2 if is_last else habits.min_clues
            if scores[word] >= min(needed, len(self._cards[word].clues)):
                return self._claim.format(word=word)
        if best and is_last and rng.random() < habits.last_guess:
            return self._claim.format(word=rng.choice(best))
        if answer is not None:
            return rng.choice(lines.EVASIONS)
        if heard and rng.random() < 0.4:
            return _fill(rng.choice(lines.COMMENTS), " ".join(heard[-1]))
        return rng.choice(lines.QUESTIONS)

    def _trap_answer(self, asked: str, best: Sequence[str], rng: random.Random) -> str | None:
        """The reply of a player who falls for the question; None if the text is not such a question."""
        if asked in self._answers:
            return self._answers[asked]
        if best and _CLUE_QUESTION.fullmatch(asked):
            word = rng.choice(best)
            return rng.choice(lines.CLUE_ANSWERS).format(w=word, W=word.capitalize())
        return None

    async def score(
        self,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        temperature: float = 1.0,
        adapter: str | None = None,
    ) -> list[Score]:
        raise EngineError("a scripted policy has no probabilities to score with")

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        raise EngineError("a scripted policy has no weights to load")

    async def sleep(self) -> None:
        """Does nothing: it holds no memory."""

    async def wake(self, part: WakePart = "all") -> None:
        """See `sleep`."""

    async def close(self) -> None:
        """Nothing to close."""


class ScriptedSeats(ScriptedPolicy):
    """The scripted seats of a game other than Taboo: the game itself says what they reply. `encode(text) -> token ids`
    as reply_ids of a renderer. The same game and seed give the same reply. Raises EngineError for a game without
    scripted seats."""

    def __init__(
        self, game: Game, encode: Callable[[str], Sequence[int]], name: str = "scripted", seed: int = 0
    ) -> None:
        super().__init__({}, encode, name, seed=seed)
        if not isinstance(game, Scripted):
            raise EngineError(f"{type(game).__name__} has no scripted seats")
        self._game = game

    def reply(self, view: GameView, request_id: str = "") -> str:
        assert view.scenario is not None, "an arena tells scripted seats the scenario"
        rng = random.Random(f"{self._seed}/{request_id}/{len(view.history)}")
        history = [text for _, text in view.history]
        return self._game.scripted(seat_of(view.role), history, view.scenario, rng)


_CLUE_QUESTION = re.compile("|".join(re.sub(r"\\{[aAb]\\}", ".+", re.escape(line)) for line in lines.CLUE_QUESTIONS))


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W_]+", text.lower()))


def _phrases(text: str) -> Iterator[tuple[str, ...]]:
    """Every run of words in it that may be a clue, in order, longer ones first."""
    words = _words(text)
    for start in range(len(words)):
        for length in range(_LONGEST_CLUE, 0, -1):
            if start + length <= len(words):
                yield words[start : start + length]


def _fill(line: str, a: str, b: str = "") -> str:
    return line.format(a=a, A=a[:1].upper() + a[1:], b=b)
