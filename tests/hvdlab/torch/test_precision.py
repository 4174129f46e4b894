"""Types and gradients inside a network, against what its operations must have."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab.torch.precision import operation_types, output_gradients  # noqa: E402


def test_operation_types_are_those_that_run():
    half, single = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2)
    rows = operation_types(lambda: (half + single, half.exp(), half.exp(), single.t()))
    assert rows == [
        {"operation": "add", "gets": "bfloat16, float32", "gives": "float32"},
        {"operation": "exp", "gets": "bfloat16", "gives": "bfloat16"},
    ]


def test_output_gradients_are_those_of_the_linear_layers():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3)
    found = output_gradients(model, lambda: model(x).square().sum())
    first = model[0](x)
    second = model[2](first.tanh())
    last = 2 * second
    before = last @ model[2].weight * (1 - first.tanh() ** 2)
    torch.testing.assert_close(found, torch.cat([last.flatten(), before.flatten()]))
    assert all(p.grad is None for p in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())
