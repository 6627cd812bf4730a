"""Does self-play learn? Kuhn poker, where the answer is exact: NashConv of every stage, three seeds, and the published
objective at as many games.

    python -m benchmarks.kuhn run --seed 1 --out runs/kuhn      # one seed; called again, it resumes
    python -m benchmarks.kuhn tables --out runs/kuhn            # Markdown tables of all seeds that are done
    python -m benchmarks.kuhn curve --out runs/kuhn --image kuhn.html      # the curves as a page, seeds as a band
    python -m benchmarks.kuhn tables --out docs/kuhn            # the same of the records in the documentation

A seed is two runs: `spag` (configs/kuhn.yaml), and `published`, which starts from the same imitated model and plays as
many games with the published objective and its KL coefficient, at the same learning rates. `run` keeps a record of
both, SEED.json.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.seed_runs import add_band, arguments, lines_of, records_in, seconds_of, self_play_games, train
from cluster.commands.exploitability import policy_of
from cluster.guarded import run_guarded
from spag_ray.config.loading import load_config
from spag_ray.game.protocol import Solved
from spag_ray.games.registry import game_of
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.stages import Stage, StageKind

CONFIG = "configs/kuhn.yaml"
PUBLISHED: tuple[str, ...] = (
    "objective.loss=published",
    "objective.learn_from=winners",
    "objective.kl_reference=stage",
)
PUBLISHED += ("objective.baseline=none", "objective.role_weights=balanced", "objective.kl_weighting=none")
PUBLISHED += ("objective.decay=0.8", "objective.kl_coeff=0.2", "learner.keep_moments=false")
PUBLISHED += ("self_play.last_kl_coeff=null",)
UNIFORM = 11 / 12
NUM_LEAGUE = 8  # versions that a league keeps (league.max_snapshots)


def main() -> None:
    parser = arguments(__doc__, ("run", "tables", "curve"), "runs/kuhn")
    parser.add_argument("--only", choices=("spag", "published"), help="of a seed; the record is made of both")
    parser.add_argument("--image", type=Path, default=Path("kuhn.html"))
    asked = parser.parse_args()
    if asked.what == "run":
        run_seed(asked.out, asked.seed, asked.overrides, asked.only)
        return
    records = records_in(asked.out)
    if asked.what == "curve":
        asked.image.write_text(page(records))
    else:
        print("\n".join(tables(records)))


def run_seed(out: Path, seed: int, overrides: Sequence[str], only: str | None) -> None:
    """Both runs of a seed, or only one of them, and the record of what is done."""
    common = [f"seed={seed}", *overrides]
    spag, published = out / f"seed-{seed}" / "spag", out / f"seed-{seed}" / "published"
    file = out / f"{seed}.json"
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"seed": seed}
    imitated = [f"model={spag / 'models' / 'imitated'}", "imitation.enabled=false"]
    wanted = {"spag": (spag, common), "published": (published, [*common, *imitated, *PUBLISHED])}
    for name in [only] if only else list(wanted):
        folder, settings = wanted[name]
        train(CONFIG, folder, settings)
        record[f"{name}_seconds"] = round(seconds_of(folder), 1)
        record[name] = stages_of(folder)
        record[f"{name}_games"] = self_play_games(folder)
    file.write_text(json.dumps(record, indent=1) + "\n")


def stages_of(folder: Path) -> list[dict[str, Any]]:
    """Each stage's probabilities, and the figures that they give."""
    found = {line.stage: line for line in lines_of(folder, ExploitabilityLine)}
    return [
        {"stage": stage, "figures": dict(line.figures), "probabilities": dict(line.probabilities)}
        for stage, line in found.items()
    ]


