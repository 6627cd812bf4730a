"""What engines cost that have nothing to say: `python -m benchmarks.scale --part idle`.

448 simulated engines, 8 arenas. Every engine has turns under way, and none is answered, so what is left are the calls
that wait for answers and the heartbeats. The driver takes the Run's place: it watches all engines.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from benchmarks.scale import Plane
from cluster.fleet.heartbeats import Heartbeats
from cluster.runtime.ray_session import ray_session
from cluster.supervision.actor_watch import BEAT_S
from cluster.supervision.tasks import Tasks
from cluster.types import Engine
from spag_ray.config.parts import ClusterConfig, StreamConfig, SupervisionConfig

NUM_ENGINES = 448
NUM_ARENAS = 8
GAMES_PER_ENGINE = 2
TURN_S = 3600.0
SECONDS = 30.0


def idle() -> dict[str, Any]:
    """CPU seconds a second of the arenas, the Run's watch, the buffer, Ray, and the engines' processes."""
    games = NUM_ENGINES * GAMES_PER_ENGINE
    with ray_session(ClusterConfig(object_store_gib=0.5)):
        plane = Plane(NUM_ENGINES, NUM_ARENAS, StreamConfig(games_per_version=games, max_lag=4), games, TURN_S)
        watched: list[Engine] = []
        tasks = Tasks()
        tasks.every(
            BEAT_S, Heartbeats(SupervisionConfig(), lambda: watched, lambda name, fault: None).poll, "heartbeats"
        )
        time.sleep(1.5)
        alone = cores(plane, 5.0)["driver"]  # the driver's own, with no engine to watch
        watched += plane.engines
        while sum(ray.get([process.num_pending.remote() for process in plane.processes])) < games:
            time.sleep(0.5)
        time.sleep(5.0)
        used = cores(plane, SECONDS)
        tasks.stop()
        tasks.check()
        plane.close()
    driver = used.pop("driver")
    engines = used.pop("engines")
    return {
        "engines": NUM_ENGINES,
        "arenas": NUM_ARENAS,
        "heartbeats_cores": round(driver - alone, 3),
        **{f"{kind}_cores": round(share, 3) for kind, share in sorted(used.items())},
        "control_plane_cores": round(driver + used["arenas"] + used["buffer"], 3),
        "simulated_engines_cores": round(engines, 3),
    }


def cores(plane: Plane, seconds: float) -> dict[str, float]:
    """CPU seconds a second of each kind of process."""
    before, began = plane.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    window = time.perf_counter() - began
    return {kind: (used - before.get(kind, 0.0)) / window for kind, used in plane.cpu_s().items()}
