"""The proof run: does self-play make the imitated model better, and better than its baselines do at equal tokens?

    python benchmarks/proof.py run --seed 1 --out runs/proof     # one seed; called again, it goes on where it was
    python benchmarks/proof.py tables --out runs/proof           # Markdown tables of all seeds that are there
    python benchmarks/proof.py tables --out docs/proof           # of those that the documentation speaks of

A seed is four steps, each a command of the command line:

    spag             imitate, then SPAG rounds (configs/cpu_proof.yaml)
    published        the same imitated model, as many rounds, the published objective, with as many games as let it
                     learn as many tokens as `spag` did, since it learns of winners alone (and, as there, of breaches)
    imitation-only   one imitation from the base model, of as many tokens as imitation and SPAG rounds together
    matches          everybody against the imitated model, and spag's last stage against the baselines' last, both seats

Held-out words are the same for all players of a seed; between seeds they differ, as training words do. All that the
tables are made of is in a seed's matches.json and costs.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from spag_ray.config.loading import load_config
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.lines import Line, PlayLine, StepLine
from spag_ray.results.matches import Match, read_matches
from spag_ray.results.metric_lines import MetricLines
from spag_ray.results.ratings import wilson_interval
from spag_ray.results.standings import better, score
from spag_ray.stages import Stage, StageKind

CONFIG = "configs/cpu_proof.yaml"
PUBLISHED = "objective={name: published, learn_from: winners, role_weight_cap: 4.0}"
_Line = TypeVar("_Line", bound=Line)
BREACHES = (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "tables"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value, for all of its runs")
    asked = parser.parse_args()
    if asked.what == "run":
        run_seed(asked.out / f"seed-{asked.seed}", asked.seed, asked.overrides)
    else:
        for line in tables(asked.out, asked.overrides):
            print(line)


def run_seed(folder: Path, seed: int, overrides: Sequence[str]) -> None:
    """All of a seed that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    common = [f"seed={seed}", *overrides]
    config = load_config(CONFIG, common)
    last = str(Stage.of_round(config.self_play.rounds))
    spag, published, imitation = (folder / name for name in ("spag", "published", "imitation-only"))

    train(spag, common)
    learned = target_tokens(spag)
    in_rounds = sum(count for stage, count in learned.items() if stage != "imitated")
    imitated = f"model={spag / 'models' / 'imitated'}"
    first = config.self_play.games_per_round / max(1, winners_tokens(spag / "episodes" / f"{Stage.of_round(1)}.log"))
    games = round(first * in_rounds / config.self_play.rounds)
    alone = [*common, imitated, "imitation.enabled=false", "evaluation.games=0", "evaluation.tasks=[]"]
    train(published, [*alone, PUBLISHED, f"self_play.games_per_round={games}"])
    games = round(config.imitation.games * (learned["imitated"] + in_rounds) / learned["imitated"])
    train(
        imitation,
        [*common, f"imitation.games={games}", "self_play.rounds=0", "evaluation.games=0", "evaluation.tasks=[]"],
    )

    rivals = [f"published={published / 'models' / last}", f"imitation-only={imitation / 'models' / 'imitated'}"]
    every = ["--stages", str(spag), *(part for rival in rivals for part in ("--player", rival))]
    match(spag, "against-imitated", [*every, "--against", "imitated"], common)
    some = [f"{last}={spag / 'models' / last}", *rivals]
    match(spag, "against-rivals", [*(p for each in some for p in ("--player", each)), "--against", last], common)
    step(folder / "report", ["report", str(spag)])
    shutil.copy(spag / "matches.json", folder)
    (folder / "costs.json").write_text(json.dumps(list(costs(folder)), indent=1) + "\n")


def train(folder: Path, overrides: Sequence[str]) -> None:
    command = ["train", CONFIG, "--run-dir", str(folder), "--resume"]
    step(folder, [*command, *(part for override in overrides for part in ("-o", override))])


def match(spag: Path, name: str, arguments: Sequence[str], overrides: Sequence[str]) -> None:
    """Into the matches of that run, so that its report shows them."""
    command = ["match", CONFIG, *arguments, "--out", str(spag / "matches.json")]
    step(spag.with_name(name), [*command, *(part for override in overrides for part in ("-o", override))])


def step(folder: Path, arguments: Sequence[str]) -> None:
    """A command of spag-ray, unless it has come to its end before; how long it took is kept beside its folder, over all
    the times that it was begun."""
    done = folder.with_name(f"{folder.name}.done.json")
    seconds_file = folder.with_name(f"{folder.name}.seconds")
    if done.exists():
        return
    print(f"spag-ray {' '.join(arguments)}", flush=True)
    began = time.monotonic()
    try:
        ended = subprocess.run([sys.executable, "-m", "spag_ray", *arguments], check=False)
    finally:
        before = float(seconds_file.read_text()) if seconds_file.exists() else 0.0
        seconds_file.write_text(str(before + time.monotonic() - began))
    if ended.returncode != 0:
        sys.exit(ended.returncode)
    if arguments[0] == "train" and (how := json.loads((folder / "ended.json").read_text())["ended"]) != "finished":
        sys.exit(f"{folder}: {how}")
    done.write_text(json.dumps({"seconds": round(float(seconds_file.read_text())), "arguments": list(arguments)}))


def measured(run: Path, kind: type[_Line]) -> Iterator[_Line]:
    """The lines of one kind in the run's metrics.jsonl."""
    yield from (line for _, line in MetricLines(run / "metrics.jsonl").typed() if isinstance(line, kind))


