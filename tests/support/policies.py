"""What policies are asked, and weights for them."""

from pathlib import Path
from typing import Any

from actors.models import saved_snapshot
from actors.policy import Request, Sampling
from spag_ray.weights.snapshot import Snapshot

PROMPT = (1, 40, 5, 6, 7, 2, 1, 39)
GREEDY = Sampling(temperature=0.0, max_new_tokens=12, stop_token_ids=(2,))


def snapshot_of(folder: Path, version: int, max_bytes: int = 20_000) -> Snapshot:
    """The weights of a model folder as buckets, cut as a learner cuts them."""
    parts: Any = saved_snapshot(folder, version, max_bytes).parts
    return Snapshot.of(version, [part() for part in parts])


def ask(name: str) -> Request:
    return Request(name, PROMPT, GREEDY)
