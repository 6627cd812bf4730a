"""Decks: read from files with the lines of their faults, shipped ones and textarena's cards."""

import importlib.util
from pathlib import Path

import pytest

from spag_ray.config.loading import find_config
from spag_ray.errors import ConfigError, InputError
from spag_ray.games.taboo.decks import (
    Card,
    Trap,
    deck_faults,
    load_deck,
    read_deck,
    split_words,
    taboo_cards,
    without_words,
)
from tests.support.decks import cards_of
from tests.support.not_here import needs_textarena

WORDS = ["river", "cat", "piano", "tiger", "apple", "window", "lamp"]
DECK = """\
# Two words.
tiger:
  clues: [stripes, big cat,
          on]
butter:
  clues: [toast, bread]
  traps:
    - {ask: "What do you spread on toast?", answer: "I spread butter on it."}
  difficulty: 0.25
"""


@pytest.fixture
def deck(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(DECK)
    return path


def test_a_deck_is_read_from_a_file_sorted_by_word(deck: Path) -> None:
    cards = load_deck(str(deck))
    trap = Trap("What do you spread on toast?", "I spread butter on it.")
    assert list(cards.values()) == [
        Card("butter", ("toast", "bread"), (trap,), 0.25),
        Card("tiger", ("stripes", "big cat", "on")),
    ]
    assert list(cards) == ["butter", "tiger"]


def test_every_clue_and_trap_knows_its_line() -> None:
    (tiger, butter), faults = read_deck(DECK)
    assert faults == []
    assert (tiger.line, tiger.clue_lines, tiger.trap_lines) == (2, (3, 3, 4), ())
    assert (butter.line, butter.clue_lines, butter.trap_lines) == (5, (6, 6), (8,))


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        ("river:\n  clues: [water\ncat:\n  clues: [purrs]\n", 3, "not valid YAML"),
        ("- river\n- cat\n", 1, "a mapping of words"),
        ("# nothing\n", 1, "the deck is empty"),
        ("river:\n  clues: [water]\nRiver:\n  clues: [bank]\n", 3, "'River' is not one lower-case word"),
        ("ice cream:\n  clues: [cold]\n", 1, "'ice cream' is not one lower-case word"),
        ("river:\n  clues: [water]\nthere:\n  clues: [place]\n", 3, "stop word"),
        ("cat:\n  clues: [purrs]\nriver:\n  clues: [water]\ncat:\n  clues: [claws]\n", 5, "an entry on line 1"),
        ("river: [water, bank]\n", 1, "an entry is a mapping"),
        ("river:\n  clues: water\n", 2, "clues is not a list"),
        ("river:\n  clues: []\n", 1, "no clues"),
        ("river:\n  clues:\n    - water\n    -\n", 4, "a clue is not text"),
        ("river:\n  clues:\n    - water\n    - bank: side\n", 4, "a clue is not text"),
        ("river:\n  clues: [water]\n  colour: blue\n", 3, "unknown key 'colour'"),
        ("river:\n  clues: [water]\n  clues: [bank]\n", 3, "the key clues is on line 2 already; remove one of them"),
        ("river:\n  clues: [water]\n  difficulty: 1.5\n", 3, "not a number from 0 to 1"),
        ("river:\n  clues: [water]\n  difficulty: .nan\n", 3, "not a number from 0 to 1"),
        ("river:\n  clues: [water]\n  difficulty: high\n", 3, "not a number from 0 to 1"),
        ("river:\n  clues: [water]\n  traps:\n    - {ask: Where do boats go?}\n", 4, "a trap is {ask"),
        ("river:\n  clues: [water]\n  traps:\n    - {ask: a, answer: b, mood: c}\n", 4, "unknown key 'mood'"),
    ],
)
def test_a_fault_of_form_is_named_with_its_line_and_refused(text: str, line: int, fault: str, tmp_path: Path) -> None:
    faults = read_deck(text)[1]
    assert [(found.line, fault in found.text) for found in faults][:1] == [(line, True)], faults
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        load_deck(str(path))
    assert str(refused.value).startswith(f"{path}:{line}: ")


def test_a_deck_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_deck("absent_deck")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read the deck"):
        load_deck(str(tmp_path / "binary.yaml"))


def test_textarena_cards_hold_single_words_and_clues_that_can_be_said() -> None:
    needs_textarena()
    cards = load_deck("textarena")
    assert len(cards) > 400
    for word, card in cards.items():
        assert word == card.word
        assert word.isalpha()
        assert word.islower()
        assert card.clues
        assert card.traps == ()
        assert card.difficulty is None
        assert all(clue == clue.strip().lower() and word not in clue for clue in card.clues)


def test_without_textarena_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install -e .\.\[textarena\].*\.whl\[textarena\]"):
        taboo_cards()


def test_held_out_words_are_nowhere_in_the_cards_an_expert_plays_from() -> None:
    cards = cards_of({"river": ["water", "Boat trip", "steam-boat"], "boat": ["water"], "piano": ["music", "keys"]})
    traps = (Trap("Where is a boat?", "On the river."), Trap("What flows?", "A river (no boat)."), Trap("A?", "River."))
    cards["river"] = Card("river", cards["river"].clues, traps, 0.5)
    left = without_words(cards, ["boat"])
    assert left == {"river": Card("river", ("water",), traps[2:], 0.5), "piano": cards["piano"]}


def test_held_out_words_are_in_no_other_form_or_case_in_what_an_expert_says() -> None:
    cards = cards_of({"river": ["water"], "duck": ["Webbed feet", "pond"], "foot": ["toes"], "feet": ["toes"]})
    assert without_words(cards, ["foot", "River"]) == cards_of({"duck": ["pond"]})


