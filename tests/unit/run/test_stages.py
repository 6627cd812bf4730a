"""Stages and their names: made and read back, their phase, their place in a run, their title."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.buffer.replay_buffer import STAGE_NAME
from spag_ray.errors import InputError
from spag_ray.stages import BASE, EXPERT, IMITATED, LEARN, PLAY, PLAYER_NAME, STREAM, Stage, StageKind, order_of

rounds = st.integers(1, 999).map(Stage.of_round)
policies = st.sampled_from(["attacker", "defender"])
learned = st.sampled_from([IMITATED, LEARN]) | rounds
own = (st.just(BASE) | st.just(IMITATED) | rounds).map(str)
players = own | st.from_regex(PLAYER_NAME, fullmatch=True) | st.sampled_from(["a-b", "a.1", "v", "spag-2-v", "eval-x"])
stages = (
    st.sampled_from([BASE, EXPERT, STREAM, PLAY])
    | learned
    | st.builds(lambda stage, policy: stage.of_policy(policy), learned, policies)
    | st.builds(Stage.evaluation, players)
    | st.builds(Stage.match, players, players)
)
names = st.text() | st.lists(
    st.sampled_from(
        ["spag", "match", "eval", "base", "imitated", "-", "@", "+", ".", "1", "02", "a", "attacker", "\n"]
    ),
    max_size=7,
).map("".join)


@given(stages)
def test_a_stage_is_read_back_from_its_name(stage: Stage) -> None:
    assert Stage.parse(str(stage)) == stage
    assert STAGE_NAME.fullmatch(str(stage)), "it is a file's name"


@given(names)
@example("match-imitated-spag-2")
@example("match-a@b")
@example("match-a.b@c")
@example("spag-02")
@example("spag-" + "9" * 5000)
@example("eval-" * 3000)
def test_any_name_is_a_stages_and_keeps_it(name: str) -> None:
    stage = Stage.parse(name)
    assert Stage.parse(str(stage)) == stage
    assert str(stage) == name
    assert (stage.title and stage.phase and stage.order) or not name


@given(players, players, players, players)
@example("a-b", "c", "a", "b-c")
@example("a", "b", "a", "b.1")
def test_two_matches_share_neither_name_nor_log(a: str, b: str, c: str, d: str) -> None:
    first, second = Stage.match(a, b), Stage.match(c, d)
    assert (str(first) == str(second)) == ((a, b) == (c, d))
    assert not re.search(r"\.\d+$", str(first)), "a log's segments are NAME.1, NAME.2, ..."


def test_names_are_those_that_run_folders_have() -> None:
    stages = [BASE, EXPERT, IMITATED, STREAM, PLAY, LEARN, Stage.of_round(12), Stage.evaluation("spag-3")]
    assert " ".join(map(str, stages)) == "base expert imitated stream play learn spag-12 eval-spag-3"
    assert [str(stage.of_policy("attacker")) for stage in (IMITATED, Stage.of_round(1))] == [
        "imitated-attacker",
        "spag-1-attacker",
    ]


def test_a_policys_part_belongs_to_the_whole() -> None:
    part = Stage.parse("spag-3-defender")
    assert (part.kind, part.round, part.players) == (StageKind.ROUND, 3, ("defender",))
    assert part.of_all_policies == Stage.of_round(3) == Stage.of_round(3).of_all_policies
    for stage in (Stage.evaluation("spag-3"), Stage.match("base", "imitated"), Stage.parse("of-my-own-attacker")):
        assert stage.of_all_policies == stage


@pytest.mark.parametrize("name", ["match-published-spag-2", "match-a-b-c", "match-qwen2.5-base", "match-of-my-own"])
def test_a_match_whose_name_has_no_players_keeps_its_name(name: str) -> None:
    stage = Stage.parse(name)
    assert (stage.kind, str(stage), stage.title, stage.phase) == (StageKind.MATCH, name, name, "evaluation")


@pytest.mark.parametrize("player", ["", "a b", "a@b", "../up", "-a", "a+b", "n" * 65, "\u00e9"])
def test_a_match_of_players_with_other_names_is_refused(player: str) -> None:
    with pytest.raises(InputError, match="a player's name"):
        Stage.match(player, "base")


@pytest.mark.parametrize(
    "stage",
    [
        (StageKind.OTHER, 0, ("spag-1",)),
        (StageKind.OTHER, 0, ("a", "b")),
        (StageKind.ROUND, 0, ()),
        (StageKind.STREAM, 2, ()),
        (StageKind.EVALUATION, 0, ()),
        (StageKind.EXPERT, 0, ("attacker",)),
    ],
)
def test_what_would_be_read_as_another_stage_is_refused(stage: tuple[StageKind, int, tuple[str, ...]]) -> None:
    with pytest.raises(InputError):
        Stage(*stage)


def test_phases_stay_few() -> None:
    assert {Stage.parse(name).phase for name in ("expert", "imitated", "imitated-attacker")} == {"imitation"}
    assert {Stage.parse(name).phase for name in ("spag-7", "spag-7-defender", "stream")} == {"self_play"}
    held_out = ("eval-base", "match-spag-7-base", "match-spag-7@base", "match-a-b")
    assert {Stage.parse(name).phase for name in held_out} == {"evaluation"}
    assert [Stage.parse(name).phase for name in ("play", "learn", "whatever", "base", "")] == ["play", "learn"] + 3 * [
        "other"
    ]


def test_stages_sort_as_a_run_comes_to_them() -> None:
    wanted = ["eval-base", "expert", "eval-imitated", "spag-1", "eval-spag-1", "spag-2", "eval-spag-2", "spag-10"]
    wanted += ["eval-spag-10", "stream", "match-imitated-spag-10", "match-spag-10@imitated", "play"]
    assert sorted(wanted, key=order_of) == wanted


def test_an_evaluation_is_called_by_its_players() -> None:
    titles = {
        "eval-spag-3": "spag-3",
        "match-imitated@spag-2": "imitated v spag-2",
        "match-imitation-only@qwen2+5": "imitation-only v qwen2.5",
        "spag-1": "spag-1",
    }
    assert {name: Stage.parse(name).title for name in titles} == titles


def test_a_runs_own_stages_are_told_from_guests() -> None:
    assert [
        name
        for name in ("base", "imitated", "spag-2", "published", "spag-2-attacker", "expert")
        if Stage.parse(name).is_player
    ] == ["base", "imitated", "spag-2"]
