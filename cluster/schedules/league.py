"""The league of a run: engines for its opponents, the versions they play, and its records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.endpoint_policy import Endpoint
from actors.league import PAST, League, Opponents, PastVersion, seat_of
from actors.models import resolve_model
from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.engines import Engines
from cluster.schedules.seating import Seating
from cluster.tracking.recorder import Recorder
from cluster.types import Seat
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Role
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.lines import OpponentLine


class LeaguePlay:
    """`start` starts the opponents; `seats` are then their seats, by the names that an arena uses."""

    def __init__(
        self,
        config: RunConfig,
        lease: FolderLease,
        policies: Sequence[LearningPolicy],
        engines: Engines,
        seating: Seating,
        recorder: Recorder,
    ) -> None:
        self.league = League(config.league, config.seed)
        self.seats: dict[str, Seat] = {}
        self._config = config.league
        self._temperature = config.sampling.temperature
        self._lease = lease
        self._folder = lease.folder
        self._policies = policies
        self._engines = engines
        self._seating = seating
        self._recorder = recorder
        self._num_past = self._config.num_past
        self._has_adapters = config.sends_adapters
        self._past_pools: set[str] = set()

    def opponents(self) -> Opponents:
        return self.league.opponents(self._num_past)

    def start(self) -> None:
        """Start engines for every opponent in the configuration."""
        if not self.league.is_open or self.seats:
            return
        temperature, seat = self._temperature, self._seating.engines_of
        for role in Role:
            policy = self._seating.policy_of(role)
            for number in range(self._num_past):
                opponent = f"past-{number}"
                pool, adapter = self._past_player(policy, opponent)
                if pool not in self._past_pools:
                    # Under the policy's own name its turns would be trained on.
                    stamp, held = PAST + policy.name, self._num_past if adapter else 0
                    count = self._config.num_engines if adapter else 1
                    self._engines.start(policy.model, pool, stamp, count, num_adapters=held)
                    self._past_pools.add(pool)
                past = seat(pool, PAST + policy.name, policy.model, temperature, adapter)
                self.seats[seat_of(opponent, role)] = past
        for number, fixed in enumerate(self._config.fixed):
            pool = f"fixed-{number}"
            if fixed.has_engine:
                model = resolve_model(fixed.model)
                self._engines.start(model, pool, fixed.model, 1)
                player = seat(pool, fixed.model, model, temperature)
            else:
                endpoint = Endpoint.parse(fixed.model) if fixed.is_served else None
                player = self._seating.guest(pool, endpoint, temperature, fixed.model)
            self.seats |= {seat_of(pool, role): player for role in Role}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go back to a checkpoint's state; None is the beginning."""
        empty: dict[str, Any] = {"kept": [], "games": [], "draws": 0}
        self.league.restore(state or empty, lambda past: all(Path(folder).is_dir() for folder in past.folders.values()))

    def new_version(self) -> None:
        """Keep the newest version if the league wants it, and draw new versions for the past engines."""
        if not self.league.is_open:
            return
        self._lease.check(now=True)
        version = self._policies[0].version
        folder, dropped = self._folder / "league", []
        # Without an adapter its opponents could not answer: adapters are kept from the first version on.
        is_first = self._has_adapters and self._num_past > 0 and not self.league.kept
        if is_first or self.league.wants(version):
            folders = {
                policy.name: policy.save_to(folder / f"v{version}" / policy.name, self._has_adapters)
                for policy in self._policies
            }
            dropped = self.league.keep(PastVersion(version, folders))
        drawn: dict[str, dict[str | None, tuple[str, int]]] = {}
        for number, past in enumerate(self.league.draw(self._num_past)):
            for policy in self._policies:
                pool, adapter = self._past_player(policy, f"past-{number}")
                drawn.setdefault(pool, {})[adapter] = past.folders[policy.name], past.version
            self._recorder.record(OpponentLine(f"past-{number}", past.version))
        for pool, saved in drawn.items():
            self._engines.give(pool, saved)
        for old in dropped:  # no engine will load it again
            shutil.rmtree(folder / f"v{old.version}")
        found = json.dumps(self.league.summary(), indent=1) + "\n"
        write_atomically(self._folder / "league.json", found)

    def _past_player(self, policy: LearningPolicy, opponent: str) -> tuple[str, str | None]:
        """(pool, adapter) of a past version: all are adapters in one pool, or whole models in a pool each."""
        if self._has_adapters:
            return f"{policy.name}-past", opponent
        return f"{policy.name}-{opponent}", None

    def record(self, episodes: Iterable[Episode]) -> None:
        self.league.record(episodes)
