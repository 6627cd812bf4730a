"""Ordinary sentences are no disguise: what the rules for disguised words change in them, counted and listed."""

import ast
import random
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from spag_ray.games.taboo.referee.folding import fold
from spag_ray.games.taboo.referee.judge import find_word
from tests.support.plain_matcher import Text

pytestmark = pytest.mark.parallel

NUM_SENTENCES, NUM_WORDS = 20_000, 200
MOST_CHANGES = NUM_SENTENCES * NUM_WORDS // 200_000
SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
_SENTENCE = re.compile(r"[A-Z][^.!?\n]*(?:\n[ \t]*[a-z(][^.!?\n]*)*[.!?](?=\s|$)")


def texts() -> Iterator[str]:
    """Documents of the installed packages (their metadata is mostly prose), then docstrings."""
    for path in sorted(SITE_PACKAGES.glob("*.dist-info/METADATA")):
        yield path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[2]
    paths = sorted(SITE_PACKAGES.glob("*/*.py"))
    random.Random(0).shuffle(paths)
    for path in paths:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue  # a template, or not UTF-8: another file will do
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def sentences() -> list[str]:
    found: dict[str, None] = {}
    for text in texts():
        for match in _SENTENCE.finditer(text):
            if len(match.group().split()) >= 5:
                found[match.group()] = None
        if len(found) >= 2 * NUM_SENTENCES:
            break
    return random.Random(0).sample(sorted(found), NUM_SENTENCES)


def target_words() -> list[str]:
    """Common words that are target words in games, of all lengths."""
    from wordfreq import top_n_list

    from spag_ray.game.words import STOP_WORDS

    words = [word for word in top_n_list("en", 6000) if word.isalpha() and len(word) >= 3 and word not in STOP_WORDS]
    return sorted(random.Random(0).sample(words, NUM_WORDS))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_ordinary_sentences_are_hardly_ever_taken_for_a_disguised_word() -> None:
    words = target_words()
    changed = []
    num_said = 0
    for sentence in sentences():
        before, folded = Text(sentence), fold(sentence)
        for word in words:
            said = find_word(sentence, folded, word)
            if before.says(word):
                num_said += 1
                assert said is not None, (word, sentence)
            elif said is not None:
                changed.append(f"{word}: {sentence[slice(*said)]!r} in {sentence!r}")
    print(f"{num_said} said before, {len(changed)} more in {NUM_SENTENCES * NUM_WORDS} cases", *changed, sep="\n")
    assert num_said > 1000
    assert len(changed) <= MOST_CHANGES, "\n".join(changed)
