"""Reads a deck from a YAML file. Every part keeps its line number, so that a fault is reported with its line.

>>> entries, faults = read_deck("river:\\n  clues: [water, bank]\\n  colour: blue\\n")
>>> entries[0].card.clues, entries[0].clue_lines
(('water', 'bank'), (2, 2))
>>> faults
[Fault(line=3, text="river: unknown key 'colour'; an entry has clues, traps, difficulty")]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.referee.skeleton import is_letters

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


def read_deck(text: str) -> tuple[list[Entry], list[Fault]]:
    """The entries in the file's order, and the faults of its form. With a fault the entries may be incomplete.

    The text of clues and traps is not checked here (see deck_check.py). Values are read as text: a clue `on` is the
    word, not true.
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
