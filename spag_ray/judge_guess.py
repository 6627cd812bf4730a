"""Understanding a guess: is the word claimed, and which word is named?

    >>> from spag_ray.judge_words import fold
    >>> folded = fold("I know the word, it must be a cat!")
    >>> claim = find_claim(folded)
    >>> names_word(folded, claim, "cat").is_right
    True

A claim is "I know the word", however punctuated, unless it is negated, hypothetical or quoted as something to say. What
follows is read as [lead: "it is", "is it", "the word must be", ...] [fillers: "definitely", "a", quotes] word [end].
The word must be the target and the only one: "cat or dog", "cat, dog", "not cat, it is dog" and "cat food" are wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from spag_ray.judge_words import find_word_at, fold
from spag_ray.ruling import FoldedText


@dataclass(frozen=True)
class Guess:
    """A guess that was made; the folded characters [start, end) from the claim to the end of the named word."""

    is_right: bool
    start: int
    end: int


def _words(text: str) -> str:
    return "(?:" + "|".join(text.split()) + ")"


_ADVERBS = _words(
    "definitely certainly surely probably obviously clearly simply just indeed actually really only perhaps maybe "
    "likely possibly absolutely undoubtedly evidently apparently truly finally now then surely totally also still"
)
_CLAIM = re.compile(
    r"(?<![^\W_])i\s+(?:(?:think|believe|guess|bet)\s+(?:that\s+)?i\s+)?"
    r"(?:(?:do|now|already|finally|actually|definitely|certainly|really|think)\s+){0,2}know\s+(?:what\s+)?"
    r"the\s+(?:(?:target|secret|hidden|right|correct)\s+)?word(?![^\W_])"
    r"(?!\s+(?:for|of|from|means|meaning)(?![^\W_]))"
)
_CLAUSE_END = re.compile(r"[.!?;:,\n\u2014]")
_NOT_MEANT = re.compile(
    r"(?<![^\W_])(?:not|never|if|wish|when|whenever|once|until|unless|before|whether|doubt|hope|pretend|imagine|suppose|how|"
    r"you\s+think|cannot|as\s+though|do|does|did|should|would|could|till|doubtful|unsure|without|nor|hardly)(?![^\W_])|n't(?![^\W_])"
)
_QUOTED = re.compile(r"(?<![^\W_])(?:say|saying|says|said|phrase|write|type|answer\s+with|reply\s+with)(?![^\W_])[^\w\n]*[\"'`\u201c]\s*$")
_SUBJECT = (
    r"(?:(?:the|your|my|this|that|target|secret|hidden|right|correct|final|best)\s+)+(?:word|answer|guess)"
    r"(?:\s+(?:you\s+(?:want|mean|have)|we\s+(?:want|need)|here))?"
)
_MODAL = r"(?:must|should|would|could|might|may|can|will|has\s+to|have\s+to|got\s+to|has\s+got\s+to|ought\s+to|needs\s+to)"
_BEING = rf"(?:is|was|{_MODAL}\s+(?:{_ADVERBS}\s+)?be)"
_LEAD = re.compile(
    r"(?<![^\W_])(?:"
    rf"(?:it|this|that|{_SUBJECT})\s+(?:{_ADVERBS}\s+)*(?:{_BEING}|isn't|wasn't)"
    r"|(?:it|that|this|word|answer)'(?:s|ll\s+be|d\s+be)|its"
    r"|(?:is|was|isn't|wasn't)\s+(?:it|this|that|the\s+(?:\w+\s+)?(?:word|answer))"
    rf"|(?:could|would|might|must|can|may|will|couldn't|wouldn't)\s+(?:it|this|that|the\s+word)\s+(?:{_ADVERBS}\s+)*be"
    r"|you(?:'re|\s+are|\s+were)\s+(?:thinking\s+of|talking\s+about|referring\s+to|describing|hinting\s+at)"
    r"|(?:do|did)\s+you\s+mean|you\s+(?:mean|meant)"
    r"|i(?:'d|'ll|\s+would|\s+will)?\s+(?:say|guess|think|believe|mean)(?!\s+(?:it|that|this|the\s+word|so)(?![^\W_]))"
    rf"|(?:{_ADVERBS}\s+)*(?:must\s+be|gotta\s+be|to\s+be|is)"
    r")(?![^\W_])(?!'[^\W_])"
)
_NEGATIVE_LEAD = re.compile(r"(?:it|this|that|word|answer|guess)\s+(?:\w+\s+)*(?:isn't|wasn't)$")
_FILLER = re.compile(
    rf"(?:{_ADVERBS}|without\s+(?:a|any)\s+(?:shadow\s+of\s+a\s+)?doubt|of\s+course|no\s+doubt|for\s+sure|a|an|the|some|to|my|your|our|"
    r"called|named|spelled|word|term|answer|guess|and|so|well|ah|aha|oh|yes|ok|okay|hmm|hm|um|uh|it|in\s+fact|by\s+now|i\s+guess|i\s+think|i\s+believe)"
    r"(?![^\W_])(?!'[^\W_])"
)
_NEGATION = re.compile(r"(?:not|never|neither)(?![^\W_])")
_TALK_GOES_ON = re.compile(
    r"(?:because|since|as|that|which|who|whose|where|when|for\s+sure|for\s+certain|from|isn't|right|of\s+course|so|but|then|i|i'm|"
    r"i'd|you|you've|correct|am|obviously|definitely|certainly|surely|of\s+course|thanks|thank|given|based|judging|considering|if|not|"
    r"without|no\s+doubt|is\s+it|is\s+the|it|it's|after|and\s+(?:i|i'm|it|it's|that|that's|this|you|we|thanks|thank|not|nothing|the\s+game))(?![^\W_])"
)
_ALTERNATIVE = re.compile(r"(?:or|and|plus|nor|versus|vs)(?![^\W_])|[/&|+]")
_TALK = re.compile(r"(?:and\s+)?(?:i|i'm|it|it's|that|that's|this|you|we|thanks|thank|not|the\s+game)(?![^\W_])")
_CORRECTION = re.compile(r"(?:no|nope|wait|actually|sorry|maybe|perhaps|rather|alternatively|otherwise|else|possibly|scratch\s+that)(?![^\W_])")
_BENIGN = frozenset(
    "a an the my your our this that it it's its is was am are be i i'm im you we me he she they right correct yes sir madam friend "
    "mate buddy dear partner easy obvious obviously clear clearly simple fun great nice good well cool hooray hurray haha ha "
    "done finally thanks thank please sure surely certain certainly definitely course of for no doubt indeed really truly "
    "isn't wasn't not think guess believe say bet know so too very final answer guess guesses word game over one only cute "
    "just of course now then at last to be with all my honestly exactly precisely gotcha bingo eureka voila win won "
    "haven't don't aren't perfect bravo hint hints clue clues wonderful true and"
    .split()
)
_SEGMENT = re.compile(r"([^.!?;:,\n()\u2014/|&]*)([.!?;:,\n()\u2014/|&]*)")
_TOKEN = re.compile(r"[^\W_]+(?:['\-][^\W_]+)*")
_DECORATION = re.compile(r"[*_`\"~#<>\[\]{}]|(?<![^\W_])'|'(?![^\W_])")


def find_claim(folded: FoldedText, start: int = 0) -> re.Match[str] | None:
    """The first "I know the word" that is meant, at or after folded character `start`."""
    for match in _CLAIM.finditer(folded.text, start):
        before = folded.text[: match.start()]
        clause = _CLAUSE_END.split(before)[-1]
        if not _NOT_MEANT.search(clause) and not _QUOTED.search(before):
            return match
    return None


def names_word(folded: FoldedText, claim: re.Match[str], word: str) -> Guess:
    """Whether the guess that begins with `claim` names `word` and nothing else; no word named is a wrong guess."""
    # Decoration becomes spaces of the same length: positions stay.
    plain = FoldedText(_DECORATION.sub(" ", folded.text))
    end = _named_end(plain, claim.end(), word)
    if end is None and not _TOKEN.search(plain.text, claim.end()):
        lead = _LEAD.search(plain.text, 0, claim.start())  # "It is a cat, I know the word!"
        if lead is not None and not _NEGATIVE_LEAD.search(lead.group()):
            named = _word_after(plain, lead.end(), word)
            if named is not None and not re.search(r"[^\W_]", plain.text[named : claim.start()]):
                return Guess(True, lead.start(), claim.end())
    return Guess(end is not None, claim.start(), end if end is not None else len(folded.text))


def _named_end(folded: FoldedText, start: int, word: str) -> int | None:
    """Where the rightly named word ends; None when another word, several or none are named."""
    text = folded.text
    end = _word_after(folded, start, word)
    if end is not None:
        return end if _is_only_word(text, end, word) else None
    for lead in _LEAD.finditer(text, start):
        skipped = text[start : lead.start()]
        if _is_bare_guess(skipped) or re.search(r"(?<![^\W_])(?:or|either)(?![^\W_])", skipped):
            return None
        if _NEGATIVE_LEAD.search(lead.group()) or _NEGATION.match(text[lead.end() :].lstrip()):
            start = _clause_end(text, lead.end())
            rest = _word_after(folded, start, word)
            if rest is not None:
                return rest if _is_only_word(text, rest, word) else None
            continue
        end = _word_after(folded, lead.end(), word)
        return end if end is not None and _is_only_word(text, end, word) else None
    colon = text.find(":", start)
    if colon >= 0:
        end = _word_after(folded, colon + 1, word)
        return end if end is not None and _is_only_word(text, end, word) else None
    return None


def _word_after(folded: FoldedText, start: int, word: str) -> int | None:
    """The end of the word if, punctuation and fillers skipped, it stands at `start`."""
    text = folded.text
    position = start
    while position < len(text):
        said = find_word_at(folded, word, position)
        if said is not None:
            possessive = re.compile(r"'s?(?![^\W_])").match(text, said.end)
            return possessive.end() if possessive else said.end
        filler = _FILLER.match(text, position)
        if filler is not None:
            position = filler.end()
        elif not text[position].isalnum():
            position += 1
        else:
            return None
    return None


def _clause_end(text: str, start: int) -> int:
    match = re.compile(r"[.!?;:,\n\u2014]|(?<![^\W_])but(?![^\W_])").search(text, start)
    return match.end() if match else len(text)


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
    if _TALK_GOES_ON.match(rest):
        first_mark = ""
    elif rest[0].isalnum() or _ALTERNATIVE.match(rest):
        return False
    else:
        first_mark = rest[0]
    mark = first_mark
    for segment in _SEGMENT.finditer(rest):
        body, following = segment.group(1).strip(" -\t"), segment.group(2)
        if body and _offers_another(body, mark, following, word):
            return False
        mark = following[-1:] or mark
        if not segment.group():
            break
    return True


def _offers_another(body: str, mark_before: str, mark_after: str, word: str) -> bool:
    """Whether a piece of the talk after the guess names another word."""
    tokens = _TOKEN.findall(body)
    content = [token for token in tokens if token not in _BENIGN]
    if mark_before != "" and _ALTERNATIVE.match(body) and not _TALK.match(body):
        return bool(content[1:] if tokens[:1] == ["or"] else content)
    if mark_before == "" and re.search(r"(?<![^\W_])or(?![^\W_])", body):
        return True
    if tokens[:1] == ["not"] or not content:
        return False
    folded = fold(body)
    lead = _LEAD.search(body)
    named = lead.end() if lead else 0
    if _word_after(folded, named, word) is not None:
        return False
    if _CORRECTION.match(body):
        return lead is not None or len(content) <= 3
    if lead is not None and lead.start() == 0:
        named_tokens = _TOKEN.findall(body[lead.end() :])
        return len(named_tokens) <= 2 and len([token for token in named_tokens if token not in _BENIGN]) == 1
    is_listed = mark_before in (",", "/", "|", "&") or "?" in mark_after
    return is_listed and len(tokens) <= 3 and len(content) <= 2
