"""Connect to Ray, or start one here that listens on loopback only; what Ray says of its nodes and answers to calls."""

from __future__ import annotations

import contextlib
import gc
import ipaddress
import logging
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import ray

from cluster.handles import R, Ref
from cluster.runtime.locks import check_may_wait
from cluster.runtime.ray_token import ClusterError, check_answer, no_token, own_token
from cluster.types import Node, NodeResources
from spag_ray.config.parts import ClusterConfig
from spag_ray.errors import SpagError
from spag_ray.host.libraries import set_before_libraries

# Set in every process of a run before its first `import vllm`, `transformers` or `datasets`. Nothing is downloaded at
# run time, and an actor without reserved GPUs sees none.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}
NAMESPACE = "spag_ray"  # Ray namespace of detached runs
ANSWER_WITHIN_S = 300.0  # a call that plays, trains or loads nothing; a process that hangs is killed long before
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0  # before an actor that is unavailable is called again
SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # of clusters of several nodes
# A socket's path has at most 107 bytes. Below the temporary folder, Ray's need 68 of them, others' fewer.
MAX_FOLDER_BYTES = 107 - len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
STARTUP_TIMEOUT = "timed out during startup"  # Ray raises a plain Exception with this text
# Ray raises these of an actor that has ended or cannot be reached. The second, no RayActorError, is of one that Ray
# itself ended because its node ran low on memory.
ACTOR_LOST = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError)
log = logging.getLogger("spag_ray")


class NoAnswerError(ClusterError, ray.exceptions.GetTimeoutError):
    """Another process has not answered a call within its bound."""


@contextlib.contextmanager
def ray_session(config: ClusterConfig) -> Iterator[None]:
    """A connection to Ray for the block. A local Ray is stopped at its end; from a cluster it only disconnects.

    Raises ClusterError if the address does not answer, or a local Ray does not start.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.update(ENVIRONMENT)
    address = address_of(config)
    with contextlib.nullcontext() if address else _on_loopback():
        _connect(config, address)
        try:
            yield
        finally:
            ray.shutdown()


def _connect(config: ClusterConfig, address: str | None) -> None:
    """To the cluster, or to a new Ray of this machine."""
    options = {
        "runtime_env": {"env_vars": {**ENVIRONMENT, "PYTHONPATH": _import_path()}},
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        **log_options(config),
    }
    try:
        if address:
            check_answer(address)
            ray.init(address=address, **options)
        else:
            _check_free(config.metrics_port)
            own_token()
            use_short_folder()
            ray.init(
                address="local",  # a new Ray, even if a cluster runs on this machine
                num_cpus=config.num_cpus,
                object_store_memory=int(config.object_store_gib * 2**30),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                _metrics_export_port=config.metrics_port,  # Ray binds it to the node's address, like its other ports
                _system_config={"process_group_cleanup_enabled": True},  # a killed engine's processes end with it
                **options,
            )
    except (OSError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        where = address or "a local Ray"
        if _is_about_a_token(error):
            raise no_token(where) from error
        if not address:
            raise ClusterError(
                f"a local Ray did not start: {error}; if it is about a folder, set RAY_TMPDIR to one that is writable"
            ) from error
        raise ClusterError(f"cannot use {where}: {error}; is the cluster up, and the address right?") from error
    except Exception as error:
        if STARTUP_TIMEOUT not in str(error):
            raise
        raise ClusterError("a local Ray did not start within 30 s: this machine is too busy; try again") from error


def log_options(config: ClusterConfig) -> dict[str, Any]:
    """Arguments of ray.init for `cluster.log_format`. With `json`, `logging` of this process and of all that Ray starts
    for it writes a JSON object per line, with job_id, worker_id, node_id, and in an actor actor_id and task_id."""
    return {"logging_config": ray.LoggingConfig(encoding="JSON")} if config.log_format == "json" else {}


def _is_about_a_token(error: BaseException | None) -> bool:
    """Ray reports a refused token only as text, in the cause of the error that it raises."""
    while error is not None:
        if isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in str(error):
            return True
        error = error.__cause__
    return False


@overload
def get(refs: Ref[R], timeout_s: float = ANSWER_WITHIN_S) -> R: ...


@overload
def get(refs: Sequence[Ref[R]], timeout_s: float = ANSWER_WITHIN_S) -> list[R]: ...


def get(refs: Any, timeout_s: float = ANSWER_WITHIN_S) -> Any:
    """`ray.get`, but a user's error from another process is raised with its own type, and no wait is endless. Raises
    NoAnswerError after `timeout_s`."""
    check_may_wait()
    try:
        return ray.get(refs, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError as error:
        raise NoAnswerError(
            f"no answer from a process of the run within {timeout_s:g} s; the logs/ of the run folder may say why; "
            "continue with --resume"
        ) from error
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, SpagError):
            raise error.cause from None
        raise


def set_environment(env: Mapping[str, str]) -> None:
    """Sets environment variables of this process, an engine or a learner rank, before it loads its libraries. A
    runtime_env is not used, because Ray writes its values to its logs. Network interfaces that the variables do not set
    follow from the node's address."""
    set_before_libraries(env)
    use_own_interface(ray.util.get_node_ip_address())


