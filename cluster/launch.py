"""What the commands do: check everything that can be checked first, then start Ray and make one call."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from rich.console import Console

from actors.endpoint_policy import check_endpoint
from actors.models import load_tokenizer, resolve_model
from cluster.dashboard import as_text
from cluster.evaluation_table import evaluation_tables
from cluster.jobs import check_run_dir
from cluster.nodes import check_cluster
from cluster.places import free, places_of
from cluster.preflight import check_files, check_model, check_tasks, in_a_process
from cluster.progress import Progress, watch
from cluster.reporting import report_finished
from cluster.run import Cards, Run
from cluster.run_folder import make_run_folder, reopen_run_folder
from cluster.runtime import NAMESPACE, get, is_job, ray_session
from cluster.tables import comparison_lines, head_to_head_lines, match_tables, outcome_table
from cluster.tournament import Entrant, check_entrants, entrants_of_run
from cluster.wandb_run import check_tracking
from spag_ray.cards import split_words, taboo_cards, without_words
from spag_ray.config import RunConfig
from spag_ray.errors import ConfigError, InputError, StopRequestedError
from spag_ray.evaluations import FILE as EVALUATIONS
from spag_ray.evaluations import read_evaluations, write_evaluations
from spag_ray.formats import read_games, read_samples, read_sft, to_samples, write_games, write_samples
from spag_ray.matches import read_matches, write_matches
from spag_ray.prompts import FlatRenderer, load_template
from spag_ray.replay import published_samples, sft_games
from spag_ray.words import read_words


def run_training(config: RunConfig, folder: Path, console: Console, resume: bool = False) -> None:
    """`spag-ray train`: prints the outcome table and where everything is. `resume`: go on with the run of this folder,
    if there is one."""
    if is_job():
        check_run_dir(folder)
    goes_on = resume and folder.exists()
    prepared = prepare(config, folder, resume)
    if config.objective.learn_from == "both":
        console.print(
            "objective.learn_from: both also pushes losers' turns down; a reproduction saw that not converge: "
            "watch ratio_max and entropy in metrics.jsonl, or lower objective.loser_coeff",
            soft_wrap=True,
        )
    if hint := stream_hint(config):
        console.print(hint, soft_wrap=True)
    with ray_session(config.cluster):
        for warning in check_cluster(config, prepared.model, folder):
            console.print(f"warning: {warning}", soft_wrap=True)
        folder = folder.resolve() if goes_on else make_run_folder(folder, config)
        console.print(f"run folder: {folder}", soft_wrap=True)
        console.print(
            f"model: {prepared.model}; {len(prepared.words)} training words, {len(prepared.held_out)} held out",
            soft_wrap=True,
        )
        with placed_run(config, folder, *prepared) as run:
            training = run.train.remote()
            with _notice_to_stop() as notice:
                _watch(run, training, console, notice, config.checkpoint.stop_within_s)
                if notice and not ray.wait([training], timeout=0)[0]:
                    raise StopRequestedError(f"stopped in the midst of a step; go on with --resume --run-dir {folder}")
            try:
                results = get(training)
            except StopRequestedError as stopped:
                raise StopRequestedError(f"{stopped}; go on with --resume --run-dir {folder}") from None
    console.print(outcome_table(results))
    for line in head_to_head_lines(results):
        console.print(line, soft_wrap=True)
    if (folder / EVALUATIONS).exists():
        for table in evaluation_tables(read_evaluations(folder / EVALUATIONS)):
            console.print(table)
    console.print(
        f"models: {folder}/models   metrics: {folder}/metrics.jsonl   games: {folder}/episodes",
        soft_wrap=True,
    )
    report_finished(folder, console)


class MatchWanted(NamedTuple):
    """What `spag-ray match` was asked for: players as NAME=MODEL, the run folder whose stages play, the one player whom
    the others meet (all meet all without), words instead of the held-out ones, and the file of the matches."""

    players: Sequence[str]
    stages: Path | None = None
    against: str | None = None
    words: Path | None = None
    out: Path | None = None


class Prepared(NamedTuple):
    """What a run is given besides its configuration and its folder: a model's folder, words to train on, words held
    out, and the cards of the scripted expert."""

    model: str
    words: list[str]
    held_out: list[str]
    cards: Cards


def prepare(config: RunConfig, folder: Path, resume: bool) -> Prepared:
    """Check all that can be checked before Ray is started. Raises SpagError for the first thing that is wrong."""
    if resume and folder.exists():
        reopen_run_folder(folder, config)
    elif folder.exists():
        make_run_folder(folder, config)  # refuses, before anything slow
    cards = taboo_cards() if needs_cards(config) else {}
    words, held_out = training_words(config, cards)
    check_files(config)
    model = resolve_model(config.model)
    in_a_process(check_model, config, model, [*words, *held_out])
    if config.evaluation.tasks:
        in_a_process(check_tasks, config, model)
    return Prepared(model, words, held_out, without_words(cards, held_out))


def place_detached(config: RunConfig, folder: Path, resume: bool) -> list[str]:
    """Start a Run that belongs to nobody: it goes on when whoever asked for it has gone, and ends itself. Called on the
    cluster (console.py); returns what the checks warn of."""
    prepared = prepare(config, folder, resume)
    warnings = check_cluster(config, prepared.model, folder)
    folder = folder.resolve() if resume and folder.exists() else make_run_folder(folder, config)
    actor = ray.remote(Run).options(
        name=f"run-{folder.name}", namespace=NAMESPACE, lifetime="detached", num_cpus=0, max_concurrency=8
    )
    run = actor.remote(config, str(folder), *prepared)
    ray.get(run.status.remote())  # its own mistakes are the caller's to hear
    run.train_alone.remote()
    return warnings


def stream_hint(config: RunConfig) -> str | None:
    """What to change where permits, not engines, decide how many games are under way."""
    permits = (config.stream.max_lag + 1) * config.stream.games_per_version
    wanted = config.self_play.games_in_flight * config.self_play.num_arenas + config.stream.games_per_version
    if config.schedule != "stream" or config.stream.max_lag == 0 or permits >= wanted:
        return None
    return (
        f"permits for {permits} games are fewer than the {wanted} that keep engines and learner busy (games in flight "
        "and one version's): raise stream.max_lag or stream.games_per_version, or lower self_play.games_in_flight"
    )


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
        _watch(run, playing, console)
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
        _watch(run, matching, console)
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
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = make_run_folder(out.with_name(out.name + ".run"), config)
    with placed_run(config, folder, model, ["word"], ["word"], {}) as run:
        learning = run.learn_only.remote("imitation" if imitating else "self_play", games, sft, str(out))
        _watch(run, learning, console)
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
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = make_run_folder(out.with_name(out.name + ".run"), config)
    with placed_run(config, folder, model, ["word"], ["word"], {}) as run:
        evaluating = run.evaluate_only.remote(model, Path(model).name)
        _watch(run, evaluating, console)
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


def training_words(config: RunConfig, cards: Cards) -> tuple[list[str], list[str]]:
    """(words to train on, words held out), disjoint, a function of the seed."""
    every = sorted(cards) if config.words.source == "textarena" else read_words(Path(config.words.source))
    if len(every) <= config.words.num_held_out:
        raise ConfigError(
            f"words.num_held_out is {config.words.num_held_out}, but {config.words.source} has {len(every)} words; "
            "hold fewer out, or give more words"
        )
    words, held_out = split_words(every, config.words.num_held_out, config.seed)
    return words[: config.words.num_train], held_out


def free_name(path: Path) -> Path:
    """The path, or the next one that does not exist: NAME-2, NAME-3."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists; nothing is overwritten: choose another name, or move it away")


