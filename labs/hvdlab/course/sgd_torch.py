"""The networks and the training loop of lab 3 in PyTorch. `sgd_keras` has the same names in Keras.

    model = small_cnn(seed=1)
    log = train(model, images, labels, batch_size=64, learning_rate=0.1, epochs=3)

Images are float arrays of shape (n, height, width, 1), labels are integers. The initial weights have the
distributions of Keras, so that both frameworks give equal results up to the seed.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from hvdlab.course.sgd_log import TrainingLog

FILTER_AXIS = 0  # the axis of a kernel that counts its filters
cross_entropy = nn.CrossEntropyLoss()


def small_cnn(seed: int) -> nn.Module:
    """Return a network of two convolutions and two dense layers for images of 28 x 28 pixels."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(400, 64), nn.ReLU()),
        nn.Linear(64, 10),
    )
    return _initialized(model)


class Block(nn.Module):
    """Two layers, each after batch normalization and ReLU, with or without a skip connection.

    Args:
        width: number of neurons in each layer.
        skip: whether the input is added to the output.
    """

    def __init__(self, width: int, skip: bool) -> None:
        super().__init__()
        layers = [(_batch_norm(width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)]
        self.branch, self.skip = nn.Sequential(*layers[0], *layers[1]), skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the output, (batch, width) as the input."""
        branch = self.branch(hidden)
        return hidden + branch if self.skip else branch


def deep_network(blocks: int, skips: bool, seed: int, width: int = 32) -> nn.Module:
    """Return a network of 2 blocks + 2 dense layers for images of 14 x 14 pixels.

    Args:
        blocks: number of blocks of two layers.
        skips: whether each block has a skip connection.
        width: number of neurons in each layer. Default 32.
    """
    torch.manual_seed(seed)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(14 * 14, width)),
        *(Block(width, skips) for _ in range(blocks)),
        *(_batch_norm(width), nn.ReLU(), nn.Linear(width, 10)),
    )
    return _initialized(model)


def _batch_norm(width: int) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(width, eps=1e-3, momentum=0.01)  # the defaults of Keras


def _initialized(model: nn.Module) -> nn.Module:
    """Draw the initial weights from the distributions that `sgd_keras` uses."""
    in_blocks = {
        id(m) for block in model.modules() if isinstance(block, Block) for m in block.modules()
    }
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.zeros_(module.bias)
            if id(module) in in_blocks:  # he_normal: a normal distribution, cut at two deviations
                std = (2 / module.in_features) ** 0.5 / 0.87962566
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
            else:
                nn.init.xavier_uniform_(module.weight)
    return model


def count_parameters(model: nn.Module) -> int:
    """Return the number of trained weights."""
    return sum(weight.numel() for weight in model.parameters())


def training_step(
    model: nn.Module, images: np.ndarray, labels: np.ndarray, learning_rate: float
) -> float:
    """Make one step of SGD on a batch, and return the loss before the step."""
    batch, classes = _tensors(images, labels)
    outputs = model(batch)  # 1. forward pass
    loss = cross_entropy(outputs, classes)  # 2. loss
    model.zero_grad()
    loss.backward()  # 3. backward pass
    with torch.no_grad():
        for weight in model.parameters():
            weight -= learning_rate * weight.grad  # 4. update
    return loss.item()


def train(
    model: nn.Module,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    batch_size: int,
    learning_rate: float,
    momentum: float = 0.0,
    epochs: int = 1,
    held_out: tuple[np.ndarray, np.ndarray] | None = None,
    stop: Callable[[list[float]], bool] | None = None,
) -> TrainingLog:
    """Train with SGD and return the time, loss and accuracy of each epoch.

    Args:
        batch_size: examples per step. The last batch of an epoch may be smaller.
        momentum: of SGD. Default 0.
        epochs: the largest number of epochs. Default 1.
        held_out: images and labels whose accuracy is measured after each epoch. Default None.
        stop: function of all these accuracies; True ends the training. Default None.
    """
    all_images, all_labels = _tensors(images, labels)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum)
    log = TrainingLog()
    for _ in range(epochs):
        started, total = time.perf_counter(), torch.zeros(())
        for chosen in torch.randperm(len(all_labels)).split(batch_size):
            outputs = model(all_images[chosen])  # 1. forward pass
            loss = cross_entropy(outputs, all_labels[chosen])  # 2. loss
            optimizer.zero_grad()
            loss.backward()  # 3. backward pass
            optimizer.step()  # 4. update
            total += loss.detach() * len(chosen)
        log.losses.append(float(total) / len(all_labels))
        log.seconds.append(time.perf_counter() - started)
        if held_out:
            log.accuracies.append(_accuracy(model, *_tensors(*held_out)))
        if stop and stop(log.accuracies):
            break
    return log


def get_weights(model: nn.Module) -> list[np.ndarray]:
    """Return the weights of a network, in a fixed order."""
    return [weight.detach().numpy().copy() for weight in model.parameters()]


def loss_function(
    model: nn.Module, images: np.ndarray, labels: np.ndarray
) -> Callable[[list[np.ndarray]], float]:
    """Return a function that puts weights into the network and returns its loss on these images.

    Batch normalization uses the statistics of these images, as in training.
    """
    fixed_images, fixed_labels = _tensors(images, labels)

    @torch.no_grad()
    def loss(weights: list[np.ndarray]) -> float:
        for weight, values in zip(model.parameters(), weights, strict=True):
            weight.copy_(torch.as_tensor(values))
        model.train()
        return float(cross_entropy(model(fixed_images), fixed_labels))

    return loss


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images as (n, 1, height, width), without a copy, and labels as int64."""
    return torch.as_tensor(images).movedim(-1, 1), torch.as_tensor(labels).long()


@torch.no_grad()
def _accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    model.eval()
    right = sum(
        int((model(some).argmax(1) == classes).sum())
        for some, classes in zip(images.split(500), labels.split(500), strict=True)
    )
    model.train()
    return right / len(labels)
