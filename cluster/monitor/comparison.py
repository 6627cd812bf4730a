"""`spag-ray compare`: what runs came to, side by side, with their mean and its interval: seeds of one configuration, or
two configurations.

    figures_of(Path("runs/seed-1"))["score against imitated"]            of a run: {figure: value}
    interval([0.5, 0.6, 0.55])                                           (mean, low, high)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from spag_ray.errors import InputError, meant
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.lines import ExploitabilityLine, HeldOutLine, Line, PlayLine, StepLine
from spag_ray.results.matches import Match, read_matches
from spag_ray.results.metric_lines import MetricLines
from spag_ray.stages import Stage, StageKind, order_of

_SHARES = {
    "attacker wins": (Outcome.ATTACKER_WINS,),
    "defender wins": (Outcome.DEFENDER_WINS,),
    "ties": (Outcome.TIED,),
    "breaches": (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH),
}
_OF_LAST_STAGE = ("entropy", "kl", "clip_fraction", "gap_mean", "tokens_per_s")  # means over its steps


def compare(
    run_dirs: Annotated[list[Path], typer.Argument(help="folders of runs, such as the seeds of one configuration")],
    metric: Annotated[
        list[str] | None,
        typer.Option(help="instead: the last value of KIND/FIELD of metrics.jsonl (step/loss); may be given again"),
    ] = None,
) -> None:
    """Print runs side by side: what each came to, and the mean over them; see docs/evaluation.md."""
    console = Console()
    found = {str(folder): last_values(folder, metric) if metric else figures_of(folder) for folder in run_dirs}
    if len(found) < len(run_dirs):
        raise InputError("a run is named twice; name each once")
    console.print(comparison_table(found))
    if len(run_dirs) == 2 and not metric:
        for line in paired(*run_dirs):
            console.print(line, soft_wrap=True, markup=False)


def figures_of(folder: Path) -> dict[str, float]:
    """What a run came to: scores of its newest stage, its games against itself, exact measures, the learner's last
    stage, games and hours. What it does not have is left out. Raises InputError for a folder without metrics."""
    lines = _lines(folder)
    figures: dict[str, float] = {}
    matches = read_matches(folder / "matches.json") if (folder / "matches.json").exists() else []
    for game in dict.fromkeys(match.game for match in matches):
        own = [match for match in matches if match.game == game]
        of_game = "" if len({match.game for match in matches}) == 1 else f"{game}: "
        newest = max((match.attacker for match in own), key=order_of)
        for other in sorted(
            {each for match in own for each in (match.attacker, match.defender)} - {newest}, key=order_of
        ):
            if scores := _scores(own, newest, other):
                figures[f"{of_game}score against {other}"] = fmean(scores.values())
        itself = next((match for match in own if match.attacker == match.defender == newest), None)
        if itself is not None and itself.games:
            for name, outcomes in _SHARES.items():
                share = sum(itself.outcomes[outcome] for outcome in outcomes) / len(itself.games)
                figures[f"{of_game}{name} against itself"] = share
    alone = [line for _, line in lines if isinstance(line, HeldOutLine) and _is_evaluation(line.stage)]
    if alone and (held := alone[-1].report).games:  # of the stage against itself, not of its matches
        figures["right guesses"] = held.right_guesses / held.games
        if held.could_have_known is not None:
            figures["could have known"] = held.could_have_known
    if exact := [line for _, line in lines if isinstance(line, ExploitabilityLine)]:
        figures |= exact[-1].figures
    steps = [line for _, line in lines if isinstance(line, StepLine)]
    for name in _OF_LAST_STAGE:
        values = [getattr(line.report, name) for line in steps if line.stage == steps[-1].stage]
        if numbers := [value for value in values if value is not None and math.isfinite(value)]:
            figures[f"{name} of the last stage"] = fmean(numbers)
    games = {line.stage: line.games for _, line in lines if isinstance(line, PlayLine)}  # a resumed round has two lines
    if rounds := [count for stage, count in games.items() if Stage.parse(stage).kind is StageKind.ROUND]:
        figures["games of self-play"] = sum(rounds)
    figures["hours"] = (lines[-1][0] - lines[0][0]) / 3600
    return figures


def last_values(folder: Path, metrics: Sequence[str]) -> dict[str, float]:
    """{KIND/FIELD: the last number of that field}. Raises InputError for one that the run does not have."""
    known: dict[str, float] = {}
    for _, line in _lines(folder):
        for name, value in line.values().items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                known[f"{line.kind}/{name}"] = value
    for metric in metrics:
        if metric not in known:
            raise InputError(f"{folder}: its metrics.jsonl has no {metric}{meant(metric, known)}")
    return {metric: known[metric] for metric in metrics}


def comparison_table(runs: Mapping[str, Mapping[str, float]]) -> Table:
    """`runs`: {name: its figures}. The last column is over the runs that have a figure, with the 95 % interval of their
    mean by Student's t, from two runs on."""
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("")
    for name in _short(list(runs)):
        table.add_column(escape(name), justify="right")
    table.add_column("mean [95 %]", justify="right", no_wrap=True)
    for figure in dict.fromkeys(name for figures in runs.values() for name in figures):
        values = [figures.get(figure) for figures in runs.values()]
        mean, low, high = interval([value for value in values if value is not None])
        told = f"{mean:.4g}" if math.isinf(low) else f"{mean:.4g} [{low:.4g}, {high:.4g}]"
        table.add_row(escape(figure), *("" if value is None else f"{value:.4g}" for value in values), escape(told))
    return table


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the 95 % interval of the mean by Student's t; infinite for one value."""
    mean = fmean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired(first: Path, second: Path) -> list[str]:
    """For each opponent that both runs' newest stages met: the difference of the scores on the words that both played,
    word by word."""
    found = []
    (mine, newest), (other, newest_of_other) = (_newest(folder) for folder in (first, second))
    opponents = {match.defender for match in mine if match.attacker == newest} - {newest}
    for opponent in sorted(opponents, key=order_of):
        scores, of_other = _scores(mine, newest, opponent), _scores(other, newest_of_other, opponent)
        if words := sorted(scores.keys() & of_other.keys()):
            mean, low, high = interval([scores[word] - of_other[word] for word in words])
            told = "" if math.isinf(low) else f" [{low:+.3f}, {high:+.3f}]"
            found.append(
                f"score against {opponent}, {newest} of {first} minus {newest_of_other} of {second}, on the "
                f"{len(words)} scenarios that both played: {mean:+.3f}{told}"
            )
    return found


