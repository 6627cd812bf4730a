"""Self-play on one vLLM engine through the actors of `train`, against the published way and against vLLM alone.

    python -m benchmarks.selfplay [--games 256] [--in-flight 128]          about 12 minutes on 2 cores

SmolLM2-135M in bfloat16, the same words, rules, number of turns and at most 64 new tokens a turn, in one run:

    plain      (a) transformers' generate as the published code calls it: temperature 1.2, top-k 50, one game at a time
               (batch 1), and the games of a batch in lockstep, padded on the left (8, 16, 32); a game that has ended
               leaves the batch
    arena      (b) `ArenaActor` over one `EngineActor`, with the buffer, as `train` plays: the whole softmax at
               temperature 1
    ceiling    (c) vLLM's offline `LLM.generate` on the prompts of (b), with the same number at once and (b)'s sampling

Tokens are those that were sampled, end tokens included. The last line is JSON: speedup_batch1, speedup_best,
share_of_ceiling and the values they are computed from.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from actors.arena import GameTask, Rules
from actors.models import BUILT_IN, load_tokenizer, resolve_model
from actors.policy import Sampling
from benchmarks.machine import machine
from cluster.buffer.buffer_actor import BufferActor
from cluster.rollout.arena_actor import ArenaActor
from cluster.rollout.engine_actor import EngineActor
from cluster.runtime.ray_session import ray_session
from cluster.types import Engine, Seat
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import ClusterConfig
from spag_ray.episodes.wire import decode
from spag_ray.game.decks import load_deck
from spag_ray.game.prompt_file import load_template
from spag_ray.game.prompts import make_renderer
from spag_ray.game.referee.judge import judge_turn
from spag_ray.game.rules import Role, next_role
from spag_ray.game.turn import Turn

NEW_TOKENS = 64
RULES = Rules(max_turns=3)


def words_of(count: int) -> list[str]:
    words = sorted(load_deck("everyday"))
    random.Random(0).shuffle(words)
    return [words[index % len(words)] for index in range(count)]


def play_plain(model_folder: str, batch: int, num_games: int) -> dict[str, float]:
    """`num_games` games, `batch` at a time, turn by turn."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(model_folder)
    renderer = make_renderer(load_template("chat"), tokenizer, RULES.max_turns)
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.bfloat16, local_files_only=True).eval()
    torch.manual_seed(0)
    words = words_of(num_games)
    num_tokens = 0

    def play(words: Sequence[str]) -> None:
        nonlocal num_tokens
        games: list[tuple[str, list[Turn]]] = [(word, []) for word in words]
        for index in range(2 * RULES.max_turns):
            role = next_role(index)
            for (word, turns), tokens in zip(games, reply(games, role), strict=True):
                num_tokens += len(tokens)
                prompt = renderer.prompt(turns, role, word)
                turns.append(Turn(role, renderer.text_of(tokens), prompt, tokens, (0.0,) * len(tokens), "plain"))
            games = [
                (word, turns) for word, turns in games if judge_turn(turns[-1].text, index, word, RULES.referee) is None
            ]
            if not games:
                break

    def reply(games: Sequence[tuple[str, list[Turn]]], role: Role) -> list[tuple[int, ...]]:
        prompts = [renderer.prompt(turns, role, word) for word, turns in games]
        longest = max(map(len, prompts))
        ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([(0,) * (longest - len(prompt)) + (1,) * len(prompt) for prompt in prompts])
        with torch.no_grad():
            output = model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.2,
                top_k=50,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=list(renderer.end_ids),
                pad_token_id=0,
            )
        return [up_to_end(row, renderer.end_ids) for row in output[:, longest:].tolist()]

    began = time.perf_counter()
    for first in range(0, num_games, batch):
        play(words[first : first + batch])
    seconds = time.perf_counter() - began
    return {"tokens_per_s": num_tokens / seconds, "games_per_s": num_games / seconds}


def up_to_end(row: Sequence[int], end_ids: Sequence[int]) -> tuple[int, ...]:
    """A padded row up to its end token."""
    end = next((place for place, token in enumerate(row) if token in end_ids), len(row) - 1)
    return tuple(row[: end + 1])


