"""The Game protocol: what every game has, how it is rendered, checked, and given its scenarios.

Tests of other names: game_form in test_conformance.py; renderer in test_game_renderer.py;
rules, turn in test_game.py; styles in test_joined_text.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spag_ray.game.conformance import check as check


def __getattr__(name: str) -> Any:
    """`spag_ray.game.check(MyGame)`: imported when it is asked for, because most modules here need little."""
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spag_ray.game.conformance import check

    return check
