"""A command at a terminal of its own: what it prints, and keys for it."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CTRL_C = b"\x03"


def _take_terminal() -> None:
    """Gives the child the terminal, so that Ctrl-C reaches it. Tests that were started in the background ignore Ctrl-C,
    and children inherit that."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Typed:
    """`spag-ray` with these arguments, in a session of its own whose terminal a pty is. `output` is all it printed."""

    def __init__(self, *arguments: str, environment: Mapping[str, str]) -> None:
        self._keys, terminal = pty.openpty()
        self.output = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spag_ray", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**environment, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)

    def type(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def until(self, text: str, seconds: float) -> None:
        """Read until it has printed `text` since the last call."""
        begin, deadline = len(self.output), time.monotonic() + seconds
        while text.encode() not in self.output[begin:]:
            assert time.monotonic() < deadline, f"no {text!r} within {seconds} s: {self.output!r}"
            assert self._read(), f"ended without {text!r}: {self.output!r}"

    def ended(self, seconds: float) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < deadline, f"still there after {seconds} s: {self.output!r}"
        return self.process.wait(timeout=seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._keys)

    def _read(self) -> bool:
        """Whether there may be more."""
        if select.select([self._keys], [], [], 0.2)[0]:
            try:
                read = os.read(self._keys, 65536)
            except OSError:  # the other end is closed
                return False
            self.output += read
            return bool(read)
        return True


@contextmanager
def typed(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[Typed]:
    command = Typed(*arguments, environment=os.environ if environment is None else environment)
    try:
        yield command
    finally:
        command.close()
