"""The rate of self-play for each GPU of the engines that play."""

import copy
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors.arena import LISTENER, GameTask
from actors.league import Opponents
from actors.policy import Sampling
from cluster.buffer.stream import StreamCounts
from cluster.schedules import rounds
from cluster.schedules.playground import Playground
from cluster.schedules.stream import Stream
from cluster.tracking.time_split import TimeSplit
from cluster.types import Seat
from spag_ray.config.loading import parse_config
from spag_ray.episodes.episode import Episode, GameCount
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.game.words import Scenario
from spag_ray.results.lines import PlayLine, StreamLine
from spag_ray.stages import Stage
from tests.support.episodes import game


def rate(num_engines: int, **config: Any) -> float | None:
    """Of 1,200 tokens in 2 s."""
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    parts["config"] = parse_config(config)
    parts["fleet"] = SimpleNamespace(roster=SimpleNamespace(up=lambda: [None] * num_engines))
    return Playground(**parts).tokens_per_s_per_gpu(1200, 2.0)


@pytest.mark.parametrize(
    ("config", "num_engines", "expected"),
    [
        ({"engine": {"num_gpus": 1}}, 2, 300.0),
        ({"engine": {"num_gpus": 4, "tensor_parallel_size": 4}}, 1, 150.0),
        ({"engine": {"num_gpus": 0.5}}, 1, 1200.0),
        ({"engine": {"num_gpus": 0.5}, "placement": "colocated"}, 1, 600.0),
        ({"engine": {"num_gpus": 0.25}, "placement": "colocated"}, 2, 600.0),
        ({"engine": {"num_gpus": 0.25}, "placement": "colocated"}, 5, 300.0),
        ({"engine": {"num_gpus": 0.6}, "placement": "colocated"}, 2, 300.0),
        ({"engine": {"num_gpus": 0}}, 2, None),
        ({"engine": {"num_gpus": 0}, "placement": "colocated"}, 2, None),
        ({"engine": {"num_gpus": 1}}, 0, None),
    ],
)
def test_the_rate_is_divided_by_playing_gpus(config: dict[str, Any], num_engines: int, expected: float | None) -> None:
    assert rate(num_engines, **config) == expected


ENGINES = Seat("policy", "p", Sampling(), "model")  # the name in the turns of `game`
PHASES = [{"rounds": 1, "payoffs": {"tie": [-0.5, -0.25]}}]
EXPERT = Seat("expert", "scripted", Sampling(), "model", cards={})


def of_two(turns: Sequence[Turn], defender: str) -> tuple[Turn, ...]:
    return tuple(replace(turn, policy=defender) if turn.role is Role.DEFENDER else turn for turn in turns)


def lines_of(
    seat: Seat,
    num_there: int,
    monkeypatch: pytest.MonkeyPatch,
    stage: str = "s",
    others: tuple[str, ...] = (),
    defender: Seat | None = None,
    **config: Any,
) -> list[PlayLine]:
    """Of a round of four games on a GPU, some of which a previous attempt has played. This one took 2 s. `defender`:
    another one than `seat`."""
    episodes = [game(number, Outcome.TIED) for number in range(4)]
    if defender is not None:
        episodes = [replace(each, turns=of_two(each.turns, defender.policy)) for each in episodes]
    count = GameCount()
    for episode in episodes:
        count.add(episode)
    answers = {
        "played": dict.fromkeys(range(num_there), "cat"),
        "count": count,
        "take": [encode(episode) for episode in episodes],
    }
    methods = {name: SimpleNamespace(remote=lambda stage, found=found: found) for name, found in answers.items()}
    lines: list[PlayLine] = []
    measured: list[Any] = []
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    parts |= {
        "config": parse_config({"engine": {"num_gpus": 1}, **config}),
        "fleet": SimpleNamespace(roster=SimpleNamespace(up=lambda: [None])),
        "buffer": SimpleNamespace(get=lambda answer: answer, handle=SimpleNamespace(**methods)),
        "buffer_metrics": SimpleNamespace(sample=lambda now: None),
        "recorder": SimpleNamespace(record=lines.append),
        "meter": SimpleNamespace(take=lambda *about: measured.extend(about)),
        "versions": dict,
    }
    clock = iter((10.0, 12.0))
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(rounds, "_play_all", lambda *_: None)
    seats = dict.fromkeys(("attacker", "defender", *others), seat) | ({"defender": defender} if defender else {})
    scenarios = [Scenario("cat", "taboo")] * 4
    assert rounds.play_round(Playground(**parts), stage, scenarios, seats, Opponents(1)) == episodes
    if seat is EXPERT or config.get("schedule") == "stream":
        assert measured == [], "no engine is asked; those of a stream are by version (test_time_split.py)"
    else:
        assert measured == [stage if num_there < 4 else None, 0], "engines that played have a line"
    return lines


