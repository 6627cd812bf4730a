"""The league of a run: engines for its opponents, the versions they play, and what is written down of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.league import PAST, League, Opponents, PastVersion, seat_of
from actors.models import resolve_model
from cluster.arena_actor import Engine, Seat
from cluster.runtime import get
from spag_ray.episode import Episode
from spag_ray.game import Role

if TYPE_CHECKING:
    from cluster.run import Run


class LeaguePlay:
    """Opponents are started by `start`; `seats` are then what an arena knows them as."""

    def __init__(self, run: Run) -> None:
        self.league = League(run.config.league, run.config.seed)
        self.seats: dict[str, Seat] = {}
        self._run = run
        self._config = run.config.league
        self._num_past = self._config.num_engines if self._config.past_share else 0
        self._past_engines: dict[str, list[Engine]] = {}

    def opponents(self) -> Opponents:
        return self.league.opponents(self._num_past)

    def start(self) -> None:
        """Engines for everybody that the configuration names."""
        if not self.league.is_open or self.seats:
            return
        run = self._run
        temperature = run.config.sampling.temperature
        for role in Role:
            policy = run.policy_of(role)
            for number in range(self._num_past):
                pool = f"{policy.name}-past-{number}"
                if pool not in self._past_engines:
                    # Under the policy's own name its turns would be learned.
                    self._past_engines[pool] = run.engines.start(policy.model, pool, PAST + policy.name, 1)
                seat = run.seat(pool, PAST + policy.name, policy.model, temperature)
                self.seats[seat_of(f"past-{number}", role)] = seat
        for number, fixed in enumerate(self._config.fixed):
            pool, model = f"fixed-{number}", resolve_model(fixed.model)
            run.engines.start(model, pool, fixed.model, 1)
            for role in Role:
                self.seats[seat_of(pool, role)] = run.seat(pool, fixed.model, model, temperature)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Be as a checkpoint says; None is the beginning."""
        empty: dict[str, Any] = {"kept": [], "games": [], "draws": 0}
        self.league.restore(state or empty, lambda past: all(Path(folder).is_dir() for folder in past.folders.values()))

    def new_version(self) -> None:
        """Keep the newest version if it is wanted, and give the engines of past versions others to play."""
        if not self.league.is_open:
            return
        run = self._run
        if self.league.wants(run.version):
            folder = run.folder / "league"
            folders = {p.name: p.save_to(folder / f"v{run.version}" / p.name) for p in run.policies}
            for dropped in self.league.keep(PastVersion(run.version, folders)):
                shutil.rmtree(folder / f"v{dropped.version}")
        for number, past in enumerate(self.league.draw(self._num_past)):
            for policy in run.policies:
                for engine in self._past_engines[f"{policy.name}-past-{number}"]:
                    run.arenas.drain(engine)
                    get(engine.handle.load_saved.remote(past.folders[policy.name], past.version))
                    run.arenas.reopen(engine)
                    run.engines.gave(engine, past.folders[policy.name], past.version)
            run.metrics.record("opponent", place=f"past-{number}", version=past.version)
        found = json.dumps(self.league.as_json(), indent=1) + "\n"
        (run.folder / "league.json").write_text(found, encoding="utf-8")

    def record(self, episodes: Iterable[Episode]) -> None:
        self.league.record(episodes)
