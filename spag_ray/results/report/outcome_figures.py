"""How games ended and what they paid, by stage and by pair of players."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from markupsafe import Markup

from spag_ray.episodes.episode import GameCount
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.game_names import GameNames
from spag_ray.results.ratings import WinMatrix, mean_score
from spag_ray.results.report.figure import MARK, Figure, as_label, bars, line, stacked
from spag_ray.results.report.markup import NOTHING, table
from spag_ray.results.report.transcripts import Payoffs, Transcripts
from spag_ray.results.standings import Estimate
from spag_ray.stages import Stage, StageKind, order_of

# In the order of the bars: outcomes that are good for the attacker on the left, for the defender on the right.
COLOURS = {
    Outcome.ATTACKER_WINS: "--attacker",
    Outcome.DEFENDER_BREACH: "--defender-breach",
    Outcome.TIED: "--tie",
    Outcome.ATTACKER_BREACH: "--attacker-breach",
    Outcome.DEFENDER_WINS: "--defender",
}
FEW_STAGES = 20
MOST_VERSION_BARS = 100
MOST_NUMBERED_CELLS = 144
MOST_CELLS_WITH_INTERVALS = 16


def outcome_figures(transcripts: Transcripts, alarmed: Container[str], game: GameNames) -> list[Figure]:
    """Shares by stage: of games for training, and of games on held-out words. Evaluations of the stages in `alarmed`
    are marked."""
    found = []
    trained: dict[str, GameCount] = {}
    held_out: dict[str, GameCount] = {}
    for stage, count in transcripts.counts.items():
        (held_out if Stage.parse(stage).phase == "evaluation" else trained)[stage] = count
    for name, title, counts in (
        ("outcomes-trained", title_of(trained), trained),
        ("outcomes-held-out", game.held_out, held_out),
    ):
        if counts:
            played = {stage: Stage.parse(stage) for stage in counts}
            marked = [key for key, of in played.items() if of.kind is StageKind.EVALUATION and of.title in alarmed]
            found.append(_shares(name, title, counts, marked, game))
    if len(transcripts.by_version) > 1:
        found.append(_shares_by_version(transcripts.by_version, game))
    return found


def title_of(stages: Iterable[str]) -> str:
    """Of games that are not on held-out words: `play` and visitors of `serve` train nothing."""
    phases = {Stage.parse(stage).phase for stage in stages}
    return "Games" if phases <= {"play", "other"} else "Games for training"


def _legend(game: GameNames) -> tuple[tuple[str, str], ...]:
    return tuple((game.outcome(outcome), colour) for outcome, colour in COLOURS.items())


def _shares(name: str, title: str, counts: Mapping[str, GameCount], marked: Container[str], game: GameNames) -> Figure:
    stages = [as_label(Stage.parse(stage).title) + (MARK if stage in marked else "") for stage in counts]
    data = []
    for outcome, colour in COLOURS.items():
        said = as_label(game.outcome(outcome))
        numbers = [count.outcomes[outcome] for count in counts.values()]
        shares = [100 * number / count.num_games for number, count in zip(numbers, counts.values(), strict=True)]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": said,
                "x": shares,
                "y": stages,
                "customdata": numbers,
                "marker": {"color": colour, "line": {"color": "--surface", "width": 1}},
                "hovertemplate": "%{y}: " + said + " %{x:.1f}% (%{customdata} games)<extra></extra>",
            }
        )
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "xaxis": {"range": [0, 100], "ticksuffix": "%", "dtick": 25},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
        "hovermode": "closest",
    }
    summary = "; ".join(
        f"{stage}: "
        + ", ".join(f"{game.outcome(each)} {100 * count.outcomes[each] / count.num_games:.0f}%" for each in COLOURS)
        for stage, count in zip(stages, counts.values(), strict=True)
    )
    bar_height = 34 if len(stages) <= FEW_STAGES else 14
    return Figure(name, title, summary, data, layout, height=60 + bar_height * len(stages), legend=_legend(game))


def _shares_by_version(by_version: Mapping[int, Mapping[Outcome, int]], game: GameNames) -> Figure:
    versions = sorted(by_version)
    width = -(-len(versions) // MOST_VERSION_BARS)
    groups = [versions[place : place + width] for place in range(0, len(versions), width)]
    totals = [sum(sum(by_version[version].values()) for version in group) for group in groups]
    firsts, data = [group[0] for group in groups], []
    for outcome, colour in COLOURS.items():
        counts = [sum(by_version[version].get(outcome, 0) for version in group) for group in groups]
        shares = [100 * count / total for count, total in zip(counts, totals, strict=True)]
        said = as_label(game.outcome(outcome))
        data.append(bars(firsts, shares, said, colour, f"version %{{x}}: {said} %{{y:.1f}}%<extra></extra>"))
    layout = stacked(
        "version of the weights that played", versions, {"range": [0, 100], "ticksuffix": "%", "dtick": 25}
    )
    layout["hovermode"] = "closest"
    summary = f"Shares of outcomes of the stream's games for {len(versions)} versions of the weights."
    return Figure(
        "outcomes-by-version", "The stream, by version", summary, data, layout, height=280, legend=_legend(game)
    )


def payoff_figure(transcripts: Transcripts, game: GameNames) -> Figure | None:
    """The mean payoff of each seat, by stage, in games that were trained on; None if the game does not say what it
    pays."""
    paid = {stage: seats for stage, seats in transcripts.payoffs.items() if Stage.parse(stage).phase != "evaluation"}
    if not paid:
        return None
    titles = [as_label(Stage.parse(stage).title) for stage in paid]
    data = []
    for role in Role:
        means = [seats[role].mean if role in seats else None for seats in paid.values()]
        trace = line(range(len(paid)), means, game.seat(role), f"--{role}")
        data.append(trace | {"x": titles, "mode": "lines+markers"})
    summary = "; ".join(
        f"{title}: " + ", ".join(f"{game.seat(role)} {payoffs.mean:+.3f}" for role, payoffs in seats.items())
        for title, seats in zip(titles, paid.values(), strict=True)
    )
    layout = {
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": {"zeroline": True, "zerolinecolor": "--rule-strong"},
    }
    legend = tuple((game.seat(role), f"--{role}") for role in Role)
    note = "games for training"
    return Figure(
        "payoffs", "Mean payoff of each seat", summary, data=data, layout=layout, note=note, height=260, legend=legend
    )


def payoff_table(transcripts: Transcripts, game: GameNames) -> Markup:
    """The mean payoff of each seat in every stage, training first; nothing if the game does not say what it pays."""
    if not transcripts.payoffs:
        return NOTHING
    stages = sorted(transcripts.payoffs, key=lambda stage: Stage.parse(stage).phase == "evaluation")
    rows = [
        [
            stage,
            *(_mean(transcripts.payoffs[stage].get(role)) for role in Role),
            str(transcripts.counts[stage].num_games),
        ]
        for stage in stages
    ]
    caption = "Mean payoff of each seat ± half of the 95% interval, games taken as independent"
    return table(caption, ("stage", *game.seats, "games"), rows)


def _mean(payoffs: Payoffs | None) -> str:
    if payoffs is None:
        return "-"
    margin = payoffs.margin
    return f"{payoffs.mean:+.3f}" + ("" if margin is None else f" ± {margin:.3f}")


def matrix_figure(
    name: str, title: str, matrix: WinMatrix, estimates: Mapping[tuple[str, str], Estimate], game: GameNames
) -> Figure | None:
    """The first seat's score by its player (rows) and the player of the second (columns); None if no player has met
    another: tables have how one fares against itself. `estimates`: the scores with their intervals, as far as known."""
    met = {(row["attacker"], row["defender"]) for row in matrix.as_json()}
    if all(attacker == defender for attacker, defender in met):
        return None
    attackers, defenders = (sorted({pair[place] for pair in met}, key=_player_order) for place in (0, 1))
    counts = [[matrix.outcomes(attacker, defender) for defender in defenders] for attacker in attackers]
    games = [[outcomes.total() for outcomes in row] for row in counts]
    scores = [[round(mean_score(each, Role.ATTACKER), 3) if each else None for each in row] for row in counts]
    between = [[_between(estimates.get((attacker, defender))) for defender in defenders] for attacker in attackers]
    within = [[f" (95%: {text})" if text else "" for text in row] for row in between]
    first, second = map(as_label, game.seats)
    against = "attacks" if game.guesses else f"as {first} against"
    num_cells = len(attackers) * len(defenders)
    written = "%{z:.2f}<br>%{text}" if estimates and num_cells <= MOST_CELLS_WITH_INTERVALS else "%{z:.2f}"
    heat = {
        "type": "heatmap",
        "x": [as_label(name) for name in defenders],
        "y": [as_label(name) for name in attackers],
        "z": scores,
        "customdata": [list(map(list, zip(*cells, strict=True))) for cells in zip(within, games, strict=True)],
        "zmin": 0,
        "zmax": 1,
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        "colorscale": [[0, "--defender"], [0.5, "--middle"], [1, "--attacker"]],
        "colorbar": {"thickness": 10, "outlinewidth": 0, "tickvals": [0, 0.5, 1], "len": 0.9},
        "hovertemplate": "%{y} " + against + " %{x}: %{z:.2f}%{customdata[0]} of %{customdata[1]} games<extra></extra>",
        "text": between,
        **({"texttemplate": written} if num_cells <= MOST_NUMBERED_CELLS else {}),
    }
    layout = {
        "xaxis": {"title": {"text": second}, "type": "category", "showgrid": False, "side": "bottom"},
        "yaxis": {"title": {"text": first}, "type": "category", "showgrid": False, "autorange": "reversed"},
        "hovermode": "closest",
    }
    summary = "; ".join(
        f"{attacker} against {defender}: {score:.2f}"
        for attacker, row in zip(attackers, scores, strict=True)
        for defender, score in zip(defenders, row, strict=True)
        if score is not None
    )
    return Figure(name, title, summary, [heat], layout, height=130 + max(44 * min(len(attackers), 10), 90))


def _between(estimate: Estimate | None) -> str:
    return f"{estimate.low:.2f} to {estimate.high:.2f}" if estimate is not None and estimate.has_interval else ""


def _player_order(name: str) -> tuple[tuple[int, int, bool, str], int]:
    """Stages in the order of a run; a league's players, policy@version, by version."""
    policy, _, version = name.partition("@")
    return order_of(policy), int(version) if version.isdecimal() else 0
