"""`spag-ray words`: a target-word list by frequency, and the faults of a deck."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.monitor.terminal import say
from spag_ray.config.shipped import find_config
from spag_ray.game.words import top_words, write_words
from spag_ray.games.taboo.deck_check import deck_faults
from spag_ray.games.taboo.deck_file import read_deck
from spag_ray.games.taboo.decks import read_text


def run_words(out: Path, top: int, console: Console) -> None:
    """`spag-ray words`: the `top` most frequent words, one per line."""
    chosen = top_words(top)
    write_words(out, chosen)
    console.print(f"{len(chosen)} words in {out}", markup=False)


def run_words_check(deck: str, console: Console) -> bool:
    """`spag-ray words check`: prints every fault as FILE:LINE: FAULT. Returns whether there is none."""
    path = find_config(deck, "decks")
    text = read_text(path)
    faults = deck_faults(text)
    for fault in faults:
        say(console, f"{path}:{fault.line}: {fault.text}", highlight=False)
    if not faults:
        say(console, f"{path}: {len(read_deck(text)[0])} words, no faults", highlight=False)
    return not faults