def _is_evaluation(stage: str) -> bool:
    return Stage.parse(stage).kind is StageKind.EVALUATION


def _newest(folder: Path) -> tuple[list[Match], str]:
    path = folder / "matches.json"
    matches = read_matches(path) if path.exists() else []
    return matches, max((match.attacker for match in matches), key=order_of, default="")


def _scores(matches: Sequence[Match], player: str, other: str) -> dict[str, float]:
    """{scenario: the player's mean score against `other`}, over both seats; of scenarios that it played in both."""
    by_role: dict[Role, dict[str, list[float]]] = {role: defaultdict(list) for role in Role}
    for match in matches:
        pairs = {Role.ATTACKER: (match.attacker, match.defender), Role.DEFENDER: (match.defender, match.attacker)}
        for role, pair in pairs.items():
            if pair == (player, other):
                for game in match.games:
                    by_role[role][game.scenario].append(game.outcome.score(role))
    first, second = by_role.values()
    return {word: (fmean(first[word]) + fmean(second[word])) / 2 for word in first.keys() & second.keys()}


def _lines(folder: Path) -> list[tuple[float, Line]]:
    path = folder / "metrics.jsonl"
    found: list[tuple[float, Any]] = list(MetricLines(path).typed()) if path.exists() else []
    if not found:
        raise InputError(f"{folder} is no run folder, or nothing was measured in it yet: it has no metrics.jsonl")
    return found


def _short(names: Sequence[str]) -> list[str]:
    """The names without what all begin with, up to a slash."""
    parts = [Path(name).parts for name in names]
    same = 0
    while len(names) > 1 and all(len(each) > same + 1 for each in parts) and len({each[same] for each in parts}) == 1:
        same += 1
    return [str(Path(*each[same:])) for each in parts]
