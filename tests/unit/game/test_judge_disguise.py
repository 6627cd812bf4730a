"""The strict referee sees a word that is said in disguise, and takes nothing else for one."""

import random
import string
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag_ray.game.rules import Outcome
from spag_ray.game.words import STOP_WORDS, top_words
from spag_ray.games.taboo.referee.folding import fold, letters_of
from spag_ray.games.taboo.referee.judge import find_word, judge
from spag_ray.games.taboo.referee.word_forms import KEPT, word_forms
from tests.support.linear_time import takes_linear_time
from tests.support.plain_matcher import says

# How "river" or a form of it can be written, and which characters the verdict points at where not at all of them.
DISGUISES = [
    ("ri**ver**", "ri**ver"),
    ("ri_ver", None),
    ("ri.ver", None),
    ("ri ver", None),
    ("ri\nver", None),
    ("ri/ver", None),
    ("[ri]ver", "ri]ver"),
    ("ri\U0001f600ver", None),
    ("RIV-ers", None),
    ("r\u0456v\u0435r", None),  # Cyrillic
    ("\u0433\u0456\u03bd\u03b5\u0433", None),  # Cyrillic and Greek
    ("r\u00edv\u00e9r", None),
    ("r\u0336i\u0336v\u0336e\u0336r\u0336", None),
    ("ri\u034fver", None),
    ("ri\ufe0fver", None),
    ("ri\u3164ver", None),
    ("ri\u00advers", None),
    ("ri\0ver", None),
    ("ri\u2800ver", None),
    ("r1ver", None),
    ("r!v3r", None),
    ("rlver", None),
    ("ri1ver", None),
    ("river2", "river"),
    ("1river", "river"),
    ("river\u2122", "river"),
    ("r i v e r", None),
    ("r, i, v, e and r", None),
    ("R. I. V. E. R.", "R. I. V. E. R"),
    ("r i v, e, r", None),
    ("(r)(i)(v)(e)(r)", "r)(i)(v)(e)(r"),
    ("r\u2019i\u2019v\u2019e\u2019r", None),
    ("\u24e1\u24d8\u24e5\u24d4\u24e1", None),
    ("\U0001d42b\U0001d422\U0001d42f\U0001d41e\U0001d42b", None),
    ("\U0001f1f7\U0001f1ee\U0001f1fb\U0001f1ea\U0001f1f7", None),
    ("\u0280\u026a\u1d20\u1d07\u0280", None),
    ("\U000e0072\U000e0069\U000e0076\U000e0065\U000e0072", None),
]
HARMLESS = [
    ("island", "Most of this is land."),
    ("ing", "It is written in g minor."),
    ("together", "I went to get her."),
    ("mall", "The mail came."),
    ("fail", "A fall, then another."),
    ("ball", "We flew to Bali."),
    ("modern", "A modem."),
    ("carpet", "A car, pet and all."),
    ("well", "We'll see, and we\u2019ll win."),
    ("ill", "I'll go."),
    ("sin", "A 5in pipe."),
    ("sea", "From 5e4 to 1e5."),
    ("bam", "At 8am."),
    ("tell", "Equivalent to 1D inputs."),
    ("cab", "I got a C, a B and an A."),
    ("cat", "b-o-b-c-a-t"),
    ("us", "The U.S. Army"),
    ("clock", "Five o'clock"),
    ("won", "I won\u2019t."),
    ("iver", "r iver"),
    # two whole words
    ("bead", "Let it be, ad nauseam"),
    ("bead", "Let it be ad hoc."),
    ("offset", "With the light off set the table."),
    ("bead", "Let it be...ad nauseam."),
    ("table", "The tab, le grand."),
    ("carpet", "I sold my car.Pet it."),
    ("marked", "Mark, Ed and Tim."),
]
# Scripts without spaces between words, and scripts whose vowels are marks.
SAID_IN_OTHER_SCRIPTS = [
    ("\u82f9\u679c", "\u6211\u559c\u6b22\u82f9\u679c\u548c\u9999\u8549", (3, 5)),
    ("\u82f9\u679c", "\u6211\u559c\u6b22\u82f9*\u679c", (3, 6)),
    ("\u3044\u3048", "\u8d64\u3044\u3044\u3048\u3067\u3059", (2, 4)),
    ("T\u30b7\u30e3\u30c4", "\u767d\u3044T\u30b7\u30e3\u30c4\u3060", (2, 6)),
    ("\u0e41\u0e21\u0e27", "\u0e09\u0e31\u0e19\u0e40\u0e2b\u0e47\u0e19\u0e41\u0e21\u0e27\u0e14\u0e33", (7, 10)),
    ("\uc0ac\uacfc", "\uc0ac\uacfc\ub97c \uba39\uc5c8\ub2e4", (0, 2)),
    ("\uc0ac\uacfc", "\u1109\u1161\u1100\u116a\ub97c", (0, 4)),
    ("cat", "\u6211\u559c\u6b22cat\u548c\u72d7", (3, 6)),
    ("cat", "cat\uc744 \ubcf4\uc558\ub2e4", (0, 3)),
    ("\u0915\u093f\u0924\u093e\u092c", "\u092e\u0947\u0930\u0940 \u0915\u093f\u0924\u093e\u092c \u0939\u0948", (5, 10)),
    ("\u0915\u093f\u0924\u093e\u092c", "\u0926\u094b \u0915\u093f\u0924\u093e\u092c\u0947\u0902", (3, 8)),
    ("\u0915\u093f\u0924\u093e\u092c", "\u0915\u093f-\u0924\u093e\u092c", (0, 6)),
    ("\u0643\u062a\u0627\u0628", "\u0643\u0650\u062a\u064e\u0627\u0628", (0, 6)),
]
HARMLESS_IN_OTHER_SCRIPTS = [
    ("\u0915\u093f\u0924\u093e\u092c", "\u0915\u0924\u093e\u092c"),
    ("\u0915\u093f\u0924\u093e\u092c", "\u0915\u0941\u0924\u093e\u092c"),
    ("\u0924\u093e\u092c", "\u0915\u093f\u0924\u093e\u092c"),
    ("\u0935\u093f\u0926\u094d\u092f\u093e", "\u0935\u093f\u0926\u092f\u093e"),
    ("\u0e21\u0e49\u0e32", "\u0e21\u0e32\u0e41\u0e25\u0e49\u0e27"),
    ("\u0bae\u0bb4\u0bc8", "\u0bae\u0bb4"),
    ("\u304b\u304e", "\u304b\u304d\u3092\u98df\u3079\u308b"),
    ("\u82f9\u679c", "\u82f9\u3002\u679c"),
    ("\uc0ac\uacfc", "\uc758\uc0ac \uacfc\uc77c"),
    ("\u0441\u043e\u0440\u043e\u043a\u0430", "\u0441\u043e\u0440\u043e, \u043a\u0430"),
]