def tables(records: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: figures of each seed, and what its last policy plays."""
    game = game_of(load_config(CONFIG, []))
    assert isinstance(game, Solved)
    lines = [
        "| seed | policy | NashConv | legal actions alone | illegal | bluffs, first and second seat | games | minutes |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for record in records:
        for name in ("spag", "published"):
            stages = record.get(name)
            if not stages:
                continue
            rounds = [each for each in stages if Stage.parse(each["stage"]).kind is StageKind.ROUND]
            policies = [policy_of(game.decisions(), each["probabilities"]) for each in rounds]
            rows = [(f"{name}: {rounds[-1]['stage']}", rounds[-1]["figures"])]
            if name == "spag":
                rows.insert(0, (stages[1]["stage"] if len(stages) > 1 else "", stages[1]["figures"]))
                rows.append(("average of its rounds", game.measure(game.average(policies))))
                rows.append((f"mixture of the last {NUM_LEAGUE}", game.measure(game.average(policies[-NUM_LEAGUE:]))))
            for title, figures in rows:
                is_run = title.startswith(name)
                games = str(record[f"{name}_games"]) if is_run else ""
                minutes = f"{record[f'{name}_seconds'] / 60:.1f}" if is_run else ""
                lines.append(row(record["seed"], title, figures, games, minutes))
    last = [record["spag"][-1] for record in records]
    for key in ("nash_conv", "illegal"):
        values = [each["figures"][key] for each in last]
        lines += ["", f"Last policies, {key}: mean {statistics.fmean(values):.3f}, largest {max(values):.3f}."]
    lines += [
        "",
        "| what the last policy plays: bet or call | "
        + " | ".join(f"seed {r['seed']}" for r in records)
        + " | optimum |",
    ]
    lines += ["|---|" + "---|" * (len(records) + 1)]
    for number, decision in enumerate(game.decisions()):
        seat = len(decision.history) % 2
        told = f"{decision.scenario[seat]}, {'first' if seat == 0 else 'second'} seat" + (
            f", after {' and '.join(decision.history)}" if decision.history else ""
        )
        strong = "bet" if "bet" in decision.replies else "call"
        shares = [each["probabilities"].get(f"{number}/{strong}", 0.0) for each in last]
        lines.append(f"| {told} | " + " | ".join(f"{share:.2f}" for share in shares) + f" | {OPTIMUM[number]} |")
    return lines


OPTIMUM = ("a", "1/3", "0", "0", "0", "0", "1/3", "a + 1/3", "3a", "1", "1", "1")  # a from 0 to 1/3


def row(seed: int, title: str, figures: Any, games: str, minutes: str) -> str:
    bluffs = f"{figures['bluffs']:.2f}, {figures['second_bluffs']:.2f}"
    cells = (f"{figures['nash_conv']:.3f}", f"{figures['legal_nash_conv']:.3f}", f"{100 * figures['illegal']:.1f} %")
    return f"| {seed} | {title} | {' | '.join(cells)} | {bluffs} | {games} | {minutes} |"


def page(records: Sequence[dict[str, Any]]) -> str:
    """NashConv by round: the mean over seeds as a line, the seeds' range as a band."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for name, colour in (("published", "148,103,189"), ("spag", "0,128,128")):
        curves = [
            [each["figures"]["nash_conv"] for each in record[name] if each["stage"] not in ("base",) or name != "spag"]
            for record in records
            if name in record
        ]
        columns = list(zip(*curves, strict=False))
        add_band(figure, range(len(columns)), columns, colour, name=name)
    figure.add_hline(y=UNIFORM, line={"dash": "dot", "color": "gray"}, annotation_text="uniform play")
    figure.add_hline(y=UNIFORM / 4, line={"dash": "dot", "color": "gray"}, annotation_text="a quarter of it")
    figure.update_layout(
        template="plotly_white", width=820, height=400, margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis={"title": {"text": "rounds of self-play"}}, yaxis={"title": {"text": "NashConv"}, "rangemode": "tozero"},
    )  # fmt: skip
    return str(figure.to_html(include_plotlyjs=True))


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
