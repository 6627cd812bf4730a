"""What a run does on nodes that Ray is about to take away (a spot machine's notice, an autoscaler's decision).

    an engine's node       the engine finishes its turns and leaves; a planned one comes back when the node is gone
    a learner rank's node  the run writes a checkpoint at the next point where it can

An engine whose games no other can take plays on until its node ends, and is then replaced like a dead one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from cluster.fleet.fleet import Fleet
from cluster.fleet.roster import EngineRecord
from cluster.learning.learning_policy import LearningPolicy
from cluster.runtime.ray_session import draining_nodes, node_of, ray_nodes
from cluster.types import Engine

LEAVE_WITHIN_S = 120.0  # where Ray gives no deadline
MARGIN_S = 5.0


@dataclass(eq=False)
class DrainedNodes:
    """Call `poll` again and again. `save_soon` asks for a checkpoint."""

    fleet: Fleet
    policies: Sequence[LearningPolicy]
    save_soon: Callable[[], None]
    note: Callable[[str], None]
    _saved_for: set[str] = field(default_factory=set)

    def poll(self) -> None:
        draining = draining_nodes()
        if not draining:
            return
        self._save_for(draining)
        with self.fleet.roster.lock:
            up = [(each, each.process) for each in self.fleet.roster.records if each.is_up]
        on_nodes = [(record, engine, node_of(engine.handle)) for record, engine in up]
        staying = {
            each.pool for each, _, node in on_nodes if node not in draining and each.may_play and not each.leaving
        }
        for record, engine, node in on_nodes:
            if node in draining and record.pool in staying:
                leave = partial(self._leave, record, engine, node, draining[node])
                self.fleet.tasks.start(f"leave-{engine.name}", leave)

    def _save_for(self, draining: Mapping[str, float]) -> None:
        groups = [policy.learners for policy in self.policies if policy.learners is not None]
        nodes = {node for group in groups for node in group.nodes} & draining.keys()
        if nodes - self._saved_for:
            self._saved_for |= nodes
            self.note(f"node {min(nodes)[:6]} of a learner is drained: a checkpoint is written as soon as it can be")
            self.save_soon()

    def _leave(self, record: EngineRecord, engine: Engine, node: str, deadline: float) -> None:
        """`deadline`: seconds since the epoch; 0 if there is none. A second call for the same engine does nothing: it
        is lost from the first one on."""
        within_s = max(0.0, deadline - time.time() - MARGIN_S) if deadline else LEAVE_WITHIN_S
        has_left = self.fleet.move_off(record, engine, f"its node {node[:6]} is drained", within_s)
        if record.is_extra or not has_left:
            return
        while node in {each.node_id for each in ray_nodes()} and not self.fleet.tasks.is_stopped:
            time.sleep(1.0)
        self.fleet.replace(record)
