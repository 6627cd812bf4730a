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

from spag_ray.games.taboo.decks import Card

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
                return _fill(rng.choice(CLUE_QUESTIONS), *fresh[:2])
        if len(fresh) > 1 and rng.random() < self._habits.pairs:
            return _fill(rng.choice(TWO_CLUES), *fresh[:2])
        if fresh:
            return _fill(rng.choice(ONE_CLUE), fresh[0])
        return rng.choice(NOTHING_LEFT)

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
            return rng.choice(EVASIONS)
        if heard and rng.random() < 0.4:
            return _fill(rng.choice(COMMENTS), " ".join(heard[-1]))
        return rng.choice(QUESTIONS)

    def _trap_answer(self, asked: str, best: Sequence[str], rng: random.Random) -> str | None:
        """The reply of a player who falls for the question; None if the text is not such a question."""
        if asked in self._answers:
            return self._answers[asked]
        if best and _CLUE_QUESTION.fullmatch(asked):
            word = rng.choice(best)
            return rng.choice(CLUE_ANSWERS).format(w=word, W=word.capitalize())
        return None


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


def _each(text: str) -> tuple[str, ...]:
    """Sentences of the expert. They are short, so the clue is most of a trained turn. {a} and {b} are clues, {A} and
    {B} the same with a capital, {w} and {W} the word."""
    return tuple(line.strip() for line in text.split("|"))


ONE_CLUE = _each(
    """
    {A}. | {A}, for one. | {A}, for example. | {A}, mostly. | {A} fits. | {A} helps. | {A}, often. | {A}, you know. |
    {A}, I would say. | {A} comes first. | {A} is near. | Also {a}. | And {a}. | Maybe {a}. | Often {a}. | With {a}. |
    Like {a}. | Say {a}. | Try {a}. | Take {a}. | Add {a}. | Picture {a}. | Think of {a}. | Think {a}. |
    My hint is {a}. | A hint: {a}. | A clue: {a}. | There is {a}. | It goes with {a}. | It means {a} to me. |
    I think of {a}. | I see {a}. | Next, {a}. | So, {a}. | Well, {a}.
    """
)
TWO_CLUES = _each(
    """
    {A}, {b}. | {A} and {b}. | {A} or {b}. | {A} with {b}. | {A} plus {b}. | {A}, also {b}. | {A}, maybe {b}. |
    {A}, then {b}. | {A}, and often {b}. | {A}, with some {b}. | {A} and {b}, mostly. | {A} and {b} fit. |
    {A} and {b}, you know. | Both {a} and {b}. | First {a}, then {b}. | Try {a} and {b}. | Take {a} and {b}. |
    Add {a} to {b}. | Picture {a} and {b}. | Think of {a} and {b}. | Think {a}, think {b}. | My hints: {a}, {b}. |
    Two clues: {a}, {b}. | There is {a}, and {b}. | It goes with {a} and {b}. | I think of {a} and {b}. |
    I see {a} and {b}. | Not only {a}, also {b}.
    """
)
# Questions whose natural answer is the word, for cards without an unused trap.
CLUE_QUESTIONS = _each(
    """
    What goes with {a} and {b}? | What has {a} and {b}? | Name a thing with {a} and {b}. |
    {A} and {b}, what is that? | What do {a} and {b} make you think of?
    """
)
CLUE_ANSWERS = _each(
    """
    {W}, I think. | {W}, of course. | Maybe {w}. | I would say {w}. | That sounds like {w}. | Oh, {w}! |
    That must be {w}.
    """
)
NOTHING_LEFT = _each("That is all I can say. | I have no more hints. | You have heard it all.")

QUESTIONS = _each(
    """
    What else goes with it? | Where would I see it? | Can I hold it in my hand? | Is it something big? |
    Do I have one at home? | What is it good for? | Give me one more hint. | I am not sure yet. |
    Let me think about that. | Hmm, go on.
    """
)
COMMENTS = _each(
    """
    {A}? That could be many things. | {A}, I see. What else? | I like {a}. | So it goes with {a}. |
    With {a}? Interesting. | {A} is not enough for me.
    """
)
EVASIONS = _each(
    """
    I will not fall for that. | I would rather not say. | Nice try, another hint please. | You want me to say it.
    """
)
_CLUE_QUESTION = re.compile("|".join(re.sub(r"\\{[aAb]\\}", ".+", re.escape(line)) for line in CLUE_QUESTIONS))
