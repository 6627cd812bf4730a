"""A session with runs on a cluster, over Ray Client: from IPython, a notebook, or `spag-ray attach`.

    run = cluster.console.attach("ray://head:10001")          a run that is under way there
    run = cluster.console.launch(config, "ray://head:10001")  a new one, which continues after this session

This side imports ray, but not torch, vllm or deepspeed; work that needs them runs on the cluster.
"""

from __future__ import annotations

import contextlib
import html
import logging
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import ray
from rich.console import Console

from cluster.launch.detached import start
from cluster.launch.jobs import AFTER_NOTICE_S, check_run_dir
from cluster.launch.parcel import named_files, parcel_of
from cluster.monitor.progress import describe
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import (
    ACTOR_LOST,
    ANSWER_WITHIN_S,
    ENVIRONMENT,
    NAMESPACE,
    ClusterError,
    first_line,
    get,
    is_gone,
    is_unavailable,
    log_options,
)
from cluster.runtime.ray_token import use_token
from cluster.types import Progress
from spag_ray.config.loading import load_config, parse_config, to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError, meant
from spag_ray.game.rules import Role
from spag_ray.host.addresses import Form, check_address

if TYPE_CHECKING:
    from cluster.handles import R, Ref
    from cluster.run.run import RunHandle

_PREFIX = "run-"
# The files that were sent to the cluster when this session connected; None: nothing, not even code.
_sent: set[Path] | None = None
LAUNCH_WITHIN_S = 1800.0  # its checks may convert or copy a model
_LISTENS_WITHIN_S = 5.0
_TRIES = 3  # a first connection right after `ray start` may fail


class AwayError(ClusterError):
    """The run cannot be reached now, or a call of it failed with a process of its own; it may be alive."""


@dataclass(frozen=True)
class Status:
    """What a run is doing; a line of text, or a small table in a notebook."""

    name: str
    progress: Progress

    def __str__(self) -> str:
        return f"{self.name} | {describe(self.progress, 0.0, self.progress)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        progress = self.progress
        rows = {
            "run": self.name,
            "stage": progress.stage,
            "done": f"{progress.done} of {progress.total} {progress.unit}" if progress.total else str(progress.done),
            "version": str(progress.version),
            "loss": "" if progress.loss is None else f"{progress.loss:.3f}",
            "games": ", ".join(f"{count} {name}" for name, count in sorted(progress.outcomes.items())),
            "running for": f"{progress.seconds:.0f} s{' (paused)' if progress.is_paused else ''}",
            "last said": progress.notes[-1] if progress.notes else "",
        }
        cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in rows.items() if v)
        return f"<table>{cells}</table>"


