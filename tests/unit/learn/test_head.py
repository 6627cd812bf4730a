"""The head that is asked for log-probabilities: exact whatever its chunks, and never a wait for the device."""

import pytest
import torch
from torch import Tensor, nn

from learners import head
from learners.head import TargetHead, Targets

NUM_ROWS, WIDTH, WORDS = 7, 8, 40
ROWS = torch.tensor(
    [6, 0, 3, 3, 3, 0, 5]
)  # in no order, row 3 and one of its targets more than once, four rows unasked
TARGETS = torch.tensor([39, 1, 7, 7, 0, 2, 11])
TEMPERATURES = torch.linspace(0.5, 2.0, NUM_ROWS)


class Headed(nn.Module):
    """As much of a model as a head needs."""

    target_head: TargetHead

    def __init__(self, device: str = "cpu", bias: bool = True) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WORDS, bias=bias, device=device)

    def get_output_embeddings(self) -> nn.Linear:
        return self.out


def asked(model: Headed, hidden: Tensor, temperature: float | Tensor) -> Tensor:
    rows, ids, places, counts = Targets.of(ROWS, TARGETS, NUM_ROWS)
    targets = Targets(rows.to(hidden.device), ids.to(hidden.device), places.to(hidden.device), counts)
    at = temperature.to(hidden) if isinstance(temperature, Tensor) else temperature
    with model.target_head.asked_for(targets, at):
        return model.out(hidden)[0]


@pytest.mark.parametrize("temperature", [1.0, 0.7, TEMPERATURES], ids=["one", "all", "of each row"])
@pytest.mark.parametrize("rows_at_a_time", [1, 3, 100])
def test_values_and_gradients_are_those_of_a_softmax_over_whole_logits(
    temperature: float | Tensor, rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "CPU_SOFTMAX_BYTES", rows_at_a_time * WORDS * 8)
    monkeypatch.setattr(head, "MATMUL_ROWS", 2 * rows_at_a_time)
    torch.manual_seed(0)
    model = Headed().double()
    hidden = torch.randn(1, NUM_ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    inputs = [hidden, model.out.weight, model.out.bias]
    weights = torch.randn(len(ROWS), dtype=torch.float64)

    scaled = model.out(hidden)[0] / (temperature[:, None] if isinstance(temperature, Tensor) else temperature)
    normalised = scaled.log_softmax(-1)
    expected = normalised[ROWS, TARGETS]
    expected_entropies = -(normalised.exp() * normalised).sum(-1)[ROWS]
    TargetHead.install(model)
    found = asked(model, hidden, temperature)
    entropies = model.target_head.entropies
    assert entropies is not None
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(entropies, expected_entropies)
    # Of log-probabilities, of entropies (a bonus alone), and of both.
    for of_logprobs, of_entropies in ((1.0, 0.0), (0.0, 1.0), (0.7, -0.4)):
        losses = [
            of_logprobs * (each * weights).sum() + of_entropies * (entropy * weights.flip(0)).sum()
            for each, entropy in ((found, entropies), (expected, expected_entropies))
        ]
        gradients = [torch.autograd.grad(loss, inputs, retain_graph=True) for loss in losses]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)
    only = torch.autograd.grad(entropies.sum(), inputs, retain_graph=True)
    for one, other in zip(only, torch.autograd.grad(expected_entropies.sum(), inputs, retain_graph=True), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("trained", ["hidden", "weight", "bias"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_gets_its_own(trained: str) -> None:
    """As with adapters, where the head's weight is not trained."""
    torch.manual_seed(0)
    model = Headed().double()
    hidden = torch.randn(1, NUM_ROWS, WIDTH, dtype=torch.float64)
    leaves = {"hidden": hidden, "weight": model.out.weight, "bias": model.out.bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name == trained)
    model.out(hidden)[0].log_softmax(-1)[ROWS, TARGETS].sum().backward()
    wanted, leaves[trained].grad = leaves[trained].grad, None
    TargetHead.install(model)
    asked(model, hidden, 1.0).sum().backward()
    assert [name for name, leaf in leaves.items() if leaf.grad is not None] == [trained]
    torch.testing.assert_close(leaves[trained].grad, wanted)


def test_outside_of_a_block_the_head_gives_logits_whatever_ended_the_block() -> None:
    model, hidden = Headed(), torch.randn(1, NUM_ROWS, WIDTH)
    logits = model.out(hidden)
    TargetHead.install(model)
    with (
        pytest.raises(ValueError, match="no memory"),
        model.target_head.asked_for(Targets.of(ROWS, TARGETS, NUM_ROWS), 1.0),
    ):
        raise ValueError("no memory")
    assert torch.equal(model.out(hidden), logits)


@pytest.mark.parametrize("temperature", [0.7, TEMPERATURES], ids=["all", "of each row"])
def test_nothing_is_asked_of_the_device_meanwhile(temperature: float | Tensor) -> None:
    """A meta tensor holds no data, so whatever would wait for a GPU to see some (a boolean mask, .item()) raises."""
    model = Headed("meta")
    TargetHead.install(model)
    hidden = torch.randn(1, NUM_ROWS, WIDTH, device="meta", requires_grad=True)

    found = asked(model, hidden, temperature)
    found.sum().backward()

    assert found.shape == ROWS.shape
    assert hidden.grad is not None
    with pytest.raises((NotImplementedError, RuntimeError)):  # this is how it would be seen
        found[found > 0]


def test_chunks_are_cut_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every vocabulary as many rows as fit, and one where none does."""

    def rows_of(num_bytes: int) -> list[int]:
        monkeypatch.setattr(head, "CPU_SOFTMAX_BYTES", num_bytes)
        hidden, weight = torch.zeros(NUM_ROWS, WIDTH), torch.zeros(WORDS, WIDTH)
        return [end - start for start, end, _ in head._chunks(hidden, weight, None, 1.0)]

    assert rows_of(3 * WORDS * 4) == [3, 3, 1]
    assert rows_of(1) == [1] * NUM_ROWS
