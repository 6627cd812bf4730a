"""A taskset of verifiers with a prompt, an answer and two rewards."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def right(self, task: Any, trace: Any) -> float:
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=-0.5)
    async def long(self, trace: Any, task: Any) -> float:
        return float(len(trace.last_reply) > 3)


class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SumTask]:
        for number in range(4):
            data = SumData(prompt=f"{number} + 3 = ?", system_prompt="Say a number.", answer=str(number + 3))
            yield SumTask(data, self.config.task)