@pytest.mark.parametrize("num_there", range(5))
def test_more_games_of_a_stage_follow_its_numbers_played_once(num_there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of two games, and twice one more; a previous attempt may have played any first part of them."""
    asked: list[int] = []
    new: list[int] = []
    log = {number: encode(game(number, Outcome.TIED)) for number in range(num_there)}

    def more(episodes: Sequence[Episode]) -> list[Scenario]:
        asked.append(len(episodes))
        return [Scenario("cat", "taboo")] if len(episodes) < 4 else []

    def play_all(ground: Any, stage: str, total: int, tasks: Sequence[GameTask], seats: Any) -> None:
        new.extend(task.number for task in tasks)
        log.update({task.number: encode(game(task.number, Outcome.TIED)) for task in tasks})

    answers = {"played": lambda stage: dict.fromkeys(log, "cat"), "take": lambda stage: list(log.values())}
    handle = SimpleNamespace(**{name: SimpleNamespace(remote=each) for name, each in answers.items()})
    lines: list[PlayLine] = []
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    parts |= {
        "config": parse_config({}),
        "buffer": SimpleNamespace(get=lambda answer: answer, handle=handle),
        "buffer_metrics": SimpleNamespace(sample=lambda now: None),
        "recorder": SimpleNamespace(record=lines.append),
        "versions": dict,
    }
    monkeypatch.setattr(rounds, "_play_all", play_all)
    seats, begin = dict.fromkeys(("attacker", "defender"), EXPERT), [Scenario("cat", "taboo")] * 2
    found = rounds.play_round(Playground(**parts), "s", begin, seats, Opponents(1), more=more)
    assert [each.number for each in found] == [0, 1, 2, 3]
    assert new == list(range(num_there, 4)), "what the log has is not played again"
    assert asked == [2, 3, 4], "whatever the log has, it is asked the same"
    assert [line.games for line in lines] == [4], "one line of the whole stage"


@pytest.mark.parametrize(
    ("seat", "num_there", "rates"),
    [
        (ENGINES, 0, (2.0, 16.0, 16.0)),
        (EXPERT, 0, (2.0, 16.0, None)),
        (ENGINES, 3, (0.5, 4.0, 4.0)),
        (ENGINES, 4, (0.0, 0.0, None)),
    ],
)
def test_the_rates_of_a_round_are_of_the_games_that_engines_played_in_this_attempt(
    seat: Seat, num_there: int, rates: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = lines_of(seat, num_there, monkeypatch)
    assert (line.games_per_s, line.tokens_per_s, line.tokens_per_s_per_gpu) == rates
    assert (line.games, line.tokens, line.outcomes) == (4, 32, {"tied game": 4}), "of the whole stage"
    assert (line.figures.tie_share, line.figures.reply_tokens_max) == (1.0, 2 if seat is ENGINES else None)


def test_the_rate_of_gpus_is_of_what_their_engines_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines_of(ENGINES, 0, monkeypatch, defender=EXPERT)
    assert (line.tokens_per_s, line.tokens_per_s_per_gpu) == (16.0, 8.0), "a script says the other half"


def test_the_games_that_a_listener_hears_are_those_whose_gains_are_paid() -> None:
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    heard = parse_config({"games": games, "objective": {"information_gain": 0.5}})
    ground = Playground(**parts | {"config": heard})
    episodes = [game(0, Outcome.TIED), replace(game(1, Outcome.TIED), game="kuhn")]
    seats = dict.fromkeys(("attacker", "defender"), ENGINES)
    stage = Stage.of_round(1)
    assert ground.figures(stage, episodes, seats | {LISTENER: ENGINES}).num_unscored == 1, "only Taboo's"
    assert ground.figures(stage, episodes, seats).num_unscored is None, "such as imitation's"


def test_a_round_with_a_listener_says_how_many_games_it_did_not_score(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = lines_of(ENGINES, 0, monkeypatch, objective={"information_gain": 0.5})
    assert line.figures.num_unscored is None, "nobody listened"
    (line,) = lines_of(ENGINES, 0, monkeypatch, others=(LISTENER,), objective={"information_gain": 0.5})
    assert (line.figures.num_unscored, line.figures.gain_mean) == (4, None)


def test_engines_of_a_stream_are_not_measured_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    lines_of(ENGINES, 0, monkeypatch, schedule="stream", self_play={"games_per_round": 64})


def test_a_line_of_a_stream_has_the_staleness_of_the_games_that_came_since_the_last() -> None:
    counts = StreamCounts(lag=Counter({0: 10, 1: 4}))  # a resumed stream has counts
    lines: list[StreamLine] = []
    split = TimeSplit()
    answers: dict[str, Any] = {
        "stream_counts": counts,
        "count": GameCount(outcomes=Counter({Outcome.TIED: 500}), num_tokens=10_000),
        "batch": [encode(game(number, Outcome.TIED)) for number in range(4)],
        "repeated": set(),
    }
    methods = {name: SimpleNamespace(remote=lambda *_, f=found: copy.deepcopy(f)) for name, found in answers.items()}
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    parts |= {
        "config": parse_config({"self_play": {"phases": PHASES}, "objective": {"learn_from": "both"}}),
        "fleet": SimpleNamespace(roster=SimpleNamespace(up=list)),
        "arenas": SimpleNamespace(handles=[]),
        "buffer": SimpleNamespace(get=lambda answer: answer, handle=SimpleNamespace(**methods)),
        "recorder": SimpleNamespace(record=lines.append),
        "versions": dict,
        "poll_health": lambda: None,
        "elastic": SimpleNamespace(),
        "split": split,
    }
    stream = Stream(Playground(**parts), {}, Opponents(0))
    answers["count"].num_tokens += 100
    answers["count"].outcomes[Outcome.TIED] += 4
    time.sleep(0.01)
    counts.lag.update({1: 3, 2: 1})
    assert [episode.number for episode in stream.next_batch(Stage.of_round(1), "play")[0]] == [0, 1, 2, 3]
    stream.next_batch(Stage.of_round(2), "play")
    first, second = lines
    assert (first.staleness_mean, first.staleness_max) == (1.25, 2)
    assert (second.staleness_mean, second.staleness_max) == (None, None), "no episode was counted since"
    assert first.games == 504
    assert 0 < first.games_per_s <= 4 / 0.01, "of this attempt"
    assert first.tokens_per_s == pytest.approx(25 * first.games_per_s, rel=0.01)
    assert first.figures.tie_share == 1.0
    assert first.figures.reward_mean == {"attacker": -0.5, "defender": -0.25}
    assert second.figures.reward_mean == {}, "the second round pays ties nothing"
    assert set(split.taken()[1]) == {"generate"}
    assert first.lags == {0: 10, 1: 7, 2: 1}


def test_what_games_paid_is_by_the_phase_of_their_round(monkeypatch: pytest.MonkeyPatch) -> None:
    game = {"payoffs": {"tie": [-0.1, -0.2]}}
    config: dict[str, Any] = {"game": game, "self_play": {"phases": PHASES}, "objective": {"learn_from": "both"}}
    for stage, paid in (("spag-1", (-0.5, -0.25)), ("spag-2", (-0.1, -0.2)), ("eval-spag-1", (-0.1, -0.2))):
        (line,) = lines_of(ENGINES, 0, monkeypatch, stage=stage, **config)
        assert line.figures.reward_mean == {"attacker": paid[0], "defender": paid[1]}
