"""Play and training alternate: every game of a round is played and logged before the round is trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping, Sequence

import ray

from actors.arena import GameTask
from actors.league import Opponents
from cluster.runtime.ray_session import ACTOR_LOST, get
from cluster.schedules.playground import Playground
from cluster.types import Seat, engine_players
from spag_ray.episodes.episode import Episode, count_by_game
from spag_ray.episodes.wire import decode
from spag_ray.errors import RunFolderError
from spag_ray.game.words import Scenario
from spag_ray.results.lines import PlayLine
from spag_ray.stages import Stage


def play_round(
    ground: Playground,
    stage: str,
    scenarios: Sequence[Scenario],
    seats: Mapping[str, Seat],
    opponents: Opponents,
    could_have_known: bool = False,
    more: Callable[[Sequence[Episode]], Sequence[Scenario]] = lambda episodes: (),
) -> list[Episode]:
    """Play one game per scenario; returns the judged episodes in this order. Games that a previous attempt played are
    taken from the log. `opponents`: the seats of each game; `could_have_known` as in GameTask, in games that have a
    hidden fact. `more`: the scenarios that are played after the episodes so far, in this stage, until there are none.
    Raises RunFolderError when words have changed."""
    there = ground.buffer.get(ground.buffer.handle.played.remote(stage))  # by a previous attempt of this run
    # A stream's engines play other games meanwhile.
    is_measured = bool(engine_players(seats.values())) and ground.config.schedule == "rounds"
    if is_measured:
        ground.meter.take()
    began = time.perf_counter()
    episodes: list[Episode] = []
    while scenarios:
        tasks = [
            GameTask(n, text, stage, ground.config.seed, *opponents(n), could_have_known=could_have_known, game=game)
            for n, (text, game) in enumerate(scenarios, len(episodes))
        ]
        episodes = _played(ground, stage, tasks, there, seats)
        scenarios = more(episodes)
    seconds = time.perf_counter() - began
    if is_measured:
        has_played = any(episode.number not in there for episode in episodes)
        ground.meter.take(stage if has_played else None, ground.version)
    ground.buffer_metrics.sample(now=True)
    for name in dict.fromkeys(episode.game for episode in episodes):
        own = [episode for episode in episodes if episode.game == name]
        ground.recorder.record(_play_line(ground, stage, seconds, episodes=own, there=there, seats=seats))
    return episodes


def _played(
    ground: Playground, stage: str, tasks: Sequence[GameTask], there: Mapping[int, str], seats: Mapping[str, Seat]
) -> list[Episode]:
    """Play those of the next games of a stage that are not `there`; all its episodes up to the last of them."""
    for task in tasks:
        if there.get(task.number, task.scenario) != task.scenario:
            raise RunFolderError(
                f"{ground.folder}: game {task.number} of {stage} was played with the word "
                f"{there[task.number]!r}, now it would be {task.scenario!r}: the words have changed; continue with "
                "those that the run was started with, or start another run"
            )
    total = tasks[-1].number + 1
    _play_all(ground, stage, total, [task for task in tasks if task.number not in there], seats)
    # A previous attempt may have played games that are asked for later.
    taken = map(decode, ground.buffer.get(ground.buffer.handle.take.remote(stage)))
    return [episode for episode in taken if episode.number < total]


def _play_line(
    ground: Playground,
    stage: str,
    seconds: float,
    episodes: Sequence[Episode],
    there: Container[int],
    seats: Mapping[str, Seat],
) -> PlayLine:
    """Of a game's `episodes`: this attempt played those that are not `there`, in these seconds."""
    (count,) = count_by_game(episodes).values()
    new, players = [episode for episode in episodes if episode.number not in there], engine_players(seats.values())
    of_engines = sum(turn.num_sampled for episode in new for turn in episode.turns if turn.policy in players)
    return PlayLine(
        stage=stage,
        game=episodes[0].game,
        version=ground.version,
        games=count.num_games,
        turns=count.num_turns,
        tokens=count.num_tokens,
        seconds=round(seconds, 3),
        games_per_s=round(len(new) / seconds, 3),
        tokens_per_s=round(sum(episode.num_tokens for episode in new) / seconds, 1),
        outcomes={str(outcome): number for outcome, number in count.outcomes.items()},
        tokens_per_s_per_gpu=ground.tokens_per_s_per_gpu(of_engines, seconds) if players and new else None,
        figures=ground.figures(Stage.parse(stage), episodes, seats),
    )


def dealt(tasks: Sequence[GameTask], num_arenas: int) -> list[list[GameTask]]:
    """The tasks of each arena, in their order: every game in equal parts, because some games take longer."""
    by_game: dict[str, list[GameTask]] = {}
    for task in tasks:
        by_game.setdefault(task.game, []).append(task)
    return [
        sorted((task for own in by_game.values() for task in own[index::num_arenas]), key=lambda task: task.number)
        for index in range(num_arenas)
    ]


def _play_all(ground: Playground, stage: str, total: int, tasks: Sequence[GameTask], seats: Mapping[str, Seat]) -> None:
    """Play and log every game; arenas that die are replaced."""
    games_in_flight = ground.config.self_play.games_in_flight
    handles = ground.arenas.handles
    shares = dealt(tasks, len(handles))
    plays = {
        handle.play.remote(share, seats, games_in_flight): (index, ground.arenas.name(index))
        for index, (handle, share) in enumerate(zip(handles, shares, strict=True))
        if share
    }
    try:
        while plays:
            ended, _ = ray.wait(list(plays), timeout=0.5)
            ground.status.show_games(stage, total, ground.buffer.get(ground.buffer.handle.count.remote(stage)))
            ground.poll_health()
            for play in ended:
                index, name = plays.pop(play)
                try:
                    get(play)
                except ACTOR_LOST as error:
                    arena = ground.arenas.replace(index, name, error)
                    there = ground.buffer.get(ground.buffer.handle.played.remote(stage))
                    left = [task for task in shares[index] if task.number not in there]
                    plays[arena.play.remote(left, seats, games_in_flight)] = index, ground.arenas.name(index)
    except BaseException:
        # Else they would keep playing games that are given out again.
        ground.arenas.stop(stage, {play: index for play, (index, _) in plays.items()})
        raise
