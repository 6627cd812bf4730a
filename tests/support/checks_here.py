"""Preflight's checks in the process that asks for them, which has imported their libraries already: seconds less a run.
Commands in processes of their own, and tests/unit/run/test_bounds.py, have the process that they are made in otherwise.
"""

import logging
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest


class _Here(Executor):
    """In place of a pool: a call is made at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future = Future[Any]()
        before = dict(os.environ)
        try:
            sent = pickle.loads(pickle.dumps(arguments))
            future.set_result(function(*sent, **options))
        except Exception as error:
            future.set_exception(pickle.loads(pickle.dumps(error)))
        for name in os.environ.keys() - before.keys():  # what a check sets ends with its process
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})
        logging.disable(logging.NOTSET)  # a check silences it, and transformers
        if shown := sys.modules.get("transformers.utils.logging"):
            shown.enable_progress_bar()
            shown.set_verbosity_warning()
        return future


def make_checks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster.checks import preflight  # not for tests that need no Ray

    monkeypatch.setattr(preflight, "ProcessPoolExecutor", _Here)
