"""Tasks of lm-evaluation-harness by their names: found, loaded without a network, evaluated with a model.

    shelf = Shelf(include_path=None)
    task = shelf.load("spag_reasoning", num_fewshot=None)
    rows = evaluate(model, task, "spag-1", limit=None, apply_chat_template=False)

Names are searched in configs/tasks/, in a folder of the user, and in the harness itself (13,000 files: some
seconds). The harness is imported only when used, because it is an extra and takes a second and 0.1 GiB.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag_ray.config.loading import config_root
from spag_ray.errors import ConfigError, InputError, extra, nearest
from spag_ray.results.evaluations import Evaluation

NUMPY_SEED = FEWSHOT_SEED = 1234  # the same as on the harness's command line
MIN_CONTEXT = 64  # tokens; a question needs at least this many
_HUB_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE")


def harness_environment(download: bool) -> dict[str, str]:
    """Environment of a process that loads tasks, set before imports; `download`: data sets may come from the hub."""
    hub = dict.fromkeys(_HUB_SWITCHES, "0" if download else "1")
    return {**hub, "TQDM_DISABLE": "1", "LMEVAL_DISABLE_MULTIPROC": "1"}


@dataclass(frozen=True)
class LoadedTask:
    """`loaded` is what the harness's evaluate takes: a task, a group's tasks, or those of a tag."""

    name: str
    loaded: Mapping[str, Any]

    @property
    def row_names(self) -> list[str]:
        """Names of the reported rows: the group, if it has a score of its own, else the tasks."""
        groups, tasks = self.loaded.get("groups", {}), self.loaded["tasks"]
        if self.name in groups and groups[self.name].has_aggregation:
            return [self.name]
        return sorted(tasks)

    def check(self, tokenizer: Any, max_model_len: int) -> None:
        """Refuse tasks with generation options that engines do not support."""
        from actors.lm_eval_model import sampling_of

        for task in self.loaded["tasks"].values():
            if task.get_config("output_type") != "generate_until":
                continue
            sampling, _ = sampling_of(task.get_config("generation_kwargs") or {}, 0, tokenizer)
            if sampling.max_new_tokens > max_model_len - MIN_CONTEXT:
                raise ConfigError(
                    f"task {self.name} generates up to {sampling.max_new_tokens} tokens, engine.max_model_len "
                    f"{max_model_len} leaves no room for questions; raise it"
                )


class Shelf:
    """Finds tasks. `include_path`: a folder with tasks in the harness's YAML format; relative paths of data files are
    relative to the task's file."""

    def __init__(self, include_path: str | None) -> None:
        try:
            from lm_eval.tasks import TaskManager
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"evaluation.tasks needs lm-evaluation-harness ({error.name} is not installed): "
                f"{extra('eval')}; or leave evaluation.tasks empty"
            ) from error
        self._folders = [config_root() / "tasks"]
        if include_path is not None:
            if not Path(include_path).is_dir():
                raise ConfigError(
                    f"evaluation.include_path: {include_path} is not a folder; give a folder of YAML tasks"
                )
            self._folders.append(Path(include_path).resolve())
        self._cache = tempfile.TemporaryDirectory(prefix="spag_ray-tasks-")
        self._ours = TaskManager(include_path=list(self._folders), include_defaults=False)
        self._every: TaskManager | None = None

    def find(self, name: str) -> Any:
        """The index that has the task. Raises ConfigError with the nearest name if none has."""
        from lm_eval.tasks import TaskManager

        if name in self._ours.task_index:
            return self._ours
        if self._every is None:
            self._every = TaskManager(include_path=list(self._folders))
        if name in self._every.task_index:
            return self._every
        near = nearest(name, ["paper", *self._every.task_index], cutoff=0.0)
        raise ConfigError(f"evaluation.tasks: unknown task {name!r}; the nearest known one is {near!r}")

    def load(self, name: str, num_fewshot: int | None = None) -> LoadedTask:
        """The task with its data sets. Raises ConfigError for an unknown name, InputError if the task cannot be loaded
        here; the message says how to get its data."""
        import numpy as np

        index = self.find(name)
        random.seed(0)
        np.random.seed(NUMPY_SEED)
        try:
            loaded = index.load([self._spec(index.task_index[name])])
        except Exception as error:  # the harness, data sets and a task's own code each raise their own types
            raise InputError(_cannot_be_loaded(name, error)) from error
        for task in loaded["tasks"].values():
            if getattr(task, "UNSAFE_CODE", False):
                raise InputError(f"task {name} runs code written by models, which is not supported; leave it out")
            if getattr(task, "MULTIMODAL", False):
                raise InputError(f"task {name} needs images or audio, but engines here read only text; leave it out")
            _set_fewshot(task, num_fewshot)
        return LoadedTask(name, loaded)

    def _spec(self, entry: Any) -> str | dict[str, Any]:
        """The harness's specification of a task: its name. For a task with its own data files: a group of only that
        task, with absolute paths and a cache folder that is deleted with this object."""
        name: str = entry.name
        options = (entry.cfg or {}).get("dataset_kwargs") or {}
        is_ours = entry.yaml_path is not None and any(entry.yaml_path.is_relative_to(each) for each in self._folders)
        if not is_ours or "data_files" not in options:
            return name
        files = _beside(entry.yaml_path.parent, options["data_files"])
        with_files = {"task": name, "dataset_kwargs": {**options, "data_files": files, "cache_dir": self._cache.name}}
        return {"group": f"{name} alone", "task": [with_files]}


