"""Commands of spag-ray, and records of seeds, for the benchmarks that train."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spag_ray.results.lines import PlayLine
from spag_ray.results.metric_lines import AnyLine, Clock, MetricLines
from spag_ray.stages import Stage, StageKind


def arguments(document: str, what: Sequence[str], out: str) -> argparse.ArgumentParser:
    """What to do, the seed, where to, and overrides of the configuration."""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value, for what is trained")
    return parser


def records_in(out: Path) -> list[dict[str, Any]]:
    """The records of seeds, OUT/SEED.json. Ends this program if there are none."""
    records = [json.loads(path.read_text()) for path in sorted(out.glob("[0-9]*.json"))]
    if not records:
        sys.exit(f"{out} has no record of a finished seed")
    return records


def train(config: str, run: Path, overrides: Sequence[str]) -> None:
    """Train, or resume, to the end."""
    called(["train", config, "--run-dir", str(run), "--resume", *options(overrides)])
    check_finished(run)


def called(command: Sequence[str]) -> None:
    """Run it. Ends this program with the command's exit code if that is not 0."""
    print(f"spag-ray {' '.join(command)}", flush=True)
    ended = subprocess.run([sys.executable, "-m", "spag_ray", *command], check=False)
    if ended.returncode != 0:
        sys.exit(ended.returncode)


def check_finished(run: Path) -> None:
    """Ends this program if the run has not finished: one that was asked to stop ends with exit code 0, too."""
    ended = run / "ended.json"
    how = json.loads(ended.read_text())["ended"] if ended.exists() else "not started"
    if how != "finished":
        sys.exit(f"{run}: {how}; call this again to continue")


def options(overrides: Sequence[str]) -> list[str]:
    return [part for override in overrides for part in ("-o", override)]


def add_band(figure: Any, rounds: Sequence[float], points: Sequence[Sequence[float]], colour: str, **line: Any) -> None:
    """To a plotly figure: the mean of `points` [rounds][seeds] as a line, the seeds' range as a band. `colour`: red,
    green and blue, "0,128,0". `line`: of the mean, and where both are (row, col)."""
    where: dict[str, Any] = {key: line.pop(key) for key in ("row", "col") if key in line}
    band: dict[str, Any] = {"mode": "lines", "line": {"width": 0}, "showlegend": False, **where}
    rounds = list(rounds)
    figure.add_scatter(x=rounds, y=[max(each) for each in points], **band)
    filled = {"fill": "tonexty", "fillcolor": f"rgba({colour},.15)"}
    figure.add_scatter(x=rounds, y=[min(each) for each in points], **band, **filled)
    means = [statistics.fmean(each) for each in points]
    figure.add_scatter(x=rounds, y=means, line={"color": f"rgb({colour})", "width": 2}, **line, **where)


def lines_of(run: Path, kind: type[AnyLine]) -> list[AnyLine]:
    """The lines of one kind in the run's metrics.jsonl."""
    return list(MetricLines(run / "metrics.jsonl").of(kind))


def seconds_of(run: Path) -> float:
    """Of its measurements, in all calls, without the start of its processes."""
    return Clock(MetricLines(run / "metrics.jsonl").typed()).seconds


def self_play_games(run: Path) -> int:
    """How many games its rounds had."""
    games = {line.stage: line.games for line in lines_of(run, PlayLine)}  # a resumed round has two lines
    return sum(count for stage, count in games.items() if Stage.parse(stage).kind is StageKind.ROUND)
