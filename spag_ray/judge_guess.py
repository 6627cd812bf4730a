"""Understanding a guess: is the word claimed, and which word is named?

    >>> from spag_ray.judge_words import fold
    >>> folded = fold("I know the word, it must be a cat!")
    >>> claim = find_claim(folded)
    >>> names_word(folded, claim, "cat").is_right
    True

A claim is "I know the word", however punctuated, unless it is negated, hypothetical or quoted as something to
say. What follows is read as [lead: "it is", "is it", "the word must be", ...] [fillers: "a", quotes] word
[end]. The word must be the target and the only one: "cat or dog", "cat, dog", "not cat, it is dog" and
"cat food" are wrong. Talk that goes on after the word and offers no other does no harm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spag_ray.judge_words import WordFinder
from spag_ray.ruling import FoldedText


@dataclass(frozen=True)
class Guess:
    """A guess that was made: folded characters [start, end), from the claim to the end of the named word."""

    is_right: bool
    start: int
    end: int


def _words(text: str) -> str:
    return "(?:" + "|".join(text.split()) + ")"


_ADVERBS = _words(
    "definitely certainly surely probably obviously clearly simply just indeed actually really only perhaps "
    "maybe likely possibly absolutely undoubtedly evidently apparently truly finally now then also still"
)
_CLAIM = re.compile(
    r"(?<![^\W_])i\s+(?:(?:think|believe|guess|bet)\s+(?:that\s+)?i\s+)?"
    r"(?:(?:do|now|already|finally|actually|definitely|certainly|really|think)\s+){0,2}know\s+(?:what\s+)?"
    r"the\s+(?:(?:target|secret|hidden|right|correct)\s+)?word(?![^\W_])"
    r"(?!\s+(?:for|of|from|means|meaning)(?![^\W_]))"
)
_CLAUSE_END = re.compile(r"[.!?;:,\n\u2014]|(?<![^\W_])(?:but|and|yet|although|because)(?![^\W_])")
_NOT_MEANT = re.compile(
    r"(?<![^\W_])(?:not|never|cannot|hardly|nor|without|if|whether|unless|until|till|when|whenever|once|before|"
    r"wish|hope|doubt|doubtful|unsure|pretend|imagine|suppose|as\s+though|how|you\s+think|"
    r"do|does|did|should|would|could)(?![^\W_])|n't(?![^\W_])"
)
_QUOTED = re.compile(
    r"(?<![^\W_])(?:say|saying|says|said|phrase|write|type|answer\s+with|reply\s+with)(?![^\W_])"
    r"[^\w\n]*[\"'`]\s*$"
)
_SUBJECT = (
    r"(?:(?:the|your|my|this|that|target|secret|hidden|right|correct|final|best)\s+){1,4}(?:word|answer|guess)"
    r"(?:\s+(?:you\s+(?:want|mean|have)|we\s+(?:want|need)|here))?"
)
_MODAL = (
    r"(?:must|should|would|could|might|may|can|will|"
    r"has\s+to|have\s+to|got\s+to|has\s+got\s+to|ought\s+to|needs\s+to)"
)
_BEING = rf"(?:is|was|{_MODAL}\s+(?:{_ADVERBS}\s+)?be)"
_LEAD = re.compile(
    r"(?<![^\W_])(?:"
    rf"(?:it|this|that|{_SUBJECT})\s+(?:{_ADVERBS}\s+){{0,3}}(?:{_BEING}|isn't|wasn't)"
    r"|(?:it|that|this|word|answer)'(?:s(?:\s+(?:gotta|got\s+to|going\s+to|has\s+to)\s+be)?|ll\s+be|d\s+be)|its"
    r"|(?:is|was|isn't|wasn't)\s+(?:it|this|that|the\s+(?:\w+\s+)?(?:word|answer))"
    rf"|(?:could|would|might|must|can|may|will|couldn't|wouldn't)\s+(?:it|this|that|the\s+word)"
    rf"\s+(?:{_ADVERBS}\s+){{0,3}}be"
    r"|you(?:'re|\s+are|\s+were)\s+(?:thinking\s+of|talking\s+about|referring\s+to|describing|hinting\s+at)"
    r"|(?:do|did)\s+you\s+mean|you\s+(?:mean|meant)"
    r"|i(?:'d|'ll|\s+would|\s+will)?\s+(?:say|guess|think|believe|mean)(?!\s+(?:it|that|this|the\s+word|so)(?![^\W_]))"
    rf"|(?:{_ADVERBS}\s+){{0,3}}(?:must\s+be|gotta\s+be|to\s+be|is)"
    r")(?![^\W_])(?!'[^\W_])"
)
_NEGATIVE_LEAD = re.compile(r"(?:it|this|that|word|answer|guess)\s+(?:\w+\s+)*(?:isn't|wasn't)$")
_FILLER = re.compile(
    rf"(?:{_ADVERBS}|without\s+(?:a|any)\s+(?:shadow\s+of\s+a\s+)?doubt|of\s+course|no\s+doubt|for\s+sure|"
    r"a|an|the|some|to|my|your|our|called|named|spelled|word|term|answer|guess|and|so|well|ah|aha|oh|yes|ok|okay|"
    r"hmm|hm|um|uh|it|in\s+fact|by\s+now|i\s+guess|i\s+think|i\s+believe)"
    r"(?![^\W_])(?!'[^\W_])"
)
_CHOICE = re.compile(r"(?<![^\W_])(?:or|either)(?![^\W_])")
_NEGATION = re.compile(r"\s*(?:not|never|neither)(?![^\W_])")
_TALK_GOES_ON = re.compile(
    r"(?:because|since|as|that|which|who|whose|where|when|for\s+sure|for\s+certain|from|isn't|right|"
    r"of\s+course|so|but|then|i|i'm|i'd|you|you've|correct|am|obviously|definitely|certainly|surely|thanks|thank|"
    r"given|based|judging|considering|if|not|without|no\s+doubt|is\s+it|is\s+the|it|it's|after|"
    r"and\s+(?:i|i'm|it|it's|that|that's|this|you|we|thanks|thank|not|nothing|the\s+game))(?![^\W_])"
)
_ALTERNATIVE = re.compile(r"(?:or|and|plus|nor|versus|vs)(?![^\W_])|[/&|+]")
_TALK = re.compile(r"(?:and\s+)?(?:i|i'm|it|it's|that|that's|this|you|we|thanks|thank|not|the\s+game)(?![^\W_])")
_CORRECTION = re.compile(
    r"(?:no|nope|wait|actually|sorry|maybe|perhaps|rather|alternatively|otherwise|else|possibly|scratch\s+that)"
    r"(?![^\W_])"
)
# Words of the talk after a guess that name nothing.
_BENIGN = frozenset(
    # A list of its own line per word would be pages long.
    """
    a absolutely all am an and answer apparently are aren't at attacker be believe bet bingo bravo buddy
    certain certainly clear clearly clue clues cool correct course cute dear defender definitely don't
    done doubt easy eureka evidently exactly final finally for friend fun game good gotcha great guess
    guesses ha haha haven't he hint hints honestly hooray hurray i i'm im indeed is isn't it it's its
    just know last likely madam mate maybe me my nice no not now obvious obviously of one only opponent
    our over partner perfect perhaps please possibly precisely probably really right say she simple sir
    so sure surely thank thanks that the then they think this to too true truly very voila was wasn't we
    well win with won wonderful word yes you your
    """.split()  # noqa: SIM905
)
_SEGMENT = re.compile(r"([^.!?;:,\n()\u2014/|&]*)([.!?;:,\n()\u2014/|&]*)")
_POSSESSIVE = re.compile(r"'s?(?![^\W_])")
_NEGATED_PART_END = re.compile(r"[.!?;:,\n\u2014]|(?<![^\W_])but(?![^\W_])")
_SENTENCE_END = re.compile(r"[.!?\n]")
_TOKEN = re.compile(r"[^\W_]+(?:['\-][^\W_]+)*")
_DECORATION = re.compile(r"[*_`\"~#<>\[\]{}]|(?<![^\W_])'|'(?![^\W_])")


def find_claim(folded: FoldedText) -> re.Match[str] | None:
    """The first "I know the word" that is meant."""
    if "know" not in folded.text:
        return None
    for match in _CLAIM.finditer(folded.text):
        before = folded.text[max(0, match.start() - 200) : match.start()]
        clause = _CLAUSE_END.split(before)[-1]
        if not _NOT_MEANT.search(clause) and not _QUOTED.search(before):
            return match
    return None


def names_word(folded: FoldedText, claim: re.Match[str], word: str) -> Guess:
    """Whether the guess that begins with `claim` names `word` and nothing else; no word is a wrong guess."""
    # Decoration becomes spaces of the same length: positions stay.
    plain = WordFinder(_DECORATION.sub(" ", folded.text), word)
    end = _named_end(plain, claim.end())
    if end is None and not _TOKEN.search(plain.text, claim.end()):
        lead = _LEAD.search(plain.text, 0, claim.start())  # "It is a cat, I know the word!"
        if lead is not None and not _NEGATIVE_LEAD.search(lead.group()):
            named = _word_after(plain, lead.end())
            if named is not None and not re.search(r"[^\W_]", plain.text[named : claim.start()]):
                return Guess(True, lead.start(), claim.end())
    return Guess(end is not None, claim.start(), end if end is not None else len(folded.text))


def _named_end(finder: WordFinder, start: int) -> int | None:
    """Where the rightly named word ends; None when another word, several or none are named."""
    text = finder.text
    if _word_after(finder, start) is not None:
        return _only_word_after(finder, start)
    for lead in _LEAD.finditer(text, start):
        skipped = text[start : lead.start()]
        if _is_bare_guess(skipped) or _CHOICE.search(skipped):
            return None
        if not _NEGATIVE_LEAD.search(lead.group()) and not _NEGATION.match(text, lead.end()):
            return _only_word_after(finder, lead.end())
        negated = _NEGATED_PART_END.search(text, lead.end())
        start = negated.end() if negated else len(text)
        if _word_after(finder, start) is not None:
            return _only_word_after(finder, start)
    colon = text.find(":", start)
    return _only_word_after(finder, colon + 1) if colon >= 0 else None


def _only_word_after(finder: WordFinder, start: int) -> int | None:
    """The end of the word that follows `start`, if no other word is offered."""
    end = _word_after(finder, start)
    return end if end is not None and _is_only_word(finder.text, end, finder.word) else None


def _word_after(finder: WordFinder, start: int) -> int | None:
    """The end of the word if, punctuation and fillers skipped, it stands at `start`."""
    text = finder.text
    position = start
    while position < len(text):
        end = finder.end_at(position)
        if end is not None:
            possessive = _POSSESSIVE.match(text, end)
            return possessive.end() if possessive else end
        filler = _FILLER.match(text, position)
        if filler is not None:
            position = filler.end()
        elif not text[position].isalnum():
            position += 1
        else:
            return None
    return None


def _is_bare_guess(skipped: str) -> bool:
    """One word between claim and lead, as in "I know the word! Dog. Is it right?"."""
    first = _SEGMENT.match(skipped.lstrip(" .!?;:,\n()-\u2014"))
    assert first is not None
    content = [token for token in _TOKEN.findall(first.group(1)) if not _FILLER.fullmatch(token)]
    return len(content) == 1 and content[0] not in _BENIGN


def _is_only_word(text: str, end: int, word: str) -> bool:
    """No other word is offered after the one that ends at `end`."""
    rest = text[end:]
    if re.match(r"-[^\W_]", rest):  # "cat-fish"
        return False
    rest = rest.lstrip(" \t")
    if not rest:
        return True
    talk_goes_on = _TALK_GOES_ON.match(rest) is not None
    if not talk_goes_on and (rest[0].isalnum() or _ALTERNATIVE.match(rest)):
        return False
    mark = "" if talk_goes_on else rest[0]
    for segment in _SEGMENT.finditer(rest):
        body, following = segment.group(1).strip(" -\t"), segment.group(2)
        if body and _offers_another(body, mark, following, word):
            return False
        # A list stays within a sentence; what comes after it is talk.
        ended = mark == "." or _SENTENCE_END.search(following)
        mark = "." if ended else following[-1:] or mark
    return True


def _offers_another(body: str, mark_before: str, mark_after: str, word: str) -> bool:
    """Whether a piece of the talk after the guess names another word."""
    tokens = _TOKEN.findall(body)
    content = [token for token in tokens if token not in _BENIGN]
    if mark_before != "" and _ALTERNATIVE.match(body) and not _TALK.match(body):
        return bool(content[1:] if tokens[:1] == ["or"] else content)
    if mark_before == "" and _CHOICE.search(body):
        return True
    if tokens[:1] == ["not"] or not content:
        return False
    lead = _LEAD.search(body)
    named = lead.end() if lead else 0
    if _word_after(WordFinder(body, word), named) is not None:
        return False
    if _CORRECTION.match(body):
        return lead is not None or len(content) <= 3
    if lead is not None and lead.start() == 0:
        named_tokens = _TOKEN.findall(body[lead.end() :])
        return len(named_tokens) <= 2 and len([token for token in named_tokens if token not in _BENIGN]) == 1
    is_listed = mark_before in (",", ";", "/", "|", "&") or "?" in mark_after
    return is_listed and not _TALK.match(body) and len(tokens) <= 3 and len(content) <= 2
