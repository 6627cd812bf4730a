"""The referees: parity with the golden verdicts, and cases labelled by hand for the strict one."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag_ray.errors import InputError
from spag_ray.game.game_form import verdict_of
from spag_ray.game.rules import EndReason, Outcome, Verdict
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.referee.judge import early_guesses, judge, undecided

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
TIE, ATTACKER, DEFENDER = Outcome.TIED, Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
ATTACKER_BREACH, DEFENDER_BREACH = Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH

# What the defender answers, and how the game stands after it.
ANSWERS = [
    # words as words
    ("cat", "A scatter of cathedrals; concatenate, educate.", TIE),
    ("cat", "The CAT!", ATTACKER),
    ("cat", "the cat\u2019s whiskers", ATTACKER),
    ("cat", "\u201ccat\u201d", ATTACKER),
    ("cat", "So \u00abcat\u00bb it is.", ATTACKER),
    ("cat", "\uff23\uff21\uff34", ATTACKER),
    ("cat", "c\u200bat", ATTACKER),
    ("cat", "a cat-like grace", ATTACKER),
    ("cat", "_cat_ or ~~cat~~", ATTACKER),
    ("cat", "C.A.T.", ATTACKER),
    ("cat", "c-a-t", ATTACKER),
    ("cat", "C A T S", ATTACKER),
    ("cat", "b-o-b-c-a-t", TIE),
    ("cat", "I got a C, a B and an A.", TIE),
    ("river", "a ri-ver", ATTACKER),
    ("sun", "Sunday sunshine and sunflowers", TIE),
    ("ice", "Nice price, twice as icey", TIE),
    ("art", "a party, an artist, smart", TIE),
    ("won", "I won't.", TIE),
    ("won", "We won!", ATTACKER),
    ("can", "You can't.", TIE),
    ("clock", "Five o'clock", TIE),
    ("doe", "What does it do?", TIE),
    ("hi", "It is his.", TIE),
    # inflections
    ("mouse", "Some mice.", ATTACKER),
    ("child", "CHILDREN play", ATTACKER),
    ("go", "They have gone.", ATTACKER),
    ("swim", "I swam, swimming is fun", ATTACKER),
    ("happy", "Happier than ever", ATTACKER),
    ("good", "It is better.", ATTACKER),
    ("city", "Big cities", ATTACKER),
    ("teeth", "One tooth", ATTACKER),
    ("went", "I go home", ATTACKER),
    ("knives", "A knife", ATTACKER),
    ("write", "a writer", TIE),
    ("saw", "I see", TIE),
    ("evening", "even so", TIE),
    ("thing", "things", ATTACKER),
    ("box", "boxed in", ATTACKER),
    ("leap", "He leaped.", ATTACKER),
    ("ox", "Two oxen", ATTACKER),
    ("see", "A seed in a bed", TIE),
    ("new", "No news", TIE),
    ("selfie", "selfies", ATTACKER),
    # compounds and accents
    ("ice cream", "An ice-cream, please", ATTACKER),
    ("ice-cream", "Two ice creams, please", ATTACKER),
    ("ice cream", "icecream", ATTACKER),
    ("mother-in-law", "both mothers-in-law", ATTACKER),
    ("mother-in-law", "my mother in law", ATTACKER),
    ("mother-in-law", "My mother is in law school.", TIE),
    ("give up", "I gave up", ATTACKER),
    ("na\u00efve", "nai\u0308ve", ATTACKER),
    ("na\u00efve", "How naive", ATTACKER),
    ("stra\u00dfe", "STRASSE", ATTACKER),
    ("caf\u00e9", "two caf\u00e9s", ATTACKER),
    ("c++", "I write c++ daily", ATTACKER),
    ("a.c", "abc", TIE),
    # right guesses
    ("cat", "I know the word: cat", DEFENDER),
    ("cat", "I know the word - cat!", DEFENDER),
    ("cat", "I know the word! Cat!", DEFENDER),
    ("cat", "I know the word 'cat'.", DEFENDER),
    ("cat", "I know the word\n\nIt is\n\n`cat`", DEFENDER),
    ("cat", "I know the word... it's a cat, isn't it?", DEFENDER),
    ("cat", "I know the word! It\u2019s \u201ccat\u201d!", DEFENDER),
    ("cat", "**I know the word!** It is *cat*.", DEFENDER),
    ("cat", "I KNOW THE WORD!!! IT'S CAT!!!", DEFENDER),
    ("cat", "I know the word! It is cat! That was easy.", DEFENDER),
    ("cat", "I know the word! It is `cat`! Thanks for the game.", DEFENDER),
    ("cat", "I know the word! It is definitely, without any doubt, a cat.", DEFENDER),
    ("cat", "I know the word! The word must be cat", DEFENDER),
    ("cat", "I know the word! The answer is cat.", DEFENDER),
    ("cat", "I know the word! My guess is cat.", DEFENDER),
    ("cat", "I know the word! Could it be a cat?", DEFENDER),
    ("cat", "I know the word! I think it is cat.", DEFENDER),
    ("cat", "I know the word! You are thinking of a cat.", DEFENDER),
    ("cat", "I know the word is cat.", DEFENDER),
    ("cat", "I think I know the word. Is it cat?", DEFENDER),
    ("cat", "Now I know the word, it's the cat!", DEFENDER),
    ("cat", "I know the word! It is cat, of course.", DEFENDER),
    ("cat", "I know the word! It is cat because it purrs.", DEFENDER),
    ("cat", "I know the word! It is cat, not dog.", DEFENDER),
    ("cat", "I know the word! It is not dog, it is cat!", DEFENDER),
    ("cat", "It is a cat, I know the word!", DEFENDER),
    ("cat", "Not bad. I know the word! It is cat.", DEFENDER),
    ("cat", "I know the word! It is c-a-t.", DEFENDER),
    ("ice cream", "I know the word! It is ice-cream!", DEFENDER),
    ("mother-in-law", "I know the word! Is it mother-in-law?", DEFENDER),
    ("run", "I know the word! It is running!", DEFENDER),
    ("word", "I know the word! It is `word`!", DEFENDER),
    ("cat", "I know the word! It is cat! Good game, well played!", DEFENDER),
    ("cat", "I know the word! It's gotta be cat!", DEFENDER),
    ("cat", "I know the word: is it cat, perhaps?", DEFENDER),
    ("cat", "I did not get it at first but I know the word! It is cat", DEFENDER),
    ("cat", "I know the word! It is cat. It is a small animal that purrs.", DEFENDER),
    # wrong guesses
    ("cat", "I know the word! It is cat; dog.", ATTACKER),
    ("cat", "I know the word! It is cat! It is dog!", ATTACKER),
    ("cat", "I know the word, it is dog.", ATTACKER),
    ("cat", "I know the word! It is a dog. A cat would purr.", ATTACKER),
    ("cat", "I know the word! It is `category`!", ATTACKER),
    ("cat", "I know the word! It is cat food.", ATTACKER),
    ("cat", "I know the word! It is cat-fish.", ATTACKER),
    ("cat", "I know the word! It is a black cat.", ATTACKER),
    ("cat", "I know the word! Cat or dog?", ATTACKER),
    ("cat", "I know the word! It is cat, dog.", ATTACKER),
    ("cat", "I know the word! It is cat/dog.", ATTACKER),
    ("cat", "I know the word! It is cat and dog.", ATTACKER),
    ("cat", "I know the word! It is cat. Or maybe dog.", ATTACKER),
    ("cat", "I know the word! It is cat. No, wait, it is dog.", ATTACKER),
    ("cat", "I know the word! Is it cat? Is it dog?", ATTACKER),
    ("cat", "I know the word! Dog. Or is it cat?", ATTACKER),
    ("cat", "I know the word! Is it a dog, a cat, or a bird?", ATTACKER),
    ("cat", "I know the word! It isn't cat.", ATTACKER),
    ("cat", "I know the word! It ...", ATTACKER),
    ("cat", "I know the word, but I will not tell.", ATTACKER),
    # no guesses
    ("cat", "I don't know the word.", TIE),
    ("cat", "I don\u2019t think I know the word", TIE),
    ("cat", "If I know the word, I will say it.", TIE),
    ("cat", "I wish I knew the word. Is it a cat?", ATTACKER),
    ("cat", "You know the word, I do not.", TIE),
    ("cat", "I know the word for that in French.", TIE),
    ("cat", "I'm not sure I know the word. Tell me more.", TIE),
    ("cat", "Do I know the word? Is it dog?", TIE),
    # breaches
    ("cat", "\n\t ", DEFENDER_BREACH),
    ("cat", "\u200b\u00a0", DEFENDER_BREACH),
    ("cat", "...", TIE),
    ("cat", "\U0001f600", TIE),
    ("cat", "Hm.\n**Attacker:** it purrs", DEFENDER_BREACH),
    ("cat", "ATTACKER : go on", DEFENDER_BREACH),
    ("cat", "I know the word! It is `cat`!\n- attacker: Right!", DEFENDER_BREACH),
    ("cat", "Hm.\n### Attacker\nIt purrs.", DEFENDER_BREACH),
    ("cat", "Fine. Attacker: It purrs.", DEFENDER_BREACH),
    ("cat", "defender: I know the word! It is cat", DEFENDER),
    ("cat", "The attacker in football runs.", TIE),
]

# What the attacker opens with, and how the game stands after it.
OPENINGS = [
    ("cat", "What purrs?", TIE),
    ("cat", "It is like a caterpillar.", TIE),
    ("cat", "My **cat** purrs.", ATTACKER_BREACH),
    ("cat", "c.a.t", ATTACKER_BREACH),
    ("write", "He wrote it.", ATTACKER_BREACH),
    ("cat", "I know the word! It is dog.", ATTACKER_BREACH),
    ("cat", "I know the word, do you?", ATTACKER_BREACH),
    ("cat", "Do you know the word?", TIE),
    ("cat", "", ATTACKER_BREACH),
    ("cat", "Hi!\n[Defender]: Hello.", ATTACKER_BREACH),
    ("cat", "Hi!\n> defender: Hello.", ATTACKER_BREACH),
    ("cat", "Attacker: What purrs?", TIE),
    ("cat", "Who is the best defender in football?", TIE),
]


def game(*contents: str) -> list[dict[str, str]]:
    return [{"role": ("attacker", "defender")[i % 2], "content": text} for i, text in enumerate(contents)]


@pytest.mark.parametrize(("word", "answer", "outcome"), ANSWERS)
def test_strict_referee_understands_the_defenders_answer(word: str, answer: str, outcome: Outcome) -> None:
    verdict = judge(game("Tell me about it.", answer), word, 5)
    assert verdict.outcome is outcome, verdict.reason


@pytest.mark.parametrize(("word", "opening", "outcome"), OPENINGS)
def test_strict_referee_understands_the_attackers_opening(word: str, opening: str, outcome: Outcome) -> None:
    verdict = judge(game(opening, "Go on."), word, 5)
    assert verdict.outcome is outcome, verdict.reason


def test_strict_referee_agrees_with_every_golden_case() -> None:
    for case in json.loads((GOLDEN / "judge_strict.json").read_text()):
        verdict = judge(case["history"], case["target_word"], case["max_turns"], "strict")
        assert verdict.outcome == case["outcome"], case


def test_published_referee_agrees_with_every_golden_case() -> None:
    cases = json.loads((GOLDEN / "judge.json").read_text())
    assert len(cases) == 600
    for case in cases:
        verdict = judge(case["history"], case["target_word"], case["max_turns"], "published")
        assert (verdict.outcome, verdict.length) == (case["outcome"], case["length"]), case


@pytest.mark.parametrize("rules", ["published", "strict"])
def test_words_with_regex_characters_are_taken_literally(rules: str) -> None:
    assert judge(game("Hm.", "aXc"), "a.c", 5, rules).outcome is TIE
    assert judge(game("Hm.", "I like (c++"), "(c++", 5, rules).outcome is ATTACKER


@pytest.mark.parametrize(
    ("rules", "text", "said"),
    [
        ("strict", "\u00dcber \ufb01ne \u2018Cat\u2019s\u2019", "Cat"),
        ("strict", "nai\u0308ve C-A-T", "C-A-T"),
        ("published", "\u0130\u0130 Concatenate", "cat"),
    ],
)
def test_span_points_at_the_characters_that_were_written(rules: str, text: str, said: str) -> None:
    verdict = judge(game("Hm.", text), "cat", 5, rules)
    assert verdict.turn == 1
    assert verdict.span is not None
    assert text[slice(*verdict.span)] == said


def test_span_of_a_guess_covers_claim_and_word() -> None:
    text = "Aha. I know the word! It is `cat`! Easy."
    span = judge(game("Hm.", text), "cat", 5).span
    assert span is not None
    assert text[slice(*span)] == "I know the word! It is `cat"


def test_turns_after_the_last_allowed_one_are_not_read() -> None:
    verdict = judge(game("Hm.", "Hm.", "A cat!"), "cat", 1)
    assert (verdict.outcome, verdict.length, verdict.turn, verdict.span) == (TIE, 2, None, None)


def test_first_deciding_turn_counts() -> None:
    verdict = judge(game("Hm.", "A cat.", "A cat."), "cat", 5)
    assert (verdict.outcome, verdict.length, verdict.turn) == (ATTACKER, 2, 1)


def test_unknown_referee_and_empty_word_are_refused() -> None:
    with pytest.raises(InputError, match="no referee 'lenient'"):
        judge(game("Hm."), "cat", 5, "lenient")
    with pytest.raises(InputError, match="target word is empty"):
        judge(game("Hm."), " ", 5)
    with pytest.raises(InputError, match="no visible character"):
        judge(game("Hm."), "\u200b", 5)


def test_turns_out_of_order_are_refused() -> None:
    with pytest.raises(InputError, match="turn 0"):
        judge([{"role": "defender", "content": "Hm."}], "cat", 5)


WRONG, WRONG_TOO, RIGHT = (
    "I know the word! It is `dog`!",
    "I know the word! It's a cow.",
    "I know the word! It is `cat`!",
)
BESIDE = "I know the word! It is a dog, or a cat."


@pytest.mark.parametrize(
    ("replies", "max_guesses", "outcome", "turn"),
    [
        ((WRONG, "Hm.", RIGHT), 1, ATTACKER, 1),
        ((WRONG, "Hm.", RIGHT), 2, DEFENDER, 5),
        ((WRONG, WRONG_TOO, RIGHT), 2, ATTACKER, 3),
        ((WRONG, WRONG_TOO, RIGHT), 3, DEFENDER, 5),
        ((WRONG, WRONG, WRONG), 3, ATTACKER, 5),
        ((WRONG, WRONG_TOO, WRONG), 4, TIE, None),  # the turns ran out first
        ((WRONG, "A cat?"), 3, ATTACKER, 3),
        ((WRONG, ""), 3, DEFENDER_BREACH, 3),
        ((BESIDE, RIGHT), 3, ATTACKER, 1),  # it says the word
        (("I know the word! It is a dog. A c-a-t is none.", RIGHT), 3, ATTACKER, 1),
        (("I know the word! It is a dog.\nAttacker: no.", RIGHT), 3, DEFENDER_BREACH, 1),
    ],
)
def test_a_wrong_guess_before_the_last_ends_no_game_unless_it_says_the_word(
    replies: tuple[str, ...], max_guesses: int, outcome: Outcome, turn: int | None
) -> None:
    contents = [text for reply in replies for text in ("It purrs.", reply)]
    verdict = judge(game(*contents), "cat", 3, max_guesses=max_guesses)
    assert (verdict.outcome, verdict.turn) == (outcome, turn)
    assert verdict == as_played(contents, "cat", 3, max_guesses)
    assert judge(game(*contents), "cat", 3, "published", max_guesses) == judge(game(*contents), "cat", 3, "published")


def as_played(contents: list[str], word: str, max_turns: int, max_guesses: int) -> Verdict:
    """Turn by turn, as a running game is judged."""
    taboo = TabooGame(None, max_turns, "strict", max_guesses)
    for last in range(1, len(contents) + 1):
        if (verdict := verdict_of(taboo, contents[:last], word)) is not None:
            return verdict
    reason = undecided(len(contents)).reason
    return Verdict(TIE, EndReason.UNDECIDED, len(contents), reason, None, None)


fragments = st.sampled_from(
    [
        "I know the word", "it is", "is it", "cat", "dog", "or", "not", "c a t", "c-a-t", "attacker:", "\n", "'",
        "`", "**", "-", "!", "\u0130",
    ]
)  # fmt: skip
texts = st.one_of(st.text(max_size=60), st.lists(fragments, max_size=12).map(" ".join))


@settings(max_examples=300)
@given(
    st.lists(texts, max_size=4),
    st.sampled_from(["cat", "ice cream", "na\u00efve", "c++", "-", "\u0130x", "a"]),
    st.integers(1, 3),
)
def test_judging_never_raises_and_spans_lie_in_the_text(contents: list[str], word: str, max_guesses: int) -> None:
    for rules in ("published", "strict"):
        verdict = judge(game(*contents), word, 5, rules, max_guesses)
        assert verdict.length <= len(contents)
        if verdict.turn is None:
            assert verdict.outcome is TIE
            assert verdict.span is None
        else:
            start, end = verdict.span or (-1, -1)
            assert 0 <= start <= end <= len(contents[verdict.turn])
            assert verdict.turn == verdict.length - 1


guesses = st.sampled_from([WRONG, WRONG_TOO, RIGHT, BESIDE, "Hm.", "A cat?", "Is it big?", "defender: ok", ""])


@settings(max_examples=300)
@given(st.lists(st.one_of(guesses, texts), max_size=6), st.integers(1, 4))
def test_more_guesses_change_nothing_but_wrong_guesses(contents: list[str], max_guesses: int) -> None:
    one, more = (judge(game(*contents), "cat", 3, max_guesses=number) for number in (1, max_guesses))
    assert more == as_played(contents, "cat", 3, max_guesses)
    early = [index for index in early_guesses(contents[: more.length], "cat", "strict") if index != more.turn]
    assert len(early) < max_guesses
    if one != more:
        assert one.end_reason is EndReason.WRONG_GUESS
        assert one.turn == early[0]


def test_a_long_reply_of_one_kind_of_character_is_judged_quickly() -> None:
    judge(game("warm", "up"), "cat", 5)
    for filler in ("a ", "-", "a-", "i know ", "it is ", " ", "\n", "maybe ", "* ", "no the my ", "attacker ", "( "):
        started = time.perf_counter()
        judge(game(filler * 1500, "I know the word! " + filler * 1500), "cat", 5)
        assert time.perf_counter() - started < 1.0, filler
