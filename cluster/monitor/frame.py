"""A run on a terminal: the state in run_view.py as lines that fit.

    for line in frame(view, width=80, height=24, now=time.time()):
        console.print(line)

80 columns and 24 lines are enough. More columns give longer curves and bars; more lines give more stages, tasks and
notes. Text from the run is never read as markup, and its control characters are replaced.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.text import Text

from cluster.monitor.run_view import CURVES, Learning, RunView
from cluster.monitor.terminal import bar, duration, plain, sparkline
from spag_ray.game.protocol import seat_of
from spag_ray.game.rules import Outcome
from spag_ray.results.game_names import GameNames

_LABEL = 11  # columns for the label of a line
_COLUMNS = {
    Outcome.ATTACKER_WINS: "green",
    Outcome.DEFENDER_WINS: "blue",
    Outcome.ATTACKER_BREACH: "red",
    Outcome.DEFENDER_BREACH: "magenta",
    Outcome.TIED: "yellow",
}
_NAMES = {"kl": "KL", "ratio_max": "max ratio"}


def frame(view: RunView, width: int, height: int, now: float) -> list[Text]:
    """At most `height` lines of at most `width` columns each; `now` in seconds since the epoch."""
    top = [*_head(view, width, now), Text(), _play(view, width)]
    middle = [Text(), *_learner(view, width), Text(), *_machine(view, width)]
    foot = _foot(view, now)
    shares, tasks, notes = _shares(view, width), _tasks(view), _notes(view)
    room = height - len(top) - len(middle) - 2  # the last line, and an empty line before the notes
    num_shares, num_tasks, num_notes = _allotted(room, (len(shares), 5), (len(tasks), 2), (len(notes), 3))
    lines = [*top, *_newest(shares, num_shares), *middle, *tasks[:num_tasks]]
    lines += [Text(), *notes[len(notes) - num_notes :]] if num_notes else []
    if len(lines) >= height:
        lines = [line for line in lines if line.plain][: max(0, height - 1)]
    for line in (*lines, foot):
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return [*lines, foot]


def headline(view: RunView, now: float) -> str:
    """A summary in one line."""
    parts = [", ".join(_times(view, now)), _doing(view), f"{view.games_per_s:.2f} games/s"]
    parts += [f"loss {_told(each.newest['loss'], '.3f')}" for each in view.learning.values()]
    return " | ".join(part for part in parts if part)


def _allotted(room: int, *wanted: tuple[int, int]) -> list[int]:
    """Shares `room` lines among blocks. `wanted`: (lines that a block can use, lines that it gets before any other
    block gets more) of each."""
    given = [0] * len(wanted)
    for limits in ([min(pair) for pair in wanted], [most for most, _ in wanted]):
        for index, limit in enumerate(limits):
            more = max(0, min(limit - given[index], room))
            given[index] += more
            room -= more
    return given


def _head(view: RunView, width: int, now: float) -> list[Text]:
    right = ", ".join(_times(view, now))
    first = Text.assemble((plain(view.name), "bold"), "  ", _doing(view))
    first.truncate(max(0, width - len(right) - 2), overflow="ellipsis", pad=True)
    first.append(f"  {right}", "cyan")
    lines = [first]
    if (learned := view.learned()) is not None:
        assert view.config is not None
        what = "rounds" if view.config.schedule == "rounds" else "versions"
        told = f"{learned[0]} of {learned[1]} {what} trained"
        share = bar(learned[0] / learned[1], max(0, width - len(told) - 2))
        lines.append(Text.assemble((share, "green"), "  ", told))
    return lines


def _doing(view: RunView) -> str:
    progress = view.progress
    parts = [plain(progress.stage if progress is not None else view.doing)]
    if progress is not None and progress.total:
        parts.append(f"{progress.done} of {progress.total} {plain(progress.unit)}")
    versions = {name: published.version for name, published in view.published.items()}
    versions = versions or {"policy": progress.version if progress is not None else 0}
    parts += [
        f"v{version}" if len(versions) == 1 else f"{plain(view.game.policy(name))} v{version}"
        for name, version in sorted(versions.items())
    ]
    if progress is not None and progress.is_paused:
        parts.append("paused")
    return " | ".join(parts)


def _times(view: RunView, now: float) -> Iterator[str]:
    """Elapsed time, and estimated time left."""
    is_over = view.end is not None
    if view.progress is not None:
        yield duration(view.progress.seconds)
    elif view.began is not None and view.newest is not None:
        yield duration(max(0.0, (view.newest if is_over else now) - view.began - view.clock.paused_s))
    left = view.seconds_left(now)
    if left and not is_over:
        yield f"about {duration(left)} left"


def _play(view: RunView, width: int) -> Text:
    newest = view.tokens_per_s[-1] if view.tokens_per_s else 0.0
    line = _labelled("play")
    line.append(f"{view.games_per_s:8.2f} games/s {newest:10.1f} tokens/s  ")
    return _with_curve(line, view.tokens_per_s, width)


def _shares(view: RunView, width: int) -> list[Text]:
    """A line of headings, and a line for each stage."""
    rows = [*view.self_play.items(), *view.held_out.items()]
    if not rows:
        return []
    column = max(10, (width - 24) // len(_COLUMNS))
    headings = "".join(_heading(view.game, outcome, column - 1).rjust(column) for outcome in _COLUMNS)
    return [Text("games".rjust(24) + headings, "dim"), *(_share_line(*row, column) for row in rows)]


def _heading(game: GameNames, outcome: Outcome, width: int) -> str:
    """An outcome in a column of `width`: breaches with the seat's first letter, or its number if both have the same."""
    if (role := outcome.breaker) is None:
        return plain(game.short_outcome(outcome))[:width]
    letters = [plain(seat)[:1].lower() for seat in game.seats]
    name = letters[seat_of(role)] if letters[0] != letters[1] else str(seat_of(role) + 1)
    return f"{name}. breach"[:width]


