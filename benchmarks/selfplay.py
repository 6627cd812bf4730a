"""Self-play on one vLLM engine through the actors of `train`, against the published way and against vLLM alone.

    python -m benchmarks.selfplay [--games 256] [--in-flight 128]          about 12 minutes on 2 cores
    python -m benchmarks.selfplay --quick [--device cuda|cpu] [--shape qwen2.5-1.5b]      about 2 minutes on one GPU

The same model in bfloat16, words, rules, number of turns and at most 64 new tokens a turn, in one run:

    plain      (a) transformers' generate as the published code calls it: temperature 1.2, top-k 50, one game at a time
               (batch 1), and the games of a batch in lockstep, padded on the left (8, 16, 32); a game that has ended
               leaves the batch
    arena      (b) `ArenaActor` over one `EngineActor`, with the buffer, as `train` plays: the whole softmax at
               temperature 1
    engine     (c) the engine of (b), with an empty prefix cache, on all prompts of (b) at once: no games, no referee
    ceiling    (d) vLLM's offline `LLM.generate` on the prompts of (b), with the same number at once and (b)'s sampling;
               another engine has to start for it, so not with --quick

Tokens are those that were sampled, end tokens included. `mfu` of a rate is the share of the measured bfloat16 matrix
rate that its sampled tokens need forward (2 FLOPs for each weight; learners/utilization.py); prompts are left out.
The minutes on a GPU are estimated for a warm machine: it has not run on one.
The last line is JSON: speedup_batch1, speedup_best, share_of_engine, share_of_ceiling, the values they are computed
from, card and versions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import ray

from actors.arena import GameTask, Rules
from actors.models import load_tokenizer
from actors.policy import Request, Sampling
from benchmarks.machine import add_arguments, cost_of, measured_matrix_rate, place_of
from benchmarks.workers import forked
from cluster.buffer.buffer_actor import BufferActor
from cluster.rollout.arena_actor import ArenaActor
from cluster.rollout.engine_actor import EngineActor
from cluster.rollout.remote_policy import RemotePolicy
from cluster.runtime.ray_session import ray_session
from cluster.types import Engine, Seat
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import ClusterConfig
from spag_ray.episodes.wire import decode
from spag_ray.game.protocol import TABOO
from spag_ray.game.rules import Role, next_role
from spag_ray.game.styles import game_renderer
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.referee.judge import judge_turn
from spag_ray.host.cpu_features import fast_dtype

NEW_TOKENS = 64
QUICK_GAMES = {"cuda": 256, "cpu": 32}
RULES = Rules(TabooGame(max_turns=3), TABOO)


def words_of(count: int) -> list[str]:
    words = sorted(load_deck("everyday"))
    random.Random(0).shuffle(words)
    return [words[index % len(words)] for index in range(count)]


def play_plain(model_folder: str, device: str, batch: int, num_games: int) -> dict[str, float]:
    """`num_games` games, `batch` at a time, turn by turn."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer(model_folder)
    renderer = game_renderer(RULES.game, tokenizer, "chat")
    dtype = getattr(torch, fast_dtype(on_gpu=device == "cuda"))
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype, local_files_only=True)
    model = model.to(device).eval()
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
                turns.append(Turn.unsampled(role, renderer.text_of(tokens), prompt, tokens, "plain"))
            games = [
                (word, turns) for word, turns in games if judge_turn(turns[-1].text, index, word, RULES.variant) is None
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
                ids.to(device),
                attention_mask=mask.to(device),
                do_sample=True,
                temperature=1.2,
                top_k=50,
                max_new_tokens=NEW_TOKENS,
                eos_token_id=list(renderer.end_ids),
                pad_token_id=0,
            )
        return [up_to_end(row, renderer.end_ids) for row in output[:, longest:].tolist()]

    if device == "cuda":
        model.generate(torch.ones(1, 8, dtype=torch.int64, device=device), max_new_tokens=2)  # loads the kernels
    began = time.perf_counter()
    for first in range(0, num_games, batch):
        play(words[first : first + batch])
    seconds = time.perf_counter() - began
    return {"tokens_per_s": num_tokens / seconds, "games_per_s": num_games / seconds}


def up_to_end(row: Sequence[int], end_ids: Sequence[int]) -> tuple[int, ...]:
    """A padded row up to its end token."""
    end = next((place for place, token in enumerate(row) if token in end_ids), len(row) - 1)
    return tuple(row[: end + 1])


def play_arena(
    model: str, device: str, games: int, in_flight: int
) -> tuple[dict[str, float], dict[str, float], list[list[tuple[int, ...]]]]:
    """Plays with the actors that `train` uses. Returns its rates, those of its engine on the same prompts, and the
    prompts, by game."""
    with ray_session(ClusterConfig(object_store_gib=0.3)), tempfile.TemporaryDirectory() as folder:
        config = engine_config(device, in_flight)
        engine = ray.remote(EngineActor).options(max_concurrency=4096, num_gpus=config.num_gpus)
        engine = engine.remote(f"{folder}/engine.log")
        ray.get(engine.start.remote(model, config, "engine", 0, 0))
        buffer = ray.remote(BufferActor).options(num_cpus=0, max_concurrency=64).remote(folder)
        arena = ray.remote(ArenaActor).options(num_cpus=0, max_concurrency=64)
        arena = arena.remote("arena", f"{folder}/arena.log", [RULES], 600.0, 600.0, buffer)
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
        prompts = [[turn.prompt_ids for turn in episode.turns] for episode in episodes]
        ray.get(engine.sleep.remote())  # which empties the prefix cache
        ray.get(engine.wake.remote())
        of_engine = asyncio.run(ask_engine(RemotePolicy(engine, "policy"), in_order(prompts), stop_ids(model)))
        ray.get(engine.close.remote())
        for actor in (arena, engine, buffer):
            ray.kill(actor)
    rates = {"tokens_per_s": tokens / seconds, "games_per_s": games / seconds, "turns_per_s": turns / seconds}
    return rates, of_engine, prompts


