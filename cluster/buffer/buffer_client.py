"""The buffer as its Run calls it: every wait for an answer has a bound."""

from __future__ import annotations

from pathlib import Path

from cluster.buffer.buffer_actor import BufferHandle
from cluster.handles import R, Ref
from cluster.runtime.ray_session import NoAnswerError, get

# A record takes 0.04 to 0.05 ms to read here (2 cores of an AMD EPYC), and has 0.8 KB or more. This is 20 times that.
READ_S_PER_MIB = 1.0


class Buffer:
    """`handle` is for arenas. `folder` has the logs that the buffer may have to read before it answers; the rest of the
    bound is `answer_within_s`, in which a buffer that hangs is found and restarted."""

    def __init__(self, handle: BufferHandle, folder: Path, answer_within_s: float) -> None:
        self.handle = handle
        self._folder = folder
        self._answer_within_s = answer_within_s

    def get(self, ref: Ref[R]) -> R:
        """The answer to a call of `handle`. Raises NoAnswerError when it takes longer than reading all logs would."""
        try:
            return get(ref, self._answer_within_s)
        except NoAnswerError:  # the size of the logs is looked up only now: a shared disk takes time for it
            return get(ref, READ_S_PER_MIB * self._log_mib())

    def _log_mib(self) -> float:
        return sum(path.stat().st_size for path in self._folder.glob("*.log")) / 2**20
