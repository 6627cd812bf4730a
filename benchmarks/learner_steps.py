"""Steps of the learner in several settings: seconds, tokens per second, MFU, memory beside its plan, idle times.

    python -m benchmarks.learner_steps [--only 1.5b] [--profile] [--traces FOLDER]      about 7 minutes on one H200
    python -m benchmarks.learner_steps --device cpu                  tries its code, in about two minutes

Each setting has a process of its own, a model of random weights in a real shape, and games of random tokens, of which
each turn reads what was said before. Their old log-probabilities are scored first, then one batch is trained on again
and again. With --profile, one more step is recorded, and its longest times without work on the GPU are listed, with the
kernel that came after each and what the host did in that time.

The last line is JSON: a row for each setting, card and versions.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import Place, place_of
from benchmarks.workers import Worker, forked
from cluster.gpu_check.check import GIB, SHAPES, write_random_model
from cluster.gpu_check.learner_checks import games_of, planned_bytes
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.host.cpu_features import fast_dtype
from spag_ray.training_data.stage_spec import StageSpec

WARM_UP, STEPS = 3, 6
NUM_GAPS = 10
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace's events


@dataclass(frozen=True)
class Setting:
    """A model's shape, the games of a step (168 tokens each, and 60 that all begin with), what is not the default."""

    name: str
    shape: str
    num_games: int
    options: dict[str, Any]


def settings() -> list[Setting]:
    large = {"max_tokens_per_microbatch": 16384}
    layers = {"compile": "layers"}
    return [
        Setting("135m, 8 games, ZeRO-2", "smollm2-135m", 8, {"zero_stage": 2}),
        Setting("135m, 8 games, ZeRO-2, layers compiled", "smollm2-135m", 8, {"zero_stage": 2, **layers}),
        Setting("135m, 8 games, ZeRO-1", "smollm2-135m", 8, {"zero_stage": 1}),
        Setting("135m, 8 games, ZeRO-1, layers compiled", "smollm2-135m", 8, {"zero_stage": 1, **layers}),
        Setting("1.5b, 90 games, ZeRO-1", "qwen2.5-1.5b", 90, {"zero_stage": 1, **large}),
        Setting("1.5b, 90 games, ZeRO-1, layers compiled", "qwen2.5-1.5b", 90, {"zero_stage": 1, **large, **layers}),
        Setting("1.5b, 90 games, ZeRO-2", "qwen2.5-1.5b", 90, {"zero_stage": 2, **large}),
        Setting("1.5b, 90 games, ZeRO-3", "qwen2.5-1.5b", 90, {"zero_stage": 3, **large}),
        Setting(
            "7b, 90 games, ZeRO-2, checkpointing",
            "qwen2.5-7b",
            90,
            {"zero_stage": 2, "gradient_checkpointing": True, "max_tokens_per_microbatch": 8192},  # 16,384 need 140 GiB
        ),
    ]