class AttachedRun:
    """A run on the cluster. Every method is one call to it; the end of a session does not affect the run.

    `config` has no values of environment variables: they stay with the run.
    """

    def __init__(self, name: str, handle: RunHandle) -> None:
        self.name = name
        self._handle = handle
        described = self._ask(lambda run: run.described.remote())
        self.folder: str = described["folder"]
        self.config = parse_config(described["config"], f"run {name}")

    def status(self) -> Status:
        return Status(self.name, self._ask(lambda run: run.status.remote()))

    def pause(self) -> None:
        """Start no game and no learner step until `resume`; those under way are finished."""
        self._ask(lambda run: run.pause.remote())

    def resume(self) -> None:
        self._ask(lambda run: run.resume.remote())

    def episodes(self, n: int = 10, outcome: str | None = None, stage: str | None = None) -> list[dict[str, Any]]:
        """The last `n` judged episodes (at most 1,000) in the published format; of one outcome ("attacker wins", ...)
        or one stage if given."""
        return self._ask(lambda run: run.episodes.remote(n, outcome, stage))

    def metrics(self, kind: str | None = None, n: int = 100) -> list[dict[str, Any]]:
        """The last `n` lines of metrics.jsonl (at most 1,000); of one kind ("step", "sync", "play", ...) if given."""
        return self._ask(lambda run: run.metrics.remote(kind, n))

    def play(
        self,
        word: str,
        as_role: Literal["attacker", "defender"] = "attacker",
        say: Callable[[str], str] = input,
        game: str | None = None,
    ) -> str:
        """Play against the newest weights, at the prompt; an empty line or Ctrl-D gives up. `say` is called with the
        prompt, and returns your text. `game`: which one, if the run has several. Returns the outcome. Raises InputError
        for a word, or another scenario, that the game does not have."""
        if as_role not in tuple(Role):
            raise InputError(f"as_role is {as_role!r}; there are {', '.join(Role)}{meant(as_role, Role)}")
        turns: list[str] = []
        while True:
            answered = self._next_turn(word, turns, as_role, game)
            for turn in answered["turns"][len(turns) :]:
                print(f"policy v{answered['version']}> {turn}")
            turns = answered["turns"]
            if (over := answered["verdict"]) is not None:
                print(f"{over['outcome']}: {over['reason']}")
                outcome: str = over["outcome"]
                return outcome
            if answered["to_move"] == as_role:
                try:
                    said = say(f"{as_role}> ").strip()
                except EOFError:  # Ctrl-D
                    said = ""
                if not said:
                    return "given up"
                turns.append(said)

    def checkpoint(self, timeout_s: float = 600.0) -> str:
        """Write a checkpoint at the next possible point: between two learner steps of a stage or two versions of a
        stream (a paused stream writes none). Returns its name. Raises ClusterError if none was written within
        `timeout_s`."""
        if not self.config.checkpoint.enabled:
            raise InputError("checkpoint.enabled is false in this run: it writes none")
        before = self.metrics("checkpoint", 1)
        self._ask(lambda run: run.save_soon.remote())
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            last = self.metrics("checkpoint", 1)
            if last != before:
                return str(last[0]["name"])
            time.sleep(0.5)
        raise ClusterError(f"{self.name} wrote no checkpoint within {timeout_s:g} s; it is written once it is reached")

    def add_engine(self, policy: str = "policy") -> str:
        """Add an engine to a policy that learns; returns the engine's name. It plays once it has the newest weights."""
        within_s = self.config.cluster.placement_timeout_s + self.config.engine.start_timeout_s + ANSWER_WITHIN_S
        return self._ask(lambda run: run.add_engine.remote(policy), within_s)

    def remove_engine(self, name: str) -> None:
        """Remove an engine; what it was asked for and has not answered is asked of others."""
        self._ask(lambda run: run.remove_engine.remote(name))

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop the run at a point where nothing is lost, and free its resources; kill it if it takes too long."""
        seconds = self.config.checkpoint.stop_within_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + seconds + AFTER_NOTICE_S
        was_told = False
        with contextlib.suppress(ClusterError):  # it has ended, or does not answer
            while (left_s := deadline - time.monotonic()) > 0:
                with contextlib.suppress(AwayError):  # a kill would lose what it can still save
                    if was_told:
                        self._ask(lambda run: run.status.remote(), left_s)
                    else:
                        self._ask(lambda run: run.stop_soon.remote(seconds), left_s)
                        was_told = True
                time.sleep(0.2)
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            ray.kill(self._handle)

    def _next_turn(self, word: str, turns: list[str], human: str, game: str | None) -> dict[str, Any]:
        within_s = self.config.engine.longest_turn_s + ANSWER_WITHIN_S
        return self._ask(lambda run: run.play_turn.remote(word, turns, human, game), within_s)

    def _ask(self, call: Callable[[RunHandle], Ref[R]], timeout_s: float = ANSWER_WITHIN_S) -> R:
        """Raises ClusterError if the run is not there any more, or does not answer."""
        try:
            return get(call(self._handle), timeout_s)
        except ACTOR_LOST as error:
            if is_unavailable(error):
                raise AwayError(f"run {self.name} cannot be reached now ({first_line(error)}); ask again") from error
            if not is_gone(error):
                raise AwayError(
                    f"run {self.name}: a process of it has ended during the call ({first_line(error)}); ask again"
                ) from error
            raise ClusterError(
                f"run {self.name} is no longer there: it has ended or died; its folder says which. To "
                "continue it, use --resume"
            ) from error

    def __repr__(self) -> str:
        return str(self.status())


def attach(address: str | None = None, run: str | None = None) -> AttachedRun:
    """A run on the cluster at `address` ("ray://head:10001"; None: the one this session is connected with). `run` is
    the name of its folder, of a seed's with that of the folder above (kuhn-seed-1); not needed if there is only one.

    Raises ClusterError when the cluster does not answer, or has no such run.
    """
    _connect(address)
    found = runs_here()
    if run is not None:
        found = [each for each in found if each[0] == run]
    if len(found) != 1:
        names = sorted(name for name, _ in runs_here())
        what = f"run {run!r}" if run is not None else "one run"
        raise ClusterError(
            f"there is not {what} to attach to; there are: {', '.join(names) or 'none'}; name one by its folder's name"
            f"{meant(run or '', names)}"
        )
    ((name, namespace),) = found
    return AttachedRun(name, ray.get_actor(_PREFIX + name, namespace=namespace))


def launch(
    config: RunConfig | str,
    address: str | None = None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    overrides: Sequence[str] = (),
) -> AttachedRun:
    """Start a run on the cluster; it is detached, and ends with `stop()` or by itself. `run_dir` is an
    absolute path on the cluster that every node shares.

    Raises SpagError for an unusable configuration, model or folder.
    """
    settings = load_config(config, overrides) if isinstance(config, str) else config
    if overrides and settings is config:
        raise InputError("overrides change a configuration that is named by its path; this one has to have its values")
    if run_dir is None:
        raise InputError("run_dir: name the run's folder, an absolute path that every node of the cluster shares")
    check_run_dir(Path(run_dir))
    files = {file.resolve() for file in named_files(settings).files}
    if ray.is_initialized() and (_sent is None or not files <= _sent):
        raise ClusterError(
            "this session is connected already, without the code and the files of this run; launch it from a new "
            "session, before anything else, or after ray.shutdown()"
        )
    _connect(address, settings)
    name = label_of(Path(run_dir))
    if any(name == other for other, _ in runs_here()):
        raise ClusterError(
            f"a run named {name} is already running here; attach to it, stop it, or name the folder differently"
        )
    started = ray.remote(start).options(num_cpus=0)
    for warning in get(started.remote(to_yaml(settings, for_elsewhere=True), str(run_dir), resume), LAUNCH_WITHIN_S):
        print(f"warning: {warning}")
    return attach(run=name)


def runs_here() -> list[tuple[str, str]]:
    """(name, namespace) of every run on the cluster that this session is connected with."""
    named = ray.util.list_named_actors(all_namespaces=True)
    runs = [each for each in named if each["name"].startswith(_PREFIX)]
    return sorted((each["name"].removeprefix(_PREFIX), each["namespace"]) for each in runs)


def _connect(address: str | None, config: RunConfig | None = None) -> None:
    """Raises ClusterError, one line. `config`: that of a run to start; sends the code and its files to the cluster."""
    global _sent
    if ray.is_initialized():
        worker = ray.util.client.ray.get_context().client_worker  # None on the cluster itself
        connected = getattr(worker, "_conn_str", None)  # HOST:PORT
        if address is not None and connected is not None and address != f"ray://{connected}":
            raise ClusterError(
                f"this session is connected with ray://{connected}; call ray.shutdown() to connect it with {address}"
            )
        return
    _sent = None
    if address is None:
        raise ClusterError("name the cluster's address, for example ray://127.0.0.1:10001")
    check_address(address, Form.SESSION)
    _check_listening(address)
    use_token()
    with contextlib.ExitStack() as stack:
        environment: dict[str, Any] = {}
        logs: dict[str, Any] = {}
        if config is not None:
            logs = log_options(config.cluster)
            parcel = stack.enter_context(parcel_of(config, Console(quiet=True)))
            environment = {"working_dir": str(parcel), "env_vars": ENVIRONMENT}
        with _quietly():
            for number in range(_TRIES):
                try:
                    ray.init(address, namespace=NAMESPACE, runtime_env=environment, **logs)
                    if config is not None:
                        _sent = {file.resolve() for file in named_files(config).files}
                    return
                except (ConnectionError, RuntimeError, ray.exceptions.RayError) as error:
                    reason = first_line(error)
                    if "timeout" in reason:  # this try took half a minute; another try would not help
                        break
                    time.sleep(number)
    raise _no_answer(
        address, reason, "If the cluster needs a token: is RAY_AUTH_MODE=token set here, and is the token right?"
    )


def _no_answer(address: str, reason: str, more: str = "Is the cluster up?") -> ClusterError:
    return ClusterError(f"{address} does not answer this session: {reason}; is it the client port (10001)? {more}")


def _check_listening(address: str) -> None:
    """Raises ClusterError if nobody listens there. Ray itself would try for half a minute. `ray start` returns some
    seconds before the port of the client is open."""
    place = urlsplit(address)
    deadline = time.monotonic() + _LISTENS_WITHIN_S
    while True:
        try:
            socket.create_connection((place.hostname or "", place.port or 0), _LISTENS_WITHIN_S).close()
            return
        except ConnectionRefusedError as error:
            if time.monotonic() > deadline:
                raise _no_answer(address, error.strerror or str(error)) from error
            time.sleep(0.5)
        except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
            raise _no_answer(address, getattr(error, "strerror", None) or str(error)) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Silence Ray's client while it connects: the error, if any, says the same."""
    logger = logging.getLogger("ray.client_builder")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def session(address: str) -> Iterator[None]:
    """Connected during the block."""
    was_connected = ray.is_initialized()
    _connect(address)
    try:
        yield
    finally:
        if not was_connected:
            ray.shutdown()
