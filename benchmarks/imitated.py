"""What a run's imitated model has learned: hints, listening and play, on words that it never saw.

    python -m benchmarks.imitated RUN_DIR [RUN_DIR ...] [--games-a-word 1] [--unseen textarena]    2 to 4 minutes a run

From the imitated model's games against itself (episodes/eval-imitated.log): right guesses, the share of guesses that
are right, rule violations, ties, and traps. On the run's held-out words: how often the model's first choice (greedy
decoding) for the claim is the word after four hints of the expert, and after four hints of its own (games without a
breach); by how many nats the word is more probable after its own hints than after another word's. On a deck that was
never trained on: its first choice after four clues. The replies between hints are the expert's questions. One row per
run, and JSON as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.models import load_tokenizer
from actors.policy import Request, Sampling, Score
from actors.transformers_policy import TransformersPolicy
from cluster.launch.placed_run import training_words
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import ModelError
from spag_ray.game.protocol import TABOO
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo import expert_lines
from spag_ray.games.taboo.decks import Deck, load_deck
from spag_ray.games.taboo.expert import Expert, Habits
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.judge import judge_turn
from spag_ray.results.could_have_known import held_out_report
from spag_ray.results.matches import Match

NUM_HINTS = 4
NUM_UNSEEN = 100  # words of the unseen deck


@dataclass(frozen=True)
class Heard:
    """Hints and replies about a word, and the defender's prompt after them."""

    word: str
    prompt_ids: tuple[int, ...]


class Measure:
    """One model with the prompts and words of its run."""

    def __init__(self, config: RunConfig, model: Path) -> None:
        self._config = config
        tokenizer = load_tokenizer(str(model))
        self._renderer: Renderer = taboo_renderer(load_template(config.prompts), tokenizer, config.game.max_turns)
        self._policy = TransformersPolicy(str(model), config.engine.dtype, config.engine.max_model_len)

    def by_expert(self, words: Sequence[str], cards: Deck, pairs: float, seed: int) -> list[Heard]:
        """Four hints of the expert about each word: no questions that lead to it."""
        expert = Expert(cards, habits=Habits(asks=0.0, pairs=pairs))

        def hint(word: str, turns: Sequence[Turn]) -> str | None:
            rng = random.Random(f"{seed}/{word}/{len(turns)}")
            return expert.attack([turn.text for turn in turns], word, rng)

        return list(self._heard(words, hint, seed))

    def by_itself(self, words: Sequence[str], seed: int) -> list[Heard]:
        """Four hints of the model itself; words about which it broke a rule are left out."""
        sampling = self._config.sampling

        def hint(word: str, turns: Sequence[Turn]) -> str | None:
            request = Request(
                word,
                self._renderer.prompt(turns, Role.ATTACKER, word),
                Sampling(
                    self._config.evaluation.temperature,
                    sampling.max_new_tokens,
                    sampling.top_k,
                    sampling.top_p,
                    random.Random(f"{seed}/{word}/{len(turns)}").getrandbits(31),
                    self._renderer.stop_ids,
                ),
            )
            [said] = asyncio.run(self._policy.generate([request]))
            text = self._renderer.text_of(said.token_ids)
            return text if judge_turn(text, len(turns), word, self._config.game.rules) is None else None

        return list(self._heard(words, hint, seed))

    def _heard(
        self, words: Sequence[str], hint: Callable[[str, Sequence[Turn]], str | None], seed: int
    ) -> Iterator[Heard]:
        for number, word in enumerate(words):
            rng = random.Random(f"{seed}/{number}/{word}")
            turns: list[Turn] = []
            for place in range(NUM_HINTS):
                text = hint(word, turns)
                if text is None:
                    break
                turns.append(self._turn(turns, Role.ATTACKER, text, word))
                if place < NUM_HINTS - 1:
                    turns.append(self._turn(turns, Role.DEFENDER, rng.choice(expert_lines.QUESTIONS), word))
            else:
                yield Heard(word, self._renderer.prompt(turns, Role.DEFENDER, word))

    def _turn(self, turns: Sequence[Turn], role: Role, text: str, word: str) -> Turn:
        ids = self._renderer.reply_ids(text)
        return Turn(role, text, self._renderer.prompt(turns, role, word), ids, (0.0,) * len(ids), "measured")

    def first_choices(self, heard: Sequence[Heard]) -> float | None:
        """The share of words that are the model's first choice for the claim."""
        scores = [score for one in heard if (score := self._score(one.word, one.prompt_ids)) is not None]
        return statistics.fmean(score.is_greedy for score in scores) if scores else None

    def word_logprobs(self, heard: Sequence[Heard]) -> list[float | None]:
        """log p of each dialogue's word, in nats; None if the word is not a separate piece of a claim with this
        tokenizer."""
        scores = (self._score(one.word, one.prompt_ids) for one in heard)
        return [None if score is None else sum(score.logprobs) for score in scores]

    def own_minus_other(self, heard: Sequence[Heard]) -> float | None:
        """Mean log p(word) after its hints minus after the next word's, in nats."""
        gains = []
        for place, one in enumerate(heard):
            other = next((each for each in [*heard[place:], *heard[:place]] if each.word != one.word), None)
            mine = self._score(one.word, one.prompt_ids)
            theirs = None if other is None else self._score(one.word, other.prompt_ids)
            if mine is not None and theirs is not None:
                gains.append(sum(mine.logprobs) - sum(theirs.logprobs))
        return statistics.fmean(gains) if gains else None

    def _score(self, word: str, prompt_ids: Sequence[int]) -> Score | None:
        try:
            claim = self._renderer.claim(word)
        except ModelError:  # with this tokenizer the pieces differ from the whole claim
            return None
        [score] = asyncio.run(self._policy.score([((*prompt_ids, *claim.opening_ids), claim.word_ids)]))
        return score


