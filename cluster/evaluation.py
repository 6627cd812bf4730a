"""Tasks of lm-evaluation-harness after each stage, asked of the engines that a run has anyway.

    Run ── TaskEvaluation ──> EvaluationActor: the harness ──> the policy's engines: score, generate
                 └── rows ──> evaluations.json, metrics

The harness lives in an actor of its own while a stage is evaluated: its memory is gone before the learner's need comes,
and what it does to a process (seeds, caches, threads) happens elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.lm_eval_tasks import Shelf, evaluate, harness_environment
from actors.models import load_tokenizer
from cluster.arena_actor import Engine
from cluster.remote_policy import RemotePolicy
from cluster.runtime import get, own_environment, redirect_output
from spag_ray.config import RunConfig
from spag_ray.errors import EngineError, EngineGoneError
from spag_ray.evaluations import FILE, Evaluation, read_evaluations, task_names, write_evaluations

if TYPE_CHECKING:
    from actors.lm_eval_model import PolicyModel
    from cluster.run import Run


class EvaluationActor:
    """Hosts the harness; asks engines itself. `progress` may be called meanwhile."""

    def __init__(self, log_path: str, model: str, config: RunConfig) -> None:
        redirect_output(log_path)
        self._config = config
        self._tokenizer = load_tokenizer(model)
        self._shelf: Shelf | None = None
        self._model: PolicyModel | None = None

    def __repr__(self) -> str:
        """What Ray's pages and messages call it."""
        return "evaluation"

    def evaluate(self, task: str, stage: str, engines: Sequence[Engine]) -> tuple[list[Evaluation], int]:
        """(rows, how many contexts were cut to fit)."""
        from actors.lm_eval_model import PolicyModel

        config, engine = self._config.evaluation, self._config.engine
        if self._shelf is None:
            self._shelf = Shelf(config.include_path)
        loaded = self._shelf.load(task, config.num_fewshot)
        policies = [RemotePolicy(each.handle, each.name) for each in engines]
        with asyncio.Runner() as runner:
            model = PolicyModel(policies, self._tokenizer, engine.max_model_len, engine.max_num_seqs, runner.run)
            self._model = model
            rows = evaluate(model, loaded, stage, config.task_limit, config.apply_chat_template)
        return rows, model.num_cut

    def progress(self) -> tuple[int, int]:
        """(answers that have come, answers asked for) of the task that is evaluated."""
        return (0, 0) if self._model is None else (self._model.num_done, self._model.num_asked)


class TaskEvaluation:
    """Of one run. What an earlier life of the run has evaluated is not evaluated again."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path = run.folder / FILE
        self.rows = read_evaluations(self._path) if self._path.exists() else []

    def stage(self, name: str) -> None:
        """The newest weights of every policy; where two learn side by side, a row's stage names the policy too."""
        for policy in self._run.policies:
            stage = name if len(self._run.policies) == 1 else f"{name}-{policy.name}"
            self.evaluate(stage, policy.name, policy.model, lambda policy=policy: policy.engines)  # type: ignore[misc]

    def evaluate(self, stage: str, policy: str, model: str, engines: Callable[[], Sequence[Engine]]) -> None:
        """On every task that there are no rows of. `engines` that there are now; `model` has their tokenizer."""
        names = self.missing(stage)
        actor = None
        try:
            for name in names:
                rows = None
                while rows is None:
                    actor = actor or self._start(model)
                    try:
                        rows = self._ask(actor, name, stage, engines)
                    except (ray.exceptions.RayActorError, EngineGoneError) as error:
                        self._run.restarts.count("evaluation", error)
                        ray.kill(actor)
                        actor = None
                self._take(rows, policy)
        finally:
            if actor is not None:
                ray.kill(actor)

    def missing(self, stage: str) -> list[str]:
        """Tasks that are still to be evaluated."""
        done = {row.task for row in self.rows if row.stage == stage}
        return [name for name in task_names(self._run.config.evaluation.tasks) if name not in done]

    def keep(self, belongs: Callable[[str], bool]) -> None:
        """Only rows of these stages: others are of a life of the run that is given up."""
        kept = [row for row in self.rows if belongs(self._without_policy(row.stage))]
        if kept != self.rows:
            self.rows = kept
            write_evaluations(self._path, kept)

    def _without_policy(self, stage: str) -> str:
        for policy in self._run.policies:
            stage = stage.removesuffix(f"-{policy.name}")
        return stage

    def _start(self, model: str) -> Any:
        """On this node: data sets were looked for here."""
        run = self._run
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return (
            ray.remote(EvaluationActor)
            .options(
                name=f"evaluation-{run.folder.name}",
                num_cpus=0,
                max_concurrency=2,
                scheduling_strategy=here,
                runtime_env=own_environment(harness_environment(run.config.evaluation.download)),
            )
            .remote(str(run.folder / "logs" / "evaluation.log"), model, run.config)
        )

    def _ask(self, actor: Any, name: str, stage: str, engines: Callable[[], Sequence[Engine]]) -> list[Evaluation]:
        run = self._run
        asked = actor.evaluate.remote(name, stage, self._wait_for(engines))
        while not ray.wait([asked], timeout=0.5)[0]:
            run.show_task(f"eval-{stage}: {name}", *get(actor.progress.remote()))
            run.look_around()
        rows, num_cut = get(asked)
        if num_cut:
            length = run.config.engine.max_model_len
            run.note(f"{stage}: {name}: {num_cut} contexts were cut from the left to engine.max_model_len {length}")
        return rows

    def _wait_for(self, engines: Callable[[], Sequence[Engine]]) -> list[Engine]:
        """There is none while one that died is being replaced."""
        deadline = time.monotonic() + self._run.config.engine.start_timeout_s
        while not (found := list(engines())):
            if time.monotonic() > deadline:
                raise EngineError(f"no engine to evaluate with; see {self._run.folder}/logs")
            self._run.look_around()
            time.sleep(0.5)
        return found

    def _take(self, rows: Sequence[Evaluation], policy: str) -> None:
        """A tag's tasks may be there already, of a life before: their rows are replaced."""
        new = {(row.stage, row.task) for row in rows}
        self.rows = [*(row for row in self.rows if (row.stage, row.task) not in new), *rows]
        write_evaluations(self._path, self.rows)
        for row in rows:
            values = {key: value for key, value in row.as_json().items() if value is not None}
            self._run.metrics.record("evaluation", policy=policy, **values)
