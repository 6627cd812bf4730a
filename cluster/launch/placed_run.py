"""Places a run on Ray: makes all possible checks, starts Ray, and creates the Run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from actors.arena import Rules
from actors.models import resolve_model
from cluster.checks.cluster_checks import check_cluster
from cluster.checks.known_imports import mark_of
from cluster.checks.preflight import check_files, check_run, check_with_imports
from cluster.handles import Ref
from cluster.monitor.progress import watch
from cluster.monitor.terminal import say
from cluster.planning.memory import with_planned_learner
from cluster.planning.model_size import model_size
from cluster.planning.reservation import free, reservation_of
from cluster.run.checkpoint import check_can_resume, to_resume
from cluster.run.parts import Prepared
from cluster.run.run import CONCURRENCY_GROUPS, Run, RunHandle
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import (
    ACTOR_LOST,
    NAMESPACE,
    ClusterError,
    NoAnswerError,
    get,
    is_unavailable,
    ray_session,
)
from cluster.runtime.run_folder import (
    check_can_be_made,
    check_continues,
    check_is_run,
    make_run_folder,
    note_stop,
    reopen_run_folder,
    with_kept_dtypes,
)
from cluster.types import Progress
from spag_ray.config.loading import config_root
from spag_ray.config.no_effect import few_imitation_steps, slow_dtypes, values_without_effect
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, StopRequestedError
from spag_ray.game.game_form import chosen_scenario, listed
from spag_ray.game.protocol import ReadsScenarios, guesser_of
from spag_ray.game.rules import Role
from spag_ray.game.words import read_lines, read_words
from spag_ray.games.registry import Scenarios, game_of, module_to_send, scenarios_of, style_of
from spag_ray.games.taboo.decks import Deck, easy_cards, load_deck, read_deck, split_words, without_words
from spag_ray.games.taboo.prompt_file import untold_guesses
from spag_ray.host.folder_lease import FolderLease, held
from spag_ray.host.whole_files import given_text
from spag_ray.results.game_names import told_apart

STATUS_WITHIN_S = 5.0
RUN_SILENT_S = 300.0  # a Run whose process is stopped, or so busy that it is as good as that


def prepare(config: RunConfig, folder: Path, resume: bool) -> Prepared:
    """Makes all checks that are possible before Ray is started. `resume`: the run that is in `folder`. Raises SpagError
    for the first fault. Writes nothing: a run that cannot be resumed keeps its configuration and how it ended."""
    found = None
    if resume:
        found = to_resume(folder, config.checkpoint)
        check_continues(folder, config)
    else:
        check_can_be_made(folder)
    cards = cards_of(config)
    words, held_out = every_words(config, cards)
    if found is not None:
        check_can_resume(*found, config, words, held_out)
    check_files(config)
    model = resolve_model(config.model)
    of_run = words, held_out, list(cards)
    check_with_imports(config, partial(check_run, config, model, *of_run), mark_of(config, model, *of_run))
    kept = [word for game in config.games if game.has_cards for word in held_out[game.full_name]]
    seat_models = {Role(seat): resolve_model(named) for seat, named in config.seat_models.items()}
    return Prepared(model, words, held_out, without_words(cards, kept), seat_models)


def place_detached(config: RunConfig, folder: Path, resume: bool) -> list[str]:
    """Starts a detached Run: it continues after its caller has ended, and ends by itself. Called on the cluster
    (console.py); returns the warnings of the checks."""
    with contextlib.ExitStack() as stack:
        lease = None
        if resume and folder.exists():
            check_is_run(folder)
            lease = stack.enter_context(held(folder))
            config = with_kept_dtypes(config, folder)
        prepared = prepare(config, folder, resume=lease is not None)
        warnings = idle_values(config, prepared.words) + check_cluster(config, prepared.model, folder)
        if lease is None:
            lease = stack.enter_context(held(make_run_folder(folder, config)))
        else:
            reopen_run_folder(folder, config)
        run = _created(config, folder, lease, prepared, namespace=NAMESPACE, lifetime="detached")
        try:
            get(run.status.remote())  # an error of its constructor is raised here
            run.train_alone.remote()
        except BaseException:
            ray.kill(run)  # nothing else would end it, and it would hold the folder
            raise
        lease.hand_over()  # the Run has adopted it, and keeps it after this process
    return warnings


def planned(config: RunConfig, model: str) -> RunConfig:
    """A run's configuration with a value in place of each `auto`. The run folder keeps `auto`: a run may be resumed on
    larger GPUs, or on others."""
    found = with_planned_learner(config, model_size(model, config.model_shape))
    return found.model_copy(update={"sync": config.sync.model_copy(update={"channel": config.channel})})


def stream_hint(config: RunConfig) -> str | None:
    """What to change if permits, not engines, limit the number of games in flight; None if they do not."""
    stream = config.stream
    permits = (stream.max_lag + 1) * stream.games_per_version // stream.reuse
    wanted = config.self_play.games_in_flight * config.self_play.num_arenas
    wanted += -(-stream.games_per_version // stream.reuse)
    if config.schedule != "stream" or config.stream.max_lag == 0 or permits >= wanted:
        return None
    return (
        f"permits for {permits} games are too few: {wanted} games keep engines and learner busy (games in flight plus "
        "those of one version); raise stream.max_lag or stream.games_per_version, or lower self_play.games_in_flight"
    )


def idle_values(config: RunConfig, words: Scenarios) -> list[str]:
    """The warnings about values that have no effect, hardly any, or a slow one, in a run on these words."""
    found = values_without_effect(config, {name: len(own) for name, own in words.items()})
    untold = [untold_guesses(config.prompts, game.max_guesses) for game in config.games if game.has_prompt_file]
    return [*found, *filter(None, [few_imitation_steps(config), *untold]), *slow_dtypes(config)]


def cards_of(config: RunConfig) -> Deck:
    """The deck that the configuration names, without its hardest cards; empty if no game needs one. Raises
    ConfigError."""
    return load_deck(config.words.cards_from, config.words.max_difficulty) if config.needs_cards else {}


def any_words(config: RunConfig) -> Scenarios:
    """A scenario of each game, for a Run that plays none: its probe is a prompt."""
    return {
        each.game.full_name: ["word"] if each.game.has_cards else listed(game_of(each))[:1] for each in config.each_game
    }


def every_words(config: RunConfig, cards: Deck) -> tuple[Scenarios, Scenarios]:
    """`training_words` of each game."""
    found = {each.game.full_name: training_words(each, cards) for each in config.each_game}
    return {name: words for name, (words, _) in found.items()}, {name: out for name, (_, out) in found.items()}


def training_words(config: RunConfig, cards: Deck) -> tuple[list[str], list[str]]:
    """(words to train on, words held out) of a configuration of one game, disjoint, a function of the seed. In a game
    without cards, its scenarios."""
    if not config.game.has_cards:
        return scenarios_of(config, game_of(config))
    if config.words.are_from_cards:
        every, source = sorted(cards), config.words.cards_from
    else:
        source = config.words.source
        is_file = Path(source).is_file()
        is_shipped = not is_file and (config_root() / "decks" / f"{source}.yaml").is_file()
        may_be = is_file and source.endswith((".yaml", ".yml"))
        if is_shipped or (may_be and read_deck(given_text(source, "words"))[0]):
            told = f"words.source: {source} is a deck, not a list of words"
            raise ConfigError(f"{told}; set words.source: deck, and words.deck: {source}")
        every = read_words(source)
    if len(every) <= config.words.num_held_out:
        raise ConfigError(
            f"words.num_held_out is {config.words.num_held_out}, but {source} has {len(every)} words; "
            "hold fewer out, or give more words"
        )
    hardest = config.words.max_held_out_difficulty if config.words.source == "deck" else None
    candidates = every if hardest is None else sorted(easy_cards(cards, hardest))
    if len(candidates) < config.words.num_held_out:
        raise ConfigError(
            f"words.num_held_out is {config.words.num_held_out}, but {source} has {len(candidates)} words of a "
            f"measured difficulty of at most {hardest:g}; hold fewer out, or raise words.max_held_out_difficulty"
        )
    words, held_out = split_words(candidates, config.words.num_held_out, config.seed)
    if len(candidates) < len(every):
        words, _ = split_words([word for word in every if word not in set(held_out)], 0, config.seed)
    return words[: config.words.num_train], held_out


def rules_of(config: RunConfig) -> Rules:
    """The rules that arenas play by, of a configuration of one game. A class from a user's file or package is sent to
    other processes with its code and that of all imported modules of the package, because its files need not be
    there."""
    game = game_of(config)
    if (module := module_to_send(game)) is not None:
        ray.cloudpickle.register_pickle_by_value(module)
    is_heard = config.objective.information_gain != 0 and guesser_of(game) is not None
    heard = config.objective.gain_event if is_heard else None
    return Rules(game, config.game.full_name, style_of(config, game), config.chat_template_kwargs, heard)


def words_of_file(config: RunConfig, path: Path) -> Scenarios:
    """The words to play from a file with one per line; in a game without cards, its scenarios. Raises InputError."""
    if names := told_apart(config.game_names, ", ".join(config.game_names)):
        raise InputError(f"{path}: a file has the words of one game, but this configuration has the games {names}")
    name, game = config.game.full_name, game_of(config)
    if config.game.has_cards:
        return {name: read_words(path)}
    every = {} if isinstance(game, ReadsScenarios) else dict.fromkeys(listed(game))  # looked up for each line
    found = []
    for number, text in enumerate(read_lines(path, "scenario"), start=1):
        try:
            found.append(chosen_scenario(game, text, name, every))
        except InputError as error:
            raise type(error)(f"{path}, line {number}: {error}") from error
    return {name: found}


@contextlib.contextmanager
def placed_run(
    config: RunConfig,
    folder: Path,
    model: str,
    words: Scenarios,
    held_out: Scenarios,
    cards: Deck,
    seat_models: Mapping[Role, str] = {},
    *,
    lease: FolderLease | None = None,
) -> Iterator[RunHandle]:
    """Ray, and a Run in it; when the Run ends, so does everything it owns. `lease`: the folder's, if already held."""
    with contextlib.ExitStack() as stack:
        lease = lease or stack.enter_context(held(folder))
        stack.enter_context(ray_session(config.cluster))
        run = _created(config, folder, lease, Prepared(model, words, held_out, cards, seat_models))
        try:
            yield run
        except (KeyboardInterrupt, StopRequestedError) as stop:
            note_stop(lease, str(stop) or "interrupted")
            raise
        finally:
            left = _processes_of_actors()
            ray.kill(run)
            _wait_for_the_end(left)
            if lease.is_ours():  # else the placement group of this name belongs to another run
                free(reservation_of(folder))


