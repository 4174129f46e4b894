"""The networks of labs 9 to 14: parameter counts, the formula of a block, its stored activations."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from math import erf  # noqa: E402

from torch.nn import functional as F  # noqa: E402

from hvdlab.torch.lab_networks import Block, ConvNet, ResidualMLP  # noqa: E402


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("hidden", [1, 8, 33])
def test_parameters_of_a_block(hidden):
    assert parameters(Block(hidden)) == 8 * hidden**2 + 7 * hidden


@pytest.mark.parametrize(
    ("layers", "hidden", "image", "by_hand"),
    [
        # stem 28 * 28 * 4 + 4, two blocks of 128 + 28, norm 8, head 4 * 10 + 10
        (2, 4, 28, 3140 + 2 * 156 + 8 + 50),
        (0, 2, 4, 34 + 4 + 30),
    ],
)
def test_parameters_of_the_mlp(layers, hidden, image, by_hand):
    assert parameters(ResidualMLP(layers, hidden, image)) == by_hand


def test_parameters_of_the_convolutional_network():
    # 9 * 1 * 4 + 9 * 4 * 8 + 9 * 8 * 16 weights, 2 * (4 + 8 + 16) of the norms, 16 * 10 + 10
    assert parameters(ConvNet(3, 4, 28)) == 36 + 288 + 1152 + 56 + 170


def test_a_block_is_its_formula():
    torch.manual_seed(0)
    block, x = Block(6).double(), torch.randn(5, 6, dtype=torch.float64)
    weights = {name: value.detach().numpy() for name, value in block.named_parameters()}
    a = x.numpy()
    normed = (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5)
    up = normed @ weights["up.weight"].T + weights["up.bias"]
    gelu = up * 0.5 * (1 + np.vectorize(erf)(up / np.sqrt(2)))
    expected = a + gelu @ weights["down.weight"].T + weights["down.bias"]
    np.testing.assert_allclose(block(x).detach(), expected, rtol=1e-10)


@pytest.mark.parametrize("hidden", [4, 32])
def test_a_block_keeps_ten_arrays(hidden):
    """10 hidden numbers an example, as lab 9 counts, and two of the norm."""
    block, kept = Block(hidden), {}
    own = {p.untyped_storage().data_ptr() for p in block.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = block(torch.randn(7, hidden))
    assert sum(kept.values()) == 7 * (10 * hidden + 2) * 4
    y.sum().backward()


@pytest.mark.parametrize("network", [ResidualMLP, ConvNet])
def test_an_example_does_not_see_the_others(network):
    torch.manual_seed(0)
    model, images = network(2, 8, 16, classes=3), torch.randn(4, 1, 16, 16)
    logits = model(images)
    assert logits.shape == (4, 3)
    torch.testing.assert_close(model(images[2:3]), logits[2:3])


def test_too_small_an_image_is_refused():
    assert ConvNet(3, 2, 8)(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
    with pytest.raises(ValueError, match="image_size: expected at least 16, .* 4 layers .* got 8"):
        ConvNet(4, 2, 8)


def test_the_loss_falls():
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    images = torch.randn(64, 1, 16, 16) + labels[:, None, None, None]
    for model in (ResidualMLP(2, 16, 16), ConvNet(2, 8, 16)):
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        losses = []
        for _ in range(40):
            losses.append(F.cross_entropy(model(images), labels))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < losses[0] / 2
