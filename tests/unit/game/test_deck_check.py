"""Faults that `spag-ray words check` names: what the strict referee makes of clues and traps."""

import pytest

from spag_ray.config.shipped import find_config
from spag_ray.games.taboo.deck_check import deck_faults

GOOD = "toast, yellow, cream, knife, popcorn, salty, milk, spread, melts, soft"
TRAP = '{ask: "What do you spread on toast?", answer: "I spread butter on it."}'


def deck(clues: str = GOOD, trap: str = TRAP) -> str:
    return f"butter:\n  clues: [{clues}]\n  traps:\n    - {trap}\n  difficulty: 0.5\n"


@pytest.mark.parametrize("name", ["everyday"])
def test_the_shipped_deck_has_no_fault(name: str) -> None:
    assert deck_faults(find_config(name, "decks").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (deck("toast, yellow"), 1, "butter: 2 clues; write at least 10"),
        (deck(GOOD + ", Toast"), 2, "the clue 'Toast' is there twice"),
        (deck(GOOD + ", a yellow block of fat"), 2, "longer than 3 words"),
        (deck(GOOD + ", peanut butter"), 2, "the attacker said 'butter'"),
        (deck(GOOD + ", buttered bread"), 2, "the attacker said 'buttered'"),
        (deck(GOOD + ", b-u-t-t-e-r"), 2, "the clue 'b-u-t-t-e-r' breaks the rules"),
        (deck(GOOD + ",\n    '...', i know the word"), 3, "the attacker made a guess"),
        (deck(trap='{ask: "Do you like butter?", answer: "I like butter."}'), 4, "the question 'Do you like butter?'"),
        (deck(trap='{ask: "What goes on toast?", answer: "Some jam."}'), 4, "no turn of the 2 read decided the game"),
        (
            deck(trap='{ask: "What goes on toast?", answer: "I know the word! It is butter."}'),
            4,
            "does not lose the game: the defender guessed the target word",
        ),
        (deck() + deck().replace("butter", "margarine"), 6, "margarine: the same clues as butter on line 1"),
        (deck() + "cat: [purrs]\n", 6, "cat: an entry is a mapping"),
        (
            deck().replace("butter:", "Hund:", 1),
            1,
            "'Hund' is not one lower-case word: write 'hund'. The referee reads English and compares words in lower",
        ),
        (
            deck().replace("butter:", "peanut butter:", 1),
            1,
            "'peanut butter' is not one lower-case word: it has more than letters",
        ),
        (deck().replace("butter:", "p.m.:", 1), 1, "'p.m.' is not one lower-case word: it has more than letters"),
    ],
)
def test_a_planted_fault_is_named_with_its_line(text: str, line: int, told: str) -> None:
    faults = deck_faults(text)
    assert [(fault.line, told in fault.text) for fault in faults if told in fault.text] == [(line, True)], faults


def test_a_word_whose_vowels_are_marks_is_one_word() -> None:
    word = "\u0915\u093f\u0924\u093e\u092c"
    assert not [fault for fault in deck_faults(f"{word}:\n  clues: [{GOOD}]\n") if word in fault.text]


def test_a_deck_without_a_fault_has_none() -> None:
    assert deck_faults(deck()) == []
    assert deck_faults(deck(clues=GOOD + ", butterfly")) == [], "a word of its own, to the referee as well"


def test_every_fault_of_a_file_is_named_in_the_order_of_its_lines() -> None:
    text = deck("toast, toast") + "river:\n  clues: [rivers]\n  colour: blue\n" + "there:\n  clues: [x]\n"
    assert [(fault.line, fault.text.split(";")[0]) for fault in deck_faults(text)] == [
        (1, "butter: 2 clues"),
        (2, "butter: the clue 'toast' is there twice"),
        (6, "river: 1 clues"),
        (7, "river: the clue 'rivers' breaks the rules: the attacker said 'rivers' (target word 'river')"),
        (8, "river: unknown key 'colour'"),
        (9, "there: a stop word"),
    ]
