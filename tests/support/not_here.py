"""What a test needs and the machine lacks."""

import importlib.util
import os
from typing import NoReturn

import pytest

from spag_ray.config.run import RunConfig


def not_here(what: str) -> NoReturn:
    """Skips the test with a line that says what is missing; in CI, which has to have it, the test fails."""
    if os.environ.get("CI_SKIPS_NOTHING") == "1":
        pytest.fail(what)
    pytest.skip(what)


def needs_trl() -> None:
    """Skips the test, as `not_here` does, where the trainer that benchmarks compare with is not installed."""
    if importlib.util.find_spec("trl") is None:
        not_here("trl is not installed: the extra `peers`, locked in requirements/peers.txt")


def needs_games_of(config: RunConfig) -> None:
    """Skips the test, as `not_here` does, where the package of one of these games is not installed."""
    names = {each.game.name for each in config.each_game}
    if "textarena" in names:
        needs_textarena()
    if "openspiel" in names:
        needs_openspiel()


def needs_textarena() -> None:
    """Skips the test, as `not_here` does, where the package of more games and the old cards is not installed."""
    if importlib.util.find_spec("textarena") is None:
        not_here("textarena is not installed: the extra `textarena`, locked in requirements/textarena.txt")


def needs_openspiel() -> None:
    """Skips the test, as `not_here` does, where the package of solved games is not installed."""
    if importlib.util.find_spec("pyspiel") is None:
        not_here("open_spiel is not installed: the extra `openspiel`, locked in requirements/openspiel.txt")
