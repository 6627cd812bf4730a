"""What the name of a stage says: which part of a run it is, where it comes in it, how people read it.

>>> phase_of("spag-12"), phase_of("eval-base")
('self_play', 'evaluation')
>>> sorted(["match-spag-2-base", "eval-spag-10", "spag-10", "spag-9", "eval-base", "expert"], key=order_of)
['eval-base', 'expert', 'spag-9', 'spag-10', 'eval-spag-10', 'match-spag-2-base']
>>> is_player("spag-2"), is_player("published")
(True, False)
>>> title_of("eval-base"), title_of("match-spag-2-imitated")
('base', 'spag-2 v imitated')
"""

from __future__ import annotations

import re

PHASES = {
    "expert": "imitation",
    "imitated": "imitation",
    "spag": "self_play",
    "stream": "self_play",
    "eval": "evaluation",
    "match": "evaluation",
    "play": "play",
    "learn": "learn",
}
_PLAYER = r"(?:base|imitated|spag-\d+)"
_MATCH = re.compile(rf"match-({_PLAYER})-({_PLAYER})")
_ROUND = re.compile(r"spag-(\d+)")
_FIRST = {"base": 0, "expert": 1, "imitated": 2}
_SPAG, _STREAM, _MATCHES, _LAST = 3, 4, 5, 6


def phase_of(stage: str) -> str:
    """What a stage is part of: there are as many stages as rounds, but few phases."""
    return PHASES.get(stage.split("-")[0], "other")


def order_of(stage: str) -> tuple[int, int, bool, str]:
    """Sorts stages as a run comes to them; a stage's evaluation follows it."""
    name = stage.removeprefix("eval-")
    is_evaluation = name != stage
    if name.startswith("match-"):
        return _MATCHES, 0, is_evaluation, name
    if (found := _ROUND.match(name)) is not None:
        return _SPAG, int(found[1]), is_evaluation, name
    return _STREAM if name == "stream" else _FIRST.get(name, _LAST), 0, is_evaluation, name


def is_player(name: str) -> bool:
    """Whether a player is one of a run's own stages, and no guest in its matches."""
    return re.fullmatch(_PLAYER, name) is not None


def title_of(stage: str) -> str:
    """The players of an evaluation's stage; of any other, its name."""
    if (found := _MATCH.fullmatch(stage)) is not None:
        return f"{found[1]} v {found[2]}"
    return stage.removeprefix("eval-")
