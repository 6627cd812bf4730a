"""The printed tables of a run's matches."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from cluster.monitor.terminal import plain, table_of
from spag_ray.errors import InputError
from spag_ray.game.protocol import SEATS
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.evaluations import PAPER_METRICS, PAPER_SCORES, Evaluation, paper_text, score_texts
from spag_ray.results.game_names import GameNames, NamesByGame
from spag_ray.results.lines import HeldOutLine
from spag_ray.results.matches import Match
from spag_ray.results.standings import (
    ENDS,
    MIN_WORDS,
    better,
    largest_group,
    outcome_cells,
    players,
    ratings,
    score,
    share,
    turns_to_win,
)
from spag_ray.stages import Stage, order_of


def outcome_table(matches: Sequence[Match], game: GameNames) -> Table:
    """Outcomes by stage: per cent of games with 95% intervals over words; fits 80 columns."""
    seats, (*wins, breach, tie) = _seats(game), ENDS.values()
    kinds = [*wins, breach, tie, (*breach, *tie)]
    title = f"{game.held_out}: % of games won by each seat, rule violations, ties [95% interval]"
    table = table_of(title, [" v ".join(seats.values())], [*seats.values(), "breach", "tie", "breach+tie"])
    for match in matches:
        table.add_row(match.title, *(cell.replace(", ", ",") for cell in outcome_cells(match, kinds)))
    return table


def _seats(game: GameNames) -> dict[Role, str]:
    """A game's own words; nothing in them is markup."""
    return {role: escape(plain(game.seat(role))) for role in Role}


def guess_tables(lines: Sequence[HeldOutLine], names: NamesByGame) -> list[Table]:
    """For each game with lines of held-out scenarios, what its guesser could have known; of Taboo also right guesses
    and traps. They fit 80 columns."""
    own = {name: [line for line in lines if line.game == name] for name in names}
    return [_guess_table(own[name], its) for name, its in names.items() if own[name]]


def _guess_table(lines: Sequence[HeldOutLine], game: GameNames) -> Table:
    if not game.guesses:
        title = f"Held-out scenarios of {escape(plain(game.name))}: what the seat that guesses could have known"
        table = table_of(title, [" v ".join(_seats(game).values())], ["at its last turn"])
        for line in lines:
            table.add_row(Stage.parse(line.stage).title, _known(line))
        return table
    title = "Held-out words: guesses, traps, and what the defender could have known"
    table = table_of(title, ["attacker v defender"], ["right guesses", "traps", "could have known"])
    table.caption_justify = "left"
    table.caption = (
        "right guesses: of all guesses that defenders made\n"
        "traps: attackers' wins in which the defender said the word without noticing\n"
        "could have known: probability that a guess at the defender's last turn is right"
    )
    for line in lines:
        found = line.report
        table.add_row(
            Stage.parse(line.stage).title,
            f"{found.right_guesses} of {found.guesses}",
            f"{found.traps} of {found.attacker_wins}",
            _known(line),
        )
    return table


def _known(line: HeldOutLine) -> str:
    known = line.report.could_have_known
    return "" if known is None else f"{100 * known:.1f} %"


def head_to_head_lines(matches: Sequence[Match], game: GameNames) -> list[str]:
    """The newest weights' score in each seat against every other player they met, and its mean over both seats, with
    95% intervals."""
    met = [match for match in matches if match.attacker != match.defender and match.games]
    newest = max(players(met), key=order_of, default="")
    lines, seats = [], _seats(game)
    for other in players(match for match in met if newest in (match.attacker, match.defender)):
        told = [(f"{newest} as {seats[role]} against {other}: score", (role,), "") for role in Role]
        for what, roles, remark in (*told, ("mean score over both seats:", SEATS, " (0.5 is even)")):
            with contextlib.suppress(InputError):  # they have not met there
                lines.append(f"{what} {score([met], newest, other, roles=roles)}{remark}")
    return lines


def match_tables(matches: Sequence[Match], names: Sequence[str], game: GameNames) -> list[Table]:
    """The first seat's scores against every player of the second, and each player's ratings and shares, with 95%
    intervals."""
    return [_win_table(matches, names, game), _player_table(matches, names, game)]


