"""A claim names exactly one word, whatever it is wrapped in, and talk around it names nothing."""

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spag_ray.game.rules import Outcome
from spag_ray.game.words import top_words
from spag_ray.games.taboo.referee.judge import judge, judge_turn
from spag_ray.games.taboo.referee.word_forms import word_forms
from tests.support.linear_time import takes_linear_time

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAMES_SEVERAL = [
    "I know the word! Answer: river but it isn't. lake but it isn't. tiger but it isn't. stream but it isn't.",
    "I know the word! Answer: river but it isn't. lake but it isn't.",
    "I know the word! river: lake",
    "I know the word! It is river! Lake! Stream! Boat!",
    "I know the word! river\n1. stream\n2. lake",
    "I know the word! river\n\nstream\n\nlake",
    "I know the word! 1. river 2. lake",
    "I know the word! a) river b) lake",
    "I know the word! Answer 1: river. Answer 2: lake",
    "I know the word! River (or lake)",
    "I know the word! It is river [lake]",
    "I know the word! It is river {lake}",
    "I know the word! River => lake",
    "I know the word! River - lake",
    "I know the word! River \U0001f642 lake",
    "I know the word! River\tlake",
    "I know the word! River aka lake",
    "I know the word! It is river. I know the word! It is lake.",
    "I know the word: river, I know the word: lake",
    "I know the word! It could be river. It could also be lake.",
    "I know the word! River? Lake?",
    "I know the word! It is river because it flows, or lake.",
    "I know the word! It is river. Thanks! Lake.",
    "I know the word! It is a river, or maybe a lake.",
    "I know the word! It is river. Alternatively a lake.",
    "It is river! It is lake! I know the word!",
    "I know the word! It is river but it isn't.",
    "I know the word! It is not river.",
]
PLAIN = [
    "I know the word! It is `{}`!",
    "I know the word, it is a {}.",
    "I know the word! It's {} because water flows",
    "I know the word!\n\n**{}**",
    "I know the word: {}",
    "I know the word! My final answer: {}. Good game, my friend!",
    "I know the word! It is {}. Thanks for the hints!",
    "I know the word! It is {}, isn't it?",
    "I know the word! It must be a {}! Am I right?",
]
TALKATIVE = [
    "I know the word! It's a river, since boats, fish and water were hints.",
    "I know the word! The clues were water, boats, and fish. It is river!",
    "I know the word! It is river! The clues were water, boats, and fish.",
    "I know the word! Your hints gave it away: river",
    "I know the word! It's river :) Did I win?",
    "I know the word! It is river \U0001f60a",
    "I know the word! It is river. Water flows there.",
    "I know the word! It is river, not lake.",
    "I know the word! It is not a lake, it is a river.",
    "I know the word! Lake but it isn't. River!",
    "I know the word! It is river rather than lake.",
    "I know the word! It is river, which flows to the sea.",
    "I know the word! It is river, and I am sure.",
    "I know the word! It is a river! Rivers!",
    "I know the word! The secret word you are describing is river.",
    "I know the word! Based on your clues, it is river.",
    "I know the word! It is r i v e r.",
    "I know the word! It is a r-i-v-e-r!",
    "I know the word! It is r, i, v, e and r.",
    "I know the word! It is ri**ver**!",
    "It is a river! I know the word!",
]


# Words with marks or spaces in them, of other scripts, and words that structure a sentence.
ODD = """
    p.m.|r&b|R&B|AT&T|U.S.|e.g.|c#|C++|.net|node.js|hello_world|24/7|4x4|and/or|yes/no|Yahoo!|who?|3.14|#hashtag|@mention
    |plus|versus|aka|alias|either|or|and|not|also|rock'n'roll|'tis|not-for-profit|plus-size|jack-o'-lantern|L\u00b7L
    |ping\u2014pong|\u82f9\u679c|\u0915\u093f\u0924\u093e\u092c|\u0bae\u0bc6\u0bb4\u0bcd|\u0e2b\u0e19\u0e31\u0e07\u0e2a\u0e37\u0e2d|\uc0ac\uacfc|\u043a\u043d\u0438\u0433\u0430
    |rock and roll|salt & pepper|to be or not to be|the end|The Who|a cat|St. John|as well as|instead of
    |Washington, D.C.|Hello, World!|C (language)|[bracket]
"""
ODD_WORDS = [word.strip() for word in ODD.split("|")]
# With talk beside them they are not understood.
ALONE = "never is it's isn't given thanks because I'm 100% \u00bd \u2665 \U0001f600 *".split()  # noqa: SIM905
ODD_CLAIMS = ["I know the word! It is `{}`!", "I know the word! It is `{}`", 'I know the word: "{}".']
TALKATIVE_CLAIMS = [
    "I know the word! It is {}! Good game, my friend!",
    "I know the word! It is **{}** because of your hints.",
    "I know the word! My guess is `{}`! Easy!",
]


