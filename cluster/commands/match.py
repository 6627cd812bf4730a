"""`spag-ray match`: players against each other on held-out words."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from actors.endpoint_policy import check_endpoint
from actors.models import resolve_model
from cluster.checks.preflight import check_played_in_turn, check_players, check_playing, check_words, in_a_process
from cluster.launch.placed_run import cards_of, every_words, placed_run, watch_run, words_of_file
from cluster.monitor.tables import comparison_lines, guess_tables, match_tables
from cluster.monitor.terminal import say
from cluster.planning.placement import with_room_for_engines
from cluster.planning.reservation import match_bundles
from cluster.runtime.output_files import folder_beside
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from cluster.schedules.tournament import (
    Entrant,
    Models,
    check_entrants,
    check_models,
    check_scripts,
    entrants_of_run,
    in_match,
    models_of,
    pairings,
)
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError, SpagError
from spag_ray.games.registry import Scenarios
from spag_ray.games.taboo.decks import load_deck
from spag_ray.results.could_have_known import read_held_out
from spag_ray.results.game_names import NamesByGame, cooperative_note, names_by_game
from spag_ray.results.matches import Match, change_matches, of_game, others, read_matches
from spag_ray.results.report.files import read_files


class MatchWanted(NamedTuple):
    """The arguments of `spag-ray match`: players as NAME=MODEL or NAME=MODEL,MODEL, the run folder whose stages play,
    the one player that the others meet (without it, all meet all), words instead of the held-out ones, and the file for
    the matches."""

    players: Sequence[str]
    stages: Path | None = None
    against: str | None = None
    words: Path | None = None
    out: Path | None = None


def _config_of(folder: Path) -> RunConfig | None:
    """Of the run; None for a folder of saved models alone."""
    return read_files(folder).config if (folder / "config.yaml").is_file() else None


def check_unseen(trained: RunConfig | None, held_out: Scenarios, folder: Path | None) -> None:
    """Raises InputError if the run whose results these become was trained on some of these scenarios."""
    try:
        seen, unseen = ({}, {}) if trained is None else every_words(trained, cards_of(trained))
    except SpagError:  # its words or its game are not here any more
        return
    for game, own in held_out.items():
        if known := {*seen.get(game, ())} & {*own} - {*unseen.get(game, ())}:
            raise InputError(
                f"{folder} was trained on {len(known)} of the {len({*own})} scenarios of {game}, such as {min(known)}, "
                f"and its matches are of held-out ones: play with {folder}/config.yaml, or give another --out"
            )


def kept_line(kept: Sequence[Match], num_games: int, held_out: Scenarios) -> str:
    """What is said of matches that are not played, because they were before. Those of a run's own stages have as many
    games as its configuration says."""
    others = [
        each
        for each in kept
        if (any(each.models) and len(each.games) != num_games)
        or not {game.scenario for game in each.games} <= {*held_out[each.game]}
    ]
    told = f"; {len(others)} of them had other words, or not {num_games} games: for these give another --out"
    return f"{len(kept)} matches are not played again{told if others else ''}"


def keep_matches(run_folder: Path, out: Path, played: Sequence[Match], models: Models) -> None:
    """Adds to `out` what its run has played in addition to `played`."""
    path = run_folder / "matches.json"
    before = {match.key for match in played}
    found = read_matches(path) if path.exists() else []
    new = [replace(match, models=in_match(models, match)) for match in found if match.key not in before]
    if new:
        change_matches(out, lambda kept: others(kept, new) + new)  # a live run may have added its own matches


def run_match(config: RunConfig, wanted: MatchWanted, console: Console) -> None:
    """`spag-ray match`: every attacker against every defender on the held-out words, with ratings and comparisons."""
    usual = (
        wanted.stages / "matches.json"
        if wanted.stages
        else Path("runs") / f"match-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    )
    out = wanted.out or usual
    entrants = guests = [Entrant.parse(text) for text in wanted.players]
    models = models_of(guests)
    trained = None if wanted.stages is None else _config_of(wanted.stages)
    if wanted.stages is not None:
        entrants = entrants_of_run(wanted.stages, trained or config) + entrants
    check_entrants(entrants, wanted.against)
    check_scripts(config, entrants)
    in_seats = [seat for entrant in entrants for seat in entrant.in_seats]
    folders = list(dict.fromkeys(seat.folder for seat in in_seats if seat.folder))
    check_playing(config, has_engines=bool(folders))
    played = read_matches(out) if out.exists() else []
    check_models(played, models, out)
    is_scripted = any(seat.folder is None and seat.endpoint is None for seat in in_seats)
    words = config.words
    cards = load_deck(words.cards_from, words.max_difficulty) if is_scripted else cards_of(config)
    held_out = words_of_file(config, wanted.words) if wanted.words else every_words(config, cards)[1]
    check_words(config, held_out)
    if out.resolve() == usual.resolve():
        check_unseen(trained, held_out, wanted.stages)
    pairs = set(pairings([entrant.name for entrant in entrants], wanted.against))
    if kept := [each for each in played if (each.attacker, each.defender) in pairs and each.game in held_out]:
        say(console, f"{out}: {kept_line(kept, config.evaluation.games, held_out)}")
    model = folders[0] if folders else resolve_model(config.model)
    if config.plays_in_turn:
        for folder in folders:
            check_played_in_turn(folder)
    in_a_process(check_players, config, list(dict.fromkeys(seat.folder or model for seat in in_seats)), held_out)
    for seat in in_seats:
        if seat.endpoint is not None:
            check_endpoint(seat.endpoint)
    config = with_room_for_engines(config, len(match_bundles(config)))
    run_folder = make_run_folder(folder_beside(out), config)
    try:
        with placed_run(config, run_folder, model, words=held_out, held_out=held_out, cards=cards) as run:
            matching = run.match_only.remote(entrants, wanted.against, played)
            watch_run(run, matching, console)
            matches = get(matching)
    except BaseException:  # called again, it then plays the others
        with contextlib.suppress(SpagError, OSError):  # the first fault is told
            keep_matches(run_folder, out, played, models)
        raise
    keep_matches(run_folder, out, played, models)
    names = [entrant.name for entrant in entrants]
    games = names_by_game(config)
    _print_matches(matches, names, games, console, trained=trained, against=wanted.against)
    for table in guess_tables(read_held_out(run_folder / "metrics.jsonl"), games):
        console.print(table)
    say(console, f"matches: {out}   games: {run_folder}/episodes")


def _print_matches(
    matches: Sequence[Match],
    names: Sequence[str],
    games: NamesByGame,
    console: Console,
    *,
    trained: RunConfig | None,
    against: str | None,
) -> None:
    for game, its in games.items():
        met = of_game(matches, game)
        for table in match_tables(met, names, its):
            console.print(table)
        note = cooperative_note(trained.of_game(game)) if trained and game in trained.game_names else None
        for line in filter(None, (note, *comparison_lines(met, names, against, its))):
            say(console, line)
