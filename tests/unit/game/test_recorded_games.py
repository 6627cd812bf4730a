"""Games play token for token as they did before Taboo became a game like any other."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from spag_ray.game.protocol import TABOO
from tests.support.not_here import not_here
from tests.support.recorded_games import OTHERS, recorded

RECORDED = json.loads((Path(__file__).parents[2] / "golden" / "recorded_games.json").read_text())


@pytest.mark.parametrize("name", [TABOO, *OTHERS])
def test_recorded_games_are_played_again_token_for_token(name: str) -> None:
    if name.startswith("textarena") and find_spec("textarena") is None:
        not_here("the package textarena (requirements/textarena.txt)")
    before = {title: games for title, games in RECORDED.items() if title.startswith(name)}
    assert before
    assert recorded([name]) == before
