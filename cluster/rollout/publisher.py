"""Sends the learners' weights to the engines. When both use the same devices, one sleeps while the other works."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.arenas import Arenas
from cluster.rollout.engines import Engines
from spag_ray.config.run import RunConfig
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically

PUBLISHED = "published.json"


class Publisher:
    """The publisher of one run. If `placement` is not `colocated`, nothing sleeps."""

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
        self._policies = policies
        self._engines = engines
        self._arenas = arenas

    def start_learners(self) -> None:
        """If colocated, learners sleep and engines are awake when this returns."""
        if self._takes_turns:
            self._engines.sleep()
        for policy in self._policies:
            policy.start_learners()
            if self._takes_turns:
                policy.sleep_learners()  # to free the memory for the next policy's learners
        self.wake_engines()

    def wake_engines(self) -> None:
        """If colocated, put the learners to sleep and wake the engines."""
        if self._takes_turns:
            for policy in self._policies:
                policy.sleep_learners()
            self._engines.wake()
            self._engines.replace_missing()

    def wake_learners(self) -> None:
        """If colocated, put the engines to sleep, until `publish` or `wake_engines`, and wake the learners."""
        if self._takes_turns:
            self._engines.sleep()
            for policy in self._policies:
                policy.wake_learners()

    def publish(self) -> None:
        """Send the learners' weights to the engines. If colocated, learners export before they sleep, and engines wake
        before they load; if learners send weights themselves, both hold weights during the transfer."""
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
        self._engines.replace_missing()

    def admit(self) -> None:
        """Send weights to engines that wait for them, if the learner can send now."""
        with self._engines.lock:
            for policy in self._policies:
                for engine in policy.admit():
                    self._engines.joined(policy, engine)

    def published(self) -> dict[str, int]:
        """{policy: the newest version that engines were given, or were about to be}, in any attempt of the run."""
        return published_in(self._lease.folder)

    def _note(self, versions: Mapping[str, int]) -> None:
        """Record versions before engines get them, so that no version number is used twice."""
        self._lease.check(now=True)
        write_atomically(self._lease.folder / PUBLISHED, json.dumps(dict(versions)))


def published_in(folder: Path) -> dict[str, int]:
    """{policy: the newest version that a run folder's engines were given, or were about to be}"""
    path = folder / PUBLISHED
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
