"""Keys of earlier versions, translated into today's, so that old files and run folders can be read.

>>> translated({"game": {"breach": "penalise"}, "objective": {"breach_penalty": 1.0, "ties": "discard"}})
{'game': {'payoffs': {'attacker_breach': [-1.0, None], 'defender_breach': [None, -1.0]}}, 'objective': {}}
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

_FORMER = ("game.breach", "objective.ties", "objective.loser_coeff", "objective.breach_penalty")


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with `game.payoffs` in place of `game.breach`, `objective.ties`, `loser_coeff`, `breach_penalty`.

    Raises ValueError if `game.payoffs` is set too, or if these keys did not allow a value.
    """
    parts = {name: part for name in ("game", "objective") if isinstance(part := settings.get(name), Mapping)}
    places = {key: key.split(".") for key in _FORMER}
    former = {key: parts[part][leaf] for key, (part, leaf) in places.items() if leaf in parts.get(part, {})}
    if not former:
        return dict(settings)
    if "payoffs" in parts.get("game", {}):
        raise ValueError(f"{next(iter(former))} is a value of game.payoffs now, which is set too; set that alone")
    changed = {name: dict(part) for name, part in parts.items()}
    for part, leaf in (places[key] for key in former):
        changed[part].pop(leaf)
    if payoffs := _payoffs(former, parts.get("objective", {}).get("learn_from") == "both"):
        changed.setdefault("game", {})["payoffs"] = payoffs
    return {**settings, **changed}


def _payoffs(former: Mapping[str, Any], losers_learn: bool) -> dict[str, Any]:
    """The entries that differ from the paper's. `loser_coeff` had no effect unless losers were trained."""
    _check_choice(former, "game.breach", ("discard", "penalise"))
    _check_choice(former, "objective.ties", ("discard", "learn"))
    loss, penalty = (
        _share(former, f"objective.{name}", at) for name, at in (("loser_coeff", 1), ("breach_penalty", 0.2))
    )
    payoffs: dict[str, Any] = {}
    if loss != 1 and losers_learn:
        payoffs |= {"trap": [1.0, -loss], "wrong_guess": [1.0, -loss], "right_guess": [-loss, 1.0]}
    if former.get("objective.ties") == "learn":
        payoffs["tie"] = [0.0, 0.0]
    if former.get("game.breach") == "penalise":
        payoffs |= {"attacker_breach": [-penalty, None], "defender_breach": [None, -penalty]}
    return payoffs


def _check_choice(former: Mapping[str, Any], key: str, choices: tuple[str, ...]) -> None:
    if former.get(key, choices[0]) not in choices:
        raise ValueError(f"{key} was one of {' and '.join(choices)} (got {former[key]!r}); it is game.payoffs now")


def _share(former: Mapping[str, Any], key: str, default: float) -> float:
    value = former.get(key, default)
    with contextlib.suppress(ValueError):
        value = float(value) if isinstance(value, str) else value  # YAML reads 2e-1 as text
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise ValueError(f"{key} was a number above 0 and at most 1 (got {value!r}); it is game.payoffs now")
    return float(value)
