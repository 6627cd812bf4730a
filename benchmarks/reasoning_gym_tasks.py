"""The easiest level of reasoning-gym's puzzles, as tasks of lm-evaluation-harness, which need no network afterwards.

    python -m venv .venv-gym && .venv-gym/bin/pip install reasoning-gym==0.1.25     # pins packages otherwise than we do
    .venv-gym/bin/python benchmarks/reasoning_gym_tasks.py runs/reasoning_gym
    spag-ray eval CONFIG --model FOLDER --tasks reasoning_gym_choice,reasoning_gym_exact \\
        -o evaluation.include_path=runs/reasoning_gym -o engine.max_model_len=2048

`reasoning_gym_exact` wants the answer alone, in one greedy line, after three solved puzzles of the same kind.
`reasoning_gym_choice` asks which of up to four answers of puzzles of this kind is this one's. It moves before a small
model can say one; `chance` in the output is what guessing gives.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Kinds whose easiest level asks for one short answer, and has only that one.
# fmt: off
KINDS = [
    "ab", "advanced_geometry", "aiw", "base_conversion", "basic_arithmetic", "binary_alternation",
    "bitwise_arithmetic", "calendar_arithmetic", "chain_sum", "color_cube_rotation", "complex_arithmetic",
    "count_bits", "count_primes", "course_schedule", "decimal_arithmetic", "decimal_chain_sum", "dice",
    "family_relationships", "fraction_simplification", "game_of_life_halting", "gcd", "isomorphic_strings",
    "largest_island", "lcm", "leg_counting", "letter_counting", "maze", "number_format", "number_sequence",
    "power_function", "prime_factorization", "products", "ransom_note", "self_reference", "simple_equations",
    "simple_geometry", "spell_backward", "syllogism", "time_intervals", "zebra_puzzles",
]
# fmt: on
NUM_OF_KIND, NUM_SHOWN, NUM_CHOICES = 25, 3, 4
NUM_DRAWN, SEED = 60, 1  # of each kind, before long ones are left out
MAX_QUESTION, MAX_ANSWER = 600, 40  # characters: longer ones fill a small model's context
DATA = "reasoning_gym.json"
HEAD = """dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
metadata: {{version: 1.0}}
task: {name}
"""
CHOICE = """output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: choices
doc_to_target: place
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
EXACT = """output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: answer
generation_kwargs: {until: ["\\n"], do_sample: false, max_gen_toks: 32}
filter_list:
  - {name: line, filter: [{function: remove_whitespace}, {function: take_first}]}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    # One of each kind, then the next ones: the first N are of all kinds, too.
    found = list(itertools.chain(*zip(*(items(kind, SEED) for kind in KINDS), strict=True)))
    write(folder, found)
    chance = sum(1 / len(item["choices"]) for item in found) / len(found)
    print(json.dumps({"items": len(found), "kinds": len(KINDS), "chance": round(chance, 4)}))


def write(folder: Path, found: Sequence[dict[str, Any]]) -> None:
    """Both tasks, and their puzzles."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).write_text("".join(json.dumps(item) + "\n" for item in found))
    for name, task in (("reasoning_gym_choice", CHOICE), ("reasoning_gym_exact", EXACT)):
        (folder / f"{name}.yaml").write_text(HEAD.format(data=DATA, name=name) + task)


def items(kind: str, seed: int) -> list[dict[str, Any]]:
    """NUM_OF_KIND puzzles, each after the first NUM_SHOWN ones."""
    from reasoning_gym.factory import CURRICULA, create_dataset  # this program's own environment does not have it

    level = CURRICULA[kind]().generate_configuration({"seed": seed, "size": NUM_DRAWN})
    drawn = dict.fromkeys(
        (each["question"].strip(), str(each["answer"])) for each in create_dataset(kind, **vars(level))
    )
    short = [(asked, said) for asked, said in drawn if len(asked) <= MAX_QUESTION and 0 < len(said) <= MAX_ANSWER]
    shown = "".join(f"Question: {asked}\nAnswer: {said}\n\n" for asked, said in short[:NUM_SHOWN])
    draw, answers = random.Random(f"{kind} {seed}"), sorted({said for _, said in short})
    return [
        {
            "kind": kind,
            "text": f"{shown}Question: {asked}\nAnswer:",
            "answer": said,
            "choices": (choices := choices_of(said, answers, draw)),
            "place": choices.index(said),
        }
        for asked, said in short[NUM_SHOWN : NUM_SHOWN + NUM_OF_KIND]
    ]


def choices_of(answer: str, answers: list[str], draw: random.Random) -> list[str]:
    """This answer and others of the same kind, in the order of the alphabet."""
    others = [other for other in answers if other != answer]
    return sorted([answer, *draw.sample(others, min(NUM_CHOICES - 1, len(others)))])


if __name__ == "__main__":
    main()
