"""Streams that are played by hand: their plan, their games, an actor handle that answers in this process."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from actors.arena import GameTask
from actors.league import Opponents
from cluster.buffer.buffer_actor import StreamSpec
from cluster.buffer.stream import GameStream
from cluster.handles import Handle, T
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import decode, encode
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.game.words import WordOrder, WordsOfGame, WordStream

WORDS = ("river", "piano", "tiger", "apple", "castle")


def taboo_words(
    words: Sequence[str], seed: int, attacker_seats: int = 1, games_per_word: int = 1, order: WordOrder = "shuffled"
) -> WordStream:
    return WordStream([WordsOfGame("taboo", 1.0, tuple(words))], seed, attacker_seats, games_per_word, order)


def stream_of(seed: int = 0, games_per_word: int = 1, **config: Any) -> GameStream:
    words = taboo_words(WORDS, seed, games_per_word=games_per_word)
    return GameStream(words, StreamConfig(**config), {"policy": 0}, seed)


def spec(config: StreamConfig, games_per_word: int = 1) -> StreamSpec:
    return StreamSpec(taboo_words(WORDS, 0, games_per_word=games_per_word), config, 0, Opponents(0), {"policy": 0})


def played(task: GameTask, version: int = 0, outcome: Outcome = Outcome.ATTACKER_WINS) -> Episode:
    turns = (
        Turn(Role.ATTACKER, "a", (1,), (2,), (-0.5,), "policy", version, version),
        Turn(Role.DEFENDER, "b", (1,), (2,), (-0.5,), "another", 0, 0),
    )
    verdict = Verdict(outcome, EndReason.OTHER, 2, "r", None, None)
    return Episode(task.episode_id, task.number, task.stage, task.scenario, 3, "strict", 1.0, turns, verdict)


def finish(stream: GameStream, task: GameTask, version: int = 0, **details: Any) -> bool:
    episode = played(task, version, **details)
    return stream.add(episode, encode(episode))


def numbers(batch: list[bytes] | None) -> list[int]:
    assert batch is not None
    return [decode(data).number for data in batch]


def records(log: list[bytes]) -> list[tuple[Episode, bytes]]:
    return [(decode(data), data) for data in log]


def here(actor: T) -> Handle[T]:
    """The handle of an actor that is an object of this process."""
    return cast(Handle[T], _Here(actor))


class _Here:
    """An object's methods as an actor's: `.name.remote(...)`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._target, name))
