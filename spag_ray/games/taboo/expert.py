"""An expert that plays from the cards of a deck: the source of imitation, and an opponent that needs no model.

    expert = Expert(load_deck("everyday"))
    expert.attack([], "butter", random.Random(0))         # "It goes with toast and bread."

The attacker hints with one or two clues of the word's card, and sometimes asks a question whose natural answer is the
word. The defender asks questions or comments, sometimes falls for such a question, and claims a word when the clues so
far fit only one card. docs/appendix/laboratory.md has a table of how its games end.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from spag_ray.games.taboo import expert_lines as lines
from spag_ray.games.taboo.deck_file import Card

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


EXPERTS_HABITS = Habits()


class Expert:
    """`cards`: word -> its card. `claim`: the prompt file's, with {word} in it. A reply depends on what was said and on
    the generator alone."""

    def __init__(
        self, cards: Mapping[str, Card], claim: str = "I know the word! It is `{word}`", habits: Habits = EXPERTS_HABITS
    ) -> None:
        self._cards = cards
        self._claim = claim if claim.endswith(("!", ".")) else f"{claim}!"
        self._habits = habits
        self._words_of: dict[tuple[str, ...], list[str]] = {}
        self._answers: dict[str, str] = {}
        for word, card in cards.items():
            for clue in dict.fromkeys(_words(clue) for clue in card.clues):
                self._words_of.setdefault(clue, []).append(word)
            self._answers |= {trap.ask: trap.answer for trap in card.traps}

    def attack(self, history: Sequence[str], word: str, rng: random.Random) -> str:
        """A hint, or a question that leads to the word."""
        card = self._cards.get(word, Card(word, ()))
        said = set(history[::2])
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

    def defend(self, history: Sequence[str], is_last: bool, rng: random.Random) -> str:
        """A question, a comment or a claim; `is_last`: whether it is the defender's last turn."""
        habits = self._habits
        heard_lines = history[::2]
        heard = list(dict.fromkeys(clue for text in heard_lines for clue in _phrases(text) if clue in self._words_of))
        scores = Counter(word for clue in heard for word in self._words_of[clue])
        before, _, after = self._claim.partition("{word}")
        for text in history[1::2]:  # in a game of several guesses, no wrong one is repeated
            if text.startswith(before) and text.endswith(after):
                scores.pop(text[len(before) : len(text) - len(after)], None)
        best = sorted(word for word, score in scores.items() if score == max(scores.values()))
        answer = self._trap_answer(heard_lines[-1], best, rng)
        if answer is not None and rng.random() < habits.walks_in:
            return answer
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
