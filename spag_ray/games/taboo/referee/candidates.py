"""The words that a guess names. The target word plays no part here.

    >>> [candidate.text for candidate in collect("! it is a river, or maybe a lake. not a pond.")]
    ['river', 'lake']
    >>> [candidate.text for candidate in collect(": it's a cat because it purrs. thanks for the game!")]
    ['cat']

The text is folded (folding.py) and split into pieces at marks (stops, commas, colons, line breaks, brackets, slashes,
dashes). A piece names a word if the word follows a lead ("it is", "my guess is"), if the piece is short and has one
content word ("Lake!", "2. lake"), if it is an item of a list, or if it is an alternative ("or a lake"). A denied word
("not a lake", "lake, but it isn't") is left out. Everything else is talk and names nothing. Words that are typical of
talk ("game", "easy") count only if nothing else is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.referee.folding import MARK_LETTERS
from spag_ray.games.taboo.referee.word_forms import is_word


def _words(text: str) -> str:
    """The phrases of talk around a guess are patterns: leads ("it is", "my guess is"), fillers ("definitely a")."""
    return "(?:" + "|".join(text.split()) + ")"


_ADVERBS = _words(
    "definitely certainly surely probably obviously clearly simply just indeed actually really only perhaps "
    "maybe likely possibly absolutely undoubtedly evidently apparently truly finally now then also still"
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
LEAD = re.compile(
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
NEGATIVE_LEAD = re.compile(r"(?:it|this|that|word|answer|guess)\s+(?:\w+\s+)*(?:isn't|wasn't)$")
FILLER = re.compile(
    rf"(?:{_ADVERBS}|without\s+(?:a|any)\s+(?:shadow\s+of\s+a\s+)?doubt|of\s+course|no\s+doubt|for\s+sure|"
    r"a|an|the|some|to|my|your|our|called|named|spelled|word|term|answer|guess|and|so|well|ah|aha|oh|yes|ok|okay|"
    r"hmm|hm|um|uh|it|in\s+fact|by\s+now|i\s+guess|i\s+think|i\s+believe)"
    r"(?![^\W_])(?!'[^\W_])"
)
TALK_GOES_ON = re.compile(
    r"(?:because|since|as|that|which|who|whose|where|when|for\s+sure|for\s+certain|from|isn't|right|"
    r"of\s+course|so|but|then|i|i'm|i'd|you|you've|correct|am|obviously|definitely|certainly|surely|thanks|thank|"
    r"given|based|judging|considering|if|not|without|no\s+doubt|is\s+it|is\s+the|it|it's|after|"
    r"and\s+(?:i|i'm|it|it's|that|that's|this|you|we|thanks|thank|not|nothing|the\s+game))(?![^\W_])"
)
# Words that are typical of talk around a guess and name nothing.
BENIGN = frozenset(
    """
    a absolutely all am an and answer apparently are aren't at attacker be believe bet bingo bravo buddy
    certain certainly clear clearly clue clues cool correct course cute dear defender definitely don't
    done doubt easy eureka evidently exactly final finally for friend fun game good gotcha great guess
    guesses ha haha haven't he hint hints honestly hooray hurray i i'm im indeed is isn't it it's its
    just know last likely madam mate maybe me my nice no not now obvious obviously of one only opponent
    our over partner perfect perhaps please possibly precisely probably really right say she simple sir
    so sure surely thank thanks that the then they think this to too true truly very voila was wasn't we
    well win with won wonderful word yes you your
    am amazing awesome bad badly beautiful brilliant brilliantly busted challenge challenging cheers clever
    congrats congratulations delightful described description descriptions did end enjoyable enjoyed entertaining
    excellent excited fair fairly fantastic figured finished first found funny gg given glad go going guessed guessing
    happy hard hello helpful hi hm hmm hope impressive interesting lovely lucky match mystery neat next number ok okay
    oh play played player players playing pleasure question quite ready reply respect round satisfying second seriously
    smart solved solution super sweet sneaky straightforward target teammate terrific third tough tricky turn
    understood victory wait well-played whew winner winning woohoo wow yay yeah yep
    """.split()  # noqa: SIM905
)
_MARKS = r".!?;:,\n()\u2014/|&=>\u2192"
_PIECE = re.compile(rf"(?P<body>(?:(?!\s-+\s)[^{_MARKS}])*)(?P<marks>(?:\s-+\s|[{_MARKS}\s])*)")
_NEXT_LEAD = re.compile(rf"\s{{0,3}}{LEAD.pattern}")
_LETTERS = rf"[^\W_]+(?:[{MARK_LETTERS}]+[^\W_]*)*"
_TOKEN = re.compile(rf"{_LETTERS}(?:['\-]{_LETTERS})*[+#]*")
_SPELLED = re.compile(
    r"(?<![^\W_])(?<!')[^\W\d_](?=[\s,.\-/])(?P<joint>\s{0,3}[,.\-/]?\s{0,3})[^\W\d_](?:(?P=joint)[^\W\d_])*"
    r"(?:,?\s{1,3}and\s{1,3}[^\W\d_])?(?![^\W_])(?!'[^\W_])"
)
_JOIN = re.compile(r"[\s,.\-/]|(?<![^\W_])and(?![^\W_])")
_NUMBERING = re.compile(r"\d{1,3}")
_OPENING = re.compile(
    r"(?:\s|no|nope|wait|sorry|or|and|either|plus|also|alternatively|otherwise|else|rather|scratch\s+that|then|but|"
    r"so|therefore|thus|hence|i\s+(?:think|believe|guess))*"
    r"(?![^\W_])"
)
_ALTERNATIVE = re.compile(r"\W*(?:or|either|nor|plus|versus|vs|aka|also|alternatively|otherwise)(?![^\W_])")
_DENIAL = re.compile(
    r"\W*(?:(?:but|and|so|it's|its|that's)\s+)?(?:definitely\s+|certainly\s+|surely\s+)?"
    r"(?:not|never|neither|nor|isn't|wasn't|rather\s+than|instead\s+of)(?![\-']?[^\W_])"
)
_CONNECTIVE = re.compile(
    r"(?<![^\W_])(?<![^\W_][\-'])(?:(?P<other>or|either|and|plus|nor|versus|vs|aka|alias|also|as\s+well\s+as|along\s+with)"
    r"|(?P<denied>not|rather\s+than|instead\s+of))(?![\-']?[^\W_])"
)
_DOUBTED = re.compile(  # before a lead: "I don't think it is"
    r"(?<![^\W_])(?:(?:don't|do\s+not|doesn't|didn't|never|can't|cannot)\s+(?:really\s+)?"
    r"(?:think|believe|guess|say|suppose|mean)|(?<!no )doubt)(?![^\W_])"
)
_ALONE = re.compile(
    rf"\W*(?:{FILLER.pattern}\W{{1,8}}){{0,4}}(?P<word>{_CONNECTIVE.pattern})(?:$|\W+(?:$|(?P<talk>{TALK_GOES_ON.pattern})))"
)  # all that a lead is followed by
_REASON = re.compile(
    r"\W*(?:and\s+|so\s+)?(?:because|since|as|given|thanks|judging|based|considering"
    r"|(?:the|your|my)\s+(?:clues?|hints?|reasons?)"
    r"|(?:clues?|hints?|reasons?)(?=\s+[^\W_]))(?![^\W_])"
)
_REASON_HEAD = re.compile(r"(?<![^\W_])(?:because|since|clues?|hints?|reasons?|reasoning|why)(?![^\W_])")
_REASON_TITLE = re.compile(r"\W*(?:(?:the|my)\s+)?(?:reasons?|reasoning|explanation|why)\W*")
_TALK = re.compile(
    r"\W*(?:and\s+)?(?:i|i'm|i've|i'd|i'll|it|it's|that|that's|this|you|you're|you've|we|we've|they|thanks|thank|the\s+game"
    r"|what|how|there)(?![^\W_])"
)
_DENIED_AFTER = re.compile(
    r"[^\w\n]*(?:but|although|though|yet|however)[\s,]+(?:it|that|this)\s*(?:isn't|wasn't|(?:is|was|'s)\s+not|can't\s+be|cannot\s+be)"
    r"(?:\s+(?:it|right|correct|really|the\s+(?:word|answer)))?\s*(?=[.!?;:,\n]|$)"
    r"|\s+(?:is|was)(?:n't|\s+not)\s+(?:right|correct|the\s+(?:word|answer))(?![^\W_])"
    r"|\s+is\s+(?:wrong|incorrect)(?![^\W_])"
)
_BUT = re.compile(r"(?<![^\W_])but(?![^\W_])")
_SENTENCE_END = re.compile(r"[.!?\n]")
_SURE, _WORDS, _TALK_AFTER_LEAD, _TALK_ALONE = range(4)  # ranks
_NOUNS = frozenset(["word", "term", "answer", "guess", "well"])
_LISTED = frozenset(",;/|&=>\u2192")


@dataclass(frozen=True)
class Candidate:
    """One or more named words: the text, where it ends, and where its lead begins.

    Candidates of rank 0 are certain, and all of them count. If there is none, only the first candidate of the lowest
    rank counts.
    """

    text: str
    end: int
    lead: int
    rank: int


def collect(text: str, only_leads: bool = False) -> list[Candidate]:
    """The words that `text` names and does not deny; with `only_leads`, only those after a lead such as "it is"."""
    return _Collector(text, only_leads).candidates()


class _Collector:
    """Reads the pieces of one text in order."""

    def __init__(self, text: str, only_leads: bool) -> None:
        self.ends: dict[int, int] = {}  # start of a spelled-out word -> its end in the original text
        self.text = _SPELLED.sub(self._joined, text)
        self.only_leads = only_leads
        self.named: list[Candidate] = []
        self.is_talking = only_leads  # if so, only an alternative or a piece that begins with a lead names a word
        self.is_denying = False
        self.is_sure = False  # a candidate of rank 0 was found

    def candidates(self) -> list[Candidate]:
        mark = ""
        for piece in _PIECE.finditer(self.text):
            start, end = piece.span("body")
            marks = piece.group("marks")
            if _TOKEN.search(self.text, start, end):
                self._read(start, end, mark, marks)
            if _SENTENCE_END.search(marks):
                self.is_talking = self.only_leads
                self.is_denying = False
            elif ":" in marks and not (self.is_sure and _REASON_HEAD.search(self.text, start, end)):
                self.is_talking = self.only_leads
            mark = marks.strip()[-1:] or mark
        lowest = min((each.rank for each in self.named), default=0)
        found = [each for each in self.named if each.rank == lowest]
        return found if lowest == _SURE else found[:1]

    def _joined(self, match: re.Match[str]) -> str:
        """A spelled-out word joined and padded with spaces, so that all other positions stay the same."""
        letters = _JOIN.sub("", match.group())
        start = match.start()
        before = ""
        if letters[0] in "ai" and not is_word(letters):  # "a c a t"
            before, letters = letters[0] + " ", letters[1:]
            start += 2
        if len(letters) < 3:
            return match.group()
        self.ends[start] = match.end()
        return (before + letters).ljust(len(match.group()))

    def _read(self, start: int, end: int, mark: str, marks: str) -> None:
        """One piece: characters [start, end), with the marks before and after it."""
        if _DENIAL.match(self.text, start, end) and not LEAD.match(self.text, start, end):
            self.is_denying = True
            start = self._after_but(start, end)
            if start >= end:
                return
        if _REASON.match(self.text, start, end):
            self.is_talking = True
            return
        lead = LEAD.search(self.text, start, end)
        while lead is not None and (next_lead := _NEXT_LEAD.match(self.text, lead.end(), end)):
            lead = next_lead  # "the word you are thinking of is"
        if lead is not None and not (self.is_talking and not self.only_leads and not self._opens(start, lead.start())):
            self._read_lead(lead, start, end)
            return
        is_alternative = _ALTERNATIVE.match(self.text, start, end) is not None
        if self.is_denying and is_alternative:
            return
        self.is_denying = False
        if self.is_talking and not is_alternative:
            return
        opening = _OPENING.match(self.text, start, end)
        if opening is not None and _TOKEN.search(self.text, opening.end(), end):
            start = opening.end()  # "or maybe a lake"
        self._read_plain(start, end, mark, marks, mark in _LISTED or "?" in marks or is_alternative)

    def _read_plain(self, start: int, end: int, mark: str, marks: str, is_list: bool) -> None:
        """A piece without a lead, a denial or a reason: it names a word or is talk."""
        if self.is_sure and (":" in marks or "?" in marks) and _REASON_TITLE.fullmatch(self.text, start, end):
            self.is_talking = True  # "It is a cat. Reason: it purrs."
            return
        if not any(_is_content(token) for token in self._tokens(start, end)):
            if not self.only_leads:
                self._name(start, end, start, _TALK_AFTER_LEAD if mark == ":" else _TALK_ALONE)
            if ":" in marks and self.is_sure and _REASON_HEAD.search(self.text, start, end):
                self.is_talking = True  # "Clues: water, boats."
        elif not _TALK.match(self.text, start, end) and self._is_short(start, end, 2 if is_list else 1):
            self._name(start, end, start)
        elif not _TALK.match(self.text, start, end) and self._is_short(start, end, 2):
            self._name(start, end, start, _WORDS)  # "I know the word: ice cream"
            self.is_talking = True
        else:
            self.is_talking = True

    def _read_lead(self, lead: re.Match[str], start: int, end: int) -> None:
        """A piece with a lead: the text before it may be a bare guess; the text after it is named or denied."""
        before = [token for token in self._tokens(start, lead.start()) if _is_content(token)]
        if len(before) == 1 and not self.only_leads and not _TALK.match(self.text, start, end):
            self._name(start, lead.start(), start)
        alone = _ALONE.match(self.text, lead.end(), end)
        if alone is not None:  # "It is plus!"
            rank = _SURE if _is_content(alone.group("word")) else _TALK_AFTER_LEAD
            self.named.append(Candidate(alone.group("word"), alone.end("word"), lead.start(), rank))
            self.is_sure = self.is_sure or rank == _SURE
            self.is_talking = alone.group("talk") is not None
            return
        denial = _DENIAL.match(self.text, lead.end(), end)
        if NEGATIVE_LEAD.search(lead.group()) or denial or _DOUBTED.search(self.text, start, lead.start()):
            self.is_denying = True
            after = self._after_but(lead.end(), end)
            if after < end:
                self._read(after, end, ",", "")
            return
        self.is_denying = False
        if (
            self.is_sure
            and not self._is_short(lead.end(), end, 1)
            and not _CONNECTIVE.search(self.text, lead.end(), end)
        ):
            self.is_talking = True  # "It is a small animal that purrs."
            return
        self.is_talking = False
        self._name(lead.end(), end, lead.start(), _TALK_AFTER_LEAD)

    def _name(self, start: int, end: int, lead: int, rank: int = _TALK_ALONE) -> None:
        """Adds a candidate for each alternative in characters [start, end), up to where talk resumes.

        `rank` is given to candidates that consist of talk words; `_WORDS` is given to all candidates.
        """
        is_denied = False
        is_first = True
        for first, last, connective in self._alternatives(start, end):
            is_denied = connective is not None and connective.group("denied") is not None
            if connective is not None and connective.group().startswith("and") and _TALK.match(self.text, first, last):
                break
            found = self._phrase(first, last)
            if found is None:
                continue
            begin, stop, goes_on = found
            if not is_denied and not _DENIED_AFTER.match(self.text, stop):
                words = self._tokens(begin, stop)
                has_content = any(_is_content(word) for word in words)
                if is_first or has_content:
                    of = _SURE if has_content and rank != _WORDS else rank
                    self.is_sure = self.is_sure or of == _SURE
                    self.named.append(Candidate(self.text[begin:stop], self.ends.get(begin, stop), lead, of))
                    is_first = False
            if goes_on:
                self.is_talking = True
                break

    def _alternatives(self, start: int, end: int) -> Iterator[tuple[int, int, re.Match[str] | None]]:
        connective = None
        for following in _CONNECTIVE.finditer(self.text, start, end):
            yield start, following.start(), connective
            start, connective = following.end(), following
        yield start, end, connective

    def _phrase(self, start: int, end: int) -> tuple[int, int, bool] | None:
        """(start, end, whether talk follows) of the named words, without fillers before and talk after them."""
        tokens = list(_TOKEN.finditer(self.text, start, end))
        first = 0
        while first + 1 < len(tokens):
            filler = FILLER.match(self.text, tokens[first].start(), end)
            if tokens[first].group() in _NOUNS and TALK_GOES_ON.match(self.text, tokens[first + 1].start(), end):
                break  # "it's answer because"
            if filler is None and not _NUMBERING.fullmatch(tokens[first].group()):
                break
            position = filler.end() if filler else tokens[first].end()
            if position < tokens[first].end():  # "a-frame"
                break
            following = next((n for n in range(first + 1, len(tokens)) if tokens[n].start() >= position), None)
            if following is None:
                break
            first = following
        if not tokens:
            return None
        last = first
        while last + 1 < len(tokens) and not TALK_GOES_ON.match(self.text, tokens[last + 1].start(), end):
            last += 1
        goes_on = last + 1 < len(tokens)
        while last > first and _is_small_talk(tokens[last].group()) and _is_content(tokens[first].group()):
            last -= 1
        return tokens[first].start(), tokens[last].end(), goes_on

    def _is_short(self, start: int, end: int, num_content: int) -> bool:
        """Whether the words before any talk are few enough to be a name."""
        found = self._phrase(start, end)
        if found is None:
            return False
        words = self._tokens(found[0], found[1])
        return len(words) <= 3 and len({word for word in words if _is_content(word)}) <= num_content

    def _after_but(self, start: int, end: int) -> int:
        but = _BUT.search(self.text, start, end)
        return but.end() if but is not None else end

    def _opens(self, start: int, lead: int) -> bool:
        opening = _OPENING.match(self.text, start, lead)
        return opening is not None and not _TOKEN.search(self.text, opening.end(), lead)

    def _tokens(self, start: int, end: int) -> list[str]:
        return [match.group() for match in _TOKEN.finditer(self.text, start, end)]


def _is_content(token: str) -> bool:
    return not _is_small_talk(token) and token not in STOP_WORDS and not token.isdigit()


def _is_small_talk(token: str) -> bool:
    return token in BENIGN