def in_order(prompts: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    """The prompts of all games in the order of play: first turns first."""
    return [game[turn] for turn in range(2 * RULES.max_turns) for game in prompts if turn < len(game)]


def stop_ids(model: str) -> tuple[int, ...]:
    return tuple(game_renderer(RULES.game, load_tokenizer(model), "chat").stop_ids)


async def ask_engine(
    policy: RemotePolicy, prompts: Sequence[tuple[int, ...]], end_ids: tuple[int, ...]
) -> dict[str, float]:
    """All prompts at once; the engine decodes as many together as it may."""
    sampling = Sampling(1.0, NEW_TOKENS, stop_token_ids=end_ids)
    began = time.perf_counter()
    answers = await policy.generate([Request(str(number), prompt, sampling) for number, prompt in enumerate(prompts)])
    seconds = time.perf_counter() - began
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    return {"tokens_per_s": num_tokens / seconds, "turns_per_s": len(prompts) / seconds}


def play_offline(
    model: str, device: str, prompts: Sequence[Sequence[tuple[int, ...]]], in_flight: int
) -> dict[str, float]:
    """vLLM's own loop over the prompts of all games."""
    import vllm

    config = engine_config(device, in_flight)
    arguments: dict[str, Any] = {"gpu_memory_utilization": config.gpu_memory_utilization}
    if device == "cpu":  # as in actors/vllm_policy.py
        arguments = {
            "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "block_size": 32,
            "max_num_batched_tokens": max(2048, config.max_model_len),
        }
    engine = vllm.LLM(
        model,
        dtype=config.dtype,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        enable_prefix_caching=True,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        **arguments,
    )
    ordered, end_ids = in_order(prompts), list(stop_ids(model))

    def params(number: int) -> Any:
        return vllm.SamplingParams(
            temperature=1.0, max_tokens=NEW_TOKENS, stop_token_ids=end_ids, seed=number, logprobs=0, detokenize=False
        )

    def run(part: Sequence[tuple[int, ...]]) -> tuple[int, float]:
        began = time.perf_counter()
        asked: Any = [{"prompt_token_ids": list(prompt)} for prompt in part]
        outputs = engine.generate(asked, [params(number) for number in range(len(part))], use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs), time.perf_counter() - began

    run(ordered[:8])
    num_tokens, seconds = run(ordered)
    return {"tokens_per_s": num_tokens / seconds, "turns_per_s": len(ordered) / seconds}


def engine_config(device: str, in_flight: int) -> EngineConfig:
    num_gpus = 1.0 if device == "cuda" else 0.0
    return EngineConfig(max_model_len=1024, max_num_seqs=in_flight, kv_cache_gib=2.0, num_gpus=num_gpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, help="256, and with --quick on CPUs 32")
    parser.add_argument("--in-flight", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", help="1 8 16 32, and with --quick 1 32, on CPUs 1 8")
    add_arguments(parser)
    options = parser.parse_args()
    place = place_of(options)
    quick_batches = [1, 32] if place.on_gpu else [1, 8]
    batches = options.batches or (quick_batches if options.quick else [1, 8, 16, 32])
    num_games = options.games or (QUICK_GAMES[place.device] if options.quick else 256)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = place.model(folder)
        matrix_rate, cost = forked(measured_matrix_rate, place.device), forked(cost_of, model)
        plain = {}
        for batch in batches:
            plain[batch] = forked(play_plain, model, place.device, batch, max(batch, 1 if options.quick else 4))
            print(json.dumps({"plain": batch, **plain[batch]}), flush=True)
        arena, of_engine, prompts = forked(play_arena, model, place.device, num_games, options.in_flight)
        print(json.dumps({"arena": options.in_flight, **arena}), flush=True)
        print(json.dumps({"engine": options.in_flight, **of_engine}), flush=True)
        if not options.quick:
            ceiling = forked(play_offline, model, place.device, prompts, options.in_flight)
            print(json.dumps({"ceiling": options.in_flight, **ceiling}), flush=True)
            result["share_of_ceiling"] = round(arena["tokens_per_s"] / ceiling["tokens_per_s"], 3)
            result["ceiling_tokens_per_s"] = round(ceiling["tokens_per_s"], 1)
    rate = arena["tokens_per_s"]
    best = max(found["tokens_per_s"] for found in plain.values())
    forward = (cost.per_token + cost.per_target_token) / 3  # 2 of the 6 FLOPs that training a weight takes
    if 1 in plain:
        result["speedup_batch1"] = round(rate / plain[1]["tokens_per_s"], 2)
    result |= {
        "speedup_best": round(rate / best, 2),
        "share_of_engine": round(rate / of_engine["tokens_per_s"], 3),
        "tokens_per_s": round(rate, 1),
        "games_per_s": round(arena["games_per_s"], 3),
        "engine_tokens_per_s": round(of_engine["tokens_per_s"], 1),
        "plain_tokens_per_s": {str(batch): round(found["tokens_per_s"], 1) for batch, found in plain.items()},
        "mfu": round(rate * forward / matrix_rate, 5),
        "matmul_tflops": round(matrix_rate / 1e12, 2),
        "games": num_games,
        "in_flight": options.in_flight,
        **place.about(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
