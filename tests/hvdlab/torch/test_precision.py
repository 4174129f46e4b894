"""Dtypes and gradients inside a network, compared with those that its operations must have."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab import probe_mode  # noqa: E402
from hvdlab.torch.precision import (  # noqa: E402
    operation_types,
    output_gradients,
    use_fast_kernels,
)


@pytest.fixture
def settings():
    """The settings of this process, as they are when it is called; the test leaves no others."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    yield lambda: (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark)
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def test_fast_kernels_can_be_had_or_not_and_the_probe_has_none(settings, monkeypatch):
    for fast in (True, False, True):
        use_fast_kernels(fast)
        assert settings() == (fast,) * 3
    monkeypatch.setattr(probe_mode, "COPIES", 2)
    use_fast_kernels()
    assert settings() == (False,) * 3


def test_the_processor_computes_as_before(settings):
    torch.manual_seed(0)
    a, b = torch.randn(64, 64), torch.randn(64, 64)
    x, w = torch.randn(2, 8, 16, 16), torch.randn(8, 8, 3, 3)
    found = []
    for fast in (False, True):
        use_fast_kernels(fast)
        found.append((a @ b, torch.nn.functional.conv2d(x, w)))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tf32_is_what_a_gpu_computes_in(settings):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU that has TF32")
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()
    for fast, least, most in ((False, 0, 1e-6), (True, 1e-5, 5e-3)):
        use_fast_kernels(fast)
        assert least <= float((a @ b - exact).norm() / exact.norm()) <= most
    assert torch.equal(a.double() @ b.double(), exact)


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