@pytest.mark.parametrize(("written", "pointed_at"), DISGUISES)
def test_a_word_in_disguise_is_said_by_either_player(written: str, pointed_at: str | None) -> None:
    text = f"We swam in the {written} near us."
    for index, outcome in enumerate([Outcome.ATTACKER_BREACH, Outcome.ATTACKER_WINS]):
        history = [
            {"role": role, "content": text if number == index else "Hm."}
            for number, role in enumerate(("attacker", "defender"))
        ]
        verdict = judge(history, "river", 5)
        assert verdict.outcome is outcome, verdict.reason
        assert verdict.span is not None
        assert text[slice(*verdict.span)] == (pointed_at or written)


@pytest.mark.parametrize(("word", "text"), HARMLESS)
def test_words_that_only_resemble_the_target_are_not_it(word: str, text: str) -> None:
    if word != "iver":
        assert find_word(text, fold(text), word) is None
    else:  # found as the word that it is, not as a fragment of "river"
        assert find_word(text, fold(text), "river") is None


@pytest.mark.parametrize(("word", "text", "span"), SAID_IN_OTHER_SCRIPTS)
def test_a_word_is_found_in_scripts_without_spaces_or_with_signs(word: str, text: str, span: tuple[int, int]) -> None:
    assert find_word(text, fold(text), word) == span