def answered(text: str, word: str) -> Outcome:
    history = [{"role": "attacker", "content": "Hm."}, {"role": "defender", "content": text}]
    return judge(history, word, 5).outcome


@pytest.mark.parametrize("text", NAMES_SEVERAL)
def test_a_claim_that_names_several_words_or_none_is_wrong_for_each(text: str) -> None:
    for word in ("river", "lake", "stream", "boat", "tiger"):
        assert answered(text, word) is Outcome.ATTACKER_WINS, word


@pytest.mark.parametrize("text", TALKATIVE)
def test_talk_around_one_named_word_does_no_harm(text: str) -> None:
    assert answered(text, "river") is Outcome.DEFENDER_WINS


def target_words() -> list[str]:
    """Words of decks and the most common nouns, among them those that talk is made of."""
    golden = [case["target_word"] for case in json.loads((GOLDEN / "judge_strict.json").read_text())]
    talk = "game word clue hint answer guess friend clear easy fun well course doubt right sure number turn match game"
    return sorted({*golden, *talk.split(), "river", "table", "o'clock", "twenty-one", "caf\u00e9", "c++", "running"})


def outcome_of(text: str) -> Outcome | None:
    """Of a defender's turn about a cat."""
    verdict = judge_turn(text, 1, "cat")
    return None if verdict is None else verdict.outcome


@pytest.mark.parametrize(
    "text",
    [
        "I know the word for sure! It is cat.",
        "I know the word for certain: cat",
        "I know the word, of course! It is cat",
        "No doubt I know the word! It is cat",
        "Without a shadow of a doubt I know the word! It is cat",
        "Believe it or not I know the word! It is cat",
        "Never mind I know the word: cat",
        "Not so fast - I know the word! It is cat",
        "That does it \u2013 I know the word! It is cat",
        "I know the word! It purrs, so it is a cat.",
        "I know the word! It purrs, therefore the word is cat.",
        "I know the word! Given the hints, I think it's a cat.",
        "I know the word! I don't think it is dog. It is cat.",
        "I know the word! No doubt it is a cat.",
        "I know the word! It is `cat`. Reason: it purrs.",
        "I know the word! It is `cat`. Why? It purrs and likes milk.",
        '"I know the word!" It is cat.',
        'Okay, "I know the word! It is cat."',
    ],
)
def test_a_claim_that_is_affirmed_or_explained_is_right(text: str) -> None:
    assert outcome_of(text) is Outcome.DEFENDER_WINS


@pytest.mark.parametrize("text", ["I don't think it is cat.", "I doubt it is cat.", "I can't say it is cat."])
def test_a_word_that_is_doubted_is_not_named(text: str) -> None:
    assert outcome_of(f"I know the word! {text}") is Outcome.ATTACKER_WINS


@pytest.mark.parametrize(
    "text",
    [
        'Tell me "I know the word!" when you have it.',
        'Shout "I know the word!" when you are ready.',
        'The line "I know the word" wins it for you.',
    ],
)
def test_a_claim_in_quotes_is_none(text: str) -> None:
    assert judge_turn(text, 0, "cat") is None


@pytest.mark.parametrize(
    ("text", "word", "is_said"),
    [("The old man died.", "dice", False), ("A die.", "dice", True), ("It gets better.", "goods", False),
     ("A good one.", "goods", True), ("People do.", "person", True), ("A person.", "people", True)],
)  # fmt: skip
def test_a_plural_has_the_forms_of_its_noun_alone(text: str, word: str, is_said: bool) -> None:
    assert (judge_turn(text, 0, word) is not None) == is_said


@pytest.mark.parametrize("template", PLAIN)
def test_a_plain_guess_wins_for_every_word(template: str) -> None:
    lost = [word for word in target_words() if answered(template.format(word), word) is not Outcome.DEFENDER_WINS]
    assert not lost


@pytest.mark.parametrize("template", [*ODD_CLAIMS, *TALKATIVE_CLAIMS])
def test_a_word_with_marks_or_of_structure_can_be_guessed(template: str) -> None:
    words = [*ODD_WORDS, *ALONE] if template in ODD_CLAIMS else ODD_WORDS
    lost = [word for word in words if answered(template.format(word), word) is not Outcome.DEFENDER_WINS]
    assert not lost


