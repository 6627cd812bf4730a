"""Tasks of lm-evaluation-harness after each stage, evaluated on the run's own engines.

    Run ── TaskEvaluation ──> EvaluationActor: the harness ──> the policy's engines: score, generate
                 └── rows ──> evaluations.json, metrics

The harness runs in an actor of its own, only while a stage is evaluated. So its memory is free again before the learner
needs it, and its side effects on a process (seeds, caches, threads) do not reach the Run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.models import load_tokenizer
from cluster.handles import Actor, Handle, actor_method
from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.remote_policy import RemotePolicy
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import ACTOR_LOST, get, redirect_output
from cluster.schedules.playground import Playground
from cluster.supervision.restart_budget import RestartBudget
from cluster.types import Engine
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, EngineGoneError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.evaluations import FILE, Evaluation, read_evaluations, task_names, write_evaluations
from spag_ray.results.lines import EvaluationLine
from spag_ray.stages import Stage

if TYPE_CHECKING:
    from actors.lm_eval_model import PolicyModel
    from actors.lm_eval_tasks import Shelf


class EvaluationActor(Actor):
    """Hosts the harness, which calls the engines. `progress` may be called during `evaluate`."""

    def __init__(self, log_path: str, model: str, config: RunConfig) -> None:
        redirect_output(log_path)
        self._config = config
        self._tokenizer = load_tokenizer(model, config.chat_template_kwargs)
        self._shelf: Shelf | None = None
        self._model: PolicyModel | None = None

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return "evaluation"

    @actor_method
    def evaluate(self, task: str, stage: str, engines: Sequence[Engine]) -> tuple[list[Evaluation], int]:
        """(rows, how many contexts were cut to fit)."""
        from actors.lm_eval_model import PolicyModel
        from actors.lm_eval_tasks import Shelf, evaluate

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

    @actor_method
    def progress(self) -> tuple[int, int]:
        """(answers received, answers requested) of the current task."""
        return (0, 0) if self._model is None else (self._model.num_done, self._model.num_asked)


EvaluationHandle: TypeAlias = Handle[EvaluationActor]


class HarnessStuckError(EngineError):
    """The harness's process is alive but does not answer."""


@dataclass(eq=False)
class TaskEvaluation:
    """The tasks of one run. Those that a previous attempt has evaluated are not evaluated again."""

    ground: Playground
    lease: FolderLease
    policies: Sequence[LearningPolicy]
    restarts: RestartBudget

    def __post_init__(self) -> None:
        self._path = self.lease.folder / FILE
        self.rows = read_evaluations(self._path) if self._path.exists() else []

    def stage(self, stage: Stage) -> None:
        """Evaluate the newest weights of every policy; with two policies, a row's stage names the policy too."""
        for policy in self.policies:
            own = stage if len(self.policies) == 1 else stage.of_policy(policy.name)
            self.evaluate(str(own), policy.name, policy.model)

    def evaluate(self, stage: str, policy: str, model: str) -> None:
        """Evaluate every task that has no rows yet on the engines of a policy; `model` has their tokenizer. A task is
        restarted when the harness dies or hangs, or all of its engines die."""
        actor = None
        try:
            for name in self.missing(stage):
                rows = None
                while rows is None:
                    actor = actor or self._start(model)
                    try:
                        rows = self._ask(actor, name, stage, policy)
                    except (*ACTOR_LOST, EngineGoneError, HarnessStuckError) as error:
                        self.restarts.count("evaluation", error)
                        ray.kill(actor)
                        actor = None
                self._take(rows, policy)
        finally:
            if actor is not None:
                ray.kill(actor)

    def missing(self, stage: str) -> list[str]:
        """Tasks that are still to be evaluated."""
        done = {row.task for row in self.rows if row.stage == stage}
        return [name for name in task_names(self.ground.config.evaluation.tasks) if name not in done]

    def keep(self, belongs: Callable[[str], bool]) -> None:
        """Keep only rows of these stages; the others are from an abandoned attempt."""
        kept = [row for row in self.rows if belongs(row.stage)]
        if kept != self.rows:
            self.rows = kept
            write_evaluations(self._path, kept)

    def _start(self, model: str) -> EvaluationHandle:
        """Start on this node, because the data sets were checked here."""
        from actors.lm_eval_tasks import harness_environment  # a job without tasks does not have it

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        handle: EvaluationHandle = (
            ray.remote(EvaluationActor)
            .options(
                name=f"evaluation-{label_of(self.lease.folder)}",
                num_cpus=0,
                max_concurrency=2,
                scheduling_strategy=here,
                runtime_env={"env_vars": harness_environment(self.ground.config.evaluation.download)},
            )
            .remote(str(self.lease.folder / "logs" / "evaluation.log"), model, self.ground.config)
        )
        return handle

    def _ask(self, actor: EvaluationHandle, name: str, stage: str, policy: str) -> list[Evaluation]:
        asked = actor.evaluate.remote(name, stage, self._wait_for(policy))
        progress, found = actor.progress.remote(), (0, 0)
        # Importing the harness takes long; after that the actor always answers.
        answered, patience_s = time.monotonic(), self.ground.config.engine.start_timeout_s
        while not ray.wait([asked], timeout=0.5)[0]:
            self.ground.status.show_answers(f"{Stage.evaluation(stage)}: {name}", *found)
            self.ground.poll_health()
            if ray.wait([progress], timeout=0)[0]:
                found, progress = get(progress), actor.progress.remote()
                answered, patience_s = time.monotonic(), self.ground.config.supervision.heartbeat_timeout_s
            if time.monotonic() - answered > patience_s:
                raise HarnessStuckError(
                    f"the evaluation of {name} has not answered a heartbeat for {patience_s:g} s"
                ) from ray.exceptions.GetTimeoutError()
        rows, num_cut = get(asked)
        if num_cut:
            length = self.ground.config.engine.max_model_len
            self.ground.status.note(
                f"{stage}: {name}: {num_cut} contexts were cut from the left to engine.max_model_len {length}"
            )
        return rows

    def _wait_for(self, policy: str) -> list[Engine]:
        """Wait for an engine of a policy: there may be none while a dead one is replaced."""
        deadline = time.monotonic() + self.ground.config.engine.start_timeout_s
        while not (found := self.ground.fleet.roster.of(policy)):
            if time.monotonic() > deadline:
                raise EngineError(f"no engine to evaluate with; see {self.lease.folder}/logs")
            self.ground.poll_health()
            time.sleep(0.5)
        return found

    def _take(self, rows: Sequence[Evaluation], policy: str) -> None:
        """Keep and record new rows. A tag's tasks may have rows from a previous attempt: these are replaced."""
        new = {(row.stage, row.task) for row in rows}
        self.rows = [*(row for row in self.rows if (row.stage, row.task) not in new), *rows]
        self.lease.check(now=True)
        write_evaluations(self._path, self.rows)
        for row in rows:
            self.ground.recorder.record(EvaluationLine(policy, row))
