"""Games and samples from files -> episodes and samples with token ids."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from spag_ray.episodes.episode import Episode
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, check_history
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.tokens import Tokenizer, published_ids
from spag_ray.training_data.samples import GameSample, Sample


def episode_from_game(
    game: Mapping[str, Any], number: int, stage: str, renderer: Renderer, rules: str, max_guesses: int = 1
) -> Episode:
    """A game in the published format, judged and rendered as if it had been played here, with so many guesses.

    Its tokens were not sampled, so their log-probabilities are 0. Raises InputError when its turns do not alternate.
    """
    check_history(game["history"])
    word, max_turns = game["target_word"], game["max_turns"]
    verdict = judge(game["history"], word, max_turns, rules, max_guesses)
    turns: list[Turn] = []
    for said in game["history"][: 2 * max_turns]:
        role = Role(said["role"])
        tokens = renderer.reply_ids(said["content"].strip())
        turns.append(Turn.unsampled(role, said["content"], renderer.prompt(turns, role, word), tokens, "file"))
    return Episode(
        episode_id=f"{stage}/{number:06d}",
        number=number,
        stage=stage,
        scenario=word,
        max_turns=max_turns,
        rules=rules,
        temperature=1.0,
        turns=tuple(turns),
        verdict=verdict,
    )


def sft_samples(rows: Sequence[Mapping[str, Any]], renderer: Renderer) -> list[Sample]:
    """SFT rows ({"query", "target"}) in the prompts' style."""
    return [Sample(renderer.query_ids(row["query"]), renderer.answer_ids(row["target"].strip()), 1.0) for row in rows]


def next_rows(num_rows: int, taken: int, count: int, seed: int) -> list[int]:
    """The rows that come after the first `taken` of endless passes over `num_rows`, each in an order of its own."""
    found: list[int] = []
    while len(found) < count:
        number, place = divmod(taken + len(found), num_rows)
        found += _shuffled(num_rows, f"{seed}/{number}")[place : place + count - len(found)]
    return found


@lru_cache(maxsize=4)
def _shuffled(num_rows: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(num_rows), num_rows)


def sft_games(rows: Sequence[Sample]) -> list[GameSample]:
    """SFT rows as imitation samples, each of weight 1."""
    return [GameSample(f"sft-{number:06d}", None, 1.0, (row,)) for number, row in enumerate(rows)]


def published_samples(rows: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> tuple[list[GameSample], list[Sample]]:
    """Training rows of the published format -> (game samples of one turn each, SFT samples), tokenised as published
    (`published_ids`)."""
    games, sft = [], []
    for index, row in enumerate(rows):
        prompt, target = published_ids(tokenizer, row["query"], row["target"])
        if row.get("type") == "sft":
            sft.append(Sample(prompt, target, 1.0))
            continue
        role = Role(row["role"])
        turn = Sample(prompt, target, float(row["reward"]), role=role)
        games.append(GameSample(f"row-{index:06d}", role, float(row["weight"]), (turn,)))
    return games, sft
