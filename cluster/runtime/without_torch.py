"""Tokenizers in actors that run no model: without torch. It saves 5 s of CPU time and 0.4 GiB of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

import ray

from spag_ray.host.libraries import hidden


def without_torch(games: Iterable[object]) -> contextlib.AbstractContextManager[None]:
    """Imports in this block do without torch. transformers can then load no model in this process, so nothing is hidden
    outside an actor, nor where the code of a user's own game runs, which may have a model."""
    is_actor = ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None
    are_shipped = all(type(each).__module__.split(".")[0] in ("spag_ray", "builtins") for each in games)
    if not (is_actor and are_shipped):
        return contextlib.nullcontext()
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that there are no models
    return hidden("torch")
