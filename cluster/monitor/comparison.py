"""`spag-ray compare`: what runs came to, side by side, with their mean and its interval: seeds of one configuration, or
two configurations.

    figures_of(Path("runs/seed-1"))["score against imitated"]            of a run: {figure: value}
    interval([0.5, 0.6, 0.55])                                           (mean, low, high)
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.monitor.terminal import say, table_of
from cluster.runtime.output_files import told_apart_paths
from spag_ray.errors import InputError, meant
from spag_ray.game.rules import Role
from spag_ray.results.line_codec import MOST
from spag_ray.results.lines import ExploitabilityLine, HeldOutLine, Line, PlayLine, StepLine, StreamLine
from spag_ray.results.matches import Match, read_matches
from spag_ray.results.metric_lines import Clock, MetricLines
from spag_ray.results.standings import ENDS, MIN_WORDS, SMALLEST_ERROR, by_situation, score
from spag_ray.stages import Stage, StageKind, order_of

_OF_LAST_STAGE = ("entropy", "kl", "clip_fraction", "gap_mean", "tokens_per_s")  # means over its steps


def print_comparison(run_dirs: Sequence[Path], metrics: Sequence[str]) -> None:
    """`spag-ray compare`. Raises InputError for a run that is named twice, or is none."""
    if len({folder.resolve() for folder in run_dirs}) < len(run_dirs):
        raise InputError("a run is named twice; name each once")
    found = {str(folder): last_values(folder, metrics) if metrics else figures_of(folder) for folder in run_dirs}
    is_wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console() if is_wide else Console(width=60 + 30 * len(found))  # a pipe has no edge
    console.print(comparison_table(found))
    if len(run_dirs) == 2 and not metrics:
        for line in paired(*run_dirs):
            say(console, line)


def figures_of(folder: Path) -> dict[str, float]:
    """What a run came to: scores of its newest stage, its games against itself, exact measures, the learner's last
    stage, games and hours. What it does not have is left out; in a run of several games figures begin with the game's
    name. Raises InputError for a folder without metrics."""
    lines = _lines(folder)
    typed = [line for _, line in lines]
    matches = _by_game(folder)
    # A resumed round has two lines.
    plays = {(line.stage, line.game): line.games for line in typed if isinstance(line, PlayLine)}
    names = dict.fromkeys([*matches, *(game for _, game in plays)])
    figures: dict[str, float] = {}
    for game in names:
        prefix = f"{game}: " if len(names) > 1 else ""
        held = [line for line in typed if isinstance(line, HeldOutLine) and line.game == game]
        exact = [line for line in typed if isinstance(line, ExploitabilityLine) and line.game == game]
        found = _of_matches(matches.get(game, [])) | _of_guesses(held)
        found |= exact[-1].figures if exact else {}
        figures |= {prefix + name: value for name, value in found.items()}
    streamed = [line.games for line in typed if isinstance(line, StreamLine)]  # sums, those before a resume too
    figures |= _of_steps([line for line in typed if isinstance(line, StepLine)], is_stream=bool(streamed))
    if rounds := [count for (stage, _), count in plays.items() if Stage.parse(stage).kind is StageKind.ROUND]:
        figures["games of self-play"] = sum(rounds)
    elif streamed:
        figures["games of self-play"] = streamed[-1]
    figures["hours"] = Clock(lines).seconds / 3600
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def _of_matches(matches: Sequence[Match]) -> dict[str, float]:
    """Of the newest of a run's own stages; guests of its matches are none."""
    if (newest := _newest_of(matches)) is None:
        return {}
    figures = {}
    others = {each for match in matches for each in (match.attacker, match.defender)} - {newest}
    for other in sorted(others, key=order_of):
        with contextlib.suppress(InputError):  # they have not met in both seats
            figures[f"score against {other}"] = score([matches], newest, other).value
    itself = next((match for match in matches if match.attacker == match.defender == newest), None)
    if itself is not None and itself.games:
        for name, outcomes in ENDS.items():
            share = sum(itself.outcomes[outcome] for outcome in outcomes) / len(itself.games)
            figures[f"{name} against itself"] = share
    return figures


def _of_guesses(lines: Sequence[HeldOutLine]) -> dict[str, float]:
    """Of the newest stage against itself, not of its matches."""
    alone = [line.report for line in lines if Stage.parse(line.stage).kind is StageKind.EVALUATION]
    if not alone or not (found := alone[-1]).games:
        return {}
    figures = {"games with a right guess": found.right_guesses / found.games} if found.guesses or found.traps else {}
    return figures | ({} if found.could_have_known is None else {"could have known": found.could_have_known})


