"""How self-play changed what a run's model infers from hints and how it gives hints, on words that it never saw.

    python -m benchmarks.hearing RUN_DIR [RUN_DIR ...] [--stage spag-3] [--dialogues 100]

Each figure is a mean with a 95 % interval, a bootstrap over words (of all runs together):

    newest_minus_imitated    log p(word) of the stage minus that of the imitated model, in nats, after fixed dialogues
                             of four hints; half the dialogues are the expert's, half the imitated model's
    own_minus_other          log p(word) of the stage after these dialogues, minus after another word's, in nats
    hints_to_base            log p(word) of the base model after the stage's own four hints, minus after the imitated
                             model's, in nats: below 0, hints have become vague
    hints_to_imitated        the same, heard by the imitated model
    first_hint_tokens_to_base  log-probability of a token of the stage's first hints to the base model, minus of the
                             imitated model's, in nats: below 0, hints are less English
    first_choice_own_hints   how often the word is the stage's first choice (greedy decoding) after four own hints that
                             kept the rules; and_of_imitated: the imitated model's after its own
    own_hints_kept_rules     share of the stage's four hints without a breach; and_of_imitated_too
    p_where_it_claims        p(word) at the defender's turns at which the stage claimed, in its games against itself
                             (episodes/eval-STAGE.log), minus p(word) at the turns at which it did not

One row per figure, and JSON as the last line.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from actors.models import resolve_model
from benchmarks.imitated import Heard, Measure, others
from cluster.guarded import run_guarded
from cluster.launch.placed_run import training_words
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Role
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.expert import Habits
from spag_ray.results.could_have_known import GUESSES
from spag_ray.stages import Stage
from spag_ray.training_data.game_samples import early_guesses_of

DRAWS = 2000  # bootstrap samples


class Gain(NamedTuple):
    """A figure of one dialogue or turn. Figures with `side` False are subtracted: their mean from the mean of the
    others."""

    word: str
    value: float
    side: bool = True


def model_of(run: Path, config: RunConfig, stage: str, role: Role) -> Path:
    """The model of a run's stage in a seat: with two policies each seat has its own."""
    return run / "models" / str(Stage.parse(stage).of_policy(role) if config.policies == "separate" else stage)


