"""Costs by hand, and the answers that let AxoNN run without a GPU."""

import pytest
import torch
import torch.distributed as dist

from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.model_parallel.analytic_costs import split_costs
from hvdlab.torch.model_parallel.axonn_on_cpu import axonn_on_cpu

SMALL = {"num_layers": 3, "hidden_size": 32, "batch_size": 10}


def test_one_rank_holds_all_and_sends_nothing():
    network = ResidualMLP(3, 32, image_size=28)
    count = sum(parameter.numel() for parameter in network.parameters())
    assert split_costs("serial", 1, **SMALL) == (12 * count, 0)


def test_bytes_of_the_ways_by_hand():
    x = 4 * 10 * 32  # bytes of (batch, hidden)
    assert split_costs("by-hand", 4, **SMALL).sent == 3 * 2 * 1.5 * x
    assert split_costs("dtensor", 2, **SMALL) == split_costs("by-hand", 2, **SMALL)
    # 2 x 2: forth and back 4 h / 2 over two columns and h / 2 over two rows; four sums a norm; ten logits
    blocks, norms, head = 3 * 2 * (2 * x + 0.5 * x), 4 * 4 * 4 * 10, 4 * 10 * 10
    assert split_costs("grid", 4, 2, **SMALL).sent == blocks + norms + head
    # sequence: gathers of 3/4 and Gloo's reduce-scatters of 6/4, two pairs a block, stem and head; norms
    assert split_costs("sequence", 4, **SMALL).sent == pytest.approx(
        8 * 2.25 * x + 0.75 * 400 + 8 * 1.5 * 4 * 32
    )


@pytest.mark.parametrize("mode", ["grid", "axonn"])
def test_a_grid_of_one_column_is_megatrons_way(mode):
    assert split_costs(mode, 4, 1, **SMALL) == split_costs("by-hand", 4, **SMALL)


def test_cuda_is_answered_by_the_cpu_within_the_block_only(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("for machines without CUDA")
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    new_group = dist.new_group
    with axonn_on_cpu():
        assert torch.empty(3, device="cuda").device.type == "cpu"
        assert torch.cuda.current_device() == "cpu"
        torch.cuda.set_device(0)
        assert dist.new_group is not new_group
    assert dist.new_group is new_group
    with pytest.raises((AssertionError, RuntimeError)):
        torch.empty(3, device="cuda")


@pytest.mark.parametrize(("backend", "replaced"), [("nccl", False), ("gloo", True)])
def test_with_cuda_the_backend_of_the_ranks_decides(monkeypatch, backend, replaced):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # perhaps too few for all ranks
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    new_group = dist.new_group
    with axonn_on_cpu():
        assert (dist.new_group is not new_group) == replaced
