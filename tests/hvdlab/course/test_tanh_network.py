"""The gradient of the network in NumPy equals that of PyTorch."""

import numpy as np
import torch

from hvdlab.course.tanh_network import TanhNetwork


def test_loss_and_gradient_equal_those_of_pytorch():
    rng = np.random.default_rng(1)
    network = TanhNetwork(rng.integers(0, 256, (5, 28, 28)), np.array([3, 0, 9, 3, 1]))
    network.inputs = network.inputs.astype("float64")  # and then all that follows from them
    weights = network.start(seed=2) + 0.01 * rng.normal(size=55_050)

    model = torch.nn.Sequential(
        *(torch.nn.Linear(784, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()),
        torch.nn.Linear(64, 10),
    ).double()
    linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    sizes = [n for layer in linear for n in (layer.weight.numel(), len(layer.bias))]
    parts = torch.from_numpy(weights).split(sizes)
    for layer, matrix, bias in zip(linear, parts[::2], parts[1::2], strict=True):
        layer.weight.data = matrix.view(layer.in_features, -1).T.clone()
        layer.bias.data = bias.clone()
    outputs = model(torch.from_numpy(network.inputs))
    expected = (outputs - torch.from_numpy(network.targets)).square().sum(1).mean()
    expected.backward()
    wanted = [part for layer in linear for part in (layer.weight.grad.T.ravel(), layer.bias.grad)]

    loss, gradient = network.loss_and_gradient(weights)
    assert np.isclose(loss, expected.item(), rtol=1e-12)
    np.testing.assert_allclose(gradient, torch.cat(wanted), rtol=1e-9, atol=1e-12)
