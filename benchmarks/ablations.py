"""Ablations of the proof run: one thing changed, everything else as in a seed of benchmarks/proof.py.

    python -m benchmarks.ablations run --seed 5 --out runs/proof     # after that seed of proof.py; may be called again
    python -m benchmarks.ablations table --seed 5 --out runs/proof   # a Markdown table

An ablation of self-play starts from the seed's imitated model, and its last stage plays the seed's last stage in both
seats. One of what models read (prompts, cards) imitates anew and plays against itself alone, because both players of a
match have the same prompt file and words. The table is made from the seed's ablations.json, held_out.json and matches.
`textarena-cards` needs the extra textarena (docs/words.md).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.proof import CONFIG, guess_cells, held_out_lines, match, score_cells, share, spag_of, train
from spag_ray.config.loading import load_config
from spag_ray.game.rules import Outcome
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.former_records import named_row
from spag_ray.results.matches import Match, read_matches
from spag_ray.stages import Stage

BREACHES = (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH)
OF_SELF_PLAY = {
    "without-listening": ("objective.listening_coeff=0", "objective.claiming_coeff=0"),
    "paper-payoffs": ("game.payoffs.attacker_breach=[null, null]", "game.payoffs.defender_breach=[null, null]"),
    "defender-alone": tuple(
        f"game.payoffs.{end}=[null, {defender}]"
        for end, defender in {"trap": -1, "wrong_guess": -1, "right_guess": 1, "attacker_breach": "null"}.items()
    ),
    "half-pay-for-wrong-guesses": ("game.payoffs.wrong_guess=[0.5, -1]", "game.payoffs.tie=[-0.3, -0.3]"),
}
OF_WHAT_IS_READ = {
    "hints-prompt": ("prompts=hints",),
    "textarena-cards": ("words.source=textarena", "words.max_held_out_difficulty=null"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/proof"))
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="key=value, for all of its runs")
    parser.add_argument("--only", action="append", choices=(*OF_SELF_PLAY, *OF_WHAT_IS_READ), help="default: all")
    asked = parser.parse_args()
    seed = asked.out / f"seed-{asked.seed}"
    if asked.what == "run":
        run(seed, [f"seed={asked.seed}", *asked.overrides], asked.only or (*OF_SELF_PLAY, *OF_WHAT_IS_READ))
    else:
        for line in table(seed):
            print(line)


def run(seed: Path, common: Sequence[str], names: Sequence[str]) -> None:
    """Run these ablations as far as they have not finished."""
    folder = seed / "ablations"
    folder.mkdir(parents=True, exist_ok=True)
    last = last_stage(common)
    start = spag_of(seed) / "models" / "imitated"
    for name in names:
        alone = (f"model={start}", "imitation.enabled=false") if name in OF_SELF_PLAY else ()
        train(folder / name, [*common, *alone, *(OF_SELF_PLAY | OF_WHAT_IS_READ)[name]])
        if alone:
            players = {last: spag_of(seed) / "models" / last, name: folder / name / "models" / last}
            named = [part for player in players.items() for part in ("--player", "=".join(map(str, player)))]
            match(folder / f"{name}.matches.json", folder / f"{name}-match", [*named, "--against", last], common)
        write_record(seed)


def write_record(seed: Path) -> None:
    """Of all ablations that have finished."""
    folder = seed / "ablations"
    last_steps = {name: f"{name}-match" for name in OF_SELF_PLAY} | {name: name for name in OF_WHAT_IS_READ}
    done = [name for name, last_step in last_steps.items() if (folder / f"{last_step}.done.json").exists()]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(measured(folder, name))}" for name in done)
    write_atomically(seed / "ablations.json", f"{{\n{lines}\n}}\n")


def last_stage(overrides: Sequence[str] = ()) -> str:
    return str(Stage.of_round(load_config(CONFIG, overrides).self_play.rounds))


def stages(matches: Path, held_out: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """{stage: its games against itself}: a held-out line, and how many were tied or broke the rules."""
    found = {}
    for each in read_matches(matches):
        if each.attacker == each.defender:
            line = next(line for line in held_out if line["stage"] == f"eval-{each.attacker}")
            ends = [game.outcome for game in each.games]
            found[each.attacker] = {
                **line,
                "ties": ends.count(Outcome.TIED),
                "breaches": sum(map(ends.count, BREACHES)),
            }
    return found


def measured(folder: Path, name: str) -> dict[str, Any]:
    """An ablation's stages against themselves, and its last one's matches with the seed's."""
    record: dict[str, Any] = {"stages": stages(folder / name / "matches.json", held_out_lines(folder / name))}
    if name in OF_SELF_PLAY:
        record["against"] = [each.as_json() for each in read_matches(folder / f"{name}.matches.json")]
    return record


def table(seed: Path) -> Iterator[str]:
    """Markdown; a row for each stage that is compared."""
    if not (record_file := seed / "ablations.json").exists():
        sys.exit(f"{seed} has no finished ablation; `python -m benchmarks.ablations run` continues one")
    last = last_stage()
    own = stages(seed / "matches.json", json.loads((seed / "held_out.json").read_text()))
    yield "| | right guesses | of guesses right | traps of attacker's wins | ties | breaches | could have known |"
    yield "|---|---|---|---|---|---|---|"
    yield row("the seed, imitated", own["imitated"])
    yield row(f"the seed, {last}", own[last])
    ablations = json.loads(record_file.read_text())
    for name, record in ablations.items():
        if name in OF_WHAT_IS_READ:
            yield row(f"{name}, imitated", record["stages"]["imitated"])
        yield row(f"{name}, {last}", record["stages"][last])
    yield ""
    yield f"| {last} against | score, both seats [95%] | breach-free games | attacker | defender |"
    yield "|---|---|---|---|---|"
    for name, record in ablations.items():
        if name in OF_SELF_PLAY:
            met = [Match.from_json(named_row(each, seed)) for each in record["against"]]
            yield f"| {name} | {' | '.join(score_cells([met], last, name))} |"


def row(title: str, stage: Mapping[str, Any]) -> str:
    cells = [
        title,
        *guess_cells(stage),
        share(stage["ties"], stage["games"]),
        share(stage["breaches"], stage["games"]),
        f"{100 * stage['could_have_known']:.0f} %" if stage["could_have_known"] is not None else "",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
