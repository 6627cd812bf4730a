"""Games by a scripted and by a seeded player, to be compared with a recording token by token.

    python -m tests.support.recorded_games FILE      writes them as JSON

tests/golden/recorded_games.json was written by the code before Taboo became a game like any other.
"""

import asyncio
import hashlib
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.arena import GameTask, Player, Rules, play_game
from actors.models import BUILT_IN, load_tokenizer, resolve_model
from actors.policy import Completion, GameView, Request, Sampling
from actors.pool import EnginePool
from actors.scripted_policy import ScriptedPolicy
from spag_ray.episodes.episode import Episode
from spag_ray.game.protocol import TABOO, Game
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role
from spag_ray.game.styles import game_renderer
from spag_ray.games.registry import load_game
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.prompt_file import load_template

Lines = Callable[[GameView, random.Random], list[str]]
CARDS = load_deck("everyday")
WORDS = list(CARDS)[:60:10]
TABOOS = (
    *((prompts, "strict", False) for prompts in ("chat", "flat", "lines", "hints")),
    *((prompts, "strict", True) for prompts in ("chat", "lines", "flat")),
    *((prompts, "published", False) for prompts in ("flat", "chat")),
)
OTHERS = ("kuhn", "textarena:TicTacToe-v0", "textarena:Nim-v0")


class Seeded:
    """Says one of some lines, or random tokens."""

    name, version, is_dead = "seeded", 3, False

    def __init__(self, renderer: Renderer, lines: Lines) -> None:
        self._renderer, self._lines = renderer, lines

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        assert request.view is not None
        prompt = request.prompt_ids
        rng = random.Random(f"{request.sampling.seed}/{len(prompt)}/{sum(prompt)}")
        text = rng.choice(self._lines(request.view, rng))
        if rng.random() < 0.8:
            ids = tuple(self._renderer.reply_ids(text))
        else:
            ids = tuple(rng.randrange(20, 40000) for _ in range(rng.randint(1, 12))) + self._renderer.end_ids[:1]
        return Completion(request.request_id, ids, tuple(-rng.random() for _ in ids), 3, 3, "stop")


def _taboo_lines(view: GameView, rng: random.Random) -> list[str]:
    word = view.scenario if view.role is Role.ATTACKER else rng.choice(WORDS)
    return [
        "It is something you may see at home.",
        "  two\nlines  of text ",
        "<think>maybe a lamp</think> Is it big?",
        "<think>no end",
        f"Is it {rng.choice(WORDS)}?",
        f"I know the word! It is `{rng.choice(WORDS)}`!",
        "I know the word!",
        f"People say <|im_end|> about it, {rng.random():.3f}.",
        f"Think of {word[::-1]}.",
    ]


def _kuhn_lines(view: GameView, rng: random.Random) -> list[str]:
    return ["bet", "check", "call", "fold", "Bet!", "I check."]


def _board_lines(view: GameView, rng: random.Random) -> list[str]:
    return [f"[{rng.randint(0, 9)}]", f"I take [{rng.randint(0, 8)}]", f"[{rng.randint(1, 3)} {rng.randint(1, 3)}]"]


def recorded(names: Sequence[str] = (TABOO, *OTHERS)) -> dict[str, list[dict[str, Any]]]:
    """{what is played: its games}."""
    tokenizer = load_tokenizer(resolve_model(BUILT_IN))
    found = {}
    for title, game, name, style in _played(names):
        renderer = game_renderer(game, tokenizer, style)
        lines = {TABOO: _taboo_lines, "kuhn": _kuhn_lines}.get(name, _board_lines)
        scripted = game.with_cards(CARDS) if isinstance(game, TabooGame) else game
        scenarios = WORDS if name == TABOO else list(game.scenarios())[:6]
        policies = {"scripted": ScriptedPolicy(scripted, renderer.reply_ids), "seeded": Seeded(renderer, lines)}
        found[title] = asyncio.run(_games(Rules(game, name, style), renderer, policies, scenarios))
    return found


def _played(names: Sequence[str]) -> Iterator[tuple[str, Game, str, str]]:
    for prompts, referee, thinks in TABOOS if TABOO in names else ():
        template = load_template(prompts)
        if thinks:
            template = template.model_copy(update={"thought": "<think>{thought}</think>"})
        title = f"taboo {prompts} {referee}{' thought' * thinks}"
        yield title, TabooGame(template, 4, referee), TABOO, template.style
    for name in OTHERS:
        for style in ("chat", "lines") if name in names else ():
            yield f"{name} {style}", load_game(name), name, style


async def _games(
    rules: Rules, renderer: Renderer, policies: dict[str, Any], scenarios: Sequence[str]
) -> list[dict[str, Any]]:
    found = []
    for name, policy in policies.items():
        pool = EnginePool(name)
        pool.join("engine", policy)
        players = dict.fromkeys(("attacker", "defender"), Player(pool, renderer, Sampling(1.0, 64)))
        for number, scenario in enumerate(scenarios):
            found.append(_plain(await play_game(GameTask(number, scenario, name, seed=7), players, rules)))
    return found


def _plain(episode: Episode) -> dict[str, Any]:
    """Of each turn: who, text, a digest of the tokens read and said, how many of both."""
    verdict = episode.verdict
    turns = [
        [str(turn.role), turn.text, _digest(turn.prompt_ids, turn.token_ids), len(turn.prompt_ids), turn.num_tokens]
        for turn in episode.turns
    ]
    span, payoffs = (None if each is None else list(each) for each in (verdict.span, verdict.payoffs))
    ended = [str(verdict.outcome), str(verdict.end_reason), verdict.length, verdict.turn, span, payoffs]
    return {"turns": turns, "verdict": ended}


def _digest(*ids: Sequence[int]) -> str:
    return hashlib.sha256(json.dumps([list(each) for each in ids]).encode()).hexdigest()[:16]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(recorded(), separators=(",", ":")))
