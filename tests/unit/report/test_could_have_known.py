"""Could have known: means by turn, claims by tenths, what is written of held-out games and read again."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cluster.monitor.tables import guess_tables
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome, Role, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.results.could_have_known import Knowledge, held_out_report, read_held_out
from spag_ray.results.game_names import GameNames, plain_names
from spag_ray.results.lines import HeldOutLine, HeldOutReport, parse_line
from spag_ray.results.report.known_figures import known_figures
from spag_ray.results.report.markup import chart
from spag_ray.results.report.transcripts import Transcripts

RIGHT, WRONG, SLIP = "I know the word! It is `cat`!", "I know the word! It is `dog`!", "Like a cat?"


def game(*said: str, known: tuple[float | None, ...] = (), num_read: int | None = None) -> Episode:
    """Judged as played; `known`: p of the word at each of the defender's turns."""
    values = iter([None if p is None else math.log(p) for p in known])
    turns = []
    for index, text in enumerate(said):
        word_logprob = next(values, None) if next_role(index) is Role.DEFENDER else None
        turns.append(Turn(next_role(index), text, (1,), (2,), (-0.5,), "p", word_logprob=word_logprob))
    history = [{"role": str(turn.role), "content": turn.text} for turn in turns]
    return Episode("s/0", 0, "s", "cat", 5, "strict", 1.0, tuple(turns), judge(history[:num_read], "cat", 5))


def knowledge(*games: Episode) -> Knowledge:
    found = Knowledge()
    for each in games:
        found.add_episode(each)
    return found


def test_means_are_by_turn_over_the_games_that_came_so_far() -> None:
    found = knowledge(
        game("It purrs.", "Hm.", "It says meow.", RIGHT, known=(0.25, 0.5)),
        game("It purrs.", "Hm.", known=(0.75,)),
        game("It purrs.", "Hm.", "Fur.", "Hm?", known=(0.1, None)),
    )
    first, second = found.turns()
    assert (first.number, first.games, second.number, second.games) == (1, 3, 2, 1)
    assert first.mean_p == pytest.approx((0.25 + 0.75 + 0.1) / 3)
    assert second.mean_p == pytest.approx(0.5)
    assert first.median_logprob == pytest.approx(math.log(0.25))
    assert first.mean_logprob == pytest.approx((math.log(0.25) + math.log(0.75) + math.log(0.1)) / 3)
    last = found.last_turn()
    assert last is not None
    assert last.games == found.num_games == 3
    assert last.mean_p == pytest.approx((0.5 + 0.75 + 0.1) / 3), "the last turn of each that was scored"


def test_claims_are_counted_in_the_tenth_of_the_words_p_where_they_were_made() -> None:
    found = knowledge(
        game("It purrs.", "Hm.", "Fur.", RIGHT, known=(0.95, 0.31)),
        game("It purrs.", WRONG, known=(0.39,)),
        game("It purrs.", WRONG, known=(0.05,)),
        game("It purrs.", RIGHT, known=(1.0,)),
        game("It purrs.", SLIP, known=(0.9,)),
        game("It purrs.", RIGHT, known=(None,)),
        game("It purrs.", "Hm.", known=(0.6,)),
        game("I know the word! It is `dog`", known=()),
    )
    claims = [(tenth.claims, tenth.right) for tenth in found.tenths()]
    assert claims == [(1, 0), (0, 0), (0, 0), (2, 1), *[(0, 0)] * 5, (1, 1)]
    assert [found.tenths()[place].share for place in (0, 1, 3)] == [0.0, None, 0.5]


@given(st.lists(st.tuples(st.floats(-800, 0), st.booleans()), max_size=40))
def test_every_scored_claim_is_in_one_tenth_that_its_p_is_in(claims: list[tuple[float, bool]]) -> None:
    found = Knowledge()
    for logprob, is_right in claims:
        found.add([logprob], is_right)
    tenths = found.tenths()
    assert len(tenths) == 10
    assert sum(tenth.claims for tenth in tenths) == len(claims)
    assert sum(tenth.right for tenth in tenths) == sum(is_right for _, is_right in claims)
    for place in range(10):
        inside = [p for p in (math.exp(logprob) for logprob, _ in claims) if p >= place / 10]
        assert sum(each.claims for each in tenths[place:]) == pytest.approx(len(inside), abs=0)


def test_turns_after_the_one_that_decided_are_not_counted() -> None:
    found = knowledge(game("It purrs.", WRONG, "No.", "Oh.", known=(0.3, 0.9), num_read=2))
    assert [turn.number for turn in found.turns()] == [1]


GAMES = (
    game("It purrs.", "Hm.", "Fur.", RIGHT, known=(0.2, 0.5)),
    game("It purrs.", WRONG, known=(0.125,)),
    game("It purrs.", SLIP, known=(0.25,)),
    game("It purrs.", SLIP, known=(0.5,)),
    game("It is a cat."),
)


