"""`spag-ray play`: games between two models, as the published code writes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Console

from actors.models import resolve_model
from cluster.checks.preflight import check_players, check_playing, check_words, in_a_process
from cluster.launch.placed_run import cards_of, every_words, placed_run, watch_run, words_of_file
from cluster.monitor.terminal import say
from cluster.planning.placement import with_room_for_engines
from cluster.runtime.output_files import folder_beside
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.formats import write_games
from spag_ray.game.rules import Role
from spag_ray.host.whole_files import refuse_existing


def run_play(
    config: RunConfig, attacker: str | None, defender: str | None, words_file: Path | None, out: Path, console: Console
) -> None:
    """`spag-ray play`: one game per word, written in the published format."""
    refuse_existing(out)
    check_playing(config)
    cards = cards_of(config)
    words = words_of_file(config, words_file) if words_file else every_words(config, cards)[1]
    check_words(config, words)
    attacker_model = resolve_model(attacker or config.model_of(Role.ATTACKER))
    defender_model = resolve_model(defender or config.model_of(Role.DEFENDER))
    models = list(dict.fromkeys((attacker_model, defender_model)))
    in_a_process(check_players, config, models, words)
    config = with_room_for_engines(config, len(models))
    folder = make_run_folder(folder_beside(out), config)
    with placed_run(config, folder, attacker_model, words=words, held_out=words, cards={}) as run:
        playing = run.play_only.remote(attacker_model, defender_model, words)
        watch_run(run, playing, console)
        games = get(playing)
    write_games(out, games)
    outcomes = Counter(game["outcome"] for game in games)
    say(console, f"{len(games)} games in {out}: " + ", ".join(f"{n} {name}" for name, n in outcomes.most_common()))
