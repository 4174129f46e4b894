"""The splits of lab 14, and the number of parameters of the rank that has the most."""

import math

import pytest

pytest.importorskip("torch")

from hvdlab.course import split_measurements  # noqa: E402
from hvdlab.torch.lab_networks import Block, ResidualMLP  # noqa: E402
from hvdlab.torch.model_parallel.pipeline_stages import stage  # noqa: E402


def test_all_splits_of_four_ranks():
    found = split_measurements.decompositions(4)
    assert sorted(found) == [(1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)]
    assert all(math.prod(split) == 8 for split in split_measurements.decompositions(8))
    assert (1, 1, 8) not in split_measurements.decompositions(8)  # 1F1B needs as many micro-batches


@pytest.mark.parametrize(
    "split", [(1, 1, 1), (1, 1, 2), (4, 1, 1), (1, 2, 2), (2, 4, 1), (2, 2, 4)]
)
def test_the_largest_rank_is_counted_right(split):
    _, tensor, stages = split
    network = ResidualMLP(
        split_measurements.LAYERS, split_measurements.HIDDEN, split_measurements.IMAGE
    )

    def on_a_rank(module):
        """`up` is split by columns, with its bias, and the matrix of `down` by rows."""
        count = sum(parameter.numel() for parameter in module.parameters())
        for block in (layer for layer in module if isinstance(layer, Block)):
            cut = (block.up.weight, block.up.bias, block.down.weight)
            count -= sum(parameter.numel() for parameter in cut) * (1 - 1 / tensor)
        return count

    largest = max(on_a_rank(stage(network, index, stages)) for index in range(stages))
    assert split_measurements.parameters(split) == largest


@pytest.mark.slow
def test_serial_micro_batches_are_the_same_training():
    whole, parts = split_measurements.serial(1), split_measurements.serial(1, micro_batches=4)
    assert max(abs(a - b) for a, b in zip(whole["losses"], parts["losses"], strict=True)) < 1e-5
    assert whole["losses"][-1] < whole["losses"][0] / 2  # it learns
    assert whole["memory"] == 12 * split_measurements.parameters((1, 1, 1))