def of_run(run: Path, stage: str, num_dialogues: int) -> dict[str, list[Gain]]:
    """The figures of the module's docstring. Of two policies the attacker gives the hints, and the defender hears."""
    config = load_config(str(run / "config.yaml"))
    stage = stage or str(Stage.of_round(config.self_play.rounds))
    cards = load_deck(config.words.cards_from, config.words.max_difficulty)
    _, held_out = training_words(config, cards)
    words = (held_out * (1 + num_dialogues // len(held_out)))[:num_dialogues]
    with Measure(config, model_of(run, config, "imitated", Role.ATTACKER)) as attacker:
        own = attacker.by_itself(words, config.seed)
        dialogues = [*attacker.by_expert(words, cards, Habits().pairs, config.seed), *own]
    with Measure(config, model_of(run, config, stage, Role.ATTACKER)) as attacker:
        newer = attacker.by_itself(words, config.seed)
    with Measure(config, model_of(run, config, "imitated", Role.DEFENDER)) as defender:
        known = defender.word_logprobs(dialogues)
        choices = _first_choices(defender, own)
        to_imitated = _pairs_by_word(defender.word_logprobs, newer, own)
    with Measure(config, model_of(run, config, stage, Role.DEFENDER)) as defender:
        now = defender.word_logprobs(dialogues)
        found = {
            "newest_minus_imitated": _differences(dialogues, now, known),
            "own_minus_other": _differences(dialogues, now, defender.word_logprobs(others(dialogues))),
            "first_choice_own_hints": _first_choices(defender, newer),
            "and_of_imitated": choices,
            "own_hints_kept_rules": _kept_rules(words, newer),
            "and_of_imitated_too": _kept_rules(words, own),
            "p_where_it_claims": _claims(run, stage, config),
            "hints_to_imitated": to_imitated,
        }
    with Measure(config, Path(resolve_model(config.model))) as base:
        found["hints_to_base"] = _pairs_by_word(base.word_logprobs, newer, own)
        found["first_hint_tokens_to_base"] = _pairs_by_word(base.first_hint_logprobs, newer, own)
    return found


def _differences(dialogues: Sequence[Heard], one: Sequence[float | None], other: Sequence[float | None]) -> list[Gain]:
    triples = zip(dialogues, one, other, strict=True)
    return [
        Gain(heard.word, mine - theirs) for heard, mine, theirs in triples if mine is not None and theirs is not None
    ]


def _kept_rules(words: Sequence[str], heard: Sequence[Heard]) -> list[Gain]:
    """1 for each dialogue without a breach, 0 for each other."""
    asked, kept = Counter(words), Counter(one.word for one in heard)
    return [Gain(word, float(place < kept[word])) for word, times in asked.items() for place in range(times)]


def _first_choices(measure: Measure, heard: Sequence[Heard]) -> list[Gain]:
    pairs = zip(heard, measure.scores(heard), strict=True)
    return [Gain(one.word, float(score.is_greedy)) for one, score in pairs if score is not None]


def _pairs_by_word(
    measure: Callable[[Sequence[Heard]], Sequence[float | None]], first: Sequence[Heard], second: Sequence[Heard]
) -> list[Gain]:
    """Means over the dialogues of each word that both have."""
    means: list[dict[str, float]] = []
    for dialogues in (first, second):
        by_word = defaultdict(list)
        for heard, value in zip(dialogues, measure(dialogues), strict=True):
            if value is not None:
                by_word[heard.word].append(value)
        means.append({word: statistics.fmean(values) for word, values in by_word.items()})
    return [Gain(word, value - means[1][word]) for word, value in means[0].items() if word in means[1]]


def _claims(run: Path, stage: str, config: RunConfig) -> list[Gain]:
    gains: list[Gain] = []
    if not config.evaluation.games:
        return gains
    for episode in read_log(run / "episodes" / f"eval-{stage}.log"):
        verdict = episode.verdict
        claims = early_guesses_of(episode) if config.game.max_guesses > 1 else []
        claims += [verdict.length - 1] if verdict.end_reason in GUESSES else []
        for index, turn in enumerate(episode.turns[: verdict.length]):
            if turn.role is Role.DEFENDER and turn.word_logprob is not None:
                gains.append(Gain(episode.scenario, math.exp(turn.word_logprob), index in claims))
    return gains


def mean_of(gains: Iterable[Gain]) -> float | None:
    """The mean of one side minus the mean of the other side. The other side may be empty."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for gain in gains:
        sides[gain.side].append(gain.value)
    if not sides[True]:
        return None
    return statistics.fmean(sides[True]) - (statistics.fmean(sides[False]) if sides[False] else 0.0)


def interval(gains: Sequence[Gain], over_runs: bool = False) -> tuple[float, float] | None:
    """The 95 % interval of the mean: words are resampled with all their values. `over_runs`: runs first, then the words
    of each; words are RUN/WORD."""
    by_run: dict[str, dict[str, list[Gain]]] = defaultdict(lambda: defaultdict(list))
    for gain in gains:
        by_run[gain.word.partition("/")[0] if over_runs else ""][gain.word].append(gain)
    runs, rng = [own for _, own in sorted(by_run.items())], random.Random(0)

    def draw() -> float | None:
        drawn = rng.choices(runs, k=len(runs)) if over_runs else runs
        return mean_of(g for own in drawn for word in rng.choices(sorted(own), k=len(own)) for g in own[word])

    found = sorted(mean for mean in (draw() for _ in range(DRAWS if runs else 0)) if mean is not None)
    return (found[int(0.025 * len(found))], found[int(0.975 * len(found))]) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--stage", default="", help="the last round, if not given")
    parser.add_argument("--dialogues", type=int, default=100, help="of the expert, and as many of the imitated model")
    options = parser.parse_args()
    rows = [of_run(run, options.stage, options.dialogues) for run in options.runs]
    found: dict[str, dict[str, object]] = {}
    for name in rows[0]:
        every = [gain._replace(word=f"{number}/{gain.word}") for number, row in enumerate(rows) for gain in row[name]]
        mean, each, between = mean_of(every), [mean_of(row[name]) for row in rows], interval(every)
        found[name] = {"mean": mean, "interval": between, "each": each, "count": len(every)}
        shown = "none" if mean is None or between is None else f"{mean:+.2f} [{between[0]:+.2f}, {between[1]:+.2f}]"
        runs = "  ".join("none" if value is None else f"{value:+.2f}" for value in each)
        print(f"{name:24} {shown:24} of {len(every):5}   {runs}")
    print(json.dumps(found))


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
