"""Games in the form of the page: an index of numbers for the filters, and packed blocks that are unpacked when
viewed."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import math
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.protocol import seat_of
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.results.game_names import GameNames, NamesByGame, names_of_all, told_apart
from spag_ray.results.report.tokens import Aligner
from spag_ray.results.trained_turns import trained_turns
from spag_ray.stages import Stage, StageKind

BLOCK_GAMES = 64
SURPRISE_STEPS_PER_NAT = 20  # log-probabilities are rounded to 1/20 nat
MOST_SURPRISE = 400
OUTCOMES = tuple(Outcome)
_COLUMNS = ("stage", "number", "outcome", "word", "attacker", "defender", "turns", "game")


def packed(data: Any) -> str:
    """JSON as base64 of gzip, which has no character that is special in HTML."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return packed_bytes(as_utf8(text).encode())


def as_utf8(text: str) -> str:
    """Half of a surrogate pair, which is in no UTF-8 text, becomes "?": names of files may be any bytes, and JSON may
    escape anything."""
    return text.encode("utf-8", "replace").decode()


def packed_bytes(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, mtime=0)).decode("ascii")


def _numbers() -> defaultdict[str, int]:
    """Numbers texts in the order of their first appearance."""
    return defaultdict(itertools.count().__next__)


class Packer:
    """Takes games one by one and passes full blocks to `put`. Only the index and the current block are in memory.
    `games`: the names of each game.

    `num_shaded`: turns whose tokens could be located in their text. The page opens the first game of the newest stage
    that one side won and in which every turn says something; one of a match only if no stage has such a game.
    """

    def __init__(
        self, config: RunConfig | None, aligner: Aligner | None, put: Callable[[str], object], games: NamesByGame
    ) -> None:
        self.num_shaded = 0
        self._names = names_of_all(games)
        self._games = games
        self._configs = {} if config is None else {each.game.full_name: each for each in config.each_game}
        self._aligner = aligner
        self._put = put
        self._block: list[dict[str, Any]] = []
        self._columns = {name: array("Q") for name in _COLUMNS}
        self._stages, self._words, self._players = _numbers(), _numbers(), _numbers()
        self._opened: tuple[tuple[bool, bool, bool, tuple[int, int, bool, str]], int] | None = None

    @property
    def num_games(self) -> int:
        return len(self._columns["stage"])

    def add(self, stage: str, episode: Episode) -> None:
        attacker, defender = (_player(episode, role) for role in Role)
        row = {
            "stage": self._stages[stage],
            "number": episode.number,
            "outcome": OUTCOMES.index(episode.verdict.outcome),
            "word": self._words[episode.scenario],
            "attacker": self._players[attacker],
            "defender": self._players[defender],
            "turns": len(episode.turns),
            "game": list(self._games).index(episode.game) if episode.game in self._games else 0,
        }
        is_said = len(episode.turns) > 1 and all(turn.text.strip() for turn in episode.turns)
        of = Stage.parse(stage)
        worth = (is_said and episode.verdict.outcome.is_decided, is_said, of.kind is not StageKind.MATCH, of.order)
        if self._opened is None or worth > self._opened[0]:
            self._opened = worth, self.num_games
        for name, column in self._columns.items():
            column.append(row[name])
        self._block.append(self._game(stage, episode))
        if len(self._block) == BLOCK_GAMES:
            self.close()

    def close(self) -> None:
        """Passes on the last block, which may have fewer games."""
        if self._block:
            self._put(packed(self._block))
            self._block = []

    def index(self) -> dict[str, Any]:
        """The values by which games are filtered, as columns; names are replaced by numbers."""
        return {
            "stages": list(self._stages),
            **_said(self._names),
            "games": [{"name": told_apart(self._games, each.name), **_said(each)} for each in self._games.values()],
            "words": list(self._words),
            "players": [self._names.policy(player) for player in self._players],
            "blockGames": BLOCK_GAMES,
            "opened": 0 if self._opened is None else self._opened[1],
            "stepsPerNat": SURPRISE_STEPS_PER_NAT,
            **{name: column.tolist() for name, column in self._columns.items()},
        }

    def _game(self, stage: str, episode: Episode) -> dict[str, Any]:
        verdict = episode.verdict
        config = self._configs.get(episode.game)
        trained = {} if config is None else trained_turns(stage, episode, config)
        rewards = {index: {"reward": value and round(value, 4)} for index, value in trained.items()}
        return {
            "id": episode.episode_id,
            "reason": verdict.reason,
            "decided": verdict.turn,
            "span": verdict.span,
            "maxTurns": episode.max_turns,
            "rules": episode.rules,
            "temperature": episode.temperature,
            "turns": [self._turn(turn) | rewards.get(index, {}) for index, turn in enumerate(episode.turns)],
        }

    def _turn(self, turn: Turn) -> dict[str, Any]:
        """`thought`: what the player wrote before the text for itself. `surprise`: minus the log-probability of each
        token, in steps. `lengths`: the characters of each token. Both are missing if the tokens cannot be located in
        the text. `mean` is missing without log-probabilities. `known`: the probability of the word; `heard`: that
        to a listener, before the turn."""
        found: dict[str, Any] = {
            "text": turn.text,
            "seat": seat_of(turn.role),
            "player": self._players[turn.policy],
            "versions": [turn.first_version, turn.last_version],
            "finish": turn.finish_reason,
            "tokens": turn.num_tokens,
        }
        located = self._aligner.locate(turn.token_ids, turn.text) if self._aligner is not None else None
        if located is not None and located.thought:
            found["thought"] = located.thought
        if turn.is_sampled:
            found["mean"] = round(sum(turn.logprobs) / turn.num_sampled, 3)
            if located is not None:
                self.num_shaded += 1
                steps = [round(min(max(-each * SURPRISE_STEPS_PER_NAT, 0), MOST_SURPRISE)) for each in turn.logprobs]
                found |= {"lengths": located.lengths, "surprise": steps}
        if turn.word_logprob is not None:
            found["known"] = float(f"{math.exp(turn.word_logprob):.3g}")
        if turn.listener_logprob is not None:
            found["heard"] = float(f"{math.exp(turn.listener_logprob):.3g}")
        return found


def _said(names: GameNames) -> dict[str, Any]:
    """What the page says of a game's seats and scenarios."""
    return {
        "outcomes": [names.outcome(outcome) for outcome in OUTCOMES],
        "seats": list(names.seats),
        "scenario": names.scenario,
        "hasReferee": names.guesses,
    }


def _player(episode: Episode, role: Role) -> str:
    """The player of a seat at the start of the game."""
    return next((turn.policy for turn in episode.turns if turn.role is role), "nobody")