def evaluate(
    model: Any, task: LoadedTask, stage: str, limit: int | None, apply_chat_template: bool
) -> list[Evaluation]:
    """Every metric of the task, of at most `limit` samples of each of its parts."""
    from lm_eval import evaluator

    results = evaluator.evaluate(
        model, dict(task.loaded), limit=limit, log_samples=False, apply_chat_template=apply_chat_template
    )
    assert results is not None, "only other ranks of several get nothing"
    rows = []
    for name in task.row_names:
        found = results["results"][name]
        rows += _rows(stage, name, found, int(results["n-shot"].get(name, 0)))
    return rows


def _rows(stage: str, task: str, found: Mapping[str, Any], num_fewshot: int) -> list[Evaluation]:
    """Keys are `METRIC,FILTER` and `METRIC_stderr,FILTER`; a filter is named where a metric has several."""
    keys = [key.split(",", 1) for key in found if "," in key and "_stderr," not in key]
    rows = []
    for metric, kept_by in keys:
        value, stderr = _number(found[f"{metric},{kept_by}"]), _number(found.get(f"{metric}_stderr,{kept_by}"))
        is_alone = sum(each == metric for each, _ in keys) == 1
        name = metric if is_alone else f"{metric} ({kept_by})"
        if value is not None:
            rows.append(
                Evaluation(
                    stage,
                    task,
                    metric=name,
                    value=value,
                    stderr=stderr,
                    num_samples=int(found["sample_len"]),
                    num_fewshot=num_fewshot,
                )
            )
    return rows


def _number(value: Any) -> float | None:
    """None for the harness's "N/A"."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _set_fewshot(task: Any, num_fewshot: int | None) -> None:
    """As on the harness's command line: a task with 0 keeps 0."""
    own = task.get_config("num_fewshot")
    if own is None or (num_fewshot is not None and own != 0):
        task.set_config(key="num_fewshot", value=num_fewshot or 0)
    task.set_fewshot_seed(seed=FEWSHOT_SEED)


def _beside(folder: Path, files: Any) -> Any:
    """Absolute paths of data files, given as one path, several, or a mapping by split."""
    if isinstance(files, Mapping):
        return {split: _beside(folder, each) for split, each in files.items()}
    if isinstance(files, str):
        return files if "://" in files else str(folder / files)
    return [_beside(folder, each) for each in files]


def _cannot_be_loaded(name: str, error: Exception) -> str:
    told = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if (
        isinstance(error, ConnectionError)
        or kinds & {"DatasetNotFoundError", "HfHubHTTPError"}
        or "find cache for" in told
    ):
        if os.environ.get("HF_HUB_OFFLINE") == "1":
            return (
                f"task {name} needs its data set from the Hugging Face hub, and it is not in the cache here ({told}); "
                "fetch it once with a network: `spag-ray doctor CONFIG -o evaluation.download=true`. Files in HF_HOME "
                "can be copied to other machines"
            )
        return f"task {name} needs its data set from the Hugging Face hub, but the download failed ({told})"
    if isinstance(error, ImportError):
        return f"task {name} needs a package that is not installed ({told}); install it, or leave the task out"
    return f"task {name} cannot be loaded: {type(error).__name__}: {told}"
