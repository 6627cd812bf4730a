"""The tables of the page: standings, evaluations, incidents, packages and settings."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from markupsafe import Markup

from spag_ray.config.loading import without_environment
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.results.evaluations import PAPER_METRICS, PAPER_SCORES, Evaluation, paper_text, score_texts
from spag_ray.results.game_names import GameNames
from spag_ray.results.matches import Match
from spag_ray.results.report.files import RunFiles
from spag_ray.results.report.markup import NOTHING, block, facts, folded, paragraph, table
from spag_ray.results.report.measurements import Measurements
from spag_ray.results.standings import MIN_WORDS, Estimate, largest_group, outcome_cells, players, ratings
from spag_ray.stages import Stage, order_of


def match_table(matches: Sequence[Match], game: GameNames) -> Markup:
    """Outcomes of every match in per cent, with intervals."""
    rows = [[match.title, *outcome_cells(match), str(len(match.games))] for match in matches]
    caption = f"{game.held_out}: % of games, 95% interval"
    wins = (f"{seat} wins" for seat in game.seats)
    return table(caption, (" v ".join(game.seats), *wins, "breach", "tie", "games"), rows)


def rating_table(matches: Sequence[Match], game: GameNames) -> Markup:
    """Ratings of the players that are connected by games; others cannot be compared."""
    connected = largest_group(matches)
    try:
        found = ratings(connected)
    except (ImportError, RuntimeError) as error:  # a library is missing, or its fit does not converge
        return paragraph(f"No ratings: {error}.", "missing")
    needed = f"games on {MIN_WORDS} {game.scenarios} or more that did not all end alike"
    if not found:
        met = any(match.attacker != match.defender for match in connected)
        why = f"no two players of one seat have {needed}" if met else "no player has met another player yet"
        return paragraph(f"No ratings: {why}.", "missing")
    names = sorted({name for name, _ in found}, key=order_of)
    rows = [[name, *(_rating(found.get((name, role))) for role in Role)] for name in names]
    left_out = sorted(set(players(matches)) - set(names), key=order_of)
    caption = f"Ratings against the seat's other players (400 points: ten times the odds), 95% over {game.scenarios}"
    text = table(caption, ("player", *game.seats), rows)
    if left_out:
        text += paragraph(f"Not rated, because that needs {needed}, with these players: {', '.join(left_out)}.", "note")
    return block(text)


def evaluation_table(evaluations: Sequence[Evaluation], config: RunConfig | None) -> Markup:
    """Tasks by stage, with the paper's numbers in the columns of the metrics that they are compared with. Without
    evaluations, the tasks that the run has not come to; nothing if it has none."""
    if not evaluations:
        if config is None or not config.evaluation.tasks:
            return NOTHING
        named = f"{', '.join(config.evaluation.tasks)} (evaluation.tasks)"
        return paragraph(f"Not evaluated yet: {named}. Tasks are evaluated at the end of a stage.", "missing")
    stages = list(dict.fromkeys(row.stage for row in evaluations))
    texts = score_texts(evaluations)
    papers = [] if PAPER_METRICS.items().isdisjoint(texts) else list(PAPER_SCORES)
    lines = []
    for (task, metric), of_stage in texts.items():
        ours, theirs = (
            [of_stage.get(stage, "") for stage in stages],
            [paper_text(each, task, metric) for each in papers],
        )
        most = max(row.num_samples for row in evaluations if (row.task, row.metric) == (task, metric))
        lines.append([f"{task}, {metric}", *ours, *theirs, str(most)])
    caption = "lm-evaluation-harness: score ± standard error, shares in %"
    return table(caption, ("task", *stages, *papers, "samples"), lines)


def incidents(measured: Measurements) -> Markup:
    """Restarts, losses and damage."""
    if not measured.incidents:
        return paragraph("No restarts, no losses.", "note")
    rows = [[name.replace("_", " "), str(count)] for name, count in sorted(measured.incidents.items())]
    return table("Incidents", ("what", "times"), rows)


def collapse_table(measured: Measurements) -> Markup:
    """Alarms and their ends; nothing if there was none."""
    if not measured.collapse:
        return NOTHING
    rows = []
    for line in sorted(measured.collapse.values(), key=lambda line: order_of(line.stage)):
        what = "alarm" if line.is_alarm else "inside again"
        mixed = f"{line.mix_ratio:.0%}" if line.action == "mix" else "-"
        interval = f"{line.low:.2f} to {line.high:.2f} after {line.before}"
        rows.append([line.stage, what, line.figure, f"{line.value:.2f}", interval, mixed])
    headings = ("stage", "what", "figure", "value", "what chance allows", "games v frozen opponents")
    text = paragraph(
        "An alarm: in two stages the figure was worse than chance allows after an earlier one; charts mark them.",
        "note",
    )
    return block(table("Collapse", headings, rows), text)


def staleness_text(config: RunConfig | None, measured: Measurements) -> Markup:
    if config is None:
        return NOTHING
    if config.schedule == "rounds":
        if all(Stage.parse(stage).phase != "self_play" for stage in measured.stages):
            return NOTHING
        return paragraph(
            "Rounds: the version that played a game was also the one that was trained on it, so no game was stale.",
            "note",
        )
    return paragraph(
        f"Stream: episodes are trained on at most {config.stream.max_lag} versions after they were played. "
        f"Too old and left out: {measured.num_evicted}. "
        f"The learner waited {measured.waited_s:.0f} s for games.",
        "note",
    )


def about(files: RunFiles) -> Markup:
    """Packages and settings, to repeat the run."""
    pairs = [(str(name), value) for name, value in files.versions.items() if name != "packages"]
    packages = files.versions.get("packages")
    pairs += [(str(name), value) for name, value in packages.items()] if isinstance(packages, dict) else []
    text = facts((name, "unknown" if value is None else str(value)) for name, value in pairs)
    if not pairs:
        text = paragraph("The packages are unknown: versions.json is missing.", "missing")
    if files.config is not None:
        settings = yaml.safe_dump(without_environment(files.config.model_dump(mode="json")), sort_keys=False)
        text += folded("config.yaml", settings)
    return text


def _rating(estimate: Estimate | None) -> str:
    return "-" if estimate is None else f"{estimate.value:+.0f} [{estimate.low:+.0f}, {estimate.high:+.0f}]"