def test_split_is_disjoint_whole_and_seeded() -> None:
    train, held_out = split_words(WORDS, 3, seed=1)
    assert len(held_out) == 3
    assert sorted(train + held_out) == sorted(WORDS)
    assert split_words(WORDS[::-1], 3, seed=1) == (train, held_out)
    assert any(split_words(WORDS, 3, seed=seed) != (train, held_out) for seed in range(5))
    with pytest.raises(InputError, match="cannot be held out"):
        split_words(WORDS, 8, seed=1)


def test_the_shipped_deck_is_found_by_name_and_has_words_enough() -> None:
    cards = load_deck("everyday")
    assert len(cards) >= 600
    assert list(cards) == sorted(cards)
    assert load_deck("configs/decks/everyday.yaml") == cards
    assert all(len(card.clues) >= 10 and card.traps for card in cards.values())


def test_max_difficulty_leaves_the_cards_that_are_measured_as_easy_enough() -> None:
    deck = load_deck("everyday")
    easy = load_deck("everyday", max_difficulty=0.5)
    assert 0 < len(easy) < len(deck)
    assert easy == {word: card for word, card in deck.items() if (card.difficulty or 0) <= 0.5}


def test_a_deck_of_which_no_card_was_measured_as_easy_enough_is_refused(deck: Path) -> None:
    """Textarena's cards have no difficulty."""
    with pytest.raises(InputError, match=r"difficulty of at most 0\.1; raise words.max_difficulty"):
        load_deck(str(deck), max_difficulty=0.1)
    needs_textarena()
    with pytest.raises(InputError, match=r"difficulty of at most 0\.5; raise words.max_difficulty"):
        load_deck("textarena", max_difficulty=0.5)


GOOD = "toast, yellow, cream, knife, popcorn, salty, milk, spread, melts, soft"
TRAP = '{ask: "What do you spread on toast?", answer: "I spread butter on it."}'


def butter(clues: str = GOOD, trap: str = TRAP) -> str:
    return f"butter:\n  clues: [{clues}]\n  traps:\n    - {trap}\n  difficulty: 0.5\n"


@pytest.mark.parametrize("name", ["everyday"])
def test_the_shipped_deck_has_no_fault(name: str) -> None:
    assert deck_faults(find_config(name, "decks").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (butter("toast, yellow"), 1, "butter: 2 clues; write at least 10"),
        (butter(GOOD + ", Toast"), 2, "the clue 'Toast' is there twice"),
        (butter(GOOD + ", a yellow block of fat"), 2, "longer than 3 words"),
        (butter(GOOD + ", peanut butter"), 2, "the attacker said 'butter'"),
        (butter(GOOD + ", buttered bread"), 2, "the attacker said 'buttered'"),
        (butter(GOOD + ", b-u-t-t-e-r"), 2, "the clue 'b-u-t-t-e-r' breaks the rules"),
        (butter(GOOD + ",\n    '...', i know the word"), 3, "the attacker made a guess"),
        (
            butter(trap='{ask: "Do you like butter?", answer: "I like butter."}'),
            4,
            "the question 'Do you like butter?'",
        ),
        (butter(trap='{ask: "What goes on toast?", answer: "Some jam."}'), 4, "no turn of the 2 read decided the game"),
        (
            butter(trap='{ask: "What goes on toast?", answer: "I know the word! It is butter."}'),
            4,
            "does not lose the game: the defender guessed the target word",
        ),
        (butter() + butter().replace("butter", "margarine"), 6, "margarine: the same clues as butter on line 1"),
        (butter() + "cat: [purrs]\n", 6, "cat: an entry is a mapping"),
        (
            butter().replace("butter:", "Hund:", 1),
            1,
            "'Hund' is not one lower-case word: write 'hund'. The referee reads English and compares words in lower",
        ),
        (
            butter().replace("butter:", "peanut butter:", 1),
            1,
            "'peanut butter' is not one lower-case word: it has more than letters",
        ),
        (butter().replace("butter:", "p.m.:", 1), 1, "'p.m.' is not one lower-case word: it has more than letters"),
    ],
)
def test_a_planted_fault_is_named_with_its_line(text: str, line: int, told: str) -> None:
    faults = deck_faults(text)
    assert [(fault.line, told in fault.text) for fault in faults if told in fault.text] == [(line, True)], faults


def test_a_word_whose_vowels_are_marks_is_one_word() -> None:
    word = "\u0915\u093f\u0924\u093e\u092c"
    assert not [fault for fault in deck_faults(f"{word}:\n  clues: [{GOOD}]\n") if word in fault.text]


def test_a_deck_without_a_fault_has_none() -> None:
    assert deck_faults(butter()) == []
    assert deck_faults(butter(clues=GOOD + ", butterfly")) == [], "a word of its own, to the referee as well"


def test_every_fault_of_a_file_is_named_in_the_order_of_its_lines() -> None:
    text = butter("toast, toast") + "river:\n  clues: [rivers]\n  colour: blue\n" + "there:\n  clues: [x]\n"
    assert [(fault.line, fault.text.split(";")[0]) for fault in deck_faults(text)] == [
        (1, "butter: 2 clues"),
        (2, "butter: the clue 'toast' is there twice"),
        (6, "river: 1 clues"),
        (7, "river: the clue 'rivers' breaks the rules: the attacker said 'rivers' (target word 'river')"),
        (8, "river: unknown key 'colour'"),
        (9, "there: a stop word"),
    ]
