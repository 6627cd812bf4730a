"""What each command but `train` does: play, match, reward, learn, eval, dashboard."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from actors.endpoint_policy import check_endpoint
from actors.models import load_tokenizer, resolve_model
from cluster.dashboard import as_text
from cluster.evaluation_table import evaluation_tables
from cluster.launch import placed_run, training_words, watch_run
from cluster.preflight import check_files, check_model, check_tasks, in_a_process
from cluster.run_folder import make_run_folder
from cluster.runtime import get
from cluster.tables import comparison_lines, match_tables
from cluster.tournament import Entrant, check_entrants, entrants_of_run
from cluster.wandb_run import check_tracking
from spag_ray.cards import taboo_cards
from spag_ray.config import RunConfig
from spag_ray.errors import ConfigError, InputError
from spag_ray.evaluations import write_evaluations
from spag_ray.formats import read_games, read_samples, read_sft, to_samples, write_games, write_samples
from spag_ray.matches import read_matches, write_matches
from spag_ray.prompts import FlatRenderer, load_template
from spag_ray.replay import published_samples, sft_games
from spag_ray.words import read_words


class MatchWanted(NamedTuple):
    """What `spag-ray match` was asked for: players as NAME=MODEL, the run folder whose stages play, the one player whom
    the others meet (all meet all without), words instead of the held-out ones, and the file of the matches."""

    players: Sequence[str]
    stages: Path | None = None
    against: str | None = None
    words: Path | None = None
    out: Path | None = None


def run_play(
    config: RunConfig,
    attacker: str | None,
    defender: str | None,
    words_file: Path | None,
    out: Path,
    console: Console,
) -> None:
    """`spag-ray play`: one game a word, written in the published format."""
    refuse_existing(out)
    check_tracking(config.tracking)
    words = read_words(words_file) if words_file else training_words(config, taboo_cards())[1]
    attacker_model = resolve_model(attacker or config.model)
    defender_model = resolve_model(defender or config.model)
    for model in {attacker_model, defender_model}:
        in_a_process(check_model, config, model, words)
    folder = make_run_folder(out.with_name(out.name + ".run"), config)
    with placed_run(config, folder, attacker_model, words, words, {}) as run:
        playing = run.play_only.remote(attacker_model, defender_model, words)
        watch_run(run, playing, console)
        games = get(playing)
    write_games(out, games)
    outcomes = Counter(game["outcome"] for game in games)
    console.print(f"{len(games)} games in {out}: " + ", ".join(f"{n} {name}" for name, n in outcomes.most_common()))


def run_match(config: RunConfig, wanted: MatchWanted, console: Console) -> None:
    """`spag-ray match`: every attacker against every defender on the held-out words, and what follows from it."""
    out = wanted.out or (wanted.stages / "matches.json" if wanted.stages else None)
    if out is None:
        raise ConfigError("--out: name the file of the matches, for example --out matches.json")
    entrants = [Entrant.parse(text) for text in wanted.players]
    if wanted.stages is not None:
        entrants = entrants_of_run(wanted.stages, config.model) + entrants
    check_entrants(entrants, wanted.against)
    played = read_matches(out) if out.exists() else []
    cards = taboo_cards()
    held_out = read_words(wanted.words) if wanted.words else training_words(config, cards)[1]
    model = next((entrant.folder for entrant in entrants if entrant.folder), None) or resolve_model(config.model)
    for each in dict.fromkeys(entrant.folder or model for entrant in entrants):
        in_a_process(check_model, config, each, held_out)
    for entrant in entrants:
        if entrant.endpoint is not None:
            check_endpoint(entrant.endpoint)
    folder = make_run_folder(free_name(out.with_name(out.name + ".run")), config)
    with placed_run(config, folder, model, held_out, held_out, cards) as run:
        matching = run.match_only.remote(entrants, wanted.against, played)
        watch_run(run, matching, console)
        matches = get(matching)
    write_matches(out, matches)
    names = [entrant.name for entrant in entrants]
    for table in match_tables(matches, names):
        console.print(table)
    for line in comparison_lines(matches, names, wanted.against):
        console.print(line, soft_wrap=True)
    console.print(f"matches: {out}   games: {folder}/episodes", soft_wrap=True)


def run_reward(
    games_file: Path, out: Path, decay: float, rules: str, prompts: str, sft: Path | None, console: Console
) -> None:
    """`spag-ray reward`: no model is needed, the query is the text a `flat` template gives."""
    refuse_existing(out)
    template = load_template(prompts)
    if template.style != "flat":
        raise ConfigError(
            f"--prompts {prompts}: the training-data format holds plain text, so a `flat` template is needed"
        )
    games = read_games(games_file)
    rows = to_samples(games, decay, rules, lambda *view: FlatRenderer.query_text(template, *view))
    if sft is not None:
        rows = rows + read_sft(sft)
    write_samples(out, rows)
    console.print(f"{len(rows)} training rows from {len(games)} games in {out}")


def run_learn(config: RunConfig, method: str, data: Path, out: Path, console: Console) -> None:
    """`spag-ray learn`: one pass over a file of training data."""
    refuse_existing(out)
    rows = read_samples(data)
    one_pass = config.checkpoint.model_copy(update={"enabled": False})
    config = config.model_copy(update={"policies": "shared", "checkpoint": one_pass})
    check_files(config)
    model = resolve_model(config.model)
    games, sft = published_samples(rows, load_tokenizer(model))
    imitating = method == "imitation"
    if imitating:  # there an SFT row is one sample of weight 1 among the others
        games, sft = games + sft_games(sft), []
    if not games:
        raise InputError(f"{data}: no game rows in it, so there is nothing to learn; make some with `spag-ray reward`")
    folder = make_run_folder(out.with_name(out.name + ".run"), config)
    with placed_run(config, folder, model, ["word"], ["word"], {}) as run:
        learning = run.learn_only.remote("imitation" if imitating else "self_play", games, sft, str(out))
        watch_run(run, learning, console)
        get(learning)
    console.print(f"model in {out}")


def run_eval(config: RunConfig, out: Path, console: Console) -> None:
    """`spag-ray eval`: `config.model` on `config.evaluation.tasks`; `out` is a file for the rows."""
    refuse_existing(out)
    if not config.evaluation.tasks:
        raise ConfigError("no tasks: name some with --tasks, or in evaluation.tasks; `paper` stands for the paper's")
    # No game is played: prompts that every tokenizer can use.
    config = config.model_copy(update={"policies": "shared", "prompts": "flat"})
    model = resolve_model(config.model)
    in_a_process(check_tasks, config, model)
    folder = make_run_folder(out.with_name(out.name + ".run"), config)
    with placed_run(config, folder, model, ["word"], ["word"], {}) as run:
        evaluating = run.evaluate_only.remote(model, Path(model).name)
        watch_run(run, evaluating, console)
        rows = get(evaluating)
    write_evaluations(out, rows)
    for table in evaluation_tables(rows):
        console.print(table)
    console.print(f"{len(rows)} rows in {out}", soft_wrap=True)


def write_dashboard(out: Path, console: Console) -> None:
    """`spag-ray dashboard`."""
    refuse_existing(out)
    text = as_text()
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}; choose another place") from error
    console.print(f"dashboard in {out}: in Grafana, Dashboards > New > Import", soft_wrap=True)


def free_name(path: Path) -> Path:
    """The path, or the next one that does not exist: NAME-2, NAME-3."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists; nothing is overwritten: choose another name, or move it away")
