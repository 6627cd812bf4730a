"""What does a game lose if another one is trained in the same run? configs/two_games.yaml, and each of its games alone
with as many games of its own.

    python -m benchmarks.two_games run --seed 1 --out runs/two        # three runs; called again, they resume
    python -m benchmarks.two_games run --seed 1 --out runs/two --only kuhn
    python -m benchmarks.two_games table --out runs/two               # Markdown: every stage of all runs that are there

A game alone has the configuration that it has in the run of both (RunConfig.of_game), with its share of the games and
of each batch. So it takes as many optimiser steps, on batches of its own games alone.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import seed_runs
from spag_ray.config.loading import load_config, write_config
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.lines import ExploitabilityLine, HeldOutLine
from spag_ray.results.matches import Match, of_game, read_matches
from spag_ray.stages import Stage

CONFIG = "two_games"
BOTH = "both"


def main() -> None:
    parser = seed_runs.arguments(__doc__, ("run", "table"), "runs/two")
    parser.add_argument("--only", help=f"one run of the seed: {BOTH}, or the name of a game")
    asked = parser.parse_args()
    if asked.what == "table":
        print("\n".join(table(asked.out)))
        return
    both = load_config(CONFIG, [f"seed={asked.seed}", *asked.overrides])
    wanted = {BOTH: both} | {each.full_name: alone(both, each.full_name) for each in both.games}
    for name in [asked.only] if asked.only else list(wanted):
        train(asked.out / f"seed-{asked.seed}" / name, wanted[name])


def alone(both: RunConfig, name: str) -> RunConfig:
    """A run of this game alone, with as many of its games and as many steps as in the run of both."""
    share = next(each.share for each in both.games if each.full_name == name)
    config = both.of_game(name)

    def part(count: int) -> int:
        return max(1, round(count * share))

    imitation, play = config.imitation, config.self_play
    changed = {
        "name": f"{both.name}-{name}",
        "imitation": imitation.model_copy(
            update={"games": part(imitation.games), "batch_games": part(imitation.batch_games)}
        ),
        "self_play": play.model_copy(
            update={"games_per_round": part(play.games_per_round), "batch_games": part(play.batch_games)}
        ),
    }
    return config.model_copy(update=changed)


def train(folder: Path, config: RunConfig) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_suffix(".yaml")
    write_config(file, config)
    seed_runs.train(str(file), folder, [])


def table(out: Path) -> list[str]:
    """A row for each stage of each game: in the run of both, and alone."""
    rows = ["| seed | game | run | stage | first seat wins | second seat wins | breaches | right guesses | NashConv |"]
    rows.append("|---|---|---|---|---|---|---|---|---|")
    for file in sorted(out.glob(f"seed-*/{BOTH}/config.yaml")):
        both = load_config(str(file))
        for game in both.games:
            for name in (BOTH, game.full_name):
                folder = file.parent.parent / name
                if (folder / "matches.json").exists():
                    rows += stages(folder, game.full_name, name == BOTH, both.seed)
    return rows


def stages(folder: Path, game: str, is_both: bool, seed: int) -> list[str]:
    """The rows of one game of a run."""
    solved, held_out = seed_runs.lines_of(folder, ExploitabilityLine), seed_runs.lines_of(folder, HeldOutLine)
    exact = {line.stage: line.figures["nash_conv"] for line in solved if line.game == game}
    guesses = {line.stage: line.report for line in held_out if line.game == game}
    rows = []
    for match in of_game(read_matches(folder / "matches.json"), game):
        if match.attacker != match.defender:
            continue
        report = guesses.get(str(Stage.evaluation(match.attacker)))
        right = "" if report is None else f"{report.right_guesses} of {report.guesses}"
        nash = f"{exact[match.attacker]:.3f}" if match.attacker in exact else ""
        cells = [str(seed), game, "both games" if is_both else "alone", match.attacker, *shares(match), right, nash]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def shares(match: Match) -> list[str]:
    """Wins of each seat, and breaches, in per cent."""
    breaches = sum(match.outcomes[Outcome.breach_by(role)] for role in Role)
    counts = [match.outcomes[Outcome.ATTACKER_WINS], match.outcomes[Outcome.DEFENDER_WINS], breaches]
    return [f"{100 * count / len(match.games):.0f} %" for count in counts]


if __name__ == "__main__":
    main()
