"""The noise scale of a real network: checked against every example's gradient, and in training."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from hvdlab.noise_scale import NoiseScale, estimate  # noqa: E402
from hvdlab.torch.noise import squared_norm  # noqa: E402

SMALL, RANKS = 64, 8
BIG = SMALL * RANKS


@pytest.fixture(scope="module")
def fashion(real_fashion_mnist):
    """Training images as float32 of shape (60000, 784), about N(0, 1), and labels."""
    data = real_fashion_mnist
    images = torch.tensor(data.train_images).reshape(-1, 784) / 255
    return (images - 0.286) / 0.353, torch.tensor(data.train_labels).long()


def f1(batch_norm):
    """The network F1 of Keskar et al., 2017, and of Hoffer et al., 2017: 784 - 5 x 512 - 10."""
    torch.manual_seed(0)
    layers = []
    for width in (784, 512, 512, 512, 512):
        norm = [nn.BatchNorm1d(512)] if batch_norm else []
        layers += [nn.Linear(width, 512), *norm, nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def backward(model, images, labels):
    """Set `p.grad` to the average over ranks; return squared norms before and after averaging."""
    parameters = list(model.parameters())
    averages, small = [torch.zeros_like(p) for p in parameters], 0.0
    for x, y in zip(images.split(SMALL), labels.split(SMALL), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        small += float(squared_norm(parameters)) / RANKS
        for average, p in zip(averages, parameters, strict=True):
            average.add_(p.grad, alpha=1 / RANKS)
    for average, p in zip(averages, parameters, strict=True):
        p.grad = average
    return small, float(squared_norm(parameters))


def exact_noise_scale(model, images, labels):
    """The noise scale from the gradient of every example, for linear layers and ReLU.

    An example's gradient of a linear layer is the product of its input a, with a 1 for the bias,
    and of the loss's derivative d by its output: |d|^2 (|a|^2 + 1) is its squared norm.
    """
    model.zero_grad()
    inputs, outputs, x = [], [], images
    for layer in model:
        inputs, x = [*inputs, x.detach()], layer(x)
        x.retain_grad()
        outputs.append(x)
    F.cross_entropy(x, labels, reduction="sum").backward()
    norms = sum(
        d.grad.square().sum(1) * (a.square().sum(1) + 1)
        for layer, a, d in zip(model, inputs, outputs, strict=True)
        if isinstance(layer, nn.Linear)
    )
    for p in model.parameters():
        p.grad /= len(images)
    g2, s = estimate(norms.mean().item(), float(squared_norm(model.parameters())), 1, len(images))
    return s / g2


@pytest.mark.slow
@pytest.mark.data
def test_two_batch_sizes_tell_what_per_example_gradients_tell(fashion):
    # The trace comes from 60 x 7 deviations of few effective dimensions: 15 % are 4 standard errors.
    model = f1(batch_norm=False)
    scale = NoiseScale(SMALL, BIG, decay=0.999)  # nearly a plain mean
    for chosen in torch.arange(60 * BIG).split(BIG):
        scale.update(*backward(model, *(values[chosen] for values in fashion)))
    exact = exact_noise_scale(model, *(values[: 20 * BIG] for values in fashion))
    print(f"F1 without batch norm at the start: {scale.noise_scale:.0f}, exact {exact:.0f}")
    assert scale.noise_scale == pytest.approx(exact, rel=0.15)


@pytest.mark.thorough
@pytest.mark.data
@pytest.mark.parametrize("batch_norm, rate", [(True, 0.1), (False, 0.05)])
def test_noise_scale_grows_in_training_to_the_published_magnitude(fashion, batch_norm, rate):
    # Published for MNIST and a small convolutional network: 50 at the start, 900 on average over
    # training (McCandlish et al., 2018). Here, with seeds 0, 1 and 2:
    #                 before the first step   lowest    average   at the end
    #   batch norm    275-276                 284-297   646-665   929-1072
    #   none          246-267                 11-17     109-122   193-268
    # Two epochs are far from convergence, so without batch norm the average stays below theirs.
    images, labels = fashion
    model = f1(batch_norm)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9, weight_decay=1e-4)
    scale, scales = NoiseScale(SMALL, BIG, decay=0.97), []
    for _ in range(2):
        for chosen in torch.randperm(len(images)).split(BIG)[:-1]:
            scales.append(scale.update(*backward(model, images[chosen], labels[chosen])))
            optimizer.step()
    third = len(scales) // 3
    first, last, average = np.mean(scales[:third]), np.mean(scales[-third:]), np.mean(scales)
    print(f"F1, batch norm {batch_norm}: {first:.0f} -> {last:.0f}, average {average:.0f}")
    assert last > first
    if batch_norm:
        assert 900 / 2 < average < 900 * 2
