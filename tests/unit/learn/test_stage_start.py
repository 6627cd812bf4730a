"""Earlier weights: kept as they were then, averaged, in the model's place for a while, written and read."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from learners.stage_start import StageStart
from spag_ray.errors import RunFolderError


class Weights:
    """As much of an engine as a StageStart needs: weights that are trained in place."""

    def __init__(self) -> None:
        self.own = {"a": torch.zeros(3), "b": torch.zeros(2, 4).T}

    def own_weights(self) -> dict[str, Tensor]:
        return self.own

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        return whole

    def train(self, value: float) -> None:
        for weight in self.own.values():
            weight.fill_(value)

    @property
    def values(self) -> set[float]:
        return {value for weight in self.own.values() for value in weight.flatten().tolist()}


@pytest.fixture
def engine() -> Any:
    return Weights()


def test_weights_that_are_trained_after_they_were_taken_are_swapped_and_come_back(engine: Any) -> None:
    start = StageStart(engine)
    assert not start.is_held
    engine.train(1.0)
    start.take()
    assert start.is_held
    for now in (2.0, 3.0):
        engine.train(now)
        with start.in_place():
            assert engine.values == {1.0}
        assert engine.values == {now}
    start.forget()
    assert not start.is_held


def test_the_current_weights_come_back_whatever_ends_the_block(engine: Any) -> None:
    start = StageStart(engine)
    start.take()
    engine.train(2.0)
    with pytest.raises(ValueError, match="no memory"), start.in_place():
        raise ValueError("no memory")
    assert engine.values == {2.0}
    with start.in_place():
        assert engine.values == {0.0}


def test_weights_that_are_read_are_kept_in_the_dtype_of_the_model_and_not_shared(engine: Any) -> None:
    whole = {"a": torch.full((3,), 5.0), "b": torch.full((4, 2), 5.0, dtype=torch.float64)}
    start = StageStart(engine)
    start.read(whole)
    for weight in whole.values():
        weight.fill_(6.0)
    with start.in_place():
        assert engine.values == {5.0}
        assert {weight.dtype for weight in engine.own.values()} == {torch.float32}


def test_what_a_rank_has_written_is_what_it_loads(engine: Any, tmp_path: Path) -> None:
    start, again = StageStart(engine), StageStart(engine)
    engine.own["b"].copy_(torch.arange(8.0).view(4, 2))
    start.take()
    wanted = {name: weight.clone() for name, weight in engine.own.items()}
    start.save(tmp_path / "start")
    engine.train(9.0)
    again.load(tmp_path / "start")
    with again.in_place():
        assert all(torch.equal(engine.own[name], weight) for name, weight in wanted.items())
    with pytest.raises(RunFolderError, match="could not be written"):
        start.save(tmp_path / "nowhere" / "start")
    (tmp_path / "start").write_bytes(bytes(16))
    with pytest.raises(RunFolderError, match="start: the weights of the stage's start cannot be read"):
        again.load(tmp_path / "start")


def test_an_average_is_of_what_was_kept_and_of_the_current_weights(engine: Any) -> None:
    start = StageStart(engine)
    engine.train(1.0)
    start.take()
    engine.train(3.0)
    start.move(0.75)
    with start.in_place():
        assert engine.values == {1.5}, "3/4 of 1 and 1/4 of 3"
    engine.train(5.5)
    start.move(0.75)
    with start.in_place():
        assert engine.values == {2.5}, "3/4 of 1.5 and 1/4 of 5.5"
    assert engine.values == {5.5}


def test_an_average_of_16_bit_weights_moves_by_less_than_they_can_say(engine: Any, tmp_path: Path) -> None:
    """From 1 the next bfloat16 is 1 + 2**-7: half a step to it is lost in 16 bits, and again from there."""
    engine.own = {name: weight.to(torch.bfloat16) for name, weight in engine.own.items()}
    start, again = StageStart(engine), StageStart(engine)
    engine.train(1.0)
    start.take()
    engine.train(1.0 + 2**-7)
    start.move(0.75)
    with start.in_place():
        assert engine.values == {1.0}, "a quarter of a step, rounded"
        assert {weight.dtype for weight in engine.own.values()} == {torch.bfloat16}
    assert engine.values == {1.0 + 2**-7}
    start.save(tmp_path / "average")
    again.load(tmp_path / "average")
    for each in (start, again):
        each.move(0.5)  # 5/8 of a step
        with each.in_place():
            assert engine.values == {1.0 + 2**-7}, "what was in the model's place was a rounded copy"
