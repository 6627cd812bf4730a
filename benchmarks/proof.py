"""The proof run: does self-play make the imitated model better, and better than its baselines do at equal tokens?

    python -m benchmarks.proof run --seeds 1-3 --out runs/proof  # called again, it resumes
    python -m benchmarks.proof tables --out runs/proof           # Markdown tables of all seeds that exist
    python -m benchmarks.proof tables --out docs/proof           # of the seeds in the documentation
    python -m benchmarks.proof tables --out docs/proof-steady    # of those with the present configuration

Each is a call of `spag-ray train --seeds`, into OUT/NAME/seed-N, one after the other:

    spag             imitate, then SPAG rounds (configs/cpu_proof.yaml)
    published        the published objective from the seed's imitated model, with as many rounds. It trains only
                     winners' turns (and breaches), so it plays enough games to train on as many tokens as `spag`
    imitation-only   one imitation from the base model, of as many tokens as imitation and SPAG rounds together
    listening-only   as `spag` from the seed's imitated model, but no end of a game has a payoff: only listening and
                     the related terms train

Numbers of games make the tokens of all seeds together equal, so an OUT keeps the seeds of its first call. Tokens are
those with a loss, including the words of listened turns. Then each seed has a match, in OUT/seed-N: spag's last stage
against the base model, the imitated one and the others' last, both seats. All players of a seed have the same held-out
words; held-out and training words differ between seeds. The tables are made from each seed's matches.json,
held_out.json and costs.json. `python -m benchmarks.hearing runs/proof/spag/seed-*` measures how well models hear and
hint.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from actors.models import load_tokenizer
from benchmarks.seed_runs import called, check_finished, lines_of, options, seconds_of, self_play_games
from cluster.guarded import run_guarded
from spag_ray.config.loading import load_config
from spag_ray.config.parts import PAID_ENDS
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.results.could_have_known import read_held_out
from spag_ray.results.lines import StepLine
from spag_ray.results.matches import Match, read_matches
from spag_ray.results.ratings import wilson_interval
from spag_ray.results.standings import ENDS, better, score
from spag_ray.stages import Stage, StageKind
from spag_ray.training_data.listened_turns import WhenToClaim, listened_turns

CONFIG = "configs/cpu_proof.yaml"
PUBLISHED = (
    "objective.loss=published",
    "objective.learn_from=winners",
    "objective.kl_reference=stage",
    "objective.kl_coeff=0.2",
    "learner.keep_moments=false",
)
NOTHING_PAYS = "game.payoffs={" + ", ".join(f"{end}: [null, null]" for end in PAID_ENDS) + "}"
RIVALS = ("published", "imitation-only", "listening-only")
NUM_DRAWS = 10_000  # of the bootstrap over seeds and words
COUNTS = ("games", "guesses", "right_guesses", "attacker_wins", "traps")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "tables"))
    parser.add_argument("--seeds", default="1", help="as `spag-ray train --seeds` takes them")
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value, for all of its runs")
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.out, asked.seeds, asked.overrides)
    else:
        for line in tables(asked.out, asked.overrides):
            print(line)


def run(out: Path, seeds: str, overrides: Sequence[str]) -> None:
    """Run what is not finished yet."""
    from cluster.commands.seeds import seeds_of, with_seed  # not at the top: it imports Ray, which tables do not need

    numbers = seeds_of(seeds, overrides)
    keep_seeds(out, numbers)
    overrides_of = {out / f"seed-{seed}": with_seed(overrides, seed) for seed in numbers}
    folders = list(overrides_of)
    train_all(out / "spag", seeds, folders, overrides)
    config = load_config(CONFIG, overrides_of[folders[0]])
    for rival, own in overrides_of_rivals(out, folders, config).items():
        train_all(out / rival, seeds, folders, [*overrides, *own])
    for folder in folders:
        compare(folder, overrides_of[folder])


def keep_seeds(out: Path, seeds: Sequence[int]) -> None:
    """Ends this program if OUT has other seeds: its rivals' numbers of games are made from all of them."""
    kept = out / "seeds.json"
    if kept.exists() and (before := json.loads(kept.read_text())) != list(seeds):
        sys.exit(f"{out} has seeds {', '.join(map(str, before))}, which its rivals are made for; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(list(seeds)))


def train_all(runs: Path, seeds: str, folders: Sequence[Path], overrides: Sequence[str]) -> None:
    called(["train", CONFIG, "--seeds", seeds, "--run-dir", str(runs), "--resume", *options(overrides)])
    for folder in folders:
        check_finished(runs / folder.name)


def spag_of(seed: Path) -> Path:
    """The run that the rivals of this seed's folder are measured by."""
    return run_of(seed, "spag")


def run_of(seed: Path, name: str) -> Path:
    return seed.parent / name / seed.name


def overrides_of_rivals(out: Path, folders: Sequence[Path], config: RunConfig) -> dict[str, list[str]]:
    """What each rival changes, once all runs of `spag` have finished."""
    spags = [spag_of(folder) for folder in folders]
    learned = [target_tokens(spag) for spag in spags]
    imitated = sum(tokens["imitated"] for tokens in learned)
    in_rounds = sum(map(sum, (tokens.values() for tokens in learned))) - imitated
    winners = sum(published_tokens(spag, config) for spag in spags)
    games_per_round = round(config.self_play.games_per_round * in_rounds / max(1, winners) / config.self_play.rounds)
    games = round(config.imitation.games * (imitated + in_rounds) / imitated)
    unmeasured = ["evaluation.games=0", "evaluation.tasks=[]"]
    alone = [f"model={spag_of(out / 'seed-{seed}')}/models/imitated", "imitation.enabled=false", *unmeasured]
    return {
        "published": [*alone, *PUBLISHED, f"self_play.games_per_round={games_per_round}"],
        "imitation-only": [f"imitation.games={games}", "self_play.rounds=0", *unmeasured],
        "listening-only": [*alone, NOTHING_PAYS],
    }


def compare(folder: Path, overrides: Sequence[str]) -> None:
    """The match of a seed, and its records."""
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(CONFIG, overrides)
    last = str(Stage.of_round(config.self_play.rounds))
    spag = spag_of(folder)
    models = {last: spag / "models" / last, "imitated": spag / "models" / "imitated", "base": config.model}
    models |= {rival: run_of(folder, rival) / "models" / last for rival in RIVALS}
    models["imitation-only"] = run_of(folder, "imitation-only") / "models" / "imitated"
    named = [part for name, model in models.items() for part in ("--player", f"{name}={model}")]
    match(spag / "matches.json", folder / "match", [*named, "--against", last], overrides)
    step(folder / "report", ["report", str(spag)])
    shutil.copy(spag / "matches.json", folder)
    (folder / "held_out.json").write_text(json.dumps(held_out_lines(spag), indent=1) + "\n")
    (folder / "costs.json").write_text(json.dumps(list(costs(folder)), indent=1) + "\n")


def train(folder: Path, overrides: Sequence[str]) -> None:
    step(folder, ["train", CONFIG, "--run-dir", str(folder), "--resume", *options(overrides)])


def match(out: Path, folder: Path, arguments: Sequence[str], overrides: Sequence[str]) -> None:
    """Into `out`: if it is the matches.json of a run, that run's report shows them."""
    step(folder, ["match", CONFIG, *arguments, "--out", str(out), *options(overrides)])


def step(folder: Path, arguments: Sequence[str]) -> None:
    """Run a command of spag-ray unless it has already finished; its total time over all starts is kept beside its
    folder."""
    done = folder.with_name(f"{folder.name}.done.json")
    seconds_file = folder.with_name(f"{folder.name}.seconds")
    if done.exists():
        return
    began = time.monotonic()
    try:
        called(arguments)
    finally:
        before = float(seconds_file.read_text()) if seconds_file.exists() else 0.0
        seconds_file.write_text(str(before + time.monotonic() - began))
    if arguments[0] == "train":
        check_finished(folder)
    done.write_text(json.dumps({"seconds": round(float(seconds_file.read_text())), "arguments": list(arguments)}))


def held_out_lines(run: Path) -> list[dict[str, Any]]:
    return [{"stage": line.stage, **asdict(line.report)} for line in read_held_out(run / "metrics.jsonl")]


def target_tokens(run: Path) -> dict[str, int]:
    """{stage: tokens with a loss, each step once}"""
    steps = {(line.stage, line.report.step): line.report.num_target_tokens for line in lines_of(run, StepLine)}
    tokens: dict[str, int] = {}
    for (stage, _), count in steps.items():
        tokens[stage] = tokens.get(stage, 0) + count
    return tokens


def published_tokens(spag: Path, config: RunConfig) -> int:
    """Tokens that the published objective would train on in the first round's games: winners' turns, and words."""
    episodes = list(read_log(spag / "episodes" / f"{Stage.of_round(1)}.log"))
    of_winners = sum(
        turn.num_tokens
        for episode in episodes
        for turn in episode.turns[: episode.verdict.length]
        if turn.role is episode.verdict.outcome.winner
    )
    objective = config.objective
    if not objective.listening_coeff:
        return of_winners
    tokenizer = load_tokenizer(str(spag / "models" / "imitated"))
    claim = taboo_renderer(load_template(config.prompts), tokenizer, config.game.max_turns).claim
    when = WhenToClaim(objective.claiming_words) if objective.claiming_coeff else None
    heard = listened_turns(episodes, claim, objective.listening_turns, config.engine.max_model_len, None, when)
    return of_winners + sum(len(position.target_ids) for positions in heard.values() for position in positions)


def tables(out: Path, overrides: Sequence[str] = ()) -> list[str]:
    """Markdown, of the seeds that are done: outcomes by stage, scores against the imitated model and the baselines,
    what each player was given."""
    seeds = sorted((path for path in out.glob("seed-*") if (path / "costs.json").exists()), key=lambda path: path.name)
    if not seeds:
        sys.exit(f"{out} has no finished seed; `benchmarks/proof.py run` continues one")
    runs = [read_matches(seed / "matches.json") for seed in seeds]
    rounds = [str(Stage.of_round(number)) for number in range(1, load_config(CONFIG, overrides).self_play.rounds + 1)]
    stages, last = ["base", "imitated", *rounds], rounds[-1]
    lines = [f"Seeds: {', '.join(seed.name[5:] for seed in seeds)}.", "", *outcome_lines(runs, stages), ""]
    lines += ["| player | against | score, both seats [95%] | breach-free games | attacker | defender | each seed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    pairs = [(name, "imitated") for name in [*stages, *RIVALS] if name != "imitated"]
    pairs += [(last, name) for name in [*RIVALS, "base"]]
    lines += [score_line(runs, *pair) for pair in pairs if have_met(runs, *pair)]
    pooled = pool(runs)
    for name, other in [(last, name) for name in ["imitated", *RIVALS, "base"] if have_met(runs, last, name)]:
        test = better(pooled, name, other)
        lines += [
            "",
            f"{name} better than {other}: p = {test.p_value:.4f}, paired over {test.num_words} words of these runs.",
        ]
    if all((seed / "held_out.json").exists() for seed in seeds):
        lines += ["", *gain_lines(runs, last), "", *guess_lines(seeds)]
    return [*lines, "", *cost_lines(seeds)]


def have_met(runs: Sequence[Sequence[Match]], name: str, other: str) -> bool:
    """In both seats, in every seed."""
    seats = [(name, other), (other, name)]
    return all(any((each.attacker, each.defender) == pair for each in run) for run in runs for pair in seats)


def pool(runs: Sequence[Sequence[Match]]) -> list[Match]:
    """Matches of all seeds, each seed's words kept apart."""
    return [
        replace(each, games=tuple(replace(game, scenario=f"{number}/{game.scenario}") for game in each.games))
        for number, run in enumerate(runs)
        for each in run
    ]


def outcome_lines(runs: Sequence[Sequence[Match]], stages: Sequence[str]) -> Iterator[str]:
    yield "| stage, both seats | games | attacker wins | defender wins | breach | tie |"
    yield "|---|---|---|---|---|---|"
    for stage in stages:
        games = [game for run in runs for each in run if each.attacker == each.defender == stage for game in each.games]
        cells = []
        for outcomes in ENDS.values():
            count = sum(game.outcome in outcomes for game in games)
            low, high = wilson_interval(count, len(games))
            told = f"{100 * count / max(1, len(games)):.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
            cells.append(told if games else "none")
        yield f"| {stage} | {len(games)} | {' | '.join(cells)} |"


def score_line(runs: Sequence[Sequence[Match]], name: str, other: str) -> str:
    each = " ".join(f"{score([run], name, other).value:.2f}" for run in runs)
    return f"| {name} | {other} | {' | '.join(score_cells(runs, name, other))} | {each} |"


def score_cells(runs: Sequence[Sequence[Match]], name: str, other: str) -> Iterator[str]:
    """The score in both seats, in breach-free games, as attacker and as defender, each with its interval."""
    columns: list[dict[str, Any]] = [{}, {"breach_free": True}, *({"roles": [role]} for role in Role)]
    for only in columns:
        try:
            yield str(score(runs, name, other, **only))
        except InputError:
            if "breach_free" not in only:
                raise
            yield "none"  # so few games that all of a seat's had breaches


def gain_lines(runs: Sequence[Sequence[Match]], last: str) -> Iterator[str]:
    """In each seat against the imitated model: the last stage's score minus that of the imitated model itself."""
    for role in Role:
        by_run = [gains_by_word(run, last, role) for run in runs]
        value = statistics.fmean(statistics.fmean(gains) for gains in by_run)
        rng = random.Random(0)
        draws = sorted(
            statistics.fmean(
                statistics.fmean(rng.choices(gains, k=len(gains))) for gains in rng.choices(by_run, k=len(by_run))
            )
            for _ in range(NUM_DRAWS)
        )
        low, high = draws[int(0.025 * NUM_DRAWS)], draws[int(0.975 * NUM_DRAWS)]
        yield f"- {last} as {role} against imitated, minus imitated there: {value:+.2f} [{low:+.2f}, {high:+.2f}]"


def gains_by_word(run: Sequence[Match], last: str, role: Role) -> list[float]:
    """For each word: mean score of the last stage's games in this seat, minus mean score of the imitated model's."""
    means: list[dict[str, float]] = []
    for player in (last, "imitated"):
        pair = (player, "imitated") if role is Role.ATTACKER else ("imitated", player)
        scores = defaultdict(list)
        for each in run:
            if (each.attacker, each.defender) == pair:
                for game in each.games:
                    scores[game.scenario].append(game.outcome.score(role))
        means.append({word: statistics.fmean(values) for word, values in scores.items()})
    return [value - means[1][word] for word, value in means[0].items() if word in means[1]]


def guess_lines(seeds: Sequence[Path]) -> Iterator[str]:
    """Guesses and traps of each stage against itself, over all seeds."""
    yield "| stage | games | right guesses | of guesses right | traps of attacker's wins | could have known |"
    yield "|---|---|---|---|---|---|"
    reports: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for line in json.loads((seed / "held_out.json").read_text()):
            if Stage.parse(line["stage"]).kind is not StageKind.MATCH:
                reports.setdefault(line["stage"], []).append(line)
    for stage, found in reports.items():
        total = {key: sum(each[key] for each in found) for key in COUNTS}
        known = [each["could_have_known"] for each in found if each["could_have_known"] is not None]
        cells = [str(total["games"]), *guess_cells(total), f"{100 * statistics.fmean(known):.0f} %" if known else ""]
        yield f"| {stage.removeprefix('eval-')} | {' | '.join(cells)} |"


def guess_cells(counts: Mapping[str, int]) -> list[str]:
    """Right guesses of games and of guesses, and traps of attackers' wins."""
    parts = (("right_guesses", "games"), ("right_guesses", "guesses"), ("traps", "attacker_wins"))
    return [share(counts[part], counts[whole]) for part, whole in parts]


def share(count: int, of: int) -> str:
    return f"{100 * count / of:.0f} % ({count} of {of})" if of else "none"


def costs(seed: Path) -> Iterator[dict[str, Any]]:
    """What each run of a seed took, and what it played and learned, and what its match took. The time of a run is that
    of its measurements, without the start of its processes."""
    for name in ("spag", *RIVALS):
        folder = run_of(seed, name)
        tokens = target_tokens(folder)
        yield {
            "step": name,
            "seconds": round(seconds_of(folder)),
            "imitation_tokens": tokens.pop("imitated", 0),
            "self_play_tokens": sum(tokens.values()),
            "self_play_games": self_play_games(folder),
        }
    for name in ("match", "report"):
        yield {"step": name, "seconds": json.loads((seed / f"{name}.done.json").read_text())["seconds"]}


def cost_lines(seeds: Sequence[Path]) -> Iterator[str]:
    yield "| seed | step | minutes | self-play games | tokens learned: imitation | rounds |"
    yield "|---|---|---|---|---|---|"
    for seed in seeds:
        for cost in json.loads((seed / "costs.json").read_text()):
            counts = ("self_play_games", "imitation_tokens", "self_play_tokens")
            cells = [f"{cost[name]:,}" if name in cost else "" for name in counts]
            yield f"| {seed.name[5:]} | {cost['step']} | {cost['seconds'] / 60:.1f} | {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))
