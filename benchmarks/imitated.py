"""What a run's imitated model has learned: hints, listening and play, on words that it never saw.

    python -m benchmarks.imitated RUN_DIR [RUN_DIR ...] [--games-a-word 1] [--unseen textarena]    a few minutes a run

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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from actors.engine_process import start_engine
from actors.models import load_tokenizer
from actors.policy import LoadedPolicy, Request, Sampling, Score
from cluster.guarded import run_guarded
from cluster.launch.placed_run import training_words
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import ModelError
from spag_ray.game.protocol import TABOO
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.decks import Deck, load_deck
from spag_ray.games.taboo.expert import QUESTIONS, Expert, Habits
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.host.libraries import set_before_libraries
from spag_ray.judge import judge_turn
from spag_ray.results.could_have_known import held_out_report
from spag_ray.results.matches import Match

NUM_HINTS = 4
# (word, the turns so far, number of the dialogue) -> the next hint; None if it broke a rule
Hinting: TypeAlias = Callable[[str, Sequence[Turn], int], Awaitable[str | None]]
NUM_UNSEEN = 100  # words of the unseen deck


@dataclass(frozen=True)
class Heard:
    """Hints and replies about a word, and the defender's prompt after them."""

    word: str
    prompt_ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()


class Measure:
    """One model with the prompts and words of its run, on an engine of its own in this process, which is asked about
    all words at once. In a `with` block, one after the other: an engine may take most of a GPU."""

    def __init__(self, config: RunConfig, model: Path) -> None:
        self._config = config
        tokenizer = load_tokenizer(str(model))
        self._renderer: Renderer = taboo_renderer(load_template(config.prompts), tokenizer, config.game.max_turns)
        set_before_libraries(config.engine.env)
        self._runner = asyncio.Runner()
        self._policy: LoadedPolicy = self._runner.run(start_engine(str(model), config.engine, model.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the engine."""
        self._runner.run(self._policy.close())
        self._runner.close()

    def by_expert(self, words: Sequence[str], cards: Deck, pairs: float, seed: int) -> list[Heard]:
        """Four hints of the expert about each word: no questions that lead to it."""
        expert = Expert(cards, habits=Habits(asks=0.0, pairs=pairs))

        async def hint(word: str, turns: Sequence[Turn], number: int) -> str | None:
            rng = random.Random(f"{seed}/{word}/{len(turns)}")
            return expert.attack([turn.text for turn in turns], word, rng)

        return self._heard(words, hint, seed)

    def by_itself(self, words: Sequence[str], seed: int) -> list[Heard]:
        """Four hints of the model itself; words about which it broke a rule are left out."""
        sampling = self._config.sampling

        async def hint(word: str, turns: Sequence[Turn], number: int) -> str | None:
            request = Request(
                f"{number}/{len(turns)}",
                self._renderer.prompt(turns, Role.ATTACKER, word),
                Sampling(
                    self._config.evaluation.temperature,
                    sampling.max_new_tokens,
                    sampling.top_k,
                    sampling.top_p,
                    random.Random(f"{seed}/{number}/{word}/{len(turns)}").getrandbits(31),
                    self._renderer.stop_ids,
                ),
            )
            [said] = await self._policy.generate([request])
            text = self._renderer.text_of(said.token_ids)
            return text if judge_turn(text, len(turns), word, self._config.game.rules) is None else None

        return self._heard(words, hint, seed)

    def _heard(self, words: Sequence[str], hint: Hinting, seed: int) -> list[Heard]:
        async def every() -> list[Heard | None]:
            return await asyncio.gather(*(self._dialogue(*named, hint, seed) for named in enumerate(words)))

        return [heard for heard in self._runner.run(every()) if heard is not None]

    async def _dialogue(self, number: int, word: str, hint: Hinting, seed: int) -> Heard | None:
        """None if a rule was broken."""
        rng = random.Random(f"{seed}/{number}/{word}")
        turns: list[Turn] = []
        for place in range(NUM_HINTS):
            text = await hint(word, turns, number)
            if text is None:
                return None
            turns.append(self._renderer.told_turn(turns, Role.ATTACKER, text, word, "measured"))
            if place < NUM_HINTS - 1:
                asked = rng.choice(QUESTIONS)
                turns.append(self._renderer.told_turn(turns, Role.DEFENDER, asked, word, "measured"))
        return Heard(word, self._renderer.prompt(turns, Role.DEFENDER, word), tuple(turns))

    def first_choices(self, heard: Sequence[Heard]) -> float | None:
        """The share of words that are the model's first choice for the claim."""
        scores = [score for score in self.scores(heard) if score is not None]
        return statistics.fmean(score.is_greedy for score in scores) if scores else None

    def word_logprobs(self, heard: Sequence[Heard]) -> list[float | None]:
        """log p of each dialogue's word, in nats; None if the word is not a separate piece of a claim with this
        tokenizer."""
        return [None if score is None else sum(score.logprobs) for score in self.scores(heard)]

    def own_minus_other(self, heard: Sequence[Heard]) -> float | None:
        """Mean log p(word) after its hints minus after the next word's, in nats. None if there is one word alone."""
        if len({one.word for one in heard}) < 2:
            return None
        mine, theirs = self.word_logprobs(heard), self.word_logprobs(others(heard))
        gains = [own - other for own, other in zip(mine, theirs, strict=True) if own is not None and other is not None]
        return statistics.fmean(gains) if gains else None

    def scores(self, heard: Sequence[Heard]) -> list[Score | None]:
        """What the model gives each dialogue's word in a claim; None as in `word_logprobs`."""
        asked: list[tuple[Sequence[int], Sequence[int]] | None] = []
        for one in heard:
            try:
                claim = self._renderer.claim(one.word)
            except ModelError:  # with this tokenizer the pieces differ from the whole claim
                asked.append(None)
            else:
                asked.append(((*one.prompt_ids, *claim.opening_ids), claim.word_ids))
        found = iter(self._runner.run(self._policy.score([each for each in asked if each is not None])))
        return [None if each is None else next(found) for each in asked]

    def first_hint_logprobs(self, heard: Sequence[Heard]) -> list[float]:
        """The mean log-probability of a token of each dialogue's first hint, in nats. Later hints are not asked about:
        an attacker that repeats itself would seem to speak well."""
        first = [one.turns[0] for one in heard]
        # Without the token that ends the turn.
        found = self._runner.run(self._policy.score([(turn.prompt_ids, turn.token_ids[:-1]) for turn in first]))
        return [statistics.fmean(score.logprobs) for score in found]


def others(dialogues: Sequence[Heard]) -> list[Heard]:
    """For each dialogue: its word, and the next dialogue about another word; its own if there is none."""
    found = []
    for place, one in enumerate(dialogues):
        around = [*dialogues[place:], *dialogues[:place]]
        other = next((each for each in around if each.word != one.word), one)
        found.append(Heard(one.word, other.prompt_ids))
    return found


def of_games(run: Path, stage: str, max_guesses: int = 1) -> dict[str, float | None]:
    """Shares of a stage's games against itself. `max_guesses`: game.max_guesses."""
    episodes = list(read_log(run / "episodes" / f"eval-{stage}.log"))
    report = held_out_report(episodes, max_guesses)
    outcomes = Match.of(stage, stage, episodes, TABOO).outcomes
    return {
        "right_guesses": report.right_guesses / report.games,
        "guesses_that_are_right": report.right_share,
        "rule_violations": sum(outcomes[Outcome.breach_by(role)] for role in Role) / report.games,
        "ties": outcomes[Outcome.TIED] / report.games,
        "traps_of_attacker_wins": report.trap_share,
    }


def of_run(run: Path, stage: str, games_a_word: int, unseen: str, overrides: Sequence[str]) -> dict[str, float | None]:
    config = load_config(str(run / "config.yaml"), overrides)
    cards = load_deck(config.words.cards_from, config.words.max_difficulty)
    _, held_out = training_words(config, cards)
    words = held_out * games_a_word
    with Measure(config, run / "models" / stage) as measure:
        own = measure.by_itself(words, config.seed)
        by_expert = measure.by_expert(words, cards, Habits().pairs, config.seed)
        found = of_games(run, stage, config.game.max_guesses) | {
            "first_choice_after_expert_hints": measure.first_choices(by_expert),
            "first_choice_after_own_hints": measure.first_choices(own),
            "own_hints_without_violation": len(own) / len(words),
            "own_minus_other_nats": measure.own_minus_other(own),
        }
        if unseen:
            strange = load_deck(unseen)
            words = [word for word, card in strange.items() if word not in cards and len(card.clues) >= NUM_HINTS]
            words = random.Random(config.seed).sample(words, min(NUM_UNSEEN, len(words)))
            clues = measure.by_expert(words, strange, 0.0, config.seed)
            found["first_choice_unseen_deck"] = measure.first_choices(clues)
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
    raise SystemExit(run_guarded(lambda **_: main()))
