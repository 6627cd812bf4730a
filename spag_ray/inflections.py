"""Inflections of a word, by lemminflect's dictionary of English (irregular ones too: went, written, knives)."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=16384)
def forms_of(word: str) -> frozenset[str]:
    """The word, its inflections, and the other inflections of its dictionary forms ("written" -> "wrote").

    `word` is case-folded. Unknown words have themselves and a plural.
    """
    from lemminflect import getAllInflections, getAllLemmas

    forms = {word}
    known = _values(getAllInflections(word))
    for lemma in {word} | _values(getAllLemmas(word)):
        inflected = _values(getAllInflections(lemma))
        if word in inflected or lemma == word:
            forms |= {lemma} | inflected
    if not known and len(forms) == 1 and word.isalpha():
        forms |= {word + "s", word + "es"} if word.endswith(("s", "x", "z", "ch", "sh")) else {word + "s"}
    return frozenset(form.casefold() for form in forms)


@lru_cache(maxsize=65536)
def is_form_of(word: str, target: str) -> bool:
    """`word` is `target`, inflected or not; both case-folded. "fishes" is a form of "fish" by its lemma."""
    if word == target or word in forms_of(target):
        return True
    if word[:1] != target[:1] or not word.isascii():
        return False
    from lemminflect import getAllLemmas

    return target in _values(getAllLemmas(word))


def _values(by_part_of_speech: dict[str, tuple[str, ...]]) -> set[str]:
    return {value for values in by_part_of_speech.values() for value in values}