def play_arena(model: str, games: int, in_flight: int) -> tuple[dict[str, float], list[list[tuple[int, ...]]]]:
    """Plays with the actors that `train` uses; also returns the prompts, by game."""
    with ray_session(ClusterConfig(object_store_gib=0.3)), tempfile.TemporaryDirectory() as folder:
        config = engine_config(in_flight)
        engine = ray.remote(EngineActor).options(max_concurrency=4096).remote(f"{folder}/engine.log")
        ray.get(engine.start.remote(model, config, "engine", 0, 0))
        buffer = ray.remote(BufferActor).options(num_cpus=0, max_concurrency=64).remote(folder)
        template = load_template("chat")
        arena = ray.remote(ArenaActor).options(num_cpus=0, max_concurrency=64)
        arena = arena.remote("arena", f"{folder}/arena.log", template, [RULES], 600.0, 600.0, buffer)
        ray.get(arena.share.remote("policy", "policy", [(Engine(engine, "engine", "policy"), 1.0, True)]))
        seat = Seat("policy", "policy", Sampling(1.0, NEW_TOKENS), model)
        seats = {"attacker": seat, "defender": seat}

        def play(stage: str, count: int) -> float:
            tasks = [GameTask(number, word, stage) for number, word in enumerate(words_of(count))]
            began = time.perf_counter()
            assert ray.get(arena.play.remote(tasks, seats, in_flight)) == count
            return time.perf_counter() - began

        play("warm", 8)
        seconds = play("timed", games)
        episodes = [decode(data) for data in ray.get(buffer.take.remote("timed"))]
        tokens = sum(episode.num_tokens for episode in episodes)
        turns = sum(len(episode.turns) for episode in episodes)
        ray.get(engine.close.remote())
        for actor in (arena, engine, buffer):
            ray.kill(actor)
    rates = {"tokens_per_s": tokens / seconds, "games_per_s": games / seconds, "turns_per_s": turns / seconds}
    return rates, [[turn.prompt_ids for turn in episode.turns] for episode in episodes]


def play_offline(model: str, prompts: Sequence[Sequence[tuple[int, ...]]], in_flight: int) -> dict[str, float]:
    """vLLM's own loop over the prompts of all games, in the order of play: first turns first."""
    import vllm

    config = engine_config(in_flight)
    engine = vllm.LLM(
        model,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        kv_cache_memory_bytes=int(config.kv_cache_gib * 2**30),
        enforce_eager=True,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        block_size=32,  # as in actors/vllm_policy.py
        max_num_batched_tokens=max(2048, config.max_model_len),
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
    )
    ordered = [game[turn] for turn in range(2 * RULES.max_turns) for game in prompts if turn < len(game)]
    end_ids = list(make_renderer(load_template("chat"), load_tokenizer(model), RULES.max_turns).stop_ids)

    def params(number: int) -> Any:
        return vllm.SamplingParams(
            temperature=1.0,
            max_tokens=NEW_TOKENS,
            stop_token_ids=end_ids,
            seed=number,
            logprobs=0,
            detokenize=False,
        )

    def run(part: Sequence[tuple[int, ...]]) -> tuple[int, float]:
        began = time.perf_counter()
        asked: Any = [{"prompt_token_ids": list(prompt)} for prompt in part]
        outputs = engine.generate(asked, [params(number) for number in range(len(part))], use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs), time.perf_counter() - began

    run(ordered[:8])
    num_tokens, seconds = run(ordered)
    return {"tokens_per_s": num_tokens / seconds, "turns_per_s": len(ordered) / seconds}


def engine_config(in_flight: int) -> EngineConfig:
    return EngineConfig(max_model_len=1024, max_num_seqs=in_flight, kv_cache_gib=2.0)


def in_a_process(part: str, *arguments: Any) -> Any:
    """Runs one part in its own process, so that the memory of other parts is free."""
    with tempfile.TemporaryDirectory() as folder:
        handed, found = Path(folder, "in.json"), Path(folder, "out.json")
        handed.write_text(json.dumps(arguments))
        subprocess.run([sys.executable, "-m", "benchmarks.selfplay", "--part", part, folder], check=True)
        return json.loads(found.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, default=256)
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        part, folder = options.part
        function = {"plain": play_plain, "arena": play_arena, "offline": play_offline}[part]
        found = function(*json.loads(Path(folder, "in.json").read_text()))
        Path(folder, "out.json").write_text(json.dumps(found))
        return
    model = resolve_model(BUILT_IN)
    plain = {}
    for batch in options.batches:
        plain[batch] = in_a_process("plain", model, batch, max(batch, 4))
        print(json.dumps({"plain": batch, **plain[batch]}), flush=True)
    arena, prompts = in_a_process("arena", model, options.games, options.in_flight)
    print(json.dumps({"arena": options.in_flight, **arena}), flush=True)
    ceiling = in_a_process("offline", model, prompts, options.in_flight)
    print(json.dumps({"ceiling": options.in_flight, **ceiling}), flush=True)
    rate = arena["tokens_per_s"]
    best = max(found["tokens_per_s"] for found in plain.values())
    print(
        json.dumps(
            {
                "speedup_batch1": round(rate / plain[1]["tokens_per_s"], 2),
                "speedup_best": round(rate / best, 2),
                "share_of_ceiling": round(rate / ceiling["tokens_per_s"], 3),
                "tokens_per_s": round(rate, 1),
                "games_per_s": round(arena["games_per_s"], 3),
                "ceiling_tokens_per_s": round(ceiling["tokens_per_s"], 1),
                "plain_tokens_per_s": {str(batch): round(found["tokens_per_s"], 1) for batch, found in plain.items()},
                "in_flight": options.in_flight,
                **machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
