"""Memory against bytes counted by hand, and the peak of allocations whose order is known."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from hvdlab.torch.memory import held, peak  # noqa: E402


def trained(make_optimizer, dtype=torch.float32):
    """A layer of 5 x 3 weights and 5 biases, 20 parameters, after one step; its gradients are there."""
    model = nn.Linear(3, 5, dtype=dtype)
    optimizer = make_optimizer(model.parameters())
    model(torch.ones(2, 3, dtype=dtype)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("make_optimizer", "state"),
    [
        (lambda ps: torch.optim.SGD(ps, 0.1), 0),
        (lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9), 20 * 4),
        # And a step count for each of two.
        (lambda ps: torch.optim.Adam(ps, 0.1), 2 * 20 * 4 + 2 * 4),
    ],
)  # fmt: skip
def test_held_counts_parameters_gradients_and_state(make_optimizer, state):
    model, optimizer = trained(make_optimizer)
    assert held(model, optimizer) == {"parameters": 80, "gradients": 80, "optimizer": state}
    optimizer.zero_grad()
    assert held(model, optimizer) == {"parameters": 80, "gradients": 0, "optimizer": state}
    assert held(model) == {"parameters": 80, "gradients": 0, "optimizer": 0}


def test_two_bytes_are_two_bytes():
    model, _ = trained(lambda ps: torch.optim.SGD(ps, 0.1), torch.bfloat16)
    assert held(model) == {"parameters": 40, "gradients": 40, "optimizer": 0}


def test_nothing_is_held_by_an_optimizer_before_its_first_step():
    model = nn.Linear(3, 5)
    assert held(model, torch.optim.Adam(model.parameters()))["optimizer"] == 0


def test_shared_memory_counts_once():
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    assert held(nn.Sequential(first, second))["parameters"] == 128
    second.weight = first.weight  # tied
    assert held(nn.Sequential(first, second))["parameters"] == 64
    second.weight = nn.Parameter(first.weight.detach().view(2, 8))  # another view of it
    assert held(nn.Sequential(first, second))["parameters"] == 64


def test_a_sharded_tensor_counts_its_own_part():
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (4,))
        model = nn.Linear(8, 16, bias=False)
        own = torch.zeros(4, 8)  # of 16 x 8
        model.weight = nn.Parameter(DTensor.from_local(own, mesh, [Shard(0)]))
        assert model.weight.shape == (16, 8)
        assert held(model)["parameters"] == 4 * 8 * 4
    finally:
        dist.destroy_process_group()


def test_the_peak_of_known_allocations():
    with peak("cpu") as most:
        a = torch.empty(1000)  # 4000 bytes
        b = torch.empty(2000)  # 12,000
        del a  # 8000
        c = torch.empty(500)  # 10,000
        del b, c
        d = torch.empty(2500)  # 10,000
    assert most.bytes == 12_000
    del d


def test_only_what_is_allocated_within_the_block_counts():
    before = torch.empty(100_000)
    with peak() as most:
        pass
    assert most.bytes == 0
    with peak() as most:
        torch.empty(1000)
    assert most.bytes == 4000
    with peak() as most:  # the profiler does not see that older memory is freed: it makes no room
        del before
        after = torch.empty(1000)
    assert most.bytes == 4000
    del after


def test_a_backward_pass_keeps_what_it_needs():
    """x * x keeps x, which is there; exp keeps its output; the gradient comes while that is kept."""
    x = torch.ones(1000, requires_grad=True)
    with peak() as most:
        x.exp().exp().sum().backward()
    # Two outputs of exp, 4000 bytes each; the sum, its gradient (4 each); going back, at most two
    # gradients of 4000 more at once.
    assert 8000 < most.bytes <= 16_008


def test_an_error_goes_through():
    with pytest.raises(ZeroDivisionError), peak():
        raise ZeroDivisionError