def _win_table(matches: Sequence[Match], names: Sequence[str], game: GameNames) -> Table:
    by_pair = {(match.attacker, match.defender): match for match in matches}
    first, second = _seats(game).values()
    heading = escape(plain(game.title(Role.ATTACKER)))
    title = f"{heading}'s score in % against each {second} [95% interval; ties count half], games"
    table = table_of(title, [first], [f"v {name}" for name in names])
    for attacker in names:
        cells = []
        for defender in names:
            match = by_pair.get((attacker, defender))
            cells.append("" if match is None or not match.games else _attackers_score(match))
        table.add_row(attacker, *cells)
    return table


def _attackers_score(match: Match) -> str:
    found = share(match, lambda outcome: outcome.score(Role.ATTACKER))
    return f"{found.in_percent.replace(', ', ',')} {len(match.games)}"


def _player_table(matches: Sequence[Match], names: Sequence[str], game: GameNames) -> Table:
    rated, seats = ratings(largest_group(matches)), _seats(game)
    title = (
        f"Each seat: rating against its other players (Elo's scale, mean 0 [95%, by {game.scenario}]; "
        f"from {MIN_WORDS} {game.scenarios} on), breaches and ties in %, turns until a win"
    )
    table = table_of(title, ["player", "seat"], ["rating", "own breaches", "ties", "turns to win"])
    for name in names:
        for role in Role:
            own = [match for match in matches if name == (match.attacker, match.defender)[role is Role.DEFENDER]]
            games = [each for match in own for each in match.games]
            if not games:
                continue
            rating, turns = rated.get((name, role)), turns_to_win(own, role)
            breaches = sum(each.outcome.breaker is role for each in games)
            ties = sum(each.outcome is Outcome.TIED for each in games)
            table.add_row(
                name,
                seats[role],
                "" if rating is None else f"{rating.value:.0f} [{rating.low:.0f},{rating.high:.0f}]",
                f"{100 * breaches / len(games):.0f}",
                f"{100 * ties / len(games):.0f}",
                "" if turns is None else f"{turns:.1f}",
            )
    return table


def comparison_lines(matches: Sequence[Match], names: Sequence[str], against: str | None, game: GameNames) -> list[str]:
    """Each player's score against `against`, or against the player before it, if the two met in both seats."""
    met = {(match.attacker, match.defender) for match in matches if match.games}
    lines = []
    for before, name in zip([names[0], *names], names, strict=False):
        other = before if against is None else against
        if name == other or not {(name, other), (other, name)} <= met:
            continue
        text = f"{name} against {other}, both seats: {score([matches], name, other)}"
        with contextlib.suppress(InputError):  # in one seat every game ended by a rule violation
            text += f", without breaches {score([matches], name, other, breach_free=True)}"
        with contextlib.suppress(InputError):  # they met in one seat on other words than in the other
            test = better(matches, name, other)
            text += f"; better over {test.num_words} {game.scenarios} with p = {test.p_value:.4f}"
        lines.append(text)
    return lines


PER_TABLE = 8  # columns that fit 100 characters


def evaluation_tables(rows: Sequence[Evaluation]) -> list[Table]:
    """Shares in per cent, with the standard error. For the paper's tasks: only the metric that is compared with the
    paper's numbers. For other tasks: every metric."""
    texts = score_texts(rows)
    columns = [(task, metric) for task, metric in texts if PAPER_METRICS.get(task, metric) == metric]
    return [_table(rows, texts, columns[start : start + PER_TABLE]) for start in range(0, len(columns), PER_TABLE)]


def _table(
    rows: Sequence[Evaluation], texts: Mapping[tuple[str, str], Mapping[str, str]], columns: Sequence[tuple[str, str]]
) -> Table:
    table = table_of("Tasks: score ± standard error, shares in %", ["stage"])
    for task, metric in columns:
        table.add_column(f"{task}\n{metric}", justify="right", overflow="fold")
    for stage in dict.fromkeys(row.stage for row in rows):
        table.add_row(stage, *(texts[column].get(stage, "") for column in columns))
    if any(task in PAPER_METRICS for task, _ in columns):
        for paper in PAPER_SCORES:
            table.add_row(paper, *(paper_text(paper, *column) for column in columns))
    return table
