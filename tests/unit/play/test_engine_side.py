"""The weight-transfer engine that every engine has: what a reload says, and what it does after half of one."""

import logging
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.model_loader import reload

from spag_ray.channels.engine_side import EngineSide, layers_without_weights
from spag_ray.errors import WeightSyncError
from tests.support.channels import EngineModel, LocalWorker, Plain

SHAPES: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (6, 4),
    "model.layers.0.self_attn.q_proj.weight": (4, 4),
    "model.layers.0.self_attn.k_proj.weight": (2, 4),
    "model.norm.weight": (4,),
}


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def logged() -> Any:
    handler, logger = Logged(), logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    logger.addHandler(handler)
    yield handler.lines
    logger.removeHandler(handler)


def side_of(model: EngineModel) -> EngineSide:
    side: EngineSide = LocalWorker(model).weight_transfer_engine
    return side


def weights() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def test_a_reload_is_silent_about_layers_that_have_no_weights_of_their_own(logged: list[str]) -> None:
    """A rotary table is computed, and a tied head's weight is the embedding's."""
    model, learned = EngineModel(SHAPES), weights()
    assert layers_without_weights(model) >= {"RotaryTable", "TiedHead"}
    assert not layers_without_weights(model) & {"Plain", "Fused"}
    side = side_of(model)
    side.start_weight_update()
    model.load_weights(learned.items())
    side.finish_weight_update()
    assert model.has(iter(learned.items()))
    assert logged == []


def test_a_reload_says_which_layer_should_have_got_weights(logged: list[str]) -> None:
    model, learned = EngineModel(SHAPES), weights()
    side = side_of(model)
    side.start_weight_update()
    del learned["model.norm.weight"]
    model.load_weights(learned.items())
    side.finish_weight_update()
    assert logged == ["Plain: Failed to load weights"]
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").warning("%s: another line", "RotaryTable")
    assert logged[1:] == ["RotaryTable: another line"]


def test_vllm_itself_warns_of_them(logged: list[str]) -> None:
    """Else there is nothing to keep silent, and `without_expected_warnings` can go."""
    model, learned = EngineModel(SHAPES), weights()
    reload.initialize_layerwise_reload(model)
    model.load_weights(learned.items())
    reload.finalize_layerwise_reload(model, None)
    assert sorted(logged) == ["RotaryTable: Failed to load weights", "TiedHead: Failed to load weights"]


def test_a_head_of_its_own_has_weights() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.other = Plain(2), Plain(2), nn.Linear(2, 2)
            self.second.weight = self.first.weight

    assert layers_without_weights(Model()) == {"Model"}, "one Plain has weights, so a warning of another is news"


def test_what_came_of_a_version_that_broke_off_does_not_count_for_the_next() -> None:
    """Half of a fused layer had come. Its other half alone would complete the layer, with the wrong first half."""
    model, old, learned = EngineModel(SHAPES), weights(), weights()
    side = side_of(model)
    side.start_weight_update()
    model.load_weights(list(old.items())[:2])
    side.start_weight_update()
    model.load_weights(reversed(learned.items()))
    side.finish_weight_update()
    assert model.has(iter(learned.items()))


def test_weights_on_a_channel_that_is_not_open_are_refused() -> None:
    with pytest.raises(WeightSyncError, match="has not opened"):
        side_of(EngineModel(SHAPES)).update_weights({"names": []})