class Steps:
    """A learner and its batch, in a process that has no other use."""

    def __init__(self, folder: str, setting: Setting, device: str) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0" if device == "cuda" else ""
        from learners.engine import World
        from learners.learner import Learner
        from spag_ray.game.rules import Role
        from spag_ray.training_data.samples import GameSample
        from spag_ray.training_data.shares import Batch

        self._on_gpu = device == "cuda"
        self.config = LearnerConfig(
            **setting.options, dtype=fast_dtype(on_gpu=self._on_gpu), num_gpus=float(self._on_gpu)
        )
        self._learner = Learner(folder, self.config, ObjectiveConfig(), World(master="127.0.0.1:0"))
        turns = games_of(setting.num_games, SHAPES[setting.shape]["vocab_size"])
        began = time.perf_counter()
        scores = iter(self._learner.score([turn for game in turns for turn in game]))
        self._scoring_s = time.perf_counter() - began
        games = [
            GameSample(str(number), Role.ATTACKER, 1.0, tuple(replace(t, old_logprobs=next(scores)) for t in game))
            for number, game in enumerate(turns)
        ]
        self._batch = Batch(tuple(games))
        self._learner.begin_stage(StageSpec("self_play", WARM_UP + STEPS + 2, 1e-6, kl_coeff=0.2))

    def figures(self) -> dict[str, float]:
        reports = [self._learner.step(self._batch) for _ in range(WARM_UP + STEPS)]
        timed = sorted(reports[WARM_UP:], key=lambda report: report.seconds)
        middle = timed[len(timed) // 2]
        found = {
            "step_s": round(middle.seconds, 4),
            "best_s": round(timed[0].seconds, 4),
            "first_s": round(reports[0].seconds, 1),
            "compute_share": round(statistics.median(each.compute_s / each.seconds for each in timed), 3),
            "tokens": middle.num_unique_tokens,
            "tokens_per_s": round(middle.tokens_per_s),
            "first_scoring_s": round(self._scoring_s, 1),
            "skipped": sum(report.skipped for report in reports),
        }
        if middle.mfu is not None:
            found["mfu"] = round(middle.mfu, 4)
        if self._on_gpu:
            found["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        return found

    def planned_gib(self, shape: str) -> float:
        return round(planned_bytes(shape, self.config) / GIB, 2)

    def trace(self, path: str) -> None:
        """One more step, in Chrome's format."""
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self._on_gpu:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=kinds) as recorded:
            self._learner.step(self._batch)
            if self._on_gpu:
                torch.cuda.synchronize()
        recorded.export_chrome_trace(path)


def gaps(trace: dict[str, Any]) -> dict[str, Any]:
    """From a trace in Chrome's format: how many operations a GPU did, in how many milliseconds from the first to the
    last, for what share of them it was busy, and its longest waits."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    done = sorted((event for event in events if event.get("cat") in ON_DEVICE), key=lambda event: event["ts"])
    if not done:
        return {}
    on_host = [event for event in events if event.get("cat") in ("cpu_op", "cuda_runtime", "python_function")]
    waits, busy, until = [], 0.0, done[0]["ts"]
    for event in done:
        if event["ts"] > until:
            waits.append((event["ts"] - until, until, event["name"]))
        busy += max(0.0, event["ts"] + event["dur"] - max(until, event["ts"]))
        until = max(until, event["ts"] + event["dur"])
    longest = sorted(waits, reverse=True)[:NUM_GAPS]
    whole = until - done[0]["ts"]
    return {
        "operations": len(done),
        "ms": round(whole / 1000, 2),
        "busy_share": round(busy / whole, 3),
        "gaps": [
            {"ms": round(length / 1000, 3), "before": name[:80], "host": _doing(on_host, start + length / 2)}
            for length, start, name in longest
        ],
    }


def _doing(events: Sequence[dict[str, Any]], at: float) -> str:
    """The names of the host's operations at a moment, the outermost first."""
    found = [event for event in events if event["ts"] <= at <= event["ts"] + event["dur"]]
    return " > ".join(event["name"][:40] for event in sorted(found, key=lambda event: event["ts"])[-3:])


def measured(setting: Setting, folder: str, place: Place, profile: bool, traces: Path | None) -> dict[str, Any]:
    with Worker(Steps, folder, setting, place.device) as steps:
        found: dict[str, Any] = {"setting": setting.name, **steps.call("figures")}
        found["planned_gib"] = steps.call("planned_gib", setting.shape)
        if profile:
            path = Path(folder).with_name("trace.json")
            steps.call("trace", str(path))
            found["profile"] = gaps(json.loads(path.read_text(encoding="utf-8")))
            if traces is not None:
                shutil.copy(path, traces / f"{setting.name.replace(', ', '-').replace(' ', '-')}.json")
    return found


@contextmanager
def models(place: Place) -> Iterator[Any]:
    """A function: shape -> the folder of a model of it. Only the last one is kept: they are large."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        held = ""

        def folder_of(shape: str) -> str:
            nonlocal held
            if shape != held:
                shutil.rmtree(folder, ignore_errors=True)
                forked(write_random_model, folder, SHAPES[shape], torch.bfloat16, place.device)
                held = shape
            return str(folder)

        yield folder_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda if there is a GPU")
    parser.add_argument("--only", default="", help="settings: parts of their names, separated by semicolons")
    parser.add_argument("--profile", action="store_true", help="also record one step, and list the GPU's longest waits")
    parser.add_argument("--traces", type=Path, help="keep the records of --profile in this folder")
    options = parser.parse_args()
    options.shape = None
    place = place_of(options)
    names = [part.strip() for part in options.only.split(";") if part.strip()]
    if unknown := [name for name in names if not any(name in each.name for each in settings())]:
        parser.error(f"--only: no setting has {unknown[0]!r} in its name: {', '.join(s.name for s in settings())}")
    chosen = [each for each in settings() if not names or any(name in each.name for name in names)]
    if not place.on_gpu:
        chosen = [replace(each, shape="tiny", num_games=2) for each in chosen if "compiled" not in each.name]
    rows = []
    with models(place) as folder_of:
        for setting in chosen:
            try:
                row = measured(setting, folder_of(setting.shape), place, options.profile, options.traces)
            except RuntimeError as error:  # one setting that does not fit leaves the others
                row = {"setting": setting.name, "error": str(error)[-2000:]}
            print(json.dumps(row), flush=True)
            rows.append(row)
    about = place.about()
    print(json.dumps({"rows": rows, **{key: about[key] for key in ("device", "card", "versions", "machine")}}))
    if any("error" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
