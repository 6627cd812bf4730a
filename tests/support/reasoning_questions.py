"""Small reasoning questions with four choices, made by rule: the data of the task `spag_reasoning`.

    python -m tests.support.reasoning_questions configs/tasks/spag_reasoning.json

There are eight kinds in equal parts: order, time, place, class, count, possession, meanings of words, relations between
words. A question is a text that one of four choices continues. The names, words and sentences were written for this
file. Only the text determines the right choice: the right choice is equally often at each of the four places, and all
choices of a question are of one sort. A model of 0.1 billion parameters is near chance in the first kinds, and well
above chance in the last.

>>> items = make_items(seed=0, num_each=4)
>>> len(items), sorted({item.answer for item in items})
(32, [0, 1, 2, 3])
"""

import itertools
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SEED = 20240410
NUM_EACH = 20
NUM_CHOICES = 4

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jack", "Kim", "Leo", "Mona", "Nils")
THINGS = ("cup", "key", "book", "ball", "lamp", "spoon", "plate", "clock", "candle", "hat", "bottle", "basket")
COLOURS = ("red", "blue", "green", "white", "black", "yellow")
EVENTS = ("the walk", "the lunch", "the concert", "the lesson", "the swim", "the storm", "the speech", "the game")
NONSENSE = ("wug", "blick", "tove", "rant", "fep", "zorb", "mip", "dax", "gorp", "lunt", "quib", "snell", "trock")
NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven",
    "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
)  # fmt: skip
ORDERS = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("stronger", "weaker", "strongest", "weakest"),
    ("richer", "poorer", "richest", "poorest"),
)
KINDS_OF = {
    "fruit": ("apple", "pear", "plum", "cherry"),
    "mammal": ("horse", "goat", "rabbit", "tiger"),
    "tool": ("hammer", "saw", "shovel", "wrench"),
    "clothing": ("coat", "shirt", "glove", "sock"),
    "weather": ("rain", "fog", "hail", "snow"),
    "drink": ("tea", "milk", "juice", "coffee"),
    "building": ("house", "cabin", "palace", "church"),
    "boat": ("canoe", "ferry", "raft", "yacht"),
    "furniture": ("chair", "table", "sofa", "bed"),
    "vegetable": ("carrot", "onion", "cabbage", "potato"),
    "metal": ("iron", "copper", "silver", "gold"),
    "bird": ("sparrow", "eagle", "owl", "pigeon"),
}
# Texts and their right continuations. The continuations of other texts in the same table are wrong choices.
OPPOSITES = {
    f"The opposite of {word} is": opposite
    for word, opposite in {
        "hot": "cold", "big": "small", "up": "down", "day": "night", "early": "late", "wet": "dry", "full": "empty",
        "young": "old", "fast": "slow", "hard": "soft", "high": "low", "rich": "poor",
    }.items()
}  # fmt: skip
USES = {
    "A nail is driven in with a": "hammer",
    "Soup is eaten with a": "spoon",
    "A letter is written with a": "pen",
    "A lock is opened with a": "key",
    "Bread is cut with a": "knife",
    "The time is read from a": "clock",
    "Hair is combed with a": "comb",
    "A floor is swept with a": "broom",
    "A photo is taken with a": "camera",
}
YOUNG = {
    f"A young {animal} is called a": young
    for animal, young in {
        "dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal", "hen": "chick", "bear": "cub",
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class Item:
    """A text; `answer` is the index of the choice that continues it."""

    kind: str
    text: str
    choices: tuple[str, ...]
    answer: int


# (text, right choice, wrong choices)
Draft = tuple[str, str, Sequence[str]]


def make_items(seed: int = SEED, num_each: int = NUM_EACH) -> list[Item]:
    """`num_each` questions of every kind, no text twice. The same seed gives the same questions."""
    items = []
    for kind, make in KINDS.items():
        rng = random.Random(f"{seed}/{kind}")
        places = [number % NUM_CHOICES for number in range(num_each)]
        rng.shuffle(places)
        asked: set[str] = set()
        while len(asked) < num_each:
            text, right, wrong = make(rng)
            if text in asked:
                continue
            choices = rng.sample(list(wrong), NUM_CHOICES - 1)
            place = places[len(asked)]
            choices.insert(place, right)
            asked.add(text)
            items.append(Item(kind, text, tuple(choices), place))
    return items


def as_text(items: Sequence[Item]) -> str:
    """A JSON list with one item per line."""
    rows = ",\n".join(json.dumps(asdict(item)) for item in items)
    return f"[\n{rows}\n]\n"


def _order(rng: random.Random) -> Draft:
    more, less, most, least = rng.choice(ORDERS)
    names = rng.sample(NAMES, 4)
    clues = [
        f"{above} is {more} than {below}." if rng.random() < 0.5 else f"{below} is {less} than {above}."
        for above, below in itertools.pairwise(names)
    ]
    rng.shuffle(clues)
    asked, place = rng.choice(((most, 0), (least, 3), (f"second {most}", 1), (f"second {least}", 2)))
    return f"{' '.join(clues)} The {asked} is", names[place], [name for name in names if name != names[place]]


def _class(rng: random.Random) -> Draft:
    """The right choice is two steps up. The wrong ones are an excluded class, a class above that one, and a class
    below."""
    own, middle, upper, shut, beside, below = rng.sample(NONSENSE, 6)
    name = rng.choice(NAMES)
    rules = [
        f"Every {own} is a {middle}.",
        f"Every {middle} is a {upper}.",
        f"No {middle} is a {shut}.",
        f"Every {shut} is a {beside}.",
        f"Every {below} is a {own}.",
    ]
    rng.shuffle(rules)
    return f"{' '.join(rules)} {name} is a {own}. So {name} must also be a", upper, [shut, beside, below]


def _count(rng: random.Random) -> Draft:
    """How many things of one sort or colour there are. The wrong numbers are close to the right one, above or below."""
    things, colours = rng.sample(THINGS, 2), rng.sample(COLOURS, 2)
    groups = [(number, colour, thing) for thing in things for colour in colours for number in (rng.randint(1, 5),)]
    groups.pop(rng.randrange(4))
    rng.shuffle(groups)
    asked = rng.choice([things[0], colours[0]])
    right = sum(number for number, colour, thing in groups if asked in (colour, thing))
    rank = rng.randrange(NUM_CHOICES)
    below = rng.sample(range(max(0, right - 5), right), min(rank, right))
    above = rng.sample(range(right + 1, right + 6), NUM_CHOICES - 1 - len(below))
    listed = [f"{NUMBERS[number]} {colour} {thing}{'s' * (number != 1)}" for number, colour, thing in groups]
    what = f"{asked}s" if asked in things else f"{asked} things"
    text = f"On the table are {listed[0]}, {listed[1]} and {listed[2]}. The number of {what} on the table is"
    return text, NUMBERS[right], [NUMBERS[number] for number in (*below, *above)]


def _time(rng: random.Random) -> Draft:
    events = rng.sample(EVENTS, 4)
    clues = [
        f"{_capital(first)} came before {then}." if rng.random() < 0.5 else f"{_capital(then)} came after {first}."
        for first, then in itertools.pairwise(events)
    ]
    rng.shuffle(clues)
    asked, place = rng.choice((("first", 0), ("second", 1), ("third", 2), ("last", 3)))
    return f"{' '.join(clues)} What came {asked} was", events[place], [each for each in events if each != events[place]]


def _place(rng: random.Random) -> Draft:
    things = [f"the {thing}" for thing in rng.sample(THINGS, 4)]
    clues = [
        f"{_capital(one)} is left of {next_one}." if rng.random() < 0.5 else f"{_capital(next_one)} is right of {one}."
        for one, next_one in itertools.pairwise(things)
    ]
    rng.shuffle(clues)
    ends = ("at the left end", "second from the left", "second from the right", "at the right end")
    place = rng.randrange(4)
    wrong = [each for each in things if each != things[place]]
    return f"Four things stand in a row. {' '.join(clues)} The one {ends[place]} is", things[place], wrong


def _hold(rng: random.Random) -> Draft:
    """Half of the questions ask for a stated fact, half for the result of a swap."""
    names, things = rng.sample(NAMES, 4), rng.sample(THINGS, 4)
    holds = dict(zip(names, things, strict=True))
    text = " ".join(f"{name} has the {thing}." for name, thing in holds.items())
    asked = rng.choice(things)
    if rng.random() < 0.5:
        one, other = rng.sample(names, 2)
        holds[one], holds[other] = holds[other], holds[one]
        text += f" Then {one} and {other} swap what they have."
    (right,) = (name for name, thing in holds.items() if thing == asked)
    return f"{text} Now the {asked} is held by", right, [name for name in names if name != right]


def _meaning(rng: random.Random) -> Draft:
    right = rng.choice(list(KINDS_OF))
    text = f"The word {rng.choice(KINDS_OF[right])} means a kind of"
    return text, right, [kind for kind in KINDS_OF if kind != right]


def _relation(rng: random.Random) -> Draft:
    table = rng.choice((OPPOSITES, USES, YOUNG))
    text = rng.choice(list(table))
    return text, table[text], [other for other in table.values() if other != table[text]]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


KINDS: dict[str, Callable[[random.Random], Draft]] = {
    "order": _order,
    "time": _time,
    "place": _place,
    "class": _class,
    "count": _count,
    "hold": _hold,
    "meaning": _meaning,
    "relation": _relation,
}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(as_text(make_items()), encoding="utf-8")
