"""The commands about data: `spag-ray words`, `words check`, `reward` and `export`. None needs a model."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from pathlib import Path

from rich.console import Console

from cluster.monitor.terminal import say
from spag_ray.config.loading import find_config
from spag_ray.episodes.formats import read_games, read_sft, write_samples
from spag_ray.errors import ConfigError
from spag_ray.game.words import top_words
from spag_ray.games.taboo.decks import deck_faults, read_deck
from spag_ray.games.taboo.game import flat_text
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.host.whole_files import given_text, new_file, refuse_existing
from spag_ray.results.export import Format, Rows, Unit, write_export
from spag_ray.results.report.files import read_files
from spag_ray.training_data.rewards import to_samples

SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "jsonl": ".jsonl", "hf": "-hf"}


def run_words(out: Path, top: int, console: Console) -> None:
    """`spag-ray words`: the `top` most frequent words, one per line."""
    chosen = top_words(top)
    with new_file(out) as file:
        file.writelines(f"{word}\n" for word in chosen)
    say(console, f"{len(chosen)} words in {out}")


def run_words_check(deck: str, console: Console) -> bool:
    """`spag-ray words check`: prints every fault as FILE:LINE: FAULT. Returns whether there is none."""
    path = find_config(deck, "decks")
    text = given_text(path, "the deck")
    faults = deck_faults(text)
    for fault in faults:
        say(console, f"{path}:{fault.line}: {fault.text}", highlight=False)
    if not faults:
        say(console, f"{path}: {len(read_deck(text)[0])} words, no faults", highlight=False)
    return not faults


def run_reward(
    games_file: Path, out: Path, console: Console, *, decay: float, rules: str, prompts: str, sft: Path | None
) -> None:
    """`spag-ray reward`: games -> training rows, as the published code writes them. It needs no model, because the
    query is the text of a `flat` template."""
    refuse_existing(out)
    template = load_template(prompts).with_guesses(1)
    if template.style != "flat":
        raise ConfigError(f"--prompts {prompts}: the training-data format holds plain text; use a `flat` template")
    games = read_games(games_file)
    rows = to_samples(games, decay, rules, partial(flat_text, template))
    if sft is not None:
        rows = rows + read_sft(sft)
    write_samples(out, rows)
    say(console, f"{len(rows)} training rows from {len(games)} games in {out}")


def run_export(
    folder: Path, form: Format, unit: Unit, stages: Collection[str], out: Path | None, console: Console
) -> None:
    """`spag-ray export`: a run's games as data for other programs. Writes to `out`, or into the run folder. Raises
    RunFolderError or InputError."""
    files = read_files(folder)
    rows = Rows(files, unit)
    out = out or folder / f"{unit}{SUFFIXES[form]}"
    write_export(rows, stages, form, out)
    notes = [f"{name}: {fault}" for name, fault in rows.faults.items()]
    if files.config is None:
        notes.append("config.yaml cannot be read: rewards of Taboo and advantages are left out")
    for line in (*notes, f"{rows.num_rows:,} {unit} of {rows.num_games:,} games in {out}"):
        say(console, line, highlight=False)
