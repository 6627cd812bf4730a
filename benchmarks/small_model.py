"""A small model that knows only one game: half a million parameters that have read the game's transcripts. Self-play of
it takes minutes where a language model takes hours.

    python -m benchmarks.small_model leduc --out models/small
    spag-ray train leduc -o model=models/small

It is a Llama, so everything that plays and trains models takes it. Its tokenizer is a byte-level BPE of the game's
transcripts: every text has tokens, and frequent words are one. It has learned to continue transcripts of legal play in
which all replies are equally likely, and to say instead of a reply what it sees. So it can read and speak, and knows
nothing of how to play. A model with random weights answers alike whatever its cards are, also after it has imitated
random play, and self-play finds nothing to begin with.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from spag_ray.config.loading import load_config
from spag_ray.game.protocol import Game, Solved, seat_to_move
from spag_ray.games.registry import game_of

END = "<|end|>"
BATCH, RATE = 32, 2e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600, help="of learning to read and speak")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    loss = make(asked.config, asked.out, asked.width, asked.layers, asked.steps, asked.seed)
    print(f"{asked.out}: {loss:.3f} nats a token at the end")


def make(config: str, out: Path, width: int = 96, layers: int = 2, steps: int = 600, seed: int = 0) -> float:
    """Writes the folder of the model; returns the loss of its last steps. `config`: of a game that is Solved."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from cluster.gpu_check.check import tokenizer_of_bytes

    game = game_of(load_config(config))
    if not isinstance(game, Solved):
        raise SystemExit(f"{config}: its game has no list of decisions, from which its words are taken")
    given = lessons(game)
    texts = [text for pairs in given.values() for pair in pairs for text in pair]
    tokenizer = tokenizer_of_bytes(texts, 512, END, bos_token=END)
    tokenizer.save_pretrained(out)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 32,
            max_position_embeddings=512,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=True,
            initializer_range=0.1,  # with 0.02 it does not begin to look at its cards within 400 steps
        )
    )
    loss = learn(model, tokenizer, given, steps, random.Random(seed))
    model.save_pretrained(out)
    return loss


def lessons(game: Game) -> dict[int, list[tuple[str, str]]]:
    """{number of turns so far: (what a player has read, what it may say)}, at every decision of a game that is Solved,
    in the style `lines`. It says each legal reply, or what it sees: the words of the last line that differ between
    decisions after the same moves."""
    assert isinstance(game, Solved)
    read = []
    seen: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for decision in game.decisions():
        seat = seat_to_move(game, decision.history, decision.scenario)
        messages = game.messages(seat, decision.history, decision.scenario)
        read.append((decision, "".join(f"{message['content']}\n" for message in messages)))
        seen[decision.history].append(_words(read[-1][1]))
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for decision, before in read:
        same = set.intersection(*map(set, seen[decision.history]))
        told = " ".join(word for word in _words(before) if word not in same)
        said = [*decision.replies, *([told] if told else [])]
        found[len(decision.history)] += [(before, f"{reply}\n") for reply in said]
    return found


def _words(text: str) -> list[str]:
    """Of the last line."""
    return re.findall(r"\w+", text.splitlines()[-1])


def learn(
    model: Any, tokenizer: Any, given: dict[int, list[tuple[str, str]]], steps: int, draw: random.Random
) -> float:
    """Teaches what is said, not what is read; as many lessons of each number of turns. Returns the mean loss of the
    last tenth of the steps, in nats a token."""
    import torch

    def ids_of(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    pairs = [[([tokenizer.bos_token_id, *ids_of(before)], ids_of(said)) for before, said in given[n]] for n in given]
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 20) * (1 - step / steps))
    losses = []
    for _ in range(steps):
        batch = [draw.choice(draw.choice(pairs)) for _ in range(BATCH)]
        longest = max(len(before) + len(said) for before, said in batch)
        ids = torch.full((BATCH, longest), tokenizer.eos_token_id)
        labels = torch.full((BATCH, longest), -100)
        for row, (before, said) in enumerate(batch):
            end = len(before) + len(said)
            ids[row, :end] = torch.tensor([*before, *said])
            labels[row, len(before) : end] = torch.tensor(said)
        loss = model(input_ids=ids, labels=labels).loss  # what is behind a text is read by nothing before it
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rates.step()
        losses.append(float(loss.detach()))
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


if __name__ == "__main__":
    main()
