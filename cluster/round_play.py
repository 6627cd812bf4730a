"""Play in turns with learning: a round of games, every one of them played and in the log before it is learned from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import ray

from actors.arena import GameTask
from actors.league import Opponents
from cluster.arena_actor import Seat
from cluster.runtime import get
from spag_ray.episode import Episode
from spag_ray.errors import RunFolderError
from spag_ray.game_count import GameCount
from spag_ray.wire import decode

if TYPE_CHECKING:
    from cluster.run import Run


def play_round(
    run: Run, stage: str, words: Sequence[str], seats: Mapping[str, Seat], opponents: Opponents
) -> list[Episode]:
    """One game a word; the judged episodes, in the order of the words. Games that an earlier life of this run played
    are taken from the log. `opponents`: who sits where in each game. Raises RunFolderError when words have changed."""
    all_tasks = [
        GameTask(number, word, stage, run.config.seed, *opponents(number)) for number, word in enumerate(words)
    ]
    there = get(run.buffer.played.remote(stage))  # by an earlier life of this run
    for task in all_tasks:
        if there.get(task.number, task.target_word) != task.target_word:
            raise RunFolderError(
                f"{run.folder}: game {task.number} of {stage} was played with the word "
                f"{there[task.number]!r}, now it would be {task.target_word!r}: the words are others; go on with "
                "those that the run was begun with, or begin another"
            )
    tasks = [task for task in all_tasks if task.number not in there]
    began = time.perf_counter()
    _play_all(run, stage, len(all_tasks), tasks, seats)
    seconds = time.perf_counter() - began
    run.meter.look(now=True)
    count: GameCount = get(run.buffer.count.remote(stage))
    run.metrics.record(
        "play",
        stage=stage,
        version=run.version,
        games=count.num_games,
        turns=count.num_turns,
        tokens=count.num_tokens,
        seconds=round(seconds, 3),
        games_per_s=round(count.num_games / seconds, 3),
        tokens_per_s=round(count.num_tokens / seconds, 1),
        **{str(outcome): number for outcome, number in count.outcomes.items()},
    )
    return [decode(data) for data in get(run.buffer.take.remote(stage))]


def _play_all(run: Run, stage: str, total: int, tasks: Sequence[GameTask], seats: Mapping[str, Seat]) -> None:
    """Every game played and in the log, whichever arenas that takes."""
    games_in_flight = run.config.self_play.games_in_flight
    handles = run.arenas.handles
    shares = [tasks[index :: len(handles)] for index in range(len(handles))]
    plays = {
        handle.play.remote(share, seats, games_in_flight): index
        for index, (handle, share) in enumerate(zip(handles, shares, strict=True))
        if share
    }
    try:
        while plays:
            ended, _ = ray.wait(list(plays), timeout=0.5)
            run.show_play(stage, total, get(run.buffer.count.remote(stage)))
            run.look_around()
            for play in ended:
                index = plays.pop(play)
                try:
                    get(play)
                except ray.exceptions.RayActorError as error:
                    run.restarts.count(run.arenas.name(index), error)
                    there = get(run.buffer.played.remote(stage))
                    left = [task for task in shares[index] if task.number not in there]
                    plays[run.arenas.restart(index).play.remote(left, seats, games_in_flight)] = index
    except BaseException:
        for play, index in plays.items():  # or they would go on with games that are given out again
            with contextlib.suppress(ray.exceptions.RayActorError):
                get(run.arenas.handles[index].stop.remote())
                get(play)
        raise
