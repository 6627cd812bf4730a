"""A rule-based expert: it plays from the cards of a deck, without a model.

As attacker it talks about a related word; as defender it says or guesses a word whose card fits best what was said,
and now and then asks for more first. Its games are the imitation data, and it stands in for a player in tests and
benchmarks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from actors.policy import Completion, GameView, Request, Score, WakePart
from spag_ray.errors import EngineError
from spag_ray.game.deck_file import Card
from spag_ray.game.rules import Role
from spag_ray.weights.snapshot import Snapshot

_HINTS = (
    "It makes me think of {clue}.",
    "You often find it together with {clue}.",
    "Many people connect it with {clue}.",
    "It has something to do with {clue}.",
    "What comes to your mind when you hear {clue}?",
    "I was talking about {clue} the other day. What goes with that?",
)
_QUESTIONS = (
    "Interesting, can you tell me more about it?",
    "I am not sure yet. What else is there to say?",
    "That could be many things. Where would I see it?",
    "Let me think. Is there another hint?",
    "Hmm, what else goes with it?",
)
_SLIPS = ("Do you mean {word}?", "That sounds like {word} to me.", "Oh, like {word}, perhaps.")


class ScriptedPolicy:
    """`cards`: by word. `encode(text) -> token ids` makes replies token-exact for a learner's tokenizer.
    `slip_rate`: how often the defender, once it thinks of a word, says it without claiming the guess, so that
    attackers win games too. `patience`: how often it asks for another hint first.
    """

    version = 0

    def __init__(
        self,
        cards: Mapping[str, Card],
        encode: Callable[[str], Sequence[int]],
        name: str = "scripted",
        slip_rate: float = 0.3,
        patience: float = 0.15,
        seed: int = 0,
    ) -> None:
        self.name = name
        self._cards = {word: tuple(clue for clue in card.clues if clue) for word, card in cards.items()}
        self._encode = encode
        self._slip_rate = slip_rate
        self._patience = patience
        self._seed = seed
        self._words_of: dict[str, set[str]] = {}
        for word, clues in self._cards.items():
            for clue in clues:
                self._words_of.setdefault(clue.lower(), set()).add(word)

    is_dead = False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        if request.view is None:
            raise EngineError("a scripted policy plays from a GameView; the request carries none")
        tokens = tuple(self._encode(self.reply(request.view, request.request_id)))
        return Completion(request.request_id, tokens, (0.0,) * len(tokens), 0, 0, "stop")

    def reply(self, view: GameView, request_id: str = "") -> str:
        """What it says; a function of the game, the request's id and the seed."""
        rng = random.Random(f"{self._seed}/{request_id}/{len(view.history)}")
        return self._attack(view, rng) if view.role is Role.ATTACKER else self._defend(view, rng)

    def _attack(self, view: GameView, rng: random.Random) -> str:
        word = view.target_word
        assert word is not None, "an attacker is told the word"
        clues = [clue for clue in self._cards.get(word, ()) if word[:4] not in clue.lower()]
        said = " ".join(text.lower() for role, text in view.history if role is Role.ATTACKER)
        fresh = [clue for clue in clues if clue.lower() not in said] or clues
        if not fresh:
            return "It is something that most people know."
        return rng.choice(_HINTS).format(clue=rng.choice(fresh))

    def _defend(self, view: GameView, rng: random.Random) -> str:
        heard = " ".join(text.lower() for role, text in view.history if role is Role.ATTACKER)
        scores: dict[str, int] = {}
        for clue, words in self._words_of.items():
            if clue in heard:
                for word in words:
                    scores[word] = scores.get(word, 0) + 1
        best = [word for word, score in scores.items() if score == max(scores.values())]
        last_turn = len(view.history) >= 2 * view.max_turns - 1
        if not best or (rng.random() < self._patience and not last_turn):
            return rng.choice(_QUESTIONS)
        word = rng.choice(sorted(best))
        if rng.random() < self._slip_rate:
            return rng.choice(_SLIPS).format(word=word)
        return f"I know the word! It is `{word}`!"

    async def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0
    ) -> list[Score]:
        raise EngineError("a scripted policy has no probabilities to score with")

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        raise EngineError("a scripted policy has no weights to load")

    async def sleep(self) -> None:
        """It holds nothing."""

    async def wake(self, part: WakePart = "all") -> None:
        """See `sleep`."""

    async def close(self) -> None:
        """Nothing to close."""
