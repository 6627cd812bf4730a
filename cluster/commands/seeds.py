"""`spag-ray train --seeds`: the same run with several seeds, and the table over them.

    seeds_of("0-2,7")                     (0, 1, 2, 7)
    run_seeds(SeedRuns(...), console)     RUN_DIR/seed-0, RUN_DIR/seed-1, ...: each an ordinary run folder

Each run is a process of its own, so that one that fails leaves the others alone. Where each starts a Ray on this
machine, they run one after another. On a cluster as many run at a time as have room in what is free at the start.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from cluster.launch.jobs import check_run_dir
from cluster.monitor.comparison import print_comparison
from cluster.monitor.terminal import say
from cluster.planning.reservation import bundles_of, node_uses, num_that_fit
from cluster.runtime.ray_session import address_of, is_job, ray_session
from cluster.runtime.run_folder import check_can_be_made, check_continues, is_finished, with_kept_dtypes
from cluster.runtime.stop_notice import notice_to_stop
from cluster.types import NodeResources
from spag_ray.config.loading import find_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, SpagError, StopRequestedError

SEED = "{seed}"  # in an override
MAX_SEEDS = 1000  # a slip of the keyboard asks for more
LOOK_EVERY_S = 0.2
_say = partial(say, highlight=False)
# `python -m spag_ray`, but a run gets a SIGTERM if this process is killed: nobody else would stop it.
_CHILD = (
    "import signal, sys; from spag_ray.host.processes import end_with; end_with(int(sys.argv.pop(1)), "
    "signal.SIGTERM); from spag_ray.__main__ import main; main()"
)


class SeedsError(SpagError):
    """Not all seeds have finished; those that have not can be continued."""


@dataclass(frozen=True)
class SeedRuns:
    """What was asked for: the configuration and its overrides as they were given, what they are for each seed, and the
    folder that gets a run folder for each. `resume`: continue those that are there. `seeds`: which, as they were given.
    """

    config: str
    overrides: tuple[str, ...]
    configs: Mapping[int, RunConfig]
    folder: Path
    resume: bool = False
    seeds: str = ""

    def folder_of(self, seed: int) -> Path:
        return self.folder / f"seed-{seed}"


def seeds_of(text: str, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """The seeds that `--seeds` names, in its order. Raises ConfigError for anything but distinct numbers and ranges,
    and for an override that sets the seed, too.

    >>> seeds_of("0-2,7")
    (0, 1, 2, 7)
    """
    for override in overrides:
        if override.partition("=")[0].strip() == "seed":
            raise ConfigError(f"--seeds gives each run its seed: leave out -o {override}")
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part.strip())
        if found is None:
            raise ConfigError(f"--seeds {text}: {part.strip()!r} is no seed and no range; write 0-3 or 1,2,5 or 0-2,7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise ConfigError(f"--seeds {text}: the range {part.strip()} is empty; write {last}-{first}")
        if len(seeds) + last - first >= MAX_SEEDS:
            raise ConfigError(f"--seeds {text}: these are more than {MAX_SEEDS} runs; ask for fewer")
        seeds += range(first, last + 1)
    if twice := [seed for place, seed in enumerate(seeds) if seed in seeds[:place]]:
        raise ConfigError(f"--seeds {text}: seed {twice[0]} is named twice; name each once")
    return tuple(seeds)


def with_seed(overrides: Sequence[str], seed: int) -> list[str]:
    """The overrides of this seed's run, which have it in place of {seed}.

    >>> with_seed(["model=runs/a/seed-{seed}"], 2)
    ['model=runs/a/seed-2', 'seed=2']
    """
    return [*(each.replace(SEED, str(seed)) for each in overrides), f"seed={seed}"]


def check_same_for_all(overrides: Sequence[str]) -> None:
    """Raises ConfigError for one that differs between seeds: a job is sent one configuration."""
    for override in overrides:
        if SEED in override:
            raise ConfigError(
                f"-o {override}: a job has one configuration for all of its seeds; submit each seed, or let "
                "`spag-ray train --seeds` run them from a machine of the cluster (cluster.address)"
            )


def plan_of_seeds(seeds: Sequence[int], config: RunConfig, overrides: Sequence[str]) -> str:
    """What `--dry-run` says of them, if `config` is that of the first. No cluster is asked."""
    which = f"like this plan of seed {seeds[0]}" if any(SEED in each for each in overrides) else "of this plan"
    told = f"{_count(len(seeds))} {which}, with seed {', '.join(map(str, seeds))}"
    if (address := address_of(config.cluster)) is None:
        return f"{told}: one after another, because each starts a Ray of its own on this machine."
    cpus, gpus = (sum(getattr(each, unit) for each in bundles_of(config)) for unit in ("num_cpus", "num_gpus"))
    return (
        f"{told}: as many at a time as fit into what is free at {address} when they start; each reserves {cpus:g} CPUs "
        f"and {gpus:g} GPUs. The cluster was not asked."
    )


def run_seeds(asked: SeedRuns, console: Console) -> None:
    """`spag-ray train --seeds`: runs what has not finished yet, and prints the table over all that have.

    Raises RunFolderError before anything starts if one of the folders cannot be used; StopRequestedError after a
    request to stop; SeedsError if a run has failed or was stopped.
    """
    if is_job():
        check_run_dir(asked.folder)
    waiting = [seed for seed, config in asked.configs.items() if not _has_finished(asked, config)]
    for seed in asked.configs:
        if seed not in waiting:
            _say(console, f"seed-{seed} has finished already")
    at_once = min(_most_at_once(asked.configs[waiting[0]], len(waiting)), len(waiting)) if waiting else 0
    if waiting:
        how = "one after another" if at_once == 1 else f"{at_once} at a time"
        _say(console, f"{_count(len(waiting))} in {asked.folder}{'' if len(waiting) == 1 else f', {how}'}")
    # A copy: whoever edits the file meanwhile does not change the runs that have not started.
    with tempfile.TemporaryDirectory(prefix="spag-ray-seeds-") as kept, notice_to_stop() as notice:
        file = Path(shutil.copy(find_config(asked.config), kept))
        unfinished = _Processes(asked, file, console, notice).run(waiting, at_once)
    finished = [asked.folder_of(seed) for seed in asked.configs if seed not in unfinished]
    try:
        if finished:
            print_comparison(finished, [])
    except InputError as error:  # somebody has emptied a folder; that is no fault of the runs
        _say(console, f"no table: {error}")
    _raise_for(unfinished, asked, bool(notice))


def _has_finished(asked: SeedRuns, config: RunConfig) -> bool:
    """Raises RunFolderError if the folder of this seed cannot be made, or not be continued."""
    folder = asked.folder_of(config.seed)
    if not (asked.resume and folder.exists()):
        check_can_be_made(folder)
        return False
    its = with_kept_dtypes(config, folder)
    check_continues(folder, its)  # a finished one, too: the table is over runs of one configuration
    return is_finished(folder, its)


def _most_at_once(config: RunConfig, num_runs: int) -> int:
    """How many runs have room at the same time; at least 1, which waits for its room like any run."""
    if num_runs < 2 or address_of(config.cluster) is None:
        return 1
    with ray_session(config.cluster):
        free = [NodeResources(use.has.name, use.free_cpus, use.free_gpus) for use in node_uses()]
    return max(1, num_that_fit(config, free, num_runs))


@dataclass
class _Processes:
    """The runs as processes. `file`: the configuration; `notice`: see notice_to_stop."""

    asked: SeedRuns
    file: Path
    console: Console
    notice: Sequence[float]
    running: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    readers: dict[int, threading.Thread] = field(default_factory=dict)

    def run(self, waiting: Sequence[int], at_once: int) -> dict[int, str]:
        """Returns what became of each seed that has not finished. Raises KeyboardInterrupt after a second Ctrl-C."""
        left = list(waiting)
        unfinished: dict[int, str] = {}
        is_told = False
        try:
            while self.running or (left and not self.notice):
                while left and len(self.running) < at_once and not self.notice:
                    self._start(left.pop(0), has_prefix=at_once > 1)
                if self.notice and not is_told:
                    is_told = True
                    self._send(signal.SIGTERM)
                unfinished |= self._ended()
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            self._send(signal.SIGINT)  # their second notice: they end at once
            for process in self.running.values():
                process.wait()
            raise
        return unfinished | dict.fromkeys(left, "was not started")

    def _start(self, seed: int, has_prefix: bool) -> None:
        folder = self.asked.folder_of(seed)
        _say(self.console, f"seed-{seed} {'resumes' if folder.exists() else 'starts'}")
        overrides = [part for each in with_seed(self.asked.overrides, seed) for part in ("-o", each)]
        arguments = ["train", str(self.file), "--run-dir", str(folder), *overrides]
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(os.getpid()), *arguments, *(["--resume"] if self.asked.resume else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if has_prefix else None,
            stderr=subprocess.STDOUT if has_prefix else None,
            text=True,
            errors="replace",
            process_group=0,  # else a Ctrl-C would reach it twice, from the terminal and from here
        )
        self.running[seed] = process
        if has_prefix:
            self.readers[seed] = threading.Thread(target=self._show, args=(seed, process), daemon=True)
            self.readers[seed].start()

    def _show(self, seed: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            # Whoever reads what is printed here may have gone. A pipe that nobody empties would halt the run.
            with contextlib.suppress(Exception, SystemExit):
                _say(self.console, f"seed-{seed}: {line.rstrip()}")

    def _send(self, number: signal.Signals) -> None:
        for process in self.running.values():
            process.send_signal(number)

    def _ended(self) -> dict[int, str]:
        """Lets go of the processes that have ended; what became of those that have not finished."""
        unfinished = {}
        for seed, process in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[seed]
            if (reader := self.readers.pop(seed, None)) is not None:
                reader.join(timeout=10)  # bounded: a process that it has left behind may hold the pipe
            if is_finished(self.asked.folder_of(seed), self.asked.configs[seed]):
                _say(self.console, f"seed-{seed} has finished")
                continue
            # A run that was asked to stop ends with 0, or by the signal if it has hardly started: Python's way of
            # telling it, or Ray's, whose handler exits with the signal's number.
            is_stopped = code == 0 or (bool(self.notice) and code in (-signal.SIGTERM, signal.SIGTERM))
            unfinished[seed] = "was stopped" if is_stopped else f"failed ({_exit_of(code)})"
            _say(self.console, f"seed-{seed} {unfinished[seed]}")
        return unfinished


def _raise_for(unfinished: Mapping[int, str], asked: SeedRuns, is_stopped: bool) -> None:
    if not unfinished:
        return
    told_overrides = [each for each in asked.overrides if not _may_be_secret(each)]
    overrides = [part for each in told_overrides for part in ("-o", each)]
    command = ["train", asked.config, *overrides]
    if is_job():  # the configuration here is a copy that ends with the job
        command = ["submit", "..."]
    command += ["--seeds", asked.seeds, "--run-dir", str(asked.folder)]
    told = ", ".join(f"seed-{seed} {became}" for seed, became in sorted(unfinished.items()))
    has_failed = any(became.startswith("failed") for became in unfinished.values())
    error = StopRequestedError if is_stopped and not has_failed else SeedsError
    more = "" if len(told_overrides) == len(asked.overrides) else ", with your -o of environment variables"
    raise error(f"{told}; to continue: spag-ray {shlex.join(command)} --resume{more}")


def _may_be_secret(override: str) -> bool:
    """Whether KEY=VALUE has values of environment variables, which belong in no log.

    >>> _may_be_secret("learner.env.TOKEN=abc"), _may_be_secret("engine={env: {A: b}}"), _may_be_secret("seed=1")
    (True, True, False)
    """
    key, _, value = override.partition("=")
    part, _, rest = key.strip().partition(".")
    return part in ("engine", "learner") and (rest.split(".")[0] == "env" or (not rest and "env" in value))


def _exit_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


def _count(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"
