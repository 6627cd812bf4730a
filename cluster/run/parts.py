"""The parts of a run, built from its configuration: what plays, what trains, and what keeps the run alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ray

from actors.arena import Rules
from cluster.buffer.buffer_actor import BufferActor, BufferHandle
from cluster.buffer.buffer_client import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.drained_nodes import DrainedNodes
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.engine_meter import EngineMeter
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import StageSamples
from cluster.learning.weight_sync import Probe
from cluster.monitor.status_board import StatusBoard
from cluster.planning.reservation import Reservation, reservation_of
from cluster.rollout.arenas import Arenas
from cluster.run.control import RunControl
from cluster.run.health import Health
from cluster.runtime.output_files import label_of
from cluster.runtime.without_torch import tokenizer_without_torch
from cluster.schedules.collapse_watch import CollapseWatch
from cluster.schedules.exploitability import Exploitability
from cluster.schedules.frozen import FrozenOpponents
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.league import LeaguePlay
from cluster.schedules.playground import Playground
from cluster.schedules.seating import Seating
from cluster.schedules.task_evaluation import TaskEvaluation
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.callbacks import Callbacks
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.run import RunConfig
from spag_ray.game.protocol import SEATS, Solved, guesser_of, seat_to_move
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role
from spag_ray.game.words import WordsOfGame, WordStream
from spag_ray.games.of_config import Scenarios, renderer_of
from spag_ray.games.taboo.decks import Deck
from spag_ray.host.folder_lease import FolderLease, Heartbeat
from spag_ray.results.game_names import names_by_game, names_of_all, write_names

# A fixed turn that is not from a game: learner and engines score it after every sync, and the scores are compared.
PROBE = "It is something that most people have seen, though few could say when they last looked at it closely."


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What Run, Trainer and Recovery use; every other part gets only what it uses itself.

    `control` has the lease of the run folder. `words` are trained on; `cards` are the expert's. `watch` covers the
    arenas and the buffer; engines have heartbeats of their own. `exploitability`: one for each solved game.
    """

    config: RunConfig
    control: RunControl
    status: StatusBoard
    recorder: Recorder
    callbacks: Callbacks
    restarts: RestartBudget
    reservation: Reservation
    policies: Sequence[LearningPolicy]
    watch: ActorWatch
    buffer: Buffer
    arenas: Arenas
    fleet: Fleet
    publisher: Publisher
    elastic: ElasticEngines
    drained: DrainedNodes
    ground: Playground
    seating: Seating
    words: WordStream
    cards: Deck
    samples: StageSamples
    league: LeaguePlay
    matches: HeldOutMatches
    frozen: FrozenOpponents
    collapse: CollapseWatch
    exploitability: Sequence[Exploitability]
    tasks: TaskEvaluation