def _created(config: RunConfig, folder: Path, lease: FolderLease, prepared: Prepared, **options: str) -> RunHandle:
    """The Run of a folder, of which this process has the lease. It is on this process's node: the others may be spot
    machines, and a Run ends with its node."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(Run)
    handle: RunHandle = actor.options(
        name=f"run-{label_of(folder)}", num_cpus=0, scheduling_strategy=here, **options
    ).remote(planned(config, prepared.model), lease, prepared, list(map(rules_of, config.each_game)))
    return handle


def _processes_of_actors() -> list[psutil.Process]:
    """On a local Ray: the processes that actors started, such as vLLM's processes of engines that are not closed."""
    found: list[psutil.Process] = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a process that has just ended must not hide the others
            if each.name().startswith("ray::"):
                found += each.children(recursive=True)
    return found


def _wait_for_the_end(processes: Sequence[psutil.Process], seconds: float = 5.0) -> None:
    """Waits until these processes have ended, and kills the rest. Ray ends them after their actors, but not if Ray is
    stopped before; they would keep GPU memory."""
    _, left = psutil.wait_procs(processes, timeout=seconds)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(left, timeout=seconds)


def watch_run(
    run: RunHandle,
    ending: Ref[Any],
    console: Console,
    notice: Sequence[float] = (),
    stop_within_s: float = 30.0,
    keep: Callable[[str], None] = lambda line: None,
) -> None:
    """Waits until the run ends, or, after a notice, until its time to stop is up. `keep`: see ProgressLine. Raises
    ClusterError if the Run's own process hangs: its control threads then answer nothing."""
    margin = min(2.0, stop_within_s / 4)  # time to close everything
    was_told = False
    last, silent_s = Progress(), 0.0

    def is_done(seconds: float) -> bool:
        nonlocal was_told
        if notice and not was_told:
            was_told = True
            run.stop_soon.remote(stop_within_s - margin)  # first: whoever reads what is printed may have gone
            told = f"saves a checkpoint if that fits into {stop_within_s:g} s (Ctrl-C ends it at once)"
            say(console, f"asked to stop: {told}")
        if notice and time.monotonic() - notice[0] > stop_within_s - margin:
            return True
        return bool(ray.wait([ending], timeout=seconds)[0])

    def status() -> Progress:
        nonlocal last, silent_s
        try:  # a short wait: a notice to stop may come meanwhile
            last, silent_s = get(run.status.remote(), STATUS_WITHIN_S), 0.0
        except (NoAnswerError, ray.exceptions.ActorUnavailableError) as error:
            if is_unavailable(error):  # it may live, and the call has not waited
                time.sleep(STATUS_WITHIN_S)
            silent_s += STATUS_WITHIN_S  # only waits count: this process itself may have been stopped, or its terminal
            told = f"the run has not answered for {silent_s:.0f} s"
            if silent_s >= RUN_SILENT_S:
                raise ClusterError(f"{told}: its own process hangs; continue with --resume") from None
            return replace(last, stage=f"{last.stage} ({told})")
        return last

    try:
        watch(console, is_done, status, keep)
    except ACTOR_LOST:
        return  # the caller reads why it ended
