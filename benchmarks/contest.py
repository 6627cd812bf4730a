"""Competition after cooperation: do attackers that were taught to be understood become good at the paper's game?

    python -m benchmarks.taught run --seed 3 --out runs/taught      # first: the models that this begins with
    python -m benchmarks.contest run --seed 3 --out runs/taught     # called again, it resumes
    python -m benchmarks.contest tables --out runs/taught           # of all seeds that are done

`run` trains, with configs/contest.yaml and into OUT/NAME-SEED,

    contest             the taught models on the paper's payoffs, and on what hints keep back
    longer-imitated     the seed's imitated models by further imitation, of as many tokens as the rounds of the taught
                        run and of the contest had
    random-payoffs      the taught models in as many rounds, on payoffs drawn by chance

and plays the contest's last stage against each of them, the imitated and the taught models, in both seats, on the
seed's held-out words. It keeps the matches of a finished seed in OUT/contest-SEED.json. `tables` also adds to
OUT/headline.json

    score_imitated, score_tokens_matched, score_random_payoffs

the contest's score against each (docs/matches.md), of all seeds.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.hearing import model_of
from benchmarks.proof import target_tokens
from benchmarks.seed_runs import arguments, called, train
from benchmarks.taught import ENDS, IMITATED, LAST
from cluster.guarded import run_guarded
from spag_ray.config.loading import load_config
from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.results.matches import Match, read_matches
from spag_ray.results.standings import score
from spag_ray.stages import Stage

CONFIG = "configs/contest.yaml"
CONTEST, LONGER, RANDOM = "contest", "longer-imitated", "random-payoffs"
FIGURES = {IMITATED: "score_imitated", LONGER: "score_tokens_matched", RANDOM: "score_random_payoffs"}
NUM_GAMES = 240  # of each pairing


def main() -> None:
    asked = arguments(__doc__, ("run", "tables"), "runs/taught").parse_args()
    if asked.what == "run":
        run_seed(asked.out, asked.seed, asked.overrides)
        return
    seeds = [read_matches(path) for path in sorted(asked.out.glob(f"{CONTEST}-[0-9]*.json"))]
    if not seeds:
        sys.exit(f"{asked.out} has no record of a finished seed")
    print("\n".join(tables(seeds)))
    path = asked.out / "headline.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | headline(seeds), indent=1) + "\n")


def run_seed(out: Path, seed: int, overrides: Sequence[str]) -> None:
    """Trains, or resumes; plays what has not been played."""
    taught = out / f"seed-{seed}"
    if not (taught / "ended.json").exists():
        raise InputError(
            f"{taught}: no finished run to begin with; first python -m benchmarks.taught run --seed {seed}"
        )
    config = load_config(str(taught / "config.yaml"))
    last = str(Stage.of_round(config.self_play.rounds))
    models = {LAST: models_of(taught, last), IMITATED: models_of(taught, IMITATED)}

    def trained(name: str, start: str, *settings: str) -> Path:
        run = out / f"{name}-{seed}"
        seats = [f"seat_models.{role}={folder}" for role, folder in zip(Role, models[start], strict=True)]
        train(CONFIG, run, [f"seed={seed}", *seats, *overrides, *settings])
        own = load_config(str(run / "config.yaml")).self_play.rounds
        models[name] = models_of(run, str(Stage.of_round(own)) if own else IMITATED)
        return run

    contest = trained(CONTEST, LAST)
    trained(RANDOM, LAST, "objective.advantage=benchmarks.random_payoffs:drawn", "objective.information_gain=0")
    tokens = target_tokens(taught)
    imitated = sum(count for stage, count in tokens.items() if stage.startswith(IMITATED))
    played = sum(tokens.values()) - imitated + sum(target_tokens(contest).values())
    games = math.ceil(config.imitation.games * played / imitated)
    imitation = config.imitation.model_copy(update={"games": games}).model_dump_json()
    trained(LONGER, IMITATED, f"imitation={imitation}", "self_play.rounds=0")
    players = [part for name, own in models.items() for part in ("--player", f"{name}={','.join(map(str, own))}")]
    matches = out / f"matches-{CONTEST}-{seed}.json"  # of fewer pairings, if it is interrupted
    command = ["match", str(contest / "config.yaml"), "--games", str(NUM_GAMES), "--out", str(matches)]
    called([*command, *players, "--against", CONTEST])
    shutil.copyfile(matches, out / f"{CONTEST}-{seed}.json")


def models_of(run: Path, stage: str) -> list[Path]:
    """Of each seat."""
    config = load_config(str(run / "config.yaml"))
    return [model_of(run, config, stage, role).resolve() for role in Role]


def tables(seeds: Sequence[Sequence[Match]]) -> list[str]:
    """Markdown: the contest's scores, and how its games ended in each seat; all seeds together."""
    lines = [
        f"| contest against | score | as attacker | as defender | {' | '.join(ENDS)} |",
        "|" + "---|" * (4 + len(ENDS)),
    ]
    for other in (IMITATED, LAST, LONGER, RANDOM):
        cells = []
        for seats in ((Role.ATTACKER, Role.DEFENDER), (Role.ATTACKER,), (Role.DEFENDER,)):
            cells.append(str(score(seeds, CONTEST, other, roles=seats)))
        games = [
            game
            for matches in seeds
            for match in matches
            if (match.attacker, match.defender) == (CONTEST, other)
            for game in match.games
        ]
        cells += [f"{100 * sum(game.outcome in ends for game in games) / len(games):.0f} %" for ends in ENDS.values()]
        lines.append(f"| {other} | {' | '.join(cells)} |")
    return [*lines, "", "The ends are of the games with the contest's attacker."]


def headline(seeds: Sequence[Sequence[Match]]) -> dict[str, dict[str, float]]:
    """{figure: its value, low and high}; see the module's docstring."""
    found = {}
    for other, figure in FIGURES.items():
        estimate = score(seeds, CONTEST, other)
        found[figure] = {"value": round(estimate.value, 4)}
        if estimate.has_interval:
            found[figure] |= {"low": round(estimate.low, 4), "high": round(estimate.high, 4)}
    return found


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
