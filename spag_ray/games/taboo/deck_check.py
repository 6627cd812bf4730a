"""Finds what is wrong with a deck: its form (deck_file.py), and clues and traps that the strict referee rejects.

>>> for fault in deck_faults("butter:\\n  clues: [toast, buttered bread]\\n"):
...     print(fault.line, fault.text)
1 butter: 2 clues; write at least 10
2 butter: the clue 'buttered bread' breaks the rules: the attacker said 'buttered' (target word 'butter')

The referee decides what counts as a form of the word, so the deck and the games use the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from spag_ray.game.rules import EndReason, Role
from spag_ray.games.taboo.deck_file import Entry, Fault, Trap, read_deck
from spag_ray.games.taboo.referee.judge import judge, judge_turn

MIN_CLUES = 10
MAX_CLUE_WORDS = 3


def deck_faults(text: str) -> list[Fault]:
    """Every fault of a deck file, by line."""
    entries, faults = read_deck(text)
    for entry in entries:
        faults += _clue_faults(entry)
        for line, trap in zip(entry.trap_lines, entry.card.traps, strict=True):
            faults += [Fault(line, f"{entry.card.word}: {problem}") for problem in _trap_faults(entry.card.word, trap)]
    return sorted([*faults, *_same_clues(entries)])


def _clue_faults(entry: Entry) -> Iterator[Fault]:
    word, clues = entry.card.word, entry.card.clues
    if len(clues) < MIN_CLUES:
        yield Fault(entry.line, f"{word}: {len(clues)} clues; write at least {MIN_CLUES}")
    seen = set()
    for line, clue in zip(entry.clue_lines, clues, strict=True):
        if clue.casefold() in seen:
            yield Fault(line, f"{word}: the clue {clue!r} is there twice")
        seen.add(clue.casefold())
        if len(clue.split()) > MAX_CLUE_WORDS:
            yield Fault(line, f"{word}: the clue {clue!r} is longer than {MAX_CLUE_WORDS} words")
        if verdict := judge_turn(clue, 0, word):
            yield Fault(line, f"{word}: the clue {clue!r} breaks the rules: {verdict.reason}")


def _trap_faults(word: str, trap: Trap) -> Iterator[str]:
    """A trap works if its question is allowed, and its answer says the word without guessing it."""
    if verdict := judge_turn(trap.ask, 0, word):
        yield f"the question {trap.ask!r} breaks the rules: {verdict.reason}"
        return
    game = [{"role": Role.ATTACKER, "content": trap.ask}, {"role": Role.DEFENDER, "content": trap.answer}]
    verdict = judge(game, word, max_turns=1)
    if verdict.end_reason is not EndReason.SAID_WORD:
        yield f"the answer {trap.answer!r} does not lose the game: {verdict.reason}"


def _same_clues(entries: list[Entry]) -> Iterator[Fault]:
    def key(entry: Entry) -> list[str]:
        return sorted({clue.casefold() for clue in entry.card.clues})

    for first, second in pairwise(sorted(entries, key=lambda entry: (key(entry), entry.line))):
        if key(first) == key(second) and first.card.word != second.card.word:
            told = f"the same clues as {first.card.word} on line {first.line}"
            yield Fault(second.line, f"{second.card.word}: {told}")
