"""A small model that knows only the words of one configuration's game: random weights, its own tokenizer, half a
million parameters. Self-play of it takes minutes where a language model takes hours.

    python -m benchmarks.small_model configs/leduc.yaml --out models/small
    spag-ray train leduc_small -o model=models/small

It is a Llama, so everything that plays and trains models takes it. Its tokenizer is a byte-level BPE of the game's
transcripts at random legal play: every text has tokens, and frequent words are one.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from spag_ray.config.loading import load_config
from spag_ray.game.protocol import Game, Solved, seat_to_move
from spag_ray.games.of_config import game_of

END = "<|end|>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value of the configuration")
    asked = parser.parse_args()
    make(asked.config, asked.out, asked.width, asked.layers, asked.seed, asked.overrides)


def make(
    config: str, out: Path, width: int = 128, layers: int = 4, seed: int = 0, overrides: list[str] | None = None
) -> int:
    """Writes the folder of the model; returns its number of parameters. `config`: of a game that can be solved."""
    os.environ.setdefault("USE_TF", "0")
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    game = game_of(load_config(config, overrides or []))
    if not isinstance(game, Solved):
        raise SystemExit(f"{config}: its game has no list of decisions, from which its words are taken")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(texts(game), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=END, bos_token=END)
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
        )
    )
    model.save_pretrained(out)
    return int(model.num_parameters())


def texts(game: Game) -> list[str]:
    """What a player reads at every decision of a game that is Solved, as lines, with each reply that it may give."""
    assert isinstance(game, Solved)
    found = []
    for decision in game.decisions():
        seat = seat_to_move(game, decision.history, decision.scenario)
        messages = game.messages(seat, decision.history, decision.scenario)
        before = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
        found += [f"{before}assistant: {reply}\n" for reply in decision.replies]
    return found


if __name__ == "__main__":
    main()
