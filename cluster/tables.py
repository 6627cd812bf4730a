"""What is printed of a run's matches."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from spag_ray.game import Outcome, Role
from spag_ray.matches import Match
from spag_ray.ratings import wilson_interval


def outcome_table(matches: Sequence[Match]) -> Table:
    """Outcomes by stage: per cent of games with 95% Wilson intervals; fits 80 columns."""
    breaches = (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH)
    columns: dict[str, tuple[Outcome, ...]] = {
        "attacker": (Outcome.ATTACKER_WINS,),
        "defender": (Outcome.DEFENDER_WINS,),
        "breach": breaches,
        "tie": (Outcome.TIED,),
        "breach+tie": (*breaches, Outcome.TIED),
    }
    title = "Held-out words: % of games won by each seat, broken off, tied [95% interval]"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("attacker v defender", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for match in matches:
        games = len(match.games)
        cells = []
        for outcomes in columns.values():
            count = sum(match.outcomes[outcome] for outcome in outcomes)
            low, high = wilson_interval(count, games)
            cells.append(f"{100 * count / games:.0f} [{100 * low:.0f},{100 * high:.0f}]")
        same = match.attacker == match.defender
        table.add_row(match.attacker if same else f"{match.attacker} v {match.defender}", *cells)
    return table


def head_to_head_lines(matches: Sequence[Match]) -> list[str]:
    """The newest weights' score in each seat, where two different policies met."""
    lines, scores = [], []
    for match in matches:
        if match.attacker == match.defender:
            continue
        newest = max(match.attacker, match.defender)  # "spag-N" sorts after "base" and "imitated"
        role = Role.ATTACKER if newest == match.attacker else Role.DEFENDER
        scores.append(match.score(role))
        other = match.defender if role is Role.ATTACKER else match.attacker
        lines.append(f"{newest} as {role} against {other}: score {scores[-1]:.2f}")
    if scores:
        lines.append(f"mean score over both seats: {sum(scores) / len(scores):.2f} (0.5 is even)")
    return lines