def use_own_interface(address: str) -> None:
    """Makes gloo listen on the interface that Ray uses on this node, instead of the host name's; NCCL too, if that is
    loopback. On a cluster NCCL chooses by itself, because another interface may be faster."""
    import psutil  # installed for a run; a session may lack it

    interfaces = {each.address: name for name, addresses in psutil.net_if_addrs().items() for each in addresses}
    if (interface := interfaces.get(address)) is None:
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if ipaddress.ip_address(address).is_loopback:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def is_gone(error: BaseException) -> bool:
    """Whether the called actor has died or does not answer. A method that failed because of another actor's death also
    raises such an error, but that is a RayTaskError too: the called actor is alive."""
    is_late = isinstance(error, ray.exceptions.GetTimeoutError)
    return is_late or (_is_of_called_actor(error) and not is_unavailable(error))


def is_unavailable(error: BaseException) -> bool:
    """Whether Ray has lost the connection to the called actor, which may be alive, or dead without Ray knowing it yet.
    What was asked may have been done or not. The next call tells: it is answered, or fails because the actor died."""
    return _is_of_called_actor(error) and isinstance(error, ray.exceptions.ActorUnavailableError)


def _is_of_called_actor(error: BaseException) -> bool:
    return isinstance(error, ACTOR_LOST) and not isinstance(error, ray.exceptions.RayTaskError)


class Retry:
    """The pauses before an actor that is unavailable is called again: they grow, and end after `within_s` in all."""

    def __init__(self, within_s: float) -> None:
        self._until = time.monotonic() + within_s
        self._pause_s = FIRST_PAUSE_S

    def pause_s(self) -> float | None:
        """The next pause; None when the time is over."""
        if time.monotonic() >= self._until:
            return None
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        return pause_s


def first_line(error: BaseException | str) -> str:
    """The message of an error, without Ray's stack traces: of one that an actor's method raised, that one's."""
    while isinstance(error, ray.exceptions.RayTaskError) and error.cause is not None:
        error = error.cause
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def is_job() -> bool:
    """Whether this process is the driver of a Ray job."""
    return "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ


def address_of(config: ClusterConfig) -> str | None:
    """The cluster that a run uses: that of `cluster.address`, or the one that this process is a job of; None if the run
    starts a Ray of its own."""
    return config.address or (os.environ.get("RAY_ADDRESS") if is_job() else None)


def redirect_output(log_path: str) -> None:
    """Appends the output of this process, and of the processes that it starts, to a file."""
    path = Path(log_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    log.setLevel(logging.INFO)
    if not logging.getLogger().handlers and not log.handlers:  # with log_format: json Ray has set one
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)


