"""The learners' weights to the engines; and where both use the same devices, who sleeps while the other works."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.arenas import Arenas
from cluster.rollout.engines import Engines
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import write_atomically
from spag_ray.host.folder_lease import FolderLease


class Publisher:
    """Of one run. Where `placement` is not `colocated`, nobody sleeps."""

    def __init__(
        self,
        config: RunConfig,
        lease: FolderLease,
        policies: Sequence[LearningPolicy],
        engines: Engines,
        arenas: Arenas,
    ) -> None:
        self._takes_turns = config.placement == "colocated"
        self._is_direct = config.sync.channel != "object_store"
        self._lease = lease
        self._path = lease.folder / "published.json"
        self._policies = policies
        self._engines = engines
        self._arenas = arenas

    def start_learners(self) -> None:
        """Colocated, they sleep when this returns, and the engines are awake."""
        if self._takes_turns:
            self._engines.sleep()
        for policy in self._policies:
            policy.start_learners()
            if self._takes_turns:
                policy.sleep_learners()  # before the next one's need the room
        self.wake_engines()

    def wake_engines(self) -> None:
        """Colocated, learners sleep meanwhile."""
        if self._takes_turns:
            for policy in self._policies:
                policy.sleep_learners()
            self._engines.wake()

    def wake_learners(self) -> None:
        """Colocated, engines sleep meanwhile, until `publish` or `wake_engines`."""
        if self._takes_turns:
            self._engines.sleep()
            for policy in self._policies:
                policy.wake_learners()

    def publish(self) -> None:
        """The learners' weights to the engines. Colocated, weights leave the learners before they sleep, and engines
        are awake before they take them; where learners send weights themselves, both have to hold weights meanwhile."""
        self._note({policy.name: policy.next_version for policy in self._policies})
        with self._engines.lock:
            for policy in self._policies:
                policy.export()
            if self._takes_turns:
                for policy in self._policies:
                    policy.sleep_learners(keep_weights=self._is_direct)
                self._engines.wake("weights" if self._is_direct else "all")
            for policy in self._policies:
                joining = list(policy.waiting)
                self._engines.lost(policy.name, policy.publish(self._arenas))
                for engine in set(joining) & set(policy.engines):
                    self._engines.joined(policy, engine)
            if self._takes_turns and self._is_direct:
                for policy in self._policies:
                    policy.sleep_learners()
                self._engines.wake("kv_cache")
            for policy in self._policies:
                self._engines.lost(policy.name, policy.verify_weights())

    def admit(self) -> None:
        """Engines that wait for weights get them, where the learner can send them now."""
        with self._engines.lock:
            for policy in self._policies:
                for engine in policy.admit():
                    self._engines.joined(policy, engine)

    def published(self) -> dict[str, int]:
        """{policy: the newest version that engines were given, or were about to be}, in any life of the run."""
        found: dict[str, int] = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        return found

    def _note(self, versions: Mapping[str, int]) -> None:
        """Engines are about to be given these: none of them is used again, whatever happens."""
        self._lease.check(now=True)
        write_atomically(self._path, json.dumps(dict(versions)))