@contextlib.contextmanager
def placed_run(
    config: RunConfig, folder: Path, model: str, words: list[str], held_out: list[str], cards: Cards
) -> Iterator[Any]:
    """Ray, and a Run in it; with the Run goes everything it owns."""
    with ray_session(config.cluster):
        actor = ray.remote(Run).options(name=f"run-{folder.name}", num_cpus=0, max_concurrency=4)
        run = actor.remote(config, str(folder), model, words, held_out, cards)
        try:
            yield run
        finally:
            ray.kill(run)
            free(places_of(folder))


@contextlib.contextmanager
def _notice_to_stop() -> Iterator[list[float]]:
    """SIGTERM meanwhile is a notice, not the end: the list holds when it came. A spot machine and `ray job stop` send
    one."""
    notice: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice.append(time.monotonic()))
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, before)


def _watch(
    run: Any, ending: ray.ObjectRef, console: Console, notice: Sequence[float] = (), stop_within_s: float = 30.0
) -> None:
    """Until it ends; or, after a notice, until the time is up that there is then."""
    margin = min(2.0, stop_within_s / 4)  # to end everything
    was_told = False

    def is_done(seconds: float) -> bool:
        nonlocal was_told
        if notice and not was_told:
            was_told = True
            console.print(f"asked to stop: at most {stop_within_s:g} s for it")
            run.stop_soon.remote(stop_within_s - margin)
        if notice and time.monotonic() - notice[0] > stop_within_s - margin:
            return True
        return bool(ray.wait([ending], timeout=seconds)[0])

    def status() -> Progress:
        return ray.get(run.status.remote())

    try:
        watch(console, is_done, status)
    except ray.exceptions.RayActorError:
        return  # the ending itself says why


def needs_cards(config: RunConfig) -> bool:
    scripted = config.imitation.enabled and config.imitation.source == "scripted"
    return scripted or config.words.source == "textarena"
