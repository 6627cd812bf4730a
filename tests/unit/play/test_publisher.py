"""How weights reach engines, and who sleeps meanwhile; what the fleet makes of it is in test_fleet.py."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.policy import WakePart
from cluster.fleet.publisher import Publisher, published_in
from spag_ray.config.loading import parse_config
from spag_ray.host.folder_lease import FolderLease


@pytest.mark.parametrize(
    ("channel", "taken"),
    [
        ("object_store", ["export", "learner sleeps", "engines wake all", "publish", "verify_weights"]),
        (
            "ipc",
            [
                "export", "learner sleeps but for its weights", "engines wake weights", "publish",
                "learner sleeps", "engines wake kv_cache", "verify_weights",
            ],
        ),
    ],
)  # fmt: skip
def test_colocated_one_sleeps_while_the_other_works_and_both_hold_weights_only_where_the_channel_needs_it(
    channel: str, taken: list[str], tmp_path: Path
) -> None:
    events: list[str] = []

    def does(name: str) -> Any:
        def done(*_: Any) -> list[Any]:
            events.append(name)
            return []

        return done

    def sleeps(keep_weights: bool = False) -> None:
        events.append("learner sleeps but for its weights" if keep_weights else "learner sleeps")

    policy: Any = SimpleNamespace(
        name="policy",
        version=1,
        next_version=1,
        **{name: does(name) for name in ("learn", "export", "publish", "verify_weights")},
        wake_learners=does("learner wakes"),
        sleep_learners=sleeps,
    )
    fleet: Any = SimpleNamespace(
        updating=threading.RLock(),
        roster=SimpleNamespace(of_learner=lambda *_: [], lock=threading.RLock(), records=[]),
        tasks=SimpleNamespace(is_stopped=False),
        lose=lambda lost: None,
        joined=lambda records, version: None,
    )
    lease, arenas = FolderLease.take(tmp_path), SimpleNamespace()

    class Watched(Publisher):
        def sleep_engines(self) -> None:
            events.append("engines sleep")

        def _wake(self, part: WakePart = "all") -> None:
            events.append(f"engines wake {part}")

    def learn_and_publish(placement: str) -> None:
        config = parse_config({"placement": placement, "sync": {"channel": "object_store"}})
        sync = config.sync.model_copy(update={"channel": channel})
        config = config.model_copy(update={"sync": sync})
        publisher = Watched(config, lease, [policy], fleet, cast(Any, arenas))
        publisher.wake_learners()
        policy.learn()
        publisher.publish()
        assert published_in(tmp_path) == {"policy": 1}

    learn_and_publish("colocated")
    assert events == ["engines sleep", "learner wakes", "learn", *taken]
    events.clear()
    learn_and_publish("separate")
    assert events == ["learn", "export", "publish", "verify_weights"]
