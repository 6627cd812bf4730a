"""English phrases in guesses: leads ("it is", "my guess is"), fillers ("definitely a"), and the talk around a guess."""

from __future__ import annotations

import re


def _words(text: str) -> str:
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
