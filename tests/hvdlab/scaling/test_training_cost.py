"""GPU hours and days against published trainings and operations that PyTorch counts."""

import pytest

from hvdlab.scaling.training_cost import token_flops, training_cost


def test_a_token_needs_the_operations_that_pytorch_counts():
    """Count one layer without biases, forward and backward, and attention over all tokens."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    s, h, a = 32, 64, 4
    shapes = [(h, h)] * 4 + [(h, 4 * h), (4 * h, h)]
    weights = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    x = torch.randn(s, h, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        q, k, v = ((x @ w).view(s, a, h // a).transpose(0, 1) for w in weights[:3])
        mixed = (q @ k.transpose(1, 2)).softmax(-1) @ v
        y = x + mixed.transpose(0, 1).reshape(s, h) @ weights[3]
        (y + (y @ weights[4]).relu() @ weights[5]).sum().backward()
    parameters = sum(w.numel() for w in weights)
    assert counted.get_total_flops() == s * token_flops(parameters, 1, h, s)


def test_a_published_training_takes_as_long_as_published():
    """Narayanan et al. 2021, section 5.1: GPT-3 on 1,024 A100, 300 billion tokens, 140 TFLOP/s: 34 days.

    Their operations include computing activations again, a third more than those of the model.
    """
    cost = training_cost(
        175e9, 300e9, 1024, 140e12, 3 / 4, layers=96, hidden_size=12288, sequence=2048
    )
    assert cost.days == pytest.approx(34, rel=0.03) and cost.price is None
    assert cost.gpu_hours == pytest.approx(24 * 1024 * cost.days)


def test_lost_time_and_prices_multiply():
    plain = training_cost(1e9, 20e9, 8, 312e12, 0.4)
    lost = training_cost(1e9, 20e9, 16, 312e12, 0.4, lost=0.2, price=3)
    assert plain.flops == lost.flops == 1.2e20
    assert lost.gpu_hours == pytest.approx(plain.gpu_hours / 0.8)
    assert lost.days == pytest.approx(plain.days / 0.8 / 2)
    assert lost.price == 3 * lost.gpu_hours


@pytest.mark.parametrize("wrong", [{"utilization": 0}, {"utilization": 1.1}, {"lost": 1}])
def test_an_impossible_fraction_is_refused(wrong):
    with pytest.raises(ValueError, match=r"above 0 and at most 1, .* Received: utilization="):
        training_cost(1, 1, 1, 1, **{"utilization": 0.5} | wrong)
