"""Does self-play learn Leduc poker? NashConv of every stage, exactly, of a small model (benchmarks/small_model.py).

    python -m benchmarks.leduc run --seed 1 --out runs/leduc       # one seed; called again, it resumes
    python -m benchmarks.leduc tables --out runs/leduc             # Markdown tables of all seeds that are done

A seed is a model of its own random weights that imitates random legal play, then plays itself: configs/leduc.yaml with
the values of SMALL. `run` keeps a record, SEED.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import small_model
from benchmarks.seed_runs import arguments, lines_of, records_in, seconds_of, self_play_games, train
from cluster.commands.exploitability import policy_of
from spag_ray.config.loading import load_config
from spag_ray.game.game_tree import TreeSolved, uniform
from spag_ray.games.registry import game_of
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.stages import Stage, StageKind

CONFIG = "configs/leduc.yaml"
SMALL = (
    "learner.freeze_embeddings=false",  # they begin random
    "learner.max_tokens_per_microbatch=16384",
    "engine.dtype=float32",
    "learner.dtype=float32",
    "evaluation.games=0",
    "evaluation.base_games=1",
    "imitation.learning_rate=5e-4",
    "self_play.learning_rate=1.2e-3",  # of a small model
    "self_play.last_learning_rate=5e-5",
    "objective.advantage=rloo",  # compares with the other games of the same deal
    "objective.decay=0.8",  # this and the next are the defaults again: rloo refuses the file's values
    "objective.baseline=none",
    "objective.kl_coeff=0.3",
    "self_play.last_kl_coeff=0.2",  # with 0.15 play ran in circles
    "self_play.rounds=40",
    "self_play.games_per_round=960",  # eight of each deal
)
GOAL = 1 / 3  # of uniform play's NashConv


def main() -> None:
    asked = arguments(__doc__, ("run", "tables"), "runs/leduc").parse_args()
    if asked.what == "run":
        run_seed(asked.out, asked.seed, asked.overrides)
        return
    print("\n".join(tables(records_in(asked.out))))


def run_seed(out: Path, seed: int, overrides: Sequence[str]) -> None:
    """Trains, or resumes, and writes the record."""
    model, run = out / f"model-{seed}", out / f"seed-{seed}"
    if not (model / "model.safetensors").is_file():
        small_model.make(CONFIG, model, seed=seed)
    train(CONFIG, run, [f"model={model.resolve()}", f"seed={seed}", *SMALL, *overrides])
    record = record_of(run) | {"seed": seed, "seconds": seconds_of(run)}
    (out / f"{seed}.json").write_text(json.dumps(record, indent=1) + "\n")


def record_of(run: Path) -> dict[str, Any]:
    """Figures of uniform play, of each stage and of the average of the rounds; how many games self-play had."""
    game = game_of(load_config(str(run / "config.yaml")))
    assert isinstance(game, TreeSolved)
    stages = {line.stage: line for line in lines_of(run, ExploitabilityLine)}
    rounds = [line for stage, line in stages.items() if Stage.parse(stage).kind is StageKind.ROUND]
    average = game.average([policy_of(game.decisions(), line.probabilities) for line in rounds])
    return {
        "uniform": dict(game.measure(uniform(game.decisions()))),
        "stages": {stage: dict(line.figures) for stage, line in stages.items()},
        "average": dict(game.measure(average)),
        "games": self_play_games(run),
    }


def tables(records: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: figures of each seed, and the last stages together."""
    lines = ["| seed | policy | NashConv | of uniform play's | legal actions alone | illegal | games | minutes |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for record in records:
        last = list(record["stages"])[-1]
        shown = {"uniform play": record["uniform"], "imitated": record["stages"]["imitated"]}
        shown |= {last: record["stages"][last], "average of its rounds": record["average"]}
        for name, figures in shown.items():
            more = (f"{record['games']:,}", f"{record['seconds'] / 60:.1f}") if name == last else ("", "")
            share = figures["nash_conv"] / record["uniform"]["nash_conv"]
            cells: tuple[str, ...] = (
                f"{figures['nash_conv']:.3f}",
                f"{share:.2f}",
                f"{figures['legal_nash_conv']:.3f}",
            )
            cells += (f"{100 * figures['illegal']:.1f} %", *more)
            lines.append(f"| {record['seed']} | {name} | {' | '.join(cells)} |")
    for name in ("nash_conv", "legal_nash_conv"):
        shares = [list(each["stages"].values())[-1][name] / each["uniform"]["nash_conv"] for each in records]
        reached = sum(share <= GOAL for share in shares)
        lines += [
            "",
            f"Last stages, {name} as a share of uniform play's: mean {statistics.fmean(shares):.2f}, largest ",
        ]
        lines[-1] += f"{max(shares):.2f}; at most {GOAL:.2f} in {reached} of {len(shares)} seeds."
    return lines


if __name__ == "__main__":
    main()
