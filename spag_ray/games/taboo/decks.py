"""Decks: target words with clues and traps, from a shipped deck (configs/decks/), a file, or textarena's Taboo cards.

>>> load_deck("everyday")["butter"].clues[:2]    # doctest: +SKIP
('toast', 'bread')

`read_deck` reads a file; every part keeps its line number, so that a fault is reported with its line. `deck_faults`
also finds the clues and traps that the strict referee rejects, by the rules of the games themselves.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import yaml

from spag_ray.config.loading import find_config
from spag_ray.errors import InputError, extra
from spag_ray.game.rules import EndReason, Role
from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.referee.folding import is_letters
from spag_ray.games.taboo.referee.judge import judge, judge_turn
from spag_ray.games.taboo.referee.word_forms import word_forms
from spag_ray.host.whole_files import given_text

TEXTARENA = "textarena"
_DATA_FILE = Path("envs") / "Taboo" / "words.json"
MIN_CLUES = 10
MAX_CLUE_WORDS = 3
# libyaml's parser, if it is available, is ten times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_KEYS = ("clues", "traps", "difficulty")
_TRAP_KEYS = ("ask", "answer")


@dataclass(frozen=True)
class Trap:
    """A question whose natural answer says the word, and such an answer.

    >>> Trap(ask="What do you spread on toast?", answer="I spread butter on it.")
    Trap(ask='What do you spread on toast?', answer='I spread butter on it.')
    """

    ask: str
    answer: str


@dataclass(frozen=True)
class Card:
    """A target word with its clues and traps.

    `clues`: words and short phrases, the most telling first. `difficulty`: the share of draws of clues from which a
    fixed listener does not name the word (benchmarks/deck_difficulty.py); None if it was not measured.

    >>> Card("butter", clues=("toast", "yellow"), difficulty=0.25).traps
    ()
    """

    word: str
    clues: tuple[str, ...]
    traps: tuple[Trap, ...] = ()
    difficulty: float | None = None


@dataclass(frozen=True, order=True)
class Fault:
    """What is wrong, on which line (from 1)."""

    line: int
    text: str


@dataclass(frozen=True)
class Entry:
    """A card and its lines in the file (from 1): of its word, of each clue, of each trap."""

    card: Card
    line: int
    clue_lines: tuple[int, ...]
    trap_lines: tuple[int, ...]


Deck = dict[str, Card]  # by word, in the order of the words


def load_deck(name: str, max_difficulty: float | None = None) -> Deck:
    """The deck of this name: `textarena`, a shipped one, or a file. With `max_difficulty` only the cards whose measured
    difficulty is at most that.

    Raises InputError for the first fault of its form, and if no card is left. Only `spag-ray words check` checks the
    text of its clues and traps.
    """
    if name == TEXTARENA:
        deck = taboo_cards()
    else:
        path = find_config(name, "decks")
        deck = dict(_read_once(path, os.path.getmtime(path) if os.path.isfile(path) else 0.0))
    if max_difficulty is None:
        return deck
    easy = easy_cards(deck, max_difficulty)
    if not easy:
        raise InputError(
            f"no card of the deck {name} has a measured difficulty of at most {max_difficulty}; raise "
            "words.max_difficulty or leave it empty, or measure the deck: python -m benchmarks.deck_difficulty"
        )
    return easy


def easy_cards(cards: Mapping[str, Card], max_difficulty: float) -> Deck:
    """The cards whose measured difficulty is at most this."""
    return {
        word: card for word, card in cards.items() if card.difficulty is not None and card.difficulty <= max_difficulty
    }


@lru_cache(maxsize=4)
def _read_once(path: Path, _: float) -> Deck:
    """A deck takes a fifth of a second to read, and every new instance of the game asks for it."""
    entries, faults = read_deck(given_text(path, "the deck"))
    if faults:
        fault = faults[0]
        raise InputError(f"{path}:{fault.line}: {fault.text}; `spag-ray words check {path}` names every fault")
    return {entry.card.word: entry.card for entry in sorted(entries, key=lambda entry: entry.card.word)}


def taboo_cards() -> Deck:
    """textarena's Taboo cards: those whose word is one English word, lower-cased.

    Only its data file is read; importing the package would import far more. Of the 1,414 cards, those for names of
    several words, years and accented words are left out. Cards without any allowed related word (one that does not
    contain the target) are left out too.
    """
    cards: dict[str, list[str]] = {}
    for group in _read_data().values():
        for title, related in group.items():
            word = title.strip().lower()
            if re.fullmatch(r"[a-z]{3,}", word):
                clues = cards.setdefault(word, [])
                clues.extend(clue for clue in map(_clean, related) if clue and word not in clue)
    return {word: Card(word, tuple(dict.fromkeys(clues))) for word, clues in sorted(cards.items()) if clues}


def split_words(words: Sequence[str], num_held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """(train, held out): disjoint, together all words, a function of the set of words and the seed."""
    shuffled = sorted(set(words))
    if not 0 <= num_held_out <= len(shuffled):
        raise InputError(f"{num_held_out} of {len(shuffled)} words cannot be held out; give 0 to {len(shuffled)}")
    random.Random(f"split/{seed}").shuffle(shuffled)
    return shuffled[num_held_out:], shuffled[:num_held_out]


def without_words(cards: Mapping[str, Card], words: Sequence[str]) -> Deck:
    """The cards without these words: neither as targets nor in clues or traps, in no form that the referee takes for
    the word ("feet" for "foot"), with small letters or capitals."""
    is_free = says_none_of(words)
    return {
        word: dataclasses.replace(
            card,
            clues=tuple(filter(is_free, card.clues)),
            traps=tuple(trap for trap in card.traps if is_free(trap.ask) and is_free(trap.answer)),
        )
        for word, card in cards.items()
        if is_free(word)
    }


def says_none_of(words: Iterable[str]) -> Callable[[str], bool]:
    """Of a text: whether it has none of these words, in any of their forms."""
    forms = [word_forms(word).pattern for word in sorted({word.casefold() for word in words})]

    def is_free(text: str) -> bool:
        folded = text.casefold()
        return not any(form.search(folded) for form in forms)

    return is_free


def _read_data() -> dict[str, dict[str, list[str]]]:
    spec = importlib.util.find_spec("textarena")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / _DATA_FILE
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise InputError(
        "words.source: textarena needs the Taboo cards of the Python package textarena, which is missing or has none; "
        f"{extra('textarena')}; or set words.source: deck"
    )


def _clean(clue: str) -> str:
    """A related word as a player would write it: lower-case, single spaces, no remarks in brackets."""
    return " ".join(re.sub(r"\([^)]*\)", " ", clue).lower().split()).strip(" .,;:!?\"'")


def read_deck(text: str) -> tuple[list[Entry], list[Fault]]:
    """The entries in the file's order, and the faults of its form. With a fault the entries may be incomplete.

    The text of clues and traps is not checked here (see `deck_faults`). Values are read as text: a clue `on` is the
    word, not true.

    >>> entries, faults = read_deck("river:\\n  clues: [water, bank]\\n  colour: blue\\n")
    >>> entries[0].card.clues, entries[0].clue_lines
    (('water', 'bank'), (2, 2))
    >>> faults
    [Fault(line=3, text="river: unknown key 'colour'; an entry has clues, traps, difficulty")]
    """
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        return [], [Fault(mark.line + 1 if mark else 1, f"not valid YAML: {problem}")]
    if root is None or (isinstance(root, yaml.MappingNode) and not root.value):
        return [], [Fault(1, "the deck is empty; write an entry for each word")]
    if not isinstance(root, yaml.MappingNode):
        return [], [Fault(_line(root), "a deck is a mapping of words to their entries")]
    entries, faults = [], []
    first_line: dict[str, int] = {}
    for key, value in root.value:
        word, line = _text(key) or "", _line(key)
        if problem := _word_fault(word):
            faults.append(Fault(line, problem))
            continue
        earlier = first_line.setdefault(word, line)
        if earlier != line:
            faults.append(Fault(line, f"{word}: the word has an entry on line {earlier} already; remove one of them"))
        entry = _entry(word, line, value, faults)
        if entry is not None:
            entries.append(entry)
    return entries, sorted(faults)


def _word_fault(word: str) -> str | None:
    told = f"{word!r} is not one lower-case word"
    if not is_letters(word):
        return f"{told}: it has more than letters; an entry is for one word of letters"
    if word != word.lower():
        return (
            f"{told}: write {word.lower()!r}. The referee reads English and compares words in lower case, so a German "
            "noun or a name is the same word with and without its capital"
        )
    if word in STOP_WORDS:
        return f"{word}: a stop word; it is too common to be a target"
    return None


def _entry(word: str, line: int, node: yaml.Node, faults: list[Fault]) -> Entry | None:
    if not isinstance(node, yaml.MappingNode):
        faults.append(Fault(line, f"{word}: an entry is a mapping with the key clues"))
        return None
    parts = dict(_pairs(word, node, _KEYS, "an entry has", faults))
    clues: list[str] = []
    clue_lines = []
    num_faults = len(faults)
    for item in _items(word, "clues", parts.get("clues"), faults):
        clue = _text(item)
        if clue is None:
            faults.append(Fault(_line(item), f"{word}: a clue is not text"))
            continue
        clues.append(clue)
        clue_lines.append(_line(item))
    if not clues and len(faults) == num_faults:
        faults.append(Fault(line, f"{word}: no clues"))
    traps, trap_lines = [], []
    for item in _items(word, "traps", parts.get("traps"), faults):
        trap = _trap(word, item, faults)
        if trap is not None:
            traps.append(trap)
            trap_lines.append(_line(item))
    card = Card(word, tuple(clues), tuple(traps), _difficulty(word, parts.get("difficulty"), faults))
    return Entry(card, line, tuple(clue_lines), tuple(trap_lines))


def _trap(word: str, node: yaml.Node, faults: list[Fault]) -> Trap | None:
    texts: dict[str, str | None] = {}
    if isinstance(node, yaml.MappingNode):
        texts = {key: _text(value) for key, value in _pairs(word, node, _TRAP_KEYS, "a trap has", faults)}
    ask, answer = texts.get("ask"), texts.get("answer")
    if ask is None or answer is None:
        faults.append(Fault(_line(node), f'{word}: a trap is {{ask: "a question", answer: "its answer"}}'))
        return None
    return Trap(ask, answer)


def _difficulty(word: str, node: yaml.Node | None, faults: list[Fault]) -> float | None:
    if node is None:
        return None
    try:
        difficulty = float(_text(node) or "")
    except ValueError:
        difficulty = -1.0
    if not 0 <= difficulty <= 1:  # false of nan, too
        faults.append(Fault(_line(node), f"{word}: the difficulty is not a number from 0 to 1"))
        return None
    return difficulty


def _pairs(
    word: str, node: yaml.MappingNode, known: tuple[str, ...], owner: str, faults: list[Fault]
) -> Iterator[tuple[str, yaml.Node]]:
    seen: dict[str, int] = {}
    for key, value in node.value:
        name = _text(key)
        if name is None or name not in known:
            told = f"{word}: unknown key {name or key.tag!r}; {owner} {', '.join(known)}"
            faults.append(Fault(_line(key), told))
        elif name in seen:
            told = f"{word}: the key {name} is on line {seen[name]} already; remove one of them"
            faults.append(Fault(_line(key), told))
        else:
            seen[name] = _line(key)
            yield name, value


def _items(word: str, key: str, node: yaml.Node | None, faults: list[Fault]) -> list[yaml.Node]:
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        faults.append(Fault(_line(node), f"{word}: {key} is not a list"))
        return []
    return node.value


def _text(node: yaml.Node) -> str | None:
    """A scalar as it is written, with single spaces; None if it is missing or not a scalar."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
        return None
    return " ".join(node.value.split()) or None


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def deck_faults(text: str) -> list[Fault]:
    """Every fault of a deck file, by line.

    >>> for fault in deck_faults("butter:\\n  clues: [toast, buttered bread]\\n"):
    ...     print(fault.line, fault.text)
    1 butter: 2 clues; write at least 10
    2 butter: the clue 'buttered bread' breaks the rules: the attacker said 'buttered' (target word 'butter')
    """
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
