"""Stages put together are the network, and a batch is the same on every rank."""

import pytest

torch = pytest.importorskip("torch")

from hvdlab.torch.lab_networks import ResidualMLP  # noqa: E402
from hvdlab.torch.model_parallel.pipeline_stages import batch, stage  # noqa: E402


@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_stages_in_a_row_are_the_network(stages):
    network = ResidualMLP(num_layers=6, hidden_size=8, image_size=4)
    images, _ = batch(0, 5, 4)
    x, parts = images, [stage(network, index, stages) for index in range(stages)]
    for part in parts:
        x = part(x)
    torch.testing.assert_close(x, network(images), rtol=0, atol=0)
    ours = [id(parameter) for part in parts for parameter in part.parameters()]
    assert sorted(ours) == sorted(id(parameter) for parameter in network.parameters())


def test_blocks_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="stages: expected a divisor of 6.* got 4"):
        stage(ResidualMLP(num_layers=6, hidden_size=8, image_size=4), 0, 4)


def test_a_batch_depends_on_its_step_alone():
    torch.manual_seed(1)
    images, labels = batch(3, 16, 8)
    torch.manual_seed(2)  # another rank
    again, same = batch(3, 16, 8)
    assert images.shape == (16, 1, 8, 8) and labels.shape == (16,)
    assert torch.equal(images, again) and torch.equal(labels, same)
    assert not torch.equal(images, batch(4, 16, 8)[0])