def of_games(run: Path, stage: str) -> dict[str, float | None]:
    """Shares of a stage's games against itself."""
    episodes = list(read_log(run / "episodes" / f"eval-{stage}.log"))
    report = held_out_report(episodes)
    outcomes = Match.of(stage, stage, episodes, TABOO).outcomes
    return {
        "right_guesses": report.right_guesses / report.games,
        "guesses_that_are_right": report.right_share,
        "rule_violations": outcomes[Outcome.ATTACKER_BREACH] / report.games,
        "ties": outcomes[Outcome.TIED] / report.games,
        "traps_of_attacker_wins": report.trap_share,
    }


def of_run(run: Path, stage: str, games_a_word: int, unseen: str, overrides: Sequence[str]) -> dict[str, float | None]:
    config = load_config(str(run / "config.yaml"), overrides)
    cards = load_deck(config.words.cards_from, config.words.max_difficulty)
    _, held_out = training_words(config, cards)
    words = held_out * games_a_word
    measure = Measure(config, run / "models" / stage)
    own = measure.by_itself(words, config.seed)
    found = of_games(run, stage) | {
        "first_choice_after_expert_hints": measure.first_choices(
            measure.by_expert(words, cards, Habits().pairs, config.seed)
        ),
        "first_choice_after_own_hints": measure.first_choices(own),
        "own_hints_without_violation": len(own) / len(words),
        "own_minus_other_nats": measure.own_minus_other(own),
    }
    if unseen:
        strange = load_deck(unseen)
        words = [word for word, card in strange.items() if word not in cards and len(card.clues) >= NUM_HINTS]
        words = random.Random(config.seed).sample(words, min(NUM_UNSEEN, len(words)))
        found["first_choice_unseen_deck"] = measure.first_choices(measure.by_expert(words, strange, 0.0, config.seed))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--stage", default="imitated")
    parser.add_argument("--games-a-word", type=int, default=1)
    parser.add_argument("--unseen", default="", help="a deck that was not trained on: textarena, or a file")
    parser.add_argument(
        "-o", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="of the run's config"
    )
    options = parser.parse_args()
    rows = {
        str(run): of_run(run, options.stage, options.games_a_word, options.unseen, options.overrides)
        for run in options.runs
    }
    for name in next(iter(rows.values())):
        values = [row[name] for row in rows.values()]
        known = [value for value in values if value is not None]
        mean = "none" if not known else f"{statistics.fmean(known):.3f}"
        print(f"{name:34} {mean:>7}   " + "  ".join("none" if v is None else f"{v:.3f}" for v in values))
    print(json.dumps({"stage": options.stage, "runs": rows}))


if __name__ == "__main__":
    main()
