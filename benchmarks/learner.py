"""The learner against the published way of training and against TRL, on one machine, in one run.

    python -m benchmarks.learner [--games 32] [--repeats 2]          about 25 minutes on 2 cores
    python -m benchmarks.learner --quick [--device cuda|cpu] [--shape qwen2.5-1.5b]      about 2 minutes on one GPU
    python -m benchmarks.learner --listening                         what listening adds to the learner's time

All train the same model on the turns of the same five-turn games, by the same token ids:

    published  one padded sequence per winner's turn, two in a batch, every logit, a second model for the reference;
               the loss of the published offline policy optimisation
    ours       learners.Learner with that loss: one scoring pass, token trees, DeepSpeed ZeRO-1
    trl        TRL's GRPOTrainer with its own loss, if trl is installed (benchmarks/trl_grpo.py says what is its own)

Time runs from the samples to the last weight update, including old and reference log-probabilities. Ours trains on all
games in steps of 16; the others only on the first 16, because their cost per game does not depend on their number. In
its first step ours is its own reference and scores nothing, while the others always pay for a reference pass:
`scored_share` is the share of ours' games that were scored, 0 with --quick on CPUs, where all games are one step. Each
way has a process of its own. On CPUs they are measured in turn; on a GPU, whose memory they would share, one after the
other. `tokens_per_s` counts the tokens of the rows, which are the same for all ways; `computed_tokens_per_s` those that
a way computes for them; `mfu` is the share of the measured bfloat16 matrix rate that those need, as in
learners/utilization.py.

The minutes on a GPU are estimated for a warm machine: it has not run on one.
The last line is JSON: flat_speedup, chat_speedup (published / ours), chat_speedup_of_trl (trl / ours), gradient_cosine,
busy_share, scored_share, the values they are computed from, card and versions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import torch

from benchmarks.learner_games import games_of, without_listening
from benchmarks.learner_ways import CLIP_RANGE, GAMES_PER_STEP, KL_COEFF, SFT_COEFF, Baseline, Ours, Timing
from benchmarks.machine import Place, add_arguments, cost_of, measured_matrix_rate, place_of
from benchmarks.trl_grpo import Grpo, why_not
from benchmarks.workers import Worker, forked
from learners.attention import TREE
from learners.forward import token_logprobs
from learners.head import TargetHead
from learners.model_folder import load_model
from learners.objectives import published_offline_po_terms
from learners.packing import pack
from learners.utilization import StepCost
from spag_ray.training_data.samples import GameSample

LINEAR_SIZES = (1, 4, 16, 64)
QUICK_GAMES = {"cuda": 4 * GAMES_PER_STEP, "cpu": 4}  # steps after the first have their games scored


@dataclass
class Measured:
    """A way on the games of one style: a Timing of each repeat."""

    timings: list[Timing] = field(default_factory=list)
    peak_gib: float = 0.0

    @property
    def seconds_per_game(self) -> list[float]:
        return [timing.seconds / timing.num_games for timing in self.timings]

    def figures(self, cost: StepCost, matrix_rate: float) -> dict[str, float]:
        """For the line of JSON, of the median repeat."""
        timing = sorted(self.timings, key=lambda each: each.seconds)[len(self.timings) // 2]
        return {
            "seconds_per_game": round(timing.seconds / timing.num_games, 4),
            "seconds_per_step": round(timing.seconds / timing.num_games * min(GAMES_PER_STEP, timing.num_games), 3),
            "tokens_per_s": round(timing.num_row_tokens / timing.seconds, 1),
            "computed_tokens_per_s": round(timing.num_tokens / timing.seconds, 1),
            "mfu": round(cost.flops(timing.num_tokens, timing.num_targets) / timing.seconds / matrix_rate, 4),
            "peak_gib": round(self.peak_gib, 2),
        }


def measured(
    model: str, place: Place, games: dict[str, list[GameSample]], max_tokens: int, repeats: int
) -> dict[str, dict[str, Measured]]:
    """{style: {way: what was measured}}"""
    make: dict[str, Callable[..., Any]] = {
        "published": partial(Baseline, model, place.device),
        "ours": partial(Ours, model, max_tokens, place.device),
    }
    if not why_not():
        make["trl"] = partial(Grpo, model, place.device)
    found = {style: {way: Measured() for way in make} for style in games}
    for ways in [[way] for way in make] if place.on_gpu else [list(make)]:
        with ExitStack() as stack:
            workers = {way: stack.enter_context(Worker(make[way])) for way in ways}
            for style, own in games.items():
                taken = {way: own if way == "ours" else own[:GAMES_PER_STEP] for way in ways}
                for way, worker in workers.items():  # on a GPU also what has to be compiled, for these lengths
                    worker.call("train", taken[way] if place.on_gpu else own[:2])
                for _, way in itertools.product(range(repeats), ways):
                    timing = workers[way].call("train", taken[way])
                    found[style][way].timings.append(timing)
                    print(json.dumps({"style": style, "way": way, **asdict(timing)}), flush=True)
                for way, worker in workers.items():
                    found[style][way].peak_gib = worker.call("peak_gib")
    return found


def listening_cost(model: str, max_tokens: int, num_games: int, repeats: int) -> dict[str, float]:
    """{what: learner time with listening / without}, measured alternately on the same games. Time is the process's
    CPU time, so other processes may use the machine."""
    ours = Ours(model, max_tokens)
    ratios = {}
    for deciding, style in itertools.product((True, False), ("chat", "flat")):
        games = games_of(style, num_games, model, deciding)
        last = [replace(game, listening=game.listening[-1:]) for game in games]
        kinds = {"none": without_listening(games), "all": games, "last": last}
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        num_tokens = {}
        ours.train(games[:2])
        for _ in range(repeats):
            for kind, chosen in kinds.items():
                began = time.process_time()
                num_tokens[kind] = ours.train(chosen).num_tokens
                seconds[kind].append(time.process_time() - began)
        for kind in ("all", "last"):
            name = f"{style}, winners{' and mistakes' if deciding else ''}, {kind}"
            ratios[name] = round(min(seconds[kind]) / min(seconds["none"]), 3)
            tokens = num_tokens[kind] / num_tokens["none"]
            print(f"{name}: {ratios[name]}x CPU seconds, {tokens:.2f}x tokens, {seconds}", flush=True)
    return ratios


def gradient_cosine(model: str, device: str, games: Sequence[GameSample]) -> float:
    """Cosine of the gradients of both ways on a few games, in float32, over all parameters."""
    baseline = Baseline(model, device, torch.float32)
    baseline.gradients(games)
    theirs = torch.cat([parameter.grad.flatten() for parameter in baseline.model.parameters()])
    module: Any = load_model(model, torch.float32, TREE).to(device)
    TargetHead.install(module)
    turns = [(turn, game.weight) for game in games for turn in game.turns]
    for tree in pack([turn for turn, _ in turns], 2048):
        means = torch.stack([values.mean() for values in token_logprobs(module, tree).split(tree.lengths)])
        chosen = [turns[index] for index in tree.sample_indices]
        published_offline_po_terms(
            means,
            means.detach(),  # the reference is the model itself before its first step
            torch.tensor([turn.advantage for turn, _ in chosen], device=device),
            torch.tensor([weight for _, weight in chosen], device=device),
            torch.zeros(len(chosen), device=device),
            KL_COEFF,
            SFT_COEFF,
            CLIP_RANGE,
            num_game_samples=len(turns),
        ).sum().backward()
    ours = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    return torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=0).item()


def result_of(
    found: dict[str, dict[str, Measured]], cost: StepCost, matrix_rate: float, missing: str
) -> dict[str, Any]:
    """The part of the line of JSON that is about the ways. `missing`: why TRL was not measured."""
    result: dict[str, Any] = {"ways": {}}
    busy = []
    for style, ways in found.items():
        ours = ways["ours"]
        of_ours = ours.timings[-1]
        result["scored_share"] = round(max(0.0, 1 - GAMES_PER_STEP / of_ours.num_games), 2)
        for way, key in (("published", f"{style}_speedup"), ("trl", f"{style}_speedup_of_trl")):
            if way in ways:
                pairs = zip(ways[way].seconds_per_game, ours.seconds_per_game, strict=True)
                result[key] = round(statistics.median(theirs / mine for theirs, mine in pairs), 2)
        theirs = ways["published"].timings[-1]
        tokens_per_game = theirs.num_tokens / theirs.num_games, of_ours.num_tokens / of_ours.num_games
        result[f"{style}_token_ratio"] = round(tokens_per_game[0] / tokens_per_game[1], 2)
        result[f"{style}_times_floor"] = round(
            of_ours.seconds / (cost.flops(of_ours.num_tokens, of_ours.num_targets) / matrix_rate), 1
        )
        busy += [timing.compute_s / timing.seconds for timing in ours.timings]
        result["ways"][style] = {way: each.figures(cost, matrix_rate) for way, each in ways.items()}
        if missing:
            result["ways"][style]["trl"] = {"skipped": missing}
    result["busy_share"] = round(statistics.median(busy), 3)
    result["matmul_tflops"] = round(matrix_rate / 1e12, 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", type=int, help="32, and with --quick 64 on a GPU and 4 on CPUs")
    parser.add_argument("--repeats", type=int, help="2, and with --quick 1")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--listening", action="store_true", help="measure only what listening costs")
    add_arguments(parser)
    options = parser.parse_args()
    place = place_of(options)
    num_games = options.games or (QUICK_GAMES[place.device] if options.quick else 32)
    repeats = options.repeats or (1 if options.quick else 2)
    with tempfile.TemporaryDirectory() as folder:
        model = place.model(folder)
        if options.listening:
            print(json.dumps(forked(listening_cost, model, options.max_tokens, num_games, repeats)))
            return
        styles = ("chat",) if options.quick else ("flat", "chat")
        games = {style: without_listening(games_of(style, num_games, model)) for style in styles}
        result: dict[str, Any] = {}
        if not options.quick:
            cosine = min(forked(gradient_cosine, model, place.device, own[:2]) for own in games.values())
            result["gradient_cosine"] = round(cosine, 7)
            print(f"gradient cosine of both ways, float32: {cosine:.7f}", flush=True)
        found = measured(model, place, games, options.max_tokens, repeats)
        rate = forked(measured_matrix_rate, place.device)
        result |= result_of(found, forked(cost_of, model), rate, why_not())
        if not options.quick:
            more = without_listening(games_of("chat", max(LINEAR_SIZES), model))
            with Worker(Ours, model, options.max_tokens, place.device) as ours:
                result["seconds_per_added_episode"] = ours.call("seconds_per_added_game", more, LINEAR_SIZES)
        print(json.dumps(result | {"games": num_games, "repeats": repeats} | place.about()))


if __name__ == "__main__":
    main()
