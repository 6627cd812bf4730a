"""Storages that are emptied and filled again in place, on a CPU, whose memory stands for a GPU's."""

import pytest
import torch
from torch import nn

from learners import sleeping
from learners.sleeping import DeviceMemory, tensors_of, weights_of


def test_views_of_one_storage_are_the_same_views_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "BLOCK_BYTES", 48)  # several blocks, and a last one that is smaller
    flat = torch.arange(40, dtype=torch.float32)
    parameter = nn.Parameter(torch.empty(0))
    parameter.data = flat[4:20].view(4, 4)
    memory = DeviceMemory("cpu")
    memory.put_away([flat, parameter, flat[::2]])
    assert flat.untyped_storage().nbytes() == 0
    memory.bring_back()
    assert flat.tolist() == list(range(40))
    parameter.data += 100
    assert flat[4:20].tolist() == [value + 100 for value in range(4, 20)]


def test_what_is_zero_takes_no_memory_of_the_host_and_comes_back_as_zero() -> None:
    gradients, weights = torch.zeros(1000), torch.ones(10)
    memory = DeviceMemory("cpu")
    memory.put_away([gradients, weights])
    assert [sum(len(part) for part in on_host) for _, on_host in memory._away] == [0, 40]
    memory.bring_back()
    assert gradients.tolist() == [0.0] * 1000
    assert weights.tolist() == [1.0] * 10


def test_storages_share_blocks_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "BLOCK_BYTES", 100)
    tensors = [torch.arange(1, 1 + size, dtype=torch.float32) for size in (10, 3, 40, 1)]
    before = [each.tolist() for each in tensors]
    memory = DeviceMemory("cpu")
    memory.put_away(tensors)
    blocks = [part.untyped_storage() for _, copy in memory._away for part in copy]
    assert sorted({each.data_ptr(): each.nbytes() for each in blocks}.values()) == [16, 100, 100], "216 bytes"
    memory.bring_back()
    assert [each.tolist() for each in tensors] == before


def test_kept_storages_stay_and_a_second_sleep_takes_the_rest() -> None:
    weights, states = torch.ones(8), torch.ones(16)
    memory = DeviceMemory("cpu")
    memory.put_away([weights, states], kept=[weights[2:]])
    assert (weights.untyped_storage().nbytes(), states.untyped_storage().nbytes()) == (32, 0)
    memory.put_away([weights, states])
    assert weights.untyped_storage().nbytes() == 0
    memory.bring_back()
    memory.bring_back()  # nothing is left
    assert weights.tolist() == [1.0] * 8
    assert states.tolist() == [1.0] * 16


def test_tensors_of_another_device_are_left_alone() -> None:
    weights = torch.ones(8)
    DeviceMemory("xpu").put_away([weights])
    assert weights.tolist() == [1.0] * 8


def test_tensors_are_found_in_modules_optimisers_and_containers_that_refer_to_each_other() -> None:
    module = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3))
    module(torch.ones(4, 2)).sum().backward()
    optimizer = torch.optim.AdamW(module.parameters())
    optimizer.step()
    part = torch.ones(5)
    circle: list[object] = [{"part": part}, "text", 3]
    circle.append(circle)
    found = {id(tensor) for tensor in tensors_of(module, optimizer, circle)}
    expected = [*module.parameters(), *(each.grad for each in module.parameters()), *module.buffers(), part]
    expected += [value for state in optimizer.state.values() for value in state.values()]
    assert {id(tensor) for tensor in expected} <= found


def test_weights_are_parameters_their_parts_and_buffers() -> None:
    module = nn.BatchNorm1d(3)
    divided = torch.ones(2)
    module.weight.ds_tensor = divided  # under ZeRO-3
    found = {id(tensor) for tensor in weights_of(module)}
    assert {id(divided), id(module.weight), id(module.bias), id(module.running_mean)} <= found
