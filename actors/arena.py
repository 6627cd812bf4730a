"""Many games at once over any two policies; judged episodes come out as they finish.

    GameTask --> [prompt -> policy.generate -> Turn -> referee]* --> Episode
                  ^ one coroutine per game; `games_in_flight` of them, a finished one's place is taken at once

An arena knows the Policy protocol, not where a policy runs. What all games ask of a remote policy in one tick of the
event loop travels as one call (cluster/remote_policy.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from actors.policy import GameView, Policy, Request, Sampling
from spag_ray.episode import Episode, Turn
from spag_ray.game import Outcome, Role, Verdict, next_role
from spag_ray.judge import judge
from spag_ray.prompts import Renderer


@dataclass(frozen=True)
class GameTask:
    """A game to be played. `number` orders games and, with `seed`, decides every random draw in it."""

    number: int
    target_word: str
    stage: str
    seed: int = 0

    @property
    def episode_id(self) -> str:
        return f"{self.stage}/{self.number:06d}"


@dataclass(frozen=True)
class Player:
    """Who sits in a seat: a policy, how it is prompted, how it samples."""

    policy: Policy
    renderer: Renderer
    sampling: Sampling


@dataclass(frozen=True)
class Rules:
    """The part of the game that does not change from game to game."""

    max_turns: int
    referee: str = "strict"


async def play_game(task: GameTask, attacker: Player, defender: Player, rules: Rules) -> Episode:
    """One game, to its verdict."""
    turns: list[Turn] = []
    while True:
        role = next_role(len(turns))
        player = attacker if role is Role.ATTACKER else defender
        turns.append(await _play_turn(task, turns, role, player, rules))
        history = [{"role": str(turn.role), "content": turn.text} for turn in turns]
        verdict = judge(history, task.target_word, rules.max_turns, rules.referee)
        if _is_over(verdict, turns, rules):
            break
    return Episode(
        episode_id=task.episode_id,
        number=task.number,
        stage=task.stage,
        target_word=task.target_word,
        max_turns=rules.max_turns,
        rules=rules.referee,
        temperature=attacker.sampling.temperature,
        turns=tuple(turns),
        verdict=verdict,
    )


async def play_games(
    tasks: Iterable[GameTask],
    attackers: Sequence[Player],
    defenders: Sequence[Player],
    rules: Rules,
    games_in_flight: int,
) -> AsyncIterator[Episode]:
    """Play all tasks, at most `games_in_flight` at once, and yield episodes in the order in which they finish.

    A seat may be shared by several players (engines with the same weights): a game stays with one of them, chosen by
    its number, so its turns find their prefix in that engine's cache. An exception in a game cancels the others and
    is raised.
    """
    waiting = iter(tasks)
    running: set[asyncio.Task[Episode]] = set()

    def fill() -> None:
        while len(running) < games_in_flight and (task := next(waiting, None)) is not None:
            attacker, defender = (
                attackers[task.number % len(attackers)],
                defenders[task.number % len(defenders)],
            )
            running.add(asyncio.create_task(play_game(task, attacker, defender, rules)))

    try:
        fill()
        while running:
            finished, running_now = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running = running_now
            errors = [error for task in finished if (error := task.exception()) is not None]
            if errors:
                raise errors[0]
            episodes = [task.result() for task in finished]
            fill()
            for episode in sorted(episodes, key=lambda episode: episode.number):
                yield episode
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _play_turn(task: GameTask, turns: Sequence[Turn], role: Role, player: Player, rules: Rules) -> Turn:
    prompt_ids = player.renderer.prompt(turns, role, task.target_word)
    request = Request(
        request_id=f"{task.episode_id}/{len(turns)}",
        prompt_ids=prompt_ids,
        sampling=replace(
            player.sampling,
            seed=_turn_seed(task, len(turns)),
            stop_token_ids=player.renderer.end_ids,
        ),
        view=GameView(
            role=role,
            target_word=task.target_word if role is Role.ATTACKER else None,
            history=tuple((turn.role, turn.text) for turn in turns),
            max_turns=rules.max_turns,
        ),
    )
    (completion,) = await player.policy.generate([request])
    return Turn(
        role=role,
        text=player.renderer.text_of(completion.token_ids),
        prompt_ids=prompt_ids,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        policy=player.policy.name,
        first_version=completion.first_version,
        last_version=completion.last_version,
        finish_reason=completion.finish_reason,
    )


def _is_over(verdict: Verdict, turns: Sequence[Turn], rules: Rules) -> bool:
    if verdict.outcome is not Outcome.TIED or len(turns) == 2 * rules.max_turns:
        return True
    # The published player stops at any claim of a guess, also one that its referee then does not read as a guess.
    last = turns[-1]
    return rules.referee == "published" and last.role is Role.DEFENDER and "i know the word" in last.text.lower()


def _turn_seed(task: GameTask, turn: int) -> int:
    """A 63-bit seed of its own for every turn of every game of a run."""
    digest = hashlib.blake2b(f"{task.seed}/{task.episode_id}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
