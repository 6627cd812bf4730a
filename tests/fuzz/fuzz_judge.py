"""Hostile replies against the strict referee, under libFuzzer (atheris): `make fuzz`, or

    python tests/fuzz/fuzz_judge.py [-max_total_time=60] [libFuzzer's other options] [CORPUS]

A reply is made of fragments that mean something to the referee, and of any characters. Whatever it is, the referee
does not crash, takes time linear in its length, points into the reply, and lets at most one of some words that share
no form be guessed by it. Anything else is a finding, and its input is left in a crash-* file.
"""

import resource
import sys
import time

import atheris

with atheris.instrument_imports(include=["spag_ray"]):
    from spag_ray.game.rules import Outcome
    from spag_ray.games.taboo.referee.judge import judge_turn
    from spag_ray.games.taboo.referee.word_forms import word_forms

FRAGMENTS = """
    I know the word|i know the word!|it is|it isn't|is it|not|or|and|but it isn't|because|my guess is|answer|no|wait
    |thanks|the|a|an|rather than|good game|1.|2)|-|c a t|r, i, v, e and r|either|you mean|:|;|,|.|!|?|/|&|'|+|=>|(|)|[|]
    |`|**|_|river|lake|boat|cat|ri ver|r1ver|fail|fall|fa11|able|table|a b l e|ice|attacker:|defender:|then|so|is|c|word
    |p.m.|plus|r&b
"""
PIECES = [piece.strip() for piece in FRAGMENTS.split("|")]
PIECES += [" ", "\n", "\u034f", "\u0301", "\u0456", "\u00e9", "\u2014", "\U0001f600"]
WORDS = [
    "river", "lake", "boat", "cat", "fail", "fall", "able", "table", "ice", "word", "game", "c", "r\u00edo",
    "p.m.", "plus", "r&b",
]  # fmt: skip
NUM_TIMES = 16  # a reply is repeated until its time can be measured
MAX_S_PER_CHARACTER = 30e-6  # some ten times what is usual under the fuzzer

for first in WORDS:
    for second in WORDS:
        assert first == second or not word_forms(first).joined & word_forms(second).joined, (first, second)


def reply_of(data: bytes) -> str:
    """Most bytes choose a fragment, some a space, some any character."""
    provider = atheris.FuzzedDataProvider(data)
    pieces = []
    while provider.remaining_bytes():
        choice = provider.ConsumeIntInRange(0, 255)
        if choice < 192:
            pieces.append(PIECES[choice % len(PIECES)])
        elif choice < 224:
            pieces.append(" ")
        else:
            pieces.append(provider.ConsumeUnicodeNoSurrogates(1))
    return "".join(pieces)


def check(reply: str) -> None:
    won = []
    for index in (0, 1):
        for word in WORDS:
            verdict = judge_turn(reply, index, word)
            if verdict is None:
                continue
            start, end = verdict.span or (-1, -1)
            assert 0 <= start <= end <= len(reply), (word, reply, verdict)
            if verdict.outcome is Outcome.DEFENDER_WINS:
                won.append(word)
    assert len(won) <= 1, (won, reply)


def one(data: bytes) -> None:
    reply = reply_of(data)
    check(reply)
    for text in (reply, "I know the word! " + reply * NUM_TIMES):
        started = time.process_time()
        judge_turn(text, 1, "river")
        took = time.process_time() - started
        assert took < 0.05 + len(text) * MAX_S_PER_CHARACTER, (took, len(text), reply)


def main() -> None:
    # Not libFuzzer's -rss_limit_mb: it reads the process's peak, which a process inherits from the one that starts it.
    resource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))
    atheris.Setup([*sys.argv, "-rss_limit_mb=0", "-timeout=10", "-max_len=256", "-len_control=0"], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
