"""How hard each word of a deck is for a fixed listener, written into the deck's file.

    python -m benchmarks.deck_difficulty [configs/decks/everyday.yaml] [--draws 8] [--threads 1] [--dry-run]

The listener is SmolLM2-135M-Instruct. It reads four clues of a word, drawn by a seed, after eight examples:

    What goes with king, head, gold, jewels? A crown
    What goes with oak, squirrel, nut, forest? A

and names one of the deck's words. It does not name the most probable word, because a few common words are the most
probable after any clues. It names the word whose probability the clues raise most above its mean over all clues of the
deck. It never names a word that is in the clues. Only a word's first token counts; words that share it count as one.

    difficulty = 1 - share of the draws from which the listener names the word

In the file only `difficulty:` lines change. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from actors.models import BUILT_IN, load_tokenizer, resolve_model
from benchmarks.machine import machine
from cluster.guarded import run_guarded
from spag_ray.config.loading import find_config
from spag_ray.errors import InputError
from spag_ray.games.taboo.decks import Card, read_deck

CLUES_TOLD = 4
BATCH = 32
EXAMPLES = {
    "apple": "fruit, red, tree, pie",
    "river": "water, bank, flows, fish",
    "cat": "purrs, whiskers, pet, mouse",
    "coffee": "hot, drink, morning, cup",
    "crown": "king, head, gold, jewels",
    "car": "wheels, drive, road, engine",
    "book": "read, pages, library, story",
    "mouth": "teeth, chew, smile, dentist",
}


def question(clues: str) -> str:
    return f"What goes with {clues}? A"


def draws_of(cards: Sequence[Card], num_draws: int, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """(word, drawn clues) for every draw of every word. A word's draws do not depend on the other words."""
    found = []
    for card in cards:
        rng = random.Random(f"{seed}/{card.word}")
        for _ in range(num_draws):
            found.append((card.word, tuple(rng.sample(card.clues, min(CLUES_TOLD, len(card.clues))))))
    return found


def difficulties(cards: Sequence[Card], num_draws: int, seed: int) -> dict[str, float]:
    """Word -> share of its draws from which the listener does not name it."""
    folder = resolve_model(BUILT_IN)
    tokenizer = load_tokenizer(folder)
    words_of: dict[int, list[str]] = defaultdict(list)
    for card in cards:
        words_of[_ids(tokenizer, f" {card.word}")[0]].append(card.word)
    tokens = sorted(words_of)
    draws = draws_of(cards, num_draws, seed)
    logprobs = _listen(folder, tokenizer, [question(", ".join(told)) for _, told in draws], tokens)
    raised = logprobs - logprobs.logsumexp(0)  # the mean over all draws, up to a constant
    for row, (_, told) in zip(raised, draws, strict=True):
        said = set(re.findall(r"[a-z]+", " ".join(told).lower()))
        for column, token in enumerate(tokens):
            if said.issuperset(words_of[token]):
                row[column] = -torch.inf
    missed = dict.fromkeys((card.word for card in cards), 0)
    for (word, _), column in zip(draws, raised.argmax(1).tolist(), strict=True):
        missed[word] += word not in words_of[tokens[column]]
    return {word: number / num_draws for word, number in missed.items()}


@torch.inference_mode()
def _listen(folder: str, tokenizer: Any, questions: Sequence[str], tokens: Sequence[int]) -> torch.Tensor:
    """[questions, tokens] log-probabilities of these first tokens of the answer, normalised over these tokens.

    The examples are read once. Questions of the same length go through the model together, so nothing is padded.
    """
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
    head = model.get_output_embeddings().weight[list(tokens)].float()
    examples = "".join(f"{question(clues)} {word}\n" for word, clues in EXAMPLES.items())
    read = model.base_model(torch.tensor([_ids(tokenizer, examples)]), use_cache=True).past_key_values
    by_length: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for place, text in enumerate(questions):
        ids = _ids(tokenizer, text)
        by_length[len(ids)].append((place, ids))
    found = torch.empty(len(questions), len(tokens))
    for batch in (batch for length in sorted(by_length) for batch in _batches(by_length[length])):
        cache = copy.deepcopy(read)
        cache.batch_repeat_interleave(len(batch))
        output = model.base_model(torch.tensor([ids for _, ids in batch]), past_key_values=cache, use_cache=True)
        found[[place for place, _ in batch]] = (output.last_hidden_state[:, -1].float() @ head.T).log_softmax(-1)
    return found


def _batches(items: list[tuple[int, list[int]]]) -> Iterator[list[tuple[int, list[int]]]]:
    for start in range(0, len(items), BATCH):
        yield items[start : start + BATCH]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def with_difficulties(text: str, measured: Mapping[str, float]) -> str:
    """The deck's text with the line `difficulty:` of every entry set, or added at the end of the entry; the rest is
    unchanged."""
    entries, faults = read_deck(text)
    if faults:
        raise InputError(f"line {faults[0].line}: {faults[0].text}; correct the deck first (spag-ray words check)")
    lines = text.splitlines()
    starts = [entry.line - 1 for entry in entries] + [len(lines)]
    changed = lines[: starts[0]]
    for entry, start, end in zip(entries, starts, starts[1:], strict=False):
        block = lines[start:end]
        kept = [line for line in block if not re.match(r"\s+difficulty:", line)]
        last = max(number for number, line in enumerate(kept) if line.strip() and not line.startswith("#"))
        kept.insert(last + 1, f"  difficulty: {round(measured[entry.card.word], 3):g}")
        changed += kept
    result = "\n".join(changed) + "\n"
    again, faults = read_deck(result)
    if faults or [entry.card.difficulty is None for entry in again] != [False] * len(entries):
        raise InputError("an entry is not on several lines, indented by two spaces; see docs/words.md")
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("deck", nargs="?", default="everyday", help="a deck's file, or the name of a shipped one")
    parser.add_argument("--draws", type=int, default=8, help="draws of four clues of each word")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more are slower if other work uses the cores")
    parser.add_argument("--dry-run", action="store_true", help="measure without changing the file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    path = Path(find_config(given.deck, "decks"))
    text = path.read_text(encoding="utf-8")
    cards = [entry.card for entry in read_deck(text)[0]]
    begun = time.perf_counter()
    measured = difficulties(cards, given.draws, given.seed)
    seconds = time.perf_counter() - begun
    if not given.dry_run:
        path.write_text(with_difficulties(text, measured), encoding="utf-8")
    values = sorted(measured.values())
    quarters = [values[len(values) * part // 4] for part in (1, 2, 3)]
    print(f"easiest: {', '.join(sorted(measured, key=lambda word: measured[word])[:12])}")
    print(f"hardest: {', '.join(sorted(measured, key=lambda word: -measured[word])[:12])}")
    never, always = values.count(1.0), values.count(0.0)
    row = {"words": len(cards), "draws": given.draws, "seed": given.seed, "mean": sum(values) / len(values)}
    row |= {"quartiles": quarters, "never_named": never, "always_named": always, "seconds": round(seconds, 1)}
    print(json.dumps(row | machine() | {"threads": given.threads}))


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