def target_tokens(run: Path) -> dict[str, int]:
    """{stage: tokens with a loss, each step once}"""
    steps = {(line.stage, line.report.step): line.report.num_target_tokens for line in measured(run, StepLine)}
    tokens: dict[str, int] = {}
    for (stage, _), count in steps.items():
        tokens[stage] = tokens.get(stage, 0) + count
    return tokens


def winners_tokens(log: Path) -> int:
    """Tokens of the winners' turns: what the published objective learns of these games."""
    return sum(
        turn.num_tokens
        for episode in read_log(log)
        for turn in episode.turns[: episode.verdict.length]
        if turn.role is episode.verdict.outcome.winner
    )


def tables(out: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Markdown, of the seeds that are done: outcomes by stage, scores against the imitated model and the baselines,
    what each player was given."""
    seeds = sorted((path for path in out.glob("seed-*") if (path / "costs.json").exists()), key=lambda path: path.name)
    if not seeds:
        sys.exit(f"{out} has no seed that has come to its end; `benchmarks/proof.py run` goes on with one")
    runs = [read_matches(seed / "matches.json") for seed in seeds]
    rounds = [str(Stage.of_round(number)) for number in range(1, load_config(CONFIG, overrides).self_play.rounds + 1)]
    stages, last = ["base", "imitated", *rounds], rounds[-1]
    rivals = ["published", "imitation-only"]
    lines = [f"Seeds: {', '.join(seed.name[5:] for seed in seeds)}.", "", *outcome_lines(runs, stages), ""]
    lines += ["| player | against | score, both seats [95%] | breach-free games | attacker | defender | each seed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    pairs = [(name, "imitated") for name in [*stages, *rivals] if name != "imitated"] + [
        (last, name) for name in rivals
    ]
    lines += [score_line(runs, *pair) for pair in pairs]
    pooled = pool(runs)
    for name, other in [(last, "imitated"), *((last, rival) for rival in rivals)]:
        test = better(pooled, name, other)
        lines += [
            "",
            f"{name} better than {other}: p = {test.p_value:.4f}, paired over {test.num_words} words of these runs.",
        ]
    return [*lines, "", *cost_lines(seeds)]


def pool(runs: Sequence[Sequence[Match]]) -> list[Match]:
    """Matches of all seeds, each seed's words kept apart."""
    pooled = []
    for number, run in enumerate(runs):
        for each in run:
            row = each.as_json()
            row["games"] = [[f"{number}/{word}", outcome, length] for word, outcome, length in row["games"]]
            pooled.append(Match.from_json(row))
    return pooled


def outcome_lines(runs: Sequence[Sequence[Match]], stages: Sequence[str]) -> Iterator[str]:
    yield "| stage, both seats | games | attacker wins | defender wins | breach | tie |"
    yield "|---|---|---|---|---|---|"
    for stage in stages:
        games = [game for run in runs for each in run if each.attacker == each.defender == stage for game in each.games]
        cells = []
        for outcomes in ((Outcome.ATTACKER_WINS,), (Outcome.DEFENDER_WINS,), BREACHES, (Outcome.TIED,)):
            count = sum(game.outcome in outcomes for game in games)
            low, high = wilson_interval(count, len(games))
            cells.append(f"{100 * count / max(1, len(games)):.0f} % [{100 * low:.0f}, {100 * high:.0f}]")
        yield f"| {stage} | {len(games)} | {' | '.join(cells)} |"


def score_line(runs: Sequence[Sequence[Match]], name: str, other: str) -> str:
    def cell(**options: object) -> str:
        found = score(runs, name, other, **options)  # type: ignore[arg-type]
        return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"

    seats = [cell(roles=[role]) for role in Role]
    each = " ".join(f"{score([run], name, other).value:.2f}" for run in runs)
    return f"| {name} | {other} | {cell()} | {cell(breach_free=True)} | {' | '.join(seats)} | {each} |"


def costs(seed: Path) -> Iterator[dict]:
    """What each step of a seed took, and what it played and learned, in the order in which they ended."""
    for done in sorted(seed.glob("*.done.json"), key=lambda path: path.stat().st_mtime):
        run = seed / done.name.removesuffix(".done.json")
        cost = {"step": run.name, "seconds": json.loads(done.read_text())["seconds"]}
        if (run / "metrics.jsonl").exists():
            tokens = target_tokens(run)
            cost["imitation_tokens"] = tokens.pop("imitated", 0)
            cost["self_play_tokens"] = sum(tokens.values())
            games = {line.stage: line.games for line in measured(run, PlayLine)}  # a resumed round says it again
            cost["self_play_games"] = sum(
                count for stage, count in games.items() if Stage.parse(stage).kind is StageKind.ROUND
            )
        yield cost


def cost_lines(seeds: Sequence[Path]) -> Iterator[str]:
    yield "| seed | step | minutes | self-play games | tokens learned: imitation | rounds |"
    yield "|---|---|---|---|---|---|"
    for seed in seeds:
        for cost in json.loads((seed / "costs.json").read_text()):
            counts = ("self_play_games", "imitation_tokens", "self_play_tokens")
            cells = [f"{cost[name]:,}" if name in cost else "" for name in counts]
            yield f"| {seed.name[5:]} | {cost['step']} | {cost['seconds'] / 60:.1f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
