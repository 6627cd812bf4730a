"""Errors that a user can fix: each message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from spag_ray import __version__

_KINDS_OF_FILE = (".json", ".py", ".txt", ".yaml")


def extra(name: str) -> str:
    """How to install the packages of one of setup.py's extras. No index has this package, so `pip install` needs a
    checkout or a wheel.

    >>> extra("data").replace(__version__, "VERSION")
    "pip install -e '.[data]' in a checkout, or 'spag_ray-VERSION-py3-none-any.whl[data]' (docs/install.md)"
    """
    wheel = f"spag_ray-{__version__}-py3-none-any.whl"
    return f"pip install -e '.[{name}]' in a checkout, or '{wheel}[{name}]' (docs/install.md)"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like a misspelt one, whatever the case of its letters; None if none is like it.
    `cutoff`: how alike they have to be, from 0 (any name will do) to 1.

    >>> nearest("tictactoe", ["KuhnPoker-v0", "TicTacToe-v0"])
    'TicTacToe-v0'
    """
    by_folded = {each.casefold(): each for each in known}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None


def nearest_path(missing: str | Path, others: Iterable[str] = ()) -> str | None:
    """What a path that leads nowhere may mean: something beside it with a name like it, or a name of `others` if it is
    in no folder. Of a file only others of its kind count."""
    missing = Path(missing)
    kind = missing.suffix if missing.suffix in _KINDS_OF_FILE else ""
    try:
        others_beside = (each for each in missing.parent.iterdir() if each.name != missing.name)
        found = {each.name.removesuffix(kind): str(each) for each in others_beside if each.name.endswith(kind)}
    except (OSError, ValueError):  # no such folder, one that may not be read, a name that is none
        found = {}
    if len(missing.parts) == 1:
        found |= {each: each for each in others}
    near = nearest(missing.name.removesuffix(kind), found)
    return None if near is None else found[near]


def meant(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest one; empty if there is none.

    >>> meant("quickstrat", ["kuhn", "quickstart"])
    '; did you mean `quickstart`?'
    """
    return _asked(nearest(name, known))


def meant_path(missing: str | Path, others: Iterable[str] = ()) -> str:
    """The same for a path, as `nearest_path`."""
    return _asked(nearest_path(missing, others))


def _asked(near: str | None) -> str:
    return "" if near is None else f"; did you mean `{near}`?"


class SpagError(Exception):
    """Base of all errors meant for users. Made from one message, so it survives pickling."""

    exit_code = 2


class ConfigError(SpagError):
    """A run's configuration is wrong."""


class InputError(SpagError):
    """A file, a word or a history that was given is wrong."""


class GameError(InputError):
    """A game of one's own is wrong. The message has what was asked of it, also what is hidden from a seat."""


class ModelError(SpagError):
    """A model folder is missing, incomplete or of a kind that is not supported."""


class RunFolderError(SpagError):
    """A run folder cannot be created, read or resumed."""


class LeaseLostError(SpagError):
    """Another run has taken the run folder: this run no longer writes to it or removes files from it."""


class StopRequestedError(SpagError):
    """The run was asked to stop; it can be resumed."""

    exit_code = 0


class CollapseError(SpagError):
    """A run plays worse than before and is configured to stop then; it can be resumed."""


class EngineError(SpagError):
    """An inference engine failed."""


class EngineGoneError(EngineError):
    """An inference engine is no longer there: its process ended."""


class WeightSyncError(SpagError):
    """New weights arrived incomplete or damaged. `stopped`: the names of engines that were stopped because they did not
    take them."""

    stopped: tuple[str, ...] = ()


class LearnerError(SpagError):
    """A learner refused its data or failed."""


class LearnersLostError(LearnerError):
    """A rank of a learner group died or hangs: the group cannot be used any more. `stopped`: the names of engines that
    were stopped for it, because they have a part of a version."""

    stopped: tuple[str, ...] = ()


def reason_of(error: BaseException) -> str:
    """What another library's error says, in one line: all of it, because neither its first line nor its last has the
    reason for sure. A traceback in its text is left out, and pydantic's links, which say nothing.

    >>> reason_of(ValueError("the weights do not fit\\n  expected 4, found 5\\n"))
    'the weights do not fit; expected 4, found 5'
    >>> reason_of(KeyError())
    'KeyError'
    """
    from pydantic import ValidationError  # not at the top: checks of a bare machine import this module

    if isinstance(error, ValidationError):
        lines = [each["msg"].removeprefix("Value error, ") for each in error.errors()]
    else:
        lines = str(error).splitlines()
        if any(line.strip().startswith("Traceback (most recent call last)") for line in lines):
            lines = lines[1 + max(place for place, line in enumerate(lines) if line.startswith((" ", "Traceback"))) :]
    lines = [line for line in lines if not line.strip().startswith("For further information visit")]  # pydantic's
    told = "; ".join(filter(None, (" ".join(line.split()).rstrip(";.") for line in lines)))
    return told or type(error).__name__