def test_each_of_the_50_000_shipped_words_can_be_guessed() -> None:
    claimed = ((word, judge_turn(ODD_CLAIMS[0].format(word), 1, word)) for word in top_words(50_000))
    assert not [word for word, verdict in claimed if not verdict or verdict.outcome is not Outcome.DEFENDER_WINS]


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("p.m.", "It is p.m. or a.m."),
        ("p.m.", "It is `p.m.`, or maybe `a.m.`!"),
        ("p.m.", "It is not p.m.!"),
        ("p.m.", "It is p.m., but it isn't."),
        ("p", "It is `p.m.`!"),
        ("r&b", "It is r&b. It is jazz!"),
        ("r", "It is r&b!"),
        ("c", "It is `c#`!"),
        ("c#", "It is `c`!"),
        ("plus", "It is `plus` or `minus`!"),
        ("plus", "It is a plus, versus a minus."),
        ("plus", "It is a lake, plus a river."),
        ("rock and roll", "It is rock and jazz."),
        ("rock", "It is rock and roll."),
        ("not", "It is not, or a lake."),
        ("\u0915\u093f\u0924\u093e\u092c", "It is `\u0915\u0924\u093e\u092c`!"),
        ("\u304b\u304e", "It is `\u304b\u304d`!"),
    ],
)
def test_an_odd_word_is_not_guessed_by_another_or_by_several(word: str, text: str) -> None:
    assert answered(f"I know the word! {text}", word) is Outcome.ATTACKER_WINS


WORDS = """
    river lake cat dog ice run mouse game word clue easy right well a i it in island land carpet car pet able table fall
    fail about bout resume c++ c o'clock clock we'll caf\u00e9 twenty-one not or no first
    plus versus aka p.m. r&b c# and/or yes/no who? because \u2665 the is
"""
PIECES = """
    {0}|{1}|I know the word|I know the word!|it is|It isn't|is it|not|or|and|but it isn't|because|my guess is
    |maybe|Answer|no|wait|thanks|the|a|an|rather than|water flows|good game|1.|2)|-|{0}-{1}|{1}{0}
    |c a t|x|either|Actually|`{0}`|**{1}**|({0})|[{1}]|r, i, v, e and r
    |so|then|isn't it|is|you mean|:|;|,|.|!|?|/|&|'|+|=>
"""
words = st.sampled_from(WORDS.split())
pieces = st.sampled_from(["{0}", "{1}"] * 8 + [*(p.strip() for p in PIECES.split("|")), "\n", "\u2014", "\U0001f642"])
templates = st.lists(pieces, max_size=10).map(" ".join).map("I know the word! {}".format)


@settings(max_examples=400)
@given(templates, words, words)
@example("I know the word! {0}: {1}", "river", "piano")
@example("I know the word! Answer: {0} but it isn't. {1} but it isn't.", "river", "piano")
def test_of_two_words_that_share_no_form_at_most_one_wins(template: str, first: str, second: str) -> None:
    if word_forms(first).joined & word_forms(second).joined or first in second or second in first:
        return
    text = template.replace("{0}", first).replace("{1}", second)
    won = [word for word in (first, second) if answered(text, word) is Outcome.DEFENDER_WINS]
    assert len(won) <= 1, text


@settings(max_examples=300)
@given(templates, st.sampled_from(["river", "lake", "cat", "dog", "mouse", "table"]))
def test_a_reply_wins_for_one_of_the_words_in_it_at_most(template: str, first: str) -> None:
    text = template.replace("{0}", first).replace("{1}", "boat")
    said = ["river", "cat", "water", "boat", *({first} - {"river", "cat", "boat"})]
    assert sum(answered(text, word) is Outcome.DEFENDER_WINS for word in said) <= 1, text


def test_100_kb_of_guesses_are_judged_in_linear_time() -> None:
    answered("I know the word! cat", "cat")
    fillers = (
        "cat ", "cat, ", "it is ", "it is cat. ", "I know the word! ", "not ", "a ", "a, ", " ", "\n", " - ", "or ",
        "the ", "c a t ", "but it isn't. ", "game, ", "it is a small big cat. ", "word's ", "(", "i ", "must ",
        "the word you ",
    )  # fmt: skip
    for filler in fillers:
        assert takes_linear_time(partial(answered, word="cat"), filler, short_s=0.3, before="I know the word! ") < 5.0
