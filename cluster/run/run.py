"""The Run: one actor that owns every other actor of a run, wires them, and answers commands and sessions.

Run ── engines (EngineActor)   play ──> arenas (ArenaActor) ──> buffer (ReplayBuffer)
    └─ learners (LearnerActor) learn <── buffer;  publish ──> engines

They are used by training.py (the loop), training_verbs.py (its steps), recovery.py, ../schedules/ (play).
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import ray

from actors.arena import GameTask, Rules
from actors.league import Opponents
from cluster.handles import Actor, Handle, actor_method
from cluster.learning.stage_samples import TrainingStage
from cluster.monitor.train_log import followed
from cluster.planning.reservation import Bundle, engine_bundles, match_bundles
from cluster.run.parts import Prepared, RunParts
from cluster.run.recovery import Recovery
from cluster.run.training import train
from cluster.run.training_verbs import Trainer
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import get, log, redirect_output
from cluster.runtime.run_folder import write_end
from cluster.schedules.rounds import play_round
from cluster.tracking.callbacks import FAILED_WITHIN_S
from cluster.types import Progress
from spag_ray.config.loading import without_environment
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_segment, stage_of
from spag_ray.episodes.wire import decode
from spag_ray.errors import CollapseError, InputError, RunFolderError, StopRequestedError, meant
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.words import Scenario
from spag_ray.games.registry import Scenarios
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import REFUSED
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.matches import Match
from spag_ray.stages import LEARN, PLAY, Stage
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import Method, StageSpec

if TYPE_CHECKING:
    from cluster.schedules.tournament import Entrant

MAX_ASKED = 1000  # episodes or records in one answer to a session
LOOK_EVERY_S = 2.0  # at the load of engines, and at nodes that are drained

# The Run's threads beside those that train: for what answers at once, and for what a session may have to wait for.
CONTROL, SESSIONS = "control", "sessions"
CONCURRENCY_GROUPS = {CONTROL: 4, SESSIONS: 8}
M = TypeVar("M")


def in_group(name: str) -> Callable[[M], M]:
    """The threads that a method runs in."""
    return cast(Callable[[M], M], ray.method(concurrency_group=name))


class Run(Actor):
    """`lease`: of the run folder; this process adopts it. `rules`, of each game, have the game, which this process may
    be unable to import."""

    def __init__(self, config: RunConfig, lease: FolderLease, prepared: Prepared, rules: Sequence[Rules]) -> None:
        lease.adopt()
        redirect_output(str(lease.folder / "logs" / "run.log"))
        self._config = config
        self._lease = lease
        self._folder = lease.folder
        self._parts = parts = RunParts(config, lease, prepared, rules)
        self._recovery = Recovery(parts)
        self._trainer = Trainer(parts, self._recovery)

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return f"run-{label_of(self._folder)}"

    @actor_method
    def train(self) -> list[Match]:
        """The whole of SPAG; see training.py."""
        with self._ending():
            self._parts.fleet.tasks.every(LOOK_EVERY_S, self._parts.elastic.scale, "elastic-engines")
            self._parts.fleet.tasks.every(LOOK_EVERY_S, self._parts.drained.poll, "drained-nodes")
            self._parts.callbacks.start()
            try:
                results = train(self._trainer)
            except BaseException:
                self._parts.callbacks.end(FAILED_WITHIN_S)
                raise
            self._parts.callbacks.end()
            return results

    @actor_method
    def train_alone(self) -> None:
        """Train detached (console.launch): the Run ends itself and every actor that it owns."""
        try:
            with followed(self._folder, self.status):
                self.train()
        finally:
            with contextlib.suppress(OSError):  # disk full: the lease ends with this process
                self._lease.release()
            ray.actor.exit_actor()

    @actor_method
    def play_only(self, attacker: str, defender: str, words: Scenarios) -> list[dict[str, Any]]:
        """One game a word between two model folders (which may be the same); games in the published format."""
        with self._ending():
            temperature = self._config.sampling.temperature
            self._parts.reservation.reserve(engine_bundles(self._config, len({attacker, defender})))
            self._parts.status.set_status("starting engines")
            self._parts.fleet.start(attacker, "attacker", "attacker", 1)
            seat = other = self._parts.seating.engines_of("attacker", "attacker", attacker, temperature)
            if defender != attacker:
                self._parts.fleet.start(defender, "defender", "defender", 1)
                other = self._parts.seating.engines_of("defender", "defender", defender, temperature)
            seats, opponents = {"attacker": seat, "defender": other}, Opponents(self._config.seed)
            scenarios = [Scenario(word, game) for game, own in words.items() for word in own]
            episodes = play_round(self._parts.ground, str(PLAY), scenarios, seats, opponents)
            return [episode.as_published() for episode in episodes]

    @actor_method
    def match_only(self, entrants: Sequence[Entrant], against: str | None, played: Sequence[Match]) -> list[Match]:
        """Matches between players that do not learn, in addition to those already `played`."""
        with self._ending():
            self._parts.matches.results = list(played)
            if any(seat.folder for entrant in entrants for seat in entrant.in_seats):
                self._parts.reservation.reserve(match_bundles(self._config))
            parts = self._parts
            from cluster.schedules.tournament import Tournament  # a job does not have it, and plays none

            tournament = Tournament(self._config, parts.matches, parts.publisher, parts.seating, parts.status)
            return tournament.play(entrants, against)

    @actor_method
    def learn_only(self, method: Method, games: Sequence[GameSample], sft: Sequence[Sample], out: str) -> None:
        """One pass over samples from a file; the model is written to `out`."""
        with self._ending():
            config = self._config
            rank = Bundle("learner", config.learner.num_cpus, config.learner.num_gpus)
            self._parts.reservation.reserve([rank] * config.learner.num_ranks)
            self._parts.status.set_status("starting the learner")
            (policy,) = self._parts.policies
            policy.start_learners()
            imitates = method == "imitation"
            part, coeffs = (config.imitation, config.imitation) if imitates else (config.self_play, config.objective)
            spec = StageSpec(method, 0, part.learning_rate, coeffs.kl_coeff)
            self._trainer.learn(TrainingStage(LEARN, spec, games, sft, part.batch_games, one_pass=True))
            policy.save_to(Path(out))

    @actor_method
    def evaluate_only(self, model: str, stage: str) -> list[Evaluation]:
        """Evaluate a model folder on the configured tasks; its rows are labelled `stage`."""
        with self._ending():
            self._parts.reservation.reserve(engine_bundles(self._config, self._config.engine.min_engines))
            self._parts.status.set_status("starting engines")
            self._parts.fleet.start(model, "evaluated", "evaluated", self._config.engine.min_engines)
            self._parts.tasks.evaluate(stage, "evaluated", model)
            return self._parts.tasks.rows

    # For sessions (console.py), displays and signals during the run; those that may take long have threads of their
    # own. They return plain values, so that a client needs no imports.

    @actor_method
    @in_group(CONTROL)
    def status(self) -> Progress:
        return self._parts.status.progress(self._parts.control.is_paused)

    @actor_method
    @in_group(CONTROL)
    def described(self) -> dict[str, Any]:
        """The configuration without the values of environment variables, and where the run is."""
        return {"config": without_environment(self._config.model_dump(mode="json")), "folder": str(self._folder)}

    @actor_method
    @in_group(SESSIONS)
    def episodes(self, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]:
        """See last_episodes."""
        return last_episodes(self._folder, count, outcome, stage)

    @actor_method
    @in_group(SESSIONS)
    def metrics(self, kind: str | None, count: int) -> list[dict[str, Any]]:
        """The last `count` lines of metrics.jsonl, of one kind if given."""
        return self._parts.recorder.last(kind, min(count, MAX_ASKED))

    @actor_method
    @in_group(SESSIONS)
    def play_turn(self, word: str, texts: list[str], human: str, game: str | None = None) -> dict[str, Any]:
        """The next turn of the newest weights, if they are to move, in a game against the user of a session, on `word`,
        whose turns so far are `texts`. Returns all turns, the verdict if the game has ended, else the role that moves
        next, and the version that played. `game`: its name, if the run has several. Raises InputError, and ConfigError
        for a game that the run does not have."""
        parts, config = self._parts, self._config.of_game(game)
        if parts.fleet.are_asleep:
            raise InputError(
                "the engines sleep while the learner trains on their devices; ask again when the run plays"
            )
        role = Role(human).other
        task = GameTask(0, word, "visit", config.seed, game=config.game.full_name)
        seat = parts.seating.newest(role, self._config.sampling.temperature)
        asked = parts.arenas.handles[0].answer.remote(task, texts, role, seat)
        answered, verdict, to_move = get(asked, self._config.engine.longest_turn_s)
        over = None if verdict is None else {"outcome": str(verdict.outcome), "reason": verdict.reason}
        version = parts.seating.policy_of(role).version
        return {"turns": answered, "verdict": over, "to_move": to_move and str(to_move), "version": version}

    @actor_method
    @in_group(SESSIONS)
    def pause(self) -> None:
        """Start no game and no learner step until `resume`; those under way are finished."""
        self._parts.control.is_paused = True
        self._parts.arenas.pause(True)

    @actor_method
    @in_group(SESSIONS)
    def resume(self) -> None:
        self._parts.control.is_paused = False
        self._parts.arenas.pause(False)

    @actor_method
    @in_group(CONTROL)
    def save_soon(self) -> None:
        """Write a checkpoint at the next point where one can be written."""
        self._parts.control.save_soon()

    @actor_method
    @in_group(CONTROL)
    def stop_soon(self, seconds: float) -> None:
        """Stop at the next point where nothing is lost; this process ends in `seconds`."""
        self._parts.control.stop_soon(seconds)

    @actor_method
    @in_group(SESSIONS)
    def add_engine(self, policy_name: str = "policy") -> str:
        """Add an engine to a learning policy during play; see Fleet.add. Raises InputError for any other policy."""
        by_name = {policy.name: policy for policy in self._parts.policies}
        if policy_name not in by_name:
            told = f"no policy {policy_name!r} learns; there are {', '.join(by_name)}"
            raise InputError(told + meant(policy_name, by_name))
        return self._parts.fleet.add(by_name[policy_name])

    @actor_method
    @in_group(SESSIONS)
    def remove_engine(self, name: str) -> None:
        self._parts.fleet.remove(name)

    def close(self) -> None:
        """End every actor of the run, whatever fails; engines first close their child processes."""
        parts = self._parts
        with contextlib.ExitStack() as steps:  # the last one is taken first
            steps.callback(parts.recorder.close)
            steps.callback(ray.kill, parts.buffer.handle)
            steps.callback(parts.arenas.close)
            steps.callback(parts.reservation.close)
            for policy in parts.policies:
                steps.callback(policy.close_learners)
            steps.callback(parts.watch.stop)
            steps.callback(parts.fleet.close)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """After the block, close everything and write to ended.json how it ended, unless another run has taken the
        folder."""
        ended, reason = "finished", None
        try:
            yield
        except BaseException as error:
            is_stop = isinstance(error, StopRequestedError | CollapseError)
            refused = refused_by_disk(error, self._folder)
            ended, reason = "stopped" if is_stop else "failed", str(refused or error)
            try:
                self.close()
            except Exception:  # what ended the run is told, and this is in its log
                log.exception("not everything of the run could be closed")
            if refused is not None:
                log.error("the run ends", exc_info=error)  # which file it was, and where
                raise refused from error
            raise
        else:
            self.close()
        finally:
            write_end(self._lease, ended, reason)


RunHandle: TypeAlias = Handle[Run]


def refused_by_disk(error: BaseException, folder: Path) -> RunFolderError | None:
    """What to tell of a file that a disk, perhaps of another process of the run, did not take; None for all else."""
    cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
    if not isinstance(cause, OSError) or cause.errno not in REFUSED:
        return None
    if cause.errno in (errno.EACCES, errno.EPERM) and not cause.filename:  # of a socket, or a call of the system
        return None
    return RunFolderError(
        f"{cause.filename or folder}: it cannot be written or read ({cause.strerror}); look at the room on its disk "
        "and at its permissions, then call the command again (a run with --resume)"
    )


def last_episodes(folder: Path, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]:
    """The last `count` judged episodes in the published format plus `stage` and `number`, the newest last; of one
    outcome or one stage if given. Raises InputError for an unknown outcome."""
    known = [str(each) for each in Outcome]
    if outcome is not None and outcome not in known:
        raise InputError(f"outcome {outcome!r}: there are {', '.join(known)}{meant(outcome, known)}")
    count = min(count, MAX_ASKED)
    found: list[dict[str, Any]] = []
    # The newest segment first: older ones are read only if more episodes are needed.
    segments = (folder / "episodes").glob("*.log")
    for path in sorted(segments, key=lambda path: path.stat().st_mtime, reverse=True):
        if len(found) < count and (stage is None or stage_of(path) == Stage.parse(stage)):
            found = _last_of(path, count - len(found), outcome) + found
    return found


def _last_of(path: Path, count: int, outcome: str | None) -> list[dict[str, Any]]:
    kept: deque[dict[str, Any]] = deque(maxlen=count)
    for _, data in read_segment(path):
        episode = decode(data)
        if outcome is None or str(episode.verdict.outcome) == outcome:
            kept.append({"stage": episode.stage, "number": episode.number, **episode.as_published()})
    return list(kept)
