"""Whether the time that a text takes grows no faster than the text."""

import math
import time
from collections.abc import Callable


def takes_linear_time(read: Callable[[str], object], filler: str, short_s: float, before: str = "") -> float:
    """100 kB take less than `short_s`, or less than 12 times as long as 25 kB. The shortest of three times counts; the
    first that is short is the last. Returns the time of 100 kB."""

    def seconds(size: int, enough: float = 0.0) -> float:
        text, shortest = before + (filler * size)[:size], math.inf
        for _ in range(3):
            started = time.process_time()
            read(text)
            shortest = min(shortest, time.process_time() - started)
            if shortest < enough:
                break
        return shortest

    long = seconds(100_000, enough=short_s)
    assert long < short_s or long < 12 * seconds(25_000), (filler, long)
    return long