def build_parts(
    config: RunConfig,
    lease: FolderLease,
    model: str,
    words: Scenarios,
    held_out: Scenarios,
    cards: Deck,
    *,
    rules: Sequence[Rules],
) -> RunParts:
    """The parts of a run, with its arenas and its buffer started; engines and learners are started later. The
    arguments are those of Run."""
    control, folder = RunControl(lease), lease.folder
    games = {each.name: each.game for each in rules}
    by_name = names_by_game(config, games)
    status = StatusBoard(lambda: policies[0].version, names_of_all(by_name))
    write_names(folder, config, games)
    Heartbeat(lease, status.note)  # until this process ends
    callbacks = Callbacks(config.tracking.callbacks, status.note)
    recorder = Recorder(folder, config.tracking, status.note, lease.check, by_name, hear=callbacks.hear)
    restarts = RestartBudget(config.supervision, recorder, status.note)
    reservation = Reservation(config.cluster, reservation_of(folder), status.note, control.check_stop)

    tokenizer = tokenizer_without_torch(model, games.values(), config.chat_template_kwargs)
    renderers = {
        each.game.full_name: renderer_of(each, tokenizer, games[each.game.full_name]) for each in config.each_game
    }
    first = config.games[0].full_name
    guessing = next((game.full_name for game in config.games if game.guesses), first)
    probe = _probe(renderers[first], held_out[first][0])
    seats = {"policy": tuple(Role)} if config.policies == "shared" else {str(role): (role,) for role in Role}
    policies = [
        LearningPolicy(name, roles, config, folder, model, recorder, probe=probe, reservation=reservation)
        for name, roles in seats.items()
    ]
    for policy in policies:
        policy.says = status.waits_for
    watch = ActorWatch(config.supervision.heartbeat_timeout_s)
    buffer = Buffer(_start_buffer(config, lease), folder / "episodes", watch.answer_within_s)
    watch.watch("buffer", buffer.handle, is_restarted=True)
    watch.start()
    buffer_metrics = BufferMetrics(buffer, recorder, config.stream.max_lag)
    arenas = Arenas(config, folder, watch, restarts, rules, buffer=buffer.handle)
    fleet = Fleet(config, folder, arenas, recorder, restarts, reservation, says=status.waits_for)
    publisher = Publisher(config, lease, policies, fleet, arenas)
    elastic = ElasticEngines(config.engine, fleet, policies, status.note)
    split = TimeSplit()
    health = Health(
        control=control,
        policies=policies,
        fleet=fleet,
        publisher=publisher,
        buffer=buffer,
        watch=watch,
        buffer_metrics=buffer_metrics,
        restarts=restarts,
        recorder=recorder,
        split=split,
    )
    ground = Playground(
        config=config,
        folder=folder,
        fleet=fleet,
        arenas=arenas,
        buffer=buffer,
        buffer_metrics=buffer_metrics,
        recorder=recorder,
        status=status,
        poll_health=health.poll,
        versions=lambda: {policy.name: policy.version for policy in policies},
        elastic=elastic,
        meter=EngineMeter(fleet.roster, recorder),
        split=split,
    )
    for policy in policies:
        policy.training.split = split
    seating = Seating(config, policies, model, cards)
    matches = HeldOutMatches(ground, lease, held_out)
    league = LeaguePlay(config, lease, policies, publisher, seating, recorder)
    learning = {policy.name for policy in policies}
    return RunParts(
        config=config,
        control=control,
        status=status,
        recorder=recorder,
        callbacks=callbacks,
        restarts=restarts,
        reservation=reservation,
        policies=policies,
        watch=watch,
        buffer=buffer,
        arenas=arenas,
        fleet=fleet,
        publisher=publisher,
        elastic=elastic,
        drained=DrainedNodes(fleet, policies, control.save_soon, status.note),
        ground=ground,
        seating=seating,
        words=_word_stream(config, words),
        cards=cards,
        samples=StageSamples(
            config, tokenizer, renderers[guessing], learning, recorder, held_out=held_out[guessing], note=status.note
        ),
        league=league,
        matches=matches,
        frozen=FrozenOpponents(
            config, publisher, seating, matches, status, guesser=guesser_of(games[guessing]) or Role.DEFENDER
        ),
        collapse=CollapseWatch(config, folder, matches, recorder, status, by_name),
        exploitability=[
            Exploitability(ground, name, game, renderers[name], policies)
            for name, game in games.items()
            if isinstance(game, Solved)
        ],
        tasks=TaskEvaluation(ground, lease, policies, restarts),
    )


def _word_stream(config: RunConfig, words: Scenarios) -> WordStream:
    """Against other players each word comes at least twice: the learner attacks with it once, and defends once."""
    planned = [WordsOfGame(game.full_name, game.share, tuple(words[game.full_name])) for game in config.games]
    attacker_seats = 2 if config.meets_others else 1
    return WordStream(planned, config.seed, attacker_seats, config.words.games_per_word, config.words.order)


def _start_buffer(config: RunConfig, lease: FolderLease) -> BufferHandle:
    actor = ray.remote(BufferActor).options(
        name=f"buffer-{label_of(lease.folder)}",
        num_cpus=0,
        max_concurrency=1024,
        max_restarts=-1,  # Ray's number is of the actor's whole life; RestartBudget counts restarts within a time
        max_task_retries=-1,
    )
    handle: BufferHandle = actor.remote(str(lease.folder / "episodes"), lease)
    return handle


def _probe(renderer: Renderer, word: str) -> Probe:
    opens = SEATS[seat_to_move(renderer.game, (), word)]
    return Probe(renderer.prompt((), opens, word), renderer.reply_ids(PROBE))