def test_a_stages_line_counts_guesses_traps_and_what_could_have_been_known() -> None:
    line = held_out_report(GAMES)
    assert (line.games, line.guesses, line.right_guesses, line.attacker_wins, line.traps) == (5, 2, 1, 3, 2)
    assert (line.right_share, line.trap_share, line.scored_games) == (0.5, pytest.approx(2 / 3, abs=1e-4), 4)
    assert line.could_have_known == pytest.approx((0.5 + 0.125 + 0.25 + 0.5) / 4, rel=1e-3)
    assert line.could_have_known_nats == pytest.approx(sum(map(math.log, (0.5, 0.125, 0.25, 0.5))) / 4, abs=1e-4)
    written = HeldOutLine("eval-spag-1", "taboo", 2, line)
    assert parse_line({"time": 1.0, "kind": "held_out", **written.values()}) == written


def test_of_several_guesses_all_count_not_only_the_one_that_was_right() -> None:
    several = game("It purrs.", WRONG, "Fur.", "Hm.", "It says meow.", RIGHT, known=(0.35, 0.4, 0.35))
    verdict = replace(several.verdict, outcome=Outcome.DEFENDER_WINS, end_reason=EndReason.RIGHT_GUESS, turn=5)
    several = replace(several, verdict=replace(verdict, length=6))
    line = held_out_report([several], max_guesses=2)
    assert (line.guesses, line.right_guesses) == (2, 1)
    found = Knowledge()
    found.add_episode(several, [1])
    assert [(tenth.low, tenth.claims, tenth.right) for tenth in found.tenths() if tenth.claims] == [(0.3, 2, 1)]


def test_what_cannot_be_counted_is_left_out() -> None:
    line = HeldOutLine("eval-base", "taboo", 0, held_out_report([game("It is a cat.")]))
    assert line.report.scored_games == 0
    missing = {"right_share", "trap_share", "could_have_known", "could_have_known_nats"}
    assert not missing & line.values().keys()
    assert held_out_report([]).games == 0
    own = held_out_report([replace(each, verdict=replace(each.verdict, end_reason="called")) for each in GAMES])
    assert (own.games, own.trap_share) == (5, None), "a game without guesses and traps has no share of them"


def test_the_newest_line_of_each_stage_is_read_and_damaged_ones_are_not(tmp_path: Path) -> None:
    stages = (("eval-base", 1), ("eval-spag-1", 5), ("eval-base", 3))
    lines = [HeldOutLine(stage, "taboo", 0, held_out_report(GAMES[:count])) for stage, count in stages]
    texts = [json.dumps({"time": 1.0, "kind": "held_out", **line.values()}) for line in lines]
    texts[1:1] = ['{"time": 1.0, "kind": "held_out", "stage": "eval-x"}', '{"time": 1.0, "kind": "sync"}', "{"]
    (tmp_path / "metrics.jsonl").write_text("\n".join(texts) + "\n")
    found = read_held_out(tmp_path / "metrics.jsonl")
    assert [(line.stage, line.report.games) for line in found] == [("eval-base", 3), ("eval-spag-1", 5)]
    assert read_held_out(tmp_path / "none.jsonl") == []


def test_the_table_says_it_in_words_and_fits_80_columns() -> None:
    console = Console(width=80, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    unscored = HeldOutLine("match-spag-2@imitated", "taboo", 3, HeldOutReport(80, 12, 3, 40, 31))
    lines = [HeldOutLine("eval-spag-1", "taboo", 2, held_out_report(GAMES)), unscored]
    own = HeldOutLine("eval-spag-1", "mine.py:Mine", 2, held_out_report(GAMES))
    mine = GameNames("mine.py:Mine", ("asker", "keeper"), "scenario", guesses=False)
    names = {"taboo": GameNames(), "mine.py:Mine": mine, "kuhn": plain_names("kuhn")}
    taboo, other = guess_tables([*lines, own], names)
    assert [str(column.header) for column in other.columns] == ["asker v keeper", "at its last turn"]
    console.print(taboo)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines()]
    assert ["spag-1", "1", "of", "2", "2", "of", "3", "34.4", "%"] in rows
    assert ["spag-2", "v", "imitated", "3", "of", "12", "31", "of", "40"] in rows
    assert "without noticing" in text


def test_outcomes_and_reasons_are_what_the_referee_says() -> None:
    assert [each.verdict.outcome for each in GAMES[:3]] == [
        Outcome.DEFENDER_WINS,
        Outcome.ATTACKER_WINS,
        Outcome.ATTACKER_WINS,
    ]
    assert GAMES[2].verdict.end_reason is EndReason.SAID_WORD
    undecided = replace(GAMES[0].verdict, end_reason=EndReason.RIGHT_GUESS, length=0)
    assert knowledge(replace(GAMES[0], verdict=undecided)).num_games == 0, "a log may say anything"


def test_a_name_is_escaped_once_in_the_legend() -> None:
    known = Knowledge()
    known.add([math.log(0.2), math.log(0.5)])
    figure = known_figures(Transcripts(known={"eval-a&b": known}))[0]
    assert "</i>a&amp;b</span>" in chart(figure)