@pytest.mark.parametrize(("word", "text"), HARMLESS_IN_OTHER_SCRIPTS)
def test_letters_that_are_marks_tell_words_apart(word: str, text: str) -> None:
    assert find_word(text, fold(text), word) is None


@pytest.mark.parametrize("said", ["c.at", "ca.t", "c*.at"])
def test_a_stop_hides_no_word(said: str) -> None:
    text = f"It is a {said}"
    assert find_word(text, fold(text), "cat") == (8, len(text))


def test_no_two_words_of_the_50_000_are_fragments_of_a_third() -> None:
    words = top_words(50_000)
    known = set(words) | STOP_WORDS
    pairs = [(word, word[:cut], word[cut:]) for word in words for cut in range(2, len(word) - 1)]
    pairs = [(word, first, last) for word, first, last in pairs if first in known and last in known]
    assert len(pairs) > 10_000
    accused = [
        f"{first} {last}"
        for word, first, last in random.Random(0).sample(pairs, 1500)
        if not word_forms(word).joined & {first, last}
        and find_word(text := f"Say {first}, {last} or {first} {last}.", fold(text), word)
    ]
    assert not accused


def test_the_forms_of_a_long_list_of_words_do_not_fill_the_memory() -> None:
    words = top_words(300)
    for word in words[:100]:  # the dictionary is loaded
        word_forms(word)
    tracemalloc.start()
    try:
        for word in words[100:]:
            word_forms(word)
        num_bytes = tracemalloc.get_traced_memory()[0] / 200
    finally:
        tracemalloc.stop()
    assert num_bytes * KEPT < 64 * 2**20


def test_a_reply_of_invisible_letters_is_empty() -> None:
    for text in ("\u3164", "\u115f \u034f", "\0\x1f"):
        verdict = judge([{"role": "attacker", "content": text}], "river", 5)
        assert verdict.outcome is Outcome.ATTACKER_BREACH, ascii(text)
        assert "empty" in verdict.reason, ascii(text)


def test_the_table_leads_some_hundred_look_alikes_to_each_letter() -> None:
    for letter in string.ascii_lowercase:
        bold = chr(0x1D41A + ord(letter) - ord("a"))
        assert letters_of(bold) == letters_of(letter.upper()) == letter
    assert "".join(map(letters_of, "\u0430\u0435\u043e\u0440\u0441\u0443\u0445")) == "aeopcyx"
    assert letters_of("\u00df") == "ss"
    assert letters_of("\u732b") == "\u732b"


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([*"catc at-. ,_*1'4\u0430\u0301 \n", "cat", "and", "dogs"]), max_size=14).map("".join),
    st.sampled_from(["cat", "dog", "act"]),
)
def test_what_was_found_without_disguises_is_still_found(text: str, word: str) -> None:
    if says(text, word):
        assert find_word(text, fold(text), word) is not None


@settings(max_examples=300)
@given(st.text(max_size=30), st.sampled_from(["river", "na\u00efve", "ice cream", "stra\u00dfe", "\u043a\u043e\u0442"]))
def test_a_found_word_lies_in_the_text(text: str, word: str) -> None:
    for content in (text, text + word[:1] + "\u200b" + word[1:] + text):
        said = find_word(content, fold(content), word)
        if said is not None:
            start, end = said
            assert 0 <= start < end <= len(content)


def judged(text: str) -> Outcome:
    return judge([{"role": "attacker", "content": text}], "cats", 5).outcome


def test_100_kb_of_one_kind_of_trick_take_linear_time() -> None:
    word_forms("cat")
    for filler in (
        "c a t s ",
        "ca-",
        "c,a ",
        "c4",
        "4",
        "ca ",
        "a",
        "c and a ",
        "\u0441\u0430 ",
        "c.a.",
        "e\u0301",
        "@",
        "ca\0",
    ):
        assert takes_linear_time(judged, filler, short_s=0.2) < 3.0
