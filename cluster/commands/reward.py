"""`spag-ray reward`: games -> training rows, as the published code writes them."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.runtime.output_files import refuse_existing
from spag_ray.episodes.formats import read_games, read_sft, write_samples
from spag_ray.errors import ConfigError
from spag_ray.games.taboo.game import query_text
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.training_data.rewards import to_samples


def run_reward(
    games_file: Path, out: Path, console: Console, *, decay: float, rules: str, prompts: str, sft: Path | None
) -> None:
    """`spag-ray reward`: needs no model, because the query is the text of a `flat` template."""
    refuse_existing(out)
    template = load_template(prompts).with_guesses(1)
    if template.style != "flat":
        raise ConfigError(f"--prompts {prompts}: the training-data format holds plain text; use a `flat` template")
    games = read_games(games_file)
    rows = to_samples(games, decay, rules, lambda *view: query_text(template, *view))
    if sft is not None:
        rows = rows + read_sft(sft)
    write_samples(out, rows)
    console.print(f"{len(rows)} training rows from {len(games)} games in {out}", markup=False)
