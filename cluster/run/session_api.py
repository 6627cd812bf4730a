"""What a session can request of a run (console.py): it returns plain values, so a client needs no imports."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from actors.arena import GameTask
from cluster.run.parts import RunParts
from cluster.runtime.ray_session import get
from spag_ray.episodes.log import read_segment, stage_of
from spag_ray.episodes.wire import decode
from spag_ray.errors import InputError, meant
from spag_ray.game.rules import Outcome, Role
from spag_ray.stages import Stage

MAX_ASKED = 1000  # episodes or records in one answer


def play_turn(parts: RunParts, word: str, texts: list[str], human: str, game: str | None) -> dict[str, Any]:
    """The next turn of the newest weights, if they are to move, in a game against the user of a session, on `word`,
    whose turns so far are `texts`. Returns all turns, the verdict if the game has ended, else the role that moves next,
    and the version that played. `game`: its name, if the run has several. Raises InputError, and ConfigError for a game
    that the run does not have."""
    config = parts.config.of_game(game)
    if parts.fleet.are_asleep:
        raise InputError("the engines sleep while the learner trains on their devices; ask again when the run plays")
    role = Role(human).other
    task = GameTask(0, word, "visit", config.seed, game=config.game.full_name)
    seat = parts.seating.newest(role, parts.config.sampling.temperature)
    asked = parts.arenas.handles[0].answer.remote(task, texts, role, seat)
    answered, verdict, to_move = get(asked, parts.config.engine.longest_turn_s)
    over = None if verdict is None else {"outcome": str(verdict.outcome), "reason": verdict.reason}
    version = parts.seating.policy_of(role).version
    return {"turns": answered, "verdict": over, "to_move": to_move and str(to_move), "version": version}


def last_episodes(folder: Path, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]:
    """The last `count` judged episodes in the published format plus `stage` and `number`, the newest last; of one
    outcome or one stage if given. Raises InputError for an unknown outcome."""
    known = [str(each) for each in Outcome]
    if outcome is not None and outcome not in known:
        raise InputError(f"outcome {outcome!r}: there are {', '.join(known)}{meant(outcome, known)}")
    count = min(count, MAX_ASKED)
    found: list[dict[str, Any]] = []
    # The newest segment first: older ones are read only if more episodes are needed.
    segments = (folder / "episodes").glob("*.log")
    for path in sorted(segments, key=lambda path: path.stat().st_mtime, reverse=True):
        if len(found) < count and (stage is None or stage_of(path) == Stage.parse(stage)):
            found = _last_of(path, count - len(found), outcome) + found
    return found


def _last_of(path: Path, count: int, outcome: str | None) -> list[dict[str, Any]]:
    kept: deque[dict[str, Any]] = deque(maxlen=count)
    for _, data in read_segment(path):
        episode = decode(data)
        if outcome is None or str(episode.verdict.outcome) == outcome:
            kept.append({"stage": episode.stage, "number": episode.number, **episode.as_published()})
    return list(kept)