def _of_steps(steps: Sequence[StepLine], is_stream: bool) -> dict[str, float]:
    """Means over the steps of each policy's last stage, or over the last tenth of a stream. Of a step that a resumed
    run repeated, the later one counts."""
    newest: dict[str, dict[tuple[str, int], StepLine]] = defaultdict(dict)
    for line in steps:
        newest[line.policy].pop((line.stage, line.report.step), None)
        newest[line.policy][line.stage, line.report.step] = line
    figures = {}
    for policy, of_policy in newest.items():
        last = list(of_policy.values())
        if is_stream:  # its steps have the names of rounds, which nothing separates
            last = [line for line in last if Stage.parse(line.stage).phase == "self_play"] or last
            last = last[-max(1, len(last) // 10) :]
        else:
            last = [line for line in last if line.stage == last[-1].stage]
        for name in _OF_LAST_STAGE:
            values = [value for line in last if (value := getattr(line.report, name)) is not None]
            if numbers := [value for value in values if math.isfinite(value)]:
                prefix = f"{policy}: " if len(newest) > 1 else ""
                figures[f"{prefix}{name} of the last stage"] = fmean(numbers)
    return figures


def last_values(folder: Path, metrics: Sequence[str]) -> dict[str, float]:
    """{KIND/FIELD: the last number of that field}. Raises InputError for one that the run does not have."""
    known: dict[str, float] = {}
    for _, line in _lines(folder):
        for name, value in line.values().items():
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST:
                known[f"{line.kind}/{name}"] = value
    for metric in metrics:
        if metric not in known:
            raise InputError(f"{folder}: its metrics.jsonl has no {metric}{meant(metric, known)}")
    return {metric: known[metric] for metric in metrics}


def comparison_table(runs: Mapping[str, Mapping[str, float]]) -> Table:
    """`runs`: {name: its figures}. The last column is over the runs that have a figure, with the 95 % interval of their
    mean by Student's t, from two runs on that differ."""
    names = [escape(name) for name in told_apart_paths([Path(name) for name in runs])]
    table = table_of("", [""], [*names, "mean [95 %]"])
    table.columns[0].no_wrap = False
    for figure in dict.fromkeys(name for figures in runs.values() for name in figures):
        values = [figures.get(figure) for figures in runs.values()]
        mean, low, high = interval([value for value in values if value is not None])
        told = f"{mean:.4g}" if math.isinf(low) else f"{mean:.4g} [{low:.4g}, {high:.4g}]"
        table.add_row(escape(figure), *("" if value is None else f"{value:.4g}" for value in values), escape(told))
    return table


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the 95 % interval of the mean by Student's t; infinite for one value, and for values that
    are all the same, which do not say how they spread."""
    mean = fmean(values)
    if max(values) - min(values) < SMALLEST_ERROR:
        return mean, -math.inf, math.inf
    from scipy.special import stdtrit

    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def paired(first: Path, second: Path) -> list[str]:
    """For each game, and each opponent that both runs' newest stages met: the difference of the scores on the scenarios
    that both played, one by one. Its interval needs MIN_WORDS of them."""
    found = []
    of_first, of_second = (_by_game(folder) for folder in (first, second))
    for game, matches in of_first.items():
        others = of_second.get(game, [])
        newest, newest_of_other = _newest_of(matches), _newest_of(others)
        if newest is None or newest_of_other is None:
            continue
        prefix = f"{game}: " if len(of_first) > 1 else ""
        opponents = {match.defender for match in matches if match.attacker == newest} - {newest, newest_of_other}
        for opponent in sorted(opponents, key=order_of):
            scores, of_other = _scores(matches, newest, opponent), _scores(others, newest_of_other, opponent)
            if words := sorted(scores.keys() & of_other.keys()):
                mean, low, high = interval([scores[word] - of_other[word] for word in words])
                told = "" if math.isinf(low) or len(words) < MIN_WORDS else f" [{low:+.3f}, {high:+.3f}]"
                pair = f"{newest} of {first} minus {newest_of_other} of {second}"
                played = f"on the {len(words)} scenarios that both played"
                found.append(f"{prefix}score against {opponent}, {pair}, {played}: {mean:+.3f}{told}")
    return found


def _by_game(folder: Path) -> dict[str, list[Match]]:
    path = folder / "matches.json"
    found: dict[str, list[Match]] = defaultdict(list)
    for match in read_matches(path) if path.exists() else []:
        found[match.game].append(match)
    return found


def _newest_of(matches: Sequence[Match]) -> str | None:
    own = [match.attacker for match in matches if Stage.parse(match.attacker).is_player]
    return max(own, key=order_of, default=None)


def _scores(matches: Sequence[Match], player: str, other: str) -> dict[str, float]:
    """{scenario: the player's mean score against `other`}, over both seats; of scenarios that it played in both."""
    found = by_situation(matches, player, rival=other)
    first, second = (
        {word: fmean(own) for (word, seat, them), own in found.items() if (seat, them) == (role, "")} for role in Role
    )
    return {word: (first[word] + second[word]) / 2 for word in first.keys() & second.keys()}


def _lines(folder: Path) -> list[tuple[float, Line]]:
    path = folder / "metrics.jsonl"
    found = [(time, line) for time, line in MetricLines(path).typed() if line is not None] if path.exists() else []
    if not found:
        raise InputError(f"{folder} is no run folder, or nothing was measured in it yet: it has no metrics.jsonl")
    return found