def collect_seldom() -> None:
    """Look for cyclic garbage a hundred times less often, for an actor that holds thousands of games: with Python's
    thresholds an arena of 128 engines spent 30 % of its CPU time on it."""
    gc.freeze()  # modules stay
    gc.set_threshold(70_000, 20, 100)


def use_short_folder() -> None:
    """Makes this process and those that it starts use another temporary folder, if nothing can be written in theirs or
    its path is too long for sockets, as those that SLURM makes are. Raises ClusterError if there is none."""
    for name in ("RAY_TMPDIR", "TMPDIR"):  # Ray takes the first one; vLLM and Python know only the second
        folder = os.environ.get(name)
        if folder is None or _fits(folder):
            continue
        short = next(filter(_fits, SHORT_FOLDERS), None)
        if short is None:
            raise ClusterError(
                f"{name} is {folder}, where no socket can be: its path may have {MAX_FOLDER_BYTES} characters, and it "
                f"must be writable, like one of {', '.join(SHORT_FOLDERS)}; set RAY_TMPDIR and TMPDIR to such a folder"
            )
        log.warning("%s: %s is too long a path for sockets, or not writable; %s is used", name, folder, short)
        os.environ[name] = short
        tempfile.tempdir = None  # Python keeps what it has found first


def _fits(folder: str) -> bool:
    if not 0 < len(os.fsencode(folder)) <= MAX_FOLDER_BYTES:
        return False
    path = Path(folder).absolute()
    try:  # Ray makes what is not there
        there = next(each for each in (path, *path.parents) if each.exists())
        with tempfile.TemporaryDirectory(dir=there):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """For the block this process, and those that Ray starts from it, use 127.0.0.1 as this node's address.

    By default Ray replaces a loopback address by a reachable one and listens on every interface. The switch against
    this is named after the systems where it is the default, and is read when ray is imported. It also forbids `ray
    start --address`, so what is started after the block must not inherit it.
    """
    before = os.environ.get(SWITCH), ray._private.ray_constants.ENABLE_RAY_CLUSTER
    os.environ[SWITCH], ray._private.ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        in_environment, ray._private.ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(SWITCH, None)
        if in_environment is not None:
            os.environ[SWITCH] = in_environment


def _check_free(port: int | None) -> None:
    """Raises ClusterError if the port is in use. Ray itself gives no message then; it ends the node."""
    if port is None:
        return
    with socket.socket() as probe:
        # As Ray binds it: connections of a run that has just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ClusterError(
                f"cluster.metrics_port: {port} cannot be used: {error.strerror}; choose another"
            ) from error


def _import_path() -> str:
    """The folder from which workers import `actors`, `learners`, `cluster` and `spag_ray`."""
    here = str(Path(__file__).resolve().parents[2])
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and part != here]
    return os.pathsep.join([here, *others])


def ray_nodes() -> list[Node]:
    """The nodes that are alive."""
    rows = [row for row in ray.nodes() if row["Alive"]]
    count = Counter(row["NodeManagerAddress"] for row in rows)
    nodes = []
    for row in rows:
        address, has = row["NodeManagerAddress"], row["Resources"]
        name = address if count[address] == 1 else f"{address}/{row['NodeID'][:6]}"
        resources = NodeResources(name, has.get("CPU", 0.0), has.get("GPU", 0.0))
        nodes.append(Node(row["NodeID"], address, resources, int(has.get("object_store_memory", 0))))
    return nodes


def draining_nodes() -> dict[str, float]:
    """{id of a node that Ray will take away: when, in seconds since the epoch, or 0}"""
    return {node: deadline_ms / 1000 for node, deadline_ms in ray._private.state.state.get_draining_nodes().items()}


def node_of(actor: Any) -> str:
    """The id of the node that an actor (its handle) is on; empty if it is on none."""
    row = ray._private.state.actors(actor._actor_id.hex())
    return str(row["Address"]["NodeID"]) if row else ""