def _share_line(name: str, outcomes: Mapping[str, int], column: int) -> Text:
    num_games = sum(outcomes.values())
    line = Text(plain(name).ljust(17)[:17] + f"{num_games:7d}")
    for outcome, style in _COLUMNS.items():
        share = outcomes.get(outcome, 0) / max(1, num_games)
        line.append(" " + bar(share, column - 6), style)
        line.append(f"{share:5.0%}")
    return line


def _newest(shares: Sequence[Text], count: int) -> list[Text]:
    """The headings, self-play, and as many of the newest stages as fit."""
    return [*shares[: min(2, count)], *shares[max(2, len(shares) - (count - 2)) :]] if count > 1 else []


def _learner(view: RunView, width: int) -> list[Text]:
    lines = []
    for policy, learning in sorted(view.learning.items()):
        line = _labelled("learn" if policy == "policy" else plain(view.game.policy(policy)))
        report = learning.report
        line.append(plain(f"{learning.stage}, step {report.step}"))
        line.append(", skipped" if report.skipped else "", "red")
        line.append(f", learning rate {_told(report.learning_rate, '.2e')}, ")
        line.append(f"gradient {_told(report.gradient_norm, '.3g')}")
        lines.append(line)
        for left, right in zip(CURVES[::2], CURVES[1::2], strict=True):
            half = width // 2
            pair = _curve(learning, left, half - 1)
            pair.truncate(half, pad=True)
            lines.append(pair.append_text(_curve(learning, right, width - half)))
    return lines or [_labelled("learn").append("nothing yet")]


def _curve(learning: Learning, name: str, width: int) -> Text:
    line = _labelled(f"  {_NAMES.get(name, name)}")
    line.append(f"{_told(learning.newest.get(name, math.nan), '.3g'):>9} ")
    return _with_curve(line, learning.curves.get(name, ()), width)


def _told(value: float, form: str) -> str:
    """A number; "-" for one that is not finite, or that nobody wrote."""
    return f"{value:{form}}" if math.isfinite(value) else "-"


def _machine(view: RunView, width: int) -> list[Text]:
    lines = []
    for policy, published in sorted(view.published.items()):
        line = _labelled("weights" if policy == "policy" else f"  {plain(view.game.policy(policy))}")
        line.append(f"v{published.version} in {published.seconds:.2f} s, engines: {published.num_engines}")
        line.append(f", {published.num_bytes / 2**20:.0f} MiB, probe gap {published.probe_gap_max:.3f}  ")
        if published.broken_channels:
            line.append("through the object store: the channel failed  ")
        lines.append(_with_curve(line, view.sync_seconds if policy == "policy" else (), width))
    if (buffer := view.buffer) is not None:
        line = _labelled("buffer").append(f"{buffer.waiting} waiting, the oldest for {buffer.oldest_s:.0f} s")
        if buffer.permits_free is not None:
            line.append(f"; {buffer.permits_free} permits free, {buffer.evicted or 0} too old to train on")
        lines.append(line)
        lines += _staleness(buffer.lags, width)
    if (iteration := view.iteration) is not None:
        shares = {name: value / max(iteration.seconds, 1e-9) for name, value in iteration.parts.items()}
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.01)
        lines.append(_labelled("iteration").append(f"{iteration.seconds:.1f} s: {told}"))
    restarts = ", ".join(f"{count} {plain(part)}" for part, count in sorted(view.restarts.items()))
    lines.append(_labelled("restarts").append(restarts or "none", "red" if restarts else ""))
    return lines


def _staleness(lags: Mapping[int, int], width: int) -> list[Text]:
    """Episodes of a stream by their age in versions when they were trained on."""
    if not (total := sum(lags.values())):
        return []
    line = _labelled("staleness")
    each = max(2, (width - _LABEL) // len(lags) - 9)
    for lag, count in lags.items():
        line.append(f"{lag} ").append(bar(count / total, each), "cyan").append(f"{count / total:5.0%}  ")
    return [line]


def _tasks(view: RunView) -> list[Text]:
    lines = []
    for row in reversed(view.evaluations.values()):
        line = _labelled("task").append(plain(f"{row.task}, {row.metric}"), "bold").append(f" {row.value:.3f}")
        line.append("" if row.stderr is None else f" ± {row.stderr:.3f}")
        lines.append(line.append(plain(f"  {row.stage}, {row.num_samples} samples"), "dim"))
    return lines


def _notes(view: RunView) -> list[Text]:
    """The run's own notes; without them, the events in its metrics. The newest is last."""
    if view.progress is not None and view.progress.notes:
        return [Text(plain(note)) for note in view.progress.notes]
    return [
        Text.assemble((f"{datetime.datetime.fromtimestamp(at):%H:%M:%S} ", "dim"), plain(text))
        for at, text in view.happenings
    ]


def _foot(view: RunView, now: float) -> Text:
    if view.end is not None:
        return Text(plain(view.end), "bold")
    parts = []
    if view.newest is not None:
        parts.append(f"newest line {duration(max(0.0, now - view.newest))} ago")
    if view.num_unread:
        parts.append(f"{view.num_unread} lines of an unknown format")
    return Text("; ".join([*parts, "Ctrl-C closes this view; the run continues"]), "dim")


def _labelled(label: str) -> Text:
    return Text(label.ljust(_LABEL)[:_LABEL], "dim").append("", "")


def _with_curve(line: Text, values: Iterable[float], width: int) -> Text:
    return line.append(sparkline(values, width - line.cell_len), "cyan")
