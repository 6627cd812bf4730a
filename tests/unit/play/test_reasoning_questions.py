"""The questions of `spag_reasoning`: made again they are the same, what is right follows, and nothing else tells it."""

import itertools
import re
from collections import Counter
from collections.abc import Callable

import pytest

from spag_ray.config.loading import config_root
from tests.support.reasoning_questions import (
    KINDS,
    KINDS_OF,
    NUMBERS,
    OPPOSITES,
    ORDERS,
    USES,
    YOUNG,
    Item,
    as_text,
    make_items,
)

ITEMS = make_items()
MANY = [item for seed in range(10) for item in make_items(seed)]


def test_the_file_is_what_is_made_of_it_again() -> None:
    assert (config_root() / "tasks" / "spag_reasoning.json").read_bytes() == as_text(ITEMS).encode()


def test_kinds_and_places_are_balanced_and_no_text_comes_twice() -> None:
    assert Counter(item.kind for item in ITEMS) == dict.fromkeys(KINDS, 20)
    assert Counter((item.kind, item.answer) for item in ITEMS) == {(k, place): 5 for k in KINDS for place in range(4)}
    assert len({item.text for item in ITEMS}) == len(ITEMS)
    assert all(len(set(item.choices)) == 4 and all(item.choices) for item in ITEMS)
    assert max(len(item.text) for item in ITEMS) < 250


def mentions(item: Item, choice: str) -> list[int]:
    word = choice.removeprefix("the ")
    return [match.start() for match in re.finditer(rf"\b{word}\b", item.text)]


@pytest.mark.parametrize(
    "rule",
    [
        lambda item, choice: len(choice),
        lambda item, choice: -len(choice),
        lambda item, choice: choice,
        lambda item, choice: len(mentions(item, choice)),
        lambda item, choice: -len(mentions(item, choice)),
        lambda item, choice: max(mentions(item, choice), default=-1),
        lambda item, choice: -min(mentions(item, choice), default=999),
    ],
    ids=["longest", "shortest", "alphabet", "most mentioned", "least mentioned", "mentioned last", "mentioned first"],
)
def test_no_simple_rule_finds_the_right_choice(rule: Callable[[Item, str], object]) -> None:
    right = [max(item.choices, key=lambda choice: rule(item, choice)) == item.choices[item.answer] for item in MANY]  # type: ignore[arg-type,return-value]
    assert sum(right) / len(right) < 0.36, "chance is 0.25"


def rows_that_fit(item: Item) -> list[tuple[str, ...]]:
    """Every row of the four in which each clue holds; the first is the most, the earliest, the leftmost."""
    ahead = {"before", "left", *(more for more, *_ in ORDERS)}
    behind = {"after", "right", *(less for _, less, *_ in ORDERS)}
    clues = re.findall(r"(?:^|\. )((?:The )?\w+) (?:is|came) (\w+)(?: than| of)? ((?:the )?\w+)(?=\.)", item.text)
    assert len(clues) == 3
    assert {word for _, word, _ in clues} <= ahead | behind
    pairs = [(one, other) if word in ahead else (other, one) for one, word, other in clues]
    lower = [(one.replace("The ", "the "), other.replace("The ", "the ")) for one, other in pairs]
    return [
        row
        for row in itertools.permutations(item.choices)
        if all(row.index(one) < row.index(other) for one, other in lower)
    ]


def place_asked_for(item: Item) -> int:
    asked = item.text.rsplit(". ", 1)[1]
    superlatives = {order[2]: 0 for order in ORDERS} | {order[3]: 3 for order in ORDERS}
    ends = {"first": 0, "third": 2, "last": 3, "left end": 0, "second from the left": 1, "second from the right": 2}
    ends |= {"right end": 3, **superlatives}
    found = max((end for end in ends if end in asked), key=len, default="second")
    if found in superlatives and "second" in asked:
        return 1 if ends[found] == 0 else 2
    return ends.get(found, 1)


@pytest.mark.parametrize("kind", ["order", "time", "place"])
def test_orders_follow_from_their_clues_alone(kind: str) -> None:
    for item in MANY:
        if item.kind == kind:
            (row,) = rows_that_fit(item)
            assert row[place_asked_for(item)] == item.choices[item.answer], item.text


def test_one_class_follows_and_no_other_does() -> None:
    for item in MANY:
        if item.kind == "class":
            above = dict(re.findall(r"Every (\w+) is a (\w+)", item.text))
            (own,) = re.findall(r"\w+ is a (\w+)\. So", item.text)
            reached = set()
            while own in above:
                own = above[own]
                reached.add(own)
            assert [choice in reached for choice in item.choices] == [n == item.answer for n in range(4)], item.text


def test_counts_are_right() -> None:
    for item in MANY:
        if item.kind == "count":
            groups = re.findall(rf"({'|'.join(NUMBERS)}) (\w+) (\w+?)s?(?=,| and|\.)", item.text)
            (asked,) = re.findall(r"The number of (\w+) ", item.text)
            assert len(groups) == 3
            total = sum(NUMBERS.index(n) for n, colour, thing in groups if asked in (colour, f"{thing}s"))
            assert NUMBERS[total] == item.choices[item.answer], item.text


def test_things_are_where_they_were_put() -> None:
    for item in MANY:
        if item.kind == "hold":
            holds = {thing: name for name, thing in re.findall(r"(\w+) has the (\w+)", item.text)}
            for swap in re.findall(r"(\w+) and (\w+) swap", item.text):
                holds = {thing: swap[1 - swap.index(name)] if name in swap else name for thing, name in holds.items()}
            (asked,) = re.findall(r"Now the (\w+) ", item.text)
            assert holds[asked] == item.choices[item.answer], item.text


def test_words_have_one_right_choice() -> None:
    words = [word for members in KINDS_OF.values() for word in members]
    assert len(words) == len(set(words)), "a word is of one kind"
    for table in (OPPOSITES, USES, YOUNG):
        assert len(set(table.values())) == len(table)
    for item in MANY:
        if item.kind == "meaning":
            (word,) = re.findall(r"The word (\w+) ", item.text)
            assert word in KINDS_OF[item.choices[item.answer]]
        elif item.kind == "relation":
            (table,) = (table for table in (OPPOSITES, USES, YOUNG) if item.text in table)
            assert table[item.text] == item.choices[item.answer]
            assert set(item.choices) <= set(table.values())
