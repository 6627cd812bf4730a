"""The league of a run: engines for its opponents, the versions they play, and its records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.endpoint_policy import Endpoint
from actors.league import PAST, League, Opponents, PastVersion, seat_of
from actors.models import resolve_model
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.schedules.seating import Seating
from cluster.tracking.recorder import Recorder
from cluster.types import Seat
from spag_ray.config.opponents import script_of
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.lines import OpponentLine


@dataclass(eq=False)
class LeaguePlay:
    """`start` starts the opponents; `seats` are then their seats, by the names that an arena uses. `at_stage_start`:
    the league's state before the games of the stage under way, which a stage that resumes in its middle records again.

    A version that is dropped stays in league/ as long as the newest checkpoint has it."""

    config: RunConfig
    lease: FolderLease
    policies: Sequence[LearningPolicy]
    publisher: Publisher
    seating: Seating
    recorder: Recorder
    seats: dict[str, Seat] = field(default_factory=dict)
    _past_pools: set[str] = field(default_factory=set)
    _saved: set[int] = field(default_factory=set)  # versions that the newest checkpoint has

    def __post_init__(self) -> None:
        self.league = League(self.config.league, self.config.seed)
        self._folder = self.lease.folder
        self._numbers = self._folder / "league" / "numbers.json"
        if self._numbers.exists():
            self.league.numbers = [(first, by) for first, by in json.loads(self._numbers.read_text(encoding="utf-8"))]
        self.at_stage_start = self.league.as_json()

    def opponents(self) -> Opponents:
        return self.league.opponents(self.config.league.num_past)

    def start(self) -> None:
        """Start engines for every opponent in the configuration."""
        if not self.league.is_open or self.seats:
            return
        temperature, seat = self.config.sampling.temperature, self.seating.engines_of
        for role in Role:
            policy = self.seating.policy_of(role)
            for number in range(self.config.league.num_past):
                opponent = f"past-{number}"
                pool, adapter = self._past_player(policy, opponent)
                if pool not in self._past_pools:
                    # Under the policy's own name its turns would be trained on.
                    stamp, held = PAST + policy.name, self.config.league.num_past if adapter else 0
                    count = self.config.league.num_engines if adapter else 1
                    self.publisher.fleet.start(policy.model, pool, stamp, count, num_adapters=held)
                    self._past_pools.add(pool)
                past = seat(pool, PAST + policy.name, policy.model, temperature, adapter)
                self.seats[seat_of(opponent, role)] = past
        for number, fixed in enumerate(self.config.league.fixed):
            pool = f"fixed-{number}"
            if fixed.has_engine:
                model = resolve_model(fixed.model)
                self.publisher.fleet.start(model, pool, fixed.model, 1)
                player = seat(pool, fixed.model, model, temperature)
            else:
                endpoint = Endpoint.parse(fixed.model) if fixed.is_served else None
                player = self.seating.guest(pool, endpoint, temperature, fixed.model, script_of(fixed.model) or "")
            self.seats |= {seat_of(pool, role): player for role in Role}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go back to a checkpoint's state; None is the beginning."""
        if state is not None:  # the run folder may have been moved
            kept = [past | {"folders": self._folders(past["version"], past["folders"])} for past in state["kept"]]
            state = {**state, "kept": kept}
        self.league.restore(state, lambda past: all(Path(folder).is_dir() for folder in past.folders.values()))
        self.at_stage_start = self.league.as_json()
        self._saved = {past.version for past in self.league.kept}

    def is_saved(self, state: Mapping[str, Any] | None) -> None:
        """A checkpoint with this state is now the newest."""
        self._saved = {past["version"] for past in state["kept"]} if state else set()
        self._remove_dropped()

    def end(self) -> None:
        """The run ends: leave only kept versions on disk. A run that resumes with more rounds drops the others, too."""
        self.is_saved(None)

    def new_version(self, num_trained: int, may_keep: bool = True) -> None:
        """Keep the newest version, which training has made as its `num_trained`-th, if the league wants it, and draw
        past versions for their engines. A version that the league has already, because the run resumes, changes
        nothing: the engines get the past versions that were drawn then. `may_keep`: the learners have its weights."""
        if not self.league.is_open:
            return
        self.lease.check(now=True)
        folder, numbers = self._folder / "league", list(self.league.numbers)
        is_new = self.league.reached(num_trained, self.policies[0].version)
        version = self.league.newest
        assert version is not None
        folder.mkdir(exist_ok=True)
        if numbers != self.league.numbers:  # before any game is played under the new number
            write_atomically(self._numbers, json.dumps(self.league.numbers))
        # Without an adapter its opponents could not answer: adapters are kept from the first version on, and where all
        # that were kept have been removed from the folder.
        is_only = self.config.sends_adapters and self.config.league.num_past > 0 and not self.league.kept
        if may_keep and (is_only or (is_new and self.league.wants(version))):
            shutil.rmtree(folder / f"v{version}", ignore_errors=True)  # of an attempt that ended meanwhile
            folders = self._folders(version, [policy.name for policy in self.policies])
            self.publisher.wake_learners()  # they sleep since the version was published, if they share GPUs
            for policy in self.policies:
                policy.save_to(Path(folders[policy.name]), self.config.sends_adapters)
            self.publisher.wake_engines()
            self.league.keep(PastVersion(version, folders))
        drawn: dict[str, dict[str | None, tuple[str, int]]] = {}
        for number, past in enumerate(self.league.draw(self.config.league.num_past, again=not is_new)):
            for policy in self.policies:
                pool, adapter = self._past_player(policy, f"past-{number}")
                drawn.setdefault(pool, {})[adapter] = past.folders[policy.name], self.league.number_of(past.version)
            self.recorder.record(OpponentLine(f"past-{number}", self.league.number_of(past.version)))
        for pool, saved in drawn.items():
            self.publisher.give(pool, saved)
        self._remove_dropped()  # no engine will load them again
        self.at_stage_start = self.league.as_json()
        found = json.dumps(self.league.summary(), indent=1) + "\n"
        write_atomically(self._folder / "league.json", found)

    def _folders(self, version: int, policies: Iterable[str]) -> dict[str, str]:
        return {name: str(self._folder / "league" / f"v{version}" / name) for name in policies}

    def _remove_dropped(self) -> None:
        """Remove the folders of versions that neither the league nor the newest checkpoint has."""
        needed = {f"v{version}" for version in self._saved | {past.version for past in self.league.kept}}
        for folder in (self._folder / "league").glob("v[0-9]*"):
            if folder.name not in needed:
                shutil.rmtree(folder)

    def _past_player(self, policy: LearningPolicy, opponent: str) -> tuple[str, str | None]:
        """(pool, adapter) of a past version: all are adapters in one pool, or whole models in a pool each."""
        if self.config.sends_adapters:
            return f"{policy.name}-past", opponent
        return f"{policy.name}-{opponent}", None
