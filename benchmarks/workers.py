"""Parts of a benchmark in processes of their own: forks of one process that has done the slow imports and has not
touched CUDA, so each has the memory and the GPU to itself when its turn comes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from spag_ray.host.processes import end_with

WAIT_S = 3600.0  # for one answer
_END = (None, ())


class Worker:
    """What `make(*arguments)` returns, in a fork of this process, while the `with` block lasts. Raises RuntimeError
    with the traceback of what failed there."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("fork")  # not daemonic: an engine has processes of its own
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(os.getpid(), theirs, make, arguments))
        self._process.start()
        theirs.close()
        self._answer()

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of it; arguments and result are copied."""
        self._pipe.send((method, arguments))
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(WAIT_S):
                raise RuntimeError(f"no answer from a part of the benchmark within {WAIT_S:.0f} s")
            is_done, found = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"a part of the benchmark ended with {self._process.exitcode}") from None
        if not is_done:
            raise RuntimeError(f"a part of the benchmark failed:\n{found}")
        return found

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # it has ended by itself
            self._pipe.send(_END)  # closing is not enough: every fork has a copy of this end
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def forked(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a fork, which then ends."""
    with Worker(_Call, function, arguments) as worker:
        return worker.call("result")


class _Call:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments

    def result(self) -> Any:
        return self._function(*self._arguments)


def _serve(parent: int, pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    end_with(parent)
    try:
        made = make(*arguments)
        pipe.send((True, None))
        while True:
            method, given = pipe.recv()
            if method is None:
                return
            pipe.send((True, getattr(made, method)(*given)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
