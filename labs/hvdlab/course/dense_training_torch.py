"""Train a small fully connected network with PyTorch, as the experiments of lab 6 need it.

`dense_training_keras` has the same names with the same meaning for Keras. The initial weights are drawn
from the same distribution as in Keras, but they are other random numbers.

    train_set = tensors(images, labels)
    network = DenseNetwork([128])
    network.restart(seed=1, learning_rate=0.1)
    network.train(train_set, order)     # order: numbers of images, shape (steps, batch size)
    network.accuracy(test_set)
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Data = tuple[Tensor, Tensor]  # images (n, 784) and labels (n,)


def tensors(images: np.ndarray, labels: np.ndarray) -> Data:
    """Return images as rows of 784 pixels with mean 0 and standard deviation 1, and their labels.

    Args:
        images: whole numbers from 0 to 255, shape (n, 28, 28).
        labels: whole numbers from 0 to 9, shape (n,).
    """
    pixels = ((images.reshape(-1, 784) / np.float32(255) - 0.286) / 0.353).astype("float32")
    return torch.from_numpy(pixels).to(DEVICE), torch.from_numpy(labels.astype("int64")).to(DEVICE)


class DenseNetwork:
    """Fully connected network with ReLU that classifies 784 pixels into ten classes, and its optimizer.

    Args:
        widths: number of units of each hidden layer.
        optimizer: "sgd" (default) or "adam".
    """

    def __init__(self, widths: Sequence[int], optimizer: str = "sgd") -> None:
        layers = []
        for inputs, outputs in pairwise([784, *widths, 10]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.model = nn.Sequential(*layers[:-1]).to(DEVICE)
        self.linear = [layer for layer in self.model if isinstance(layer, nn.Linear)]
        if optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.model.parameters(), fused=True)
        else:  # eps as in Keras
            self.optimizer = torch.optim.Adam(self.model.parameters(), eps=1e-7, fused=True)

    def restart(self, seed: int, learning_rate: float) -> None:
        """Draw new weights, clear the state of the optimizer and set its learning rate.

        Args:
            learning_rate: of all following steps.
        """
        torch.manual_seed(seed)
        for layer in self.linear:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.optimizer.state.clear()
        self.optimizer.param_groups[0]["lr"] = learning_rate

    def train(self, data: Data, order: np.ndarray) -> None:
        """Make one step for each row of `order`.

        Args:
            order: numbers of images, shape (steps, batch size).
        """
        for chosen in torch.from_numpy(np.asarray(order, "int64")).to(DEVICE):
            self._backward(data, chosen)
            self.optimizer.step()

    def gradient(self, data: Data, chosen: np.ndarray) -> list[np.ndarray]:
        """Return the mean gradient over the chosen images: one array for each array of weights.

        Args:
            chosen: numbers of images, shape (batch size,).
        """
        rows = torch.from_numpy(np.asarray(chosen, "int64")).to(DEVICE)
        self._backward(data, rows)
        return [_array(parameter.grad) for parameter in self.model.parameters()]

    def curvatures(
        self, data: Data, chosen: np.ndarray, directions: Sequence[Sequence[np.ndarray]]
    ) -> list[float]:
        """Return d^T H d for each direction d, where H is the Hessian of the mean loss of the chosen images.

        Args:
            chosen: numbers of images, shape (batch size,).
        """
        images, labels = (values[torch.from_numpy(np.asarray(chosen, "int64"))] for values in data)
        weights = list(self.model.parameters())
        loss = F.cross_entropy(self.model(images), labels)
        gradient = torch.autograd.grad(loss, weights, create_graph=True)
        found = []
        for direction in directions:
            parts = [_tensor(part) for part in direction]
            slope = sum((g * d).sum() for g, d in zip(gradient, parts, strict=True))
            product = torch.autograd.grad(slope, weights, retain_graph=True)
            found.append(sum(float((p * d).sum()) for p, d in zip(product, parts, strict=True)))
        return found

    def apply(self, gradient: Sequence[np.ndarray]) -> None:
        """Make one step of the optimizer with a given gradient."""
        for parameter, part in zip(self.model.parameters(), gradient, strict=True):
            parameter.grad = _tensor(part)
        self.optimizer.step()

    @torch.no_grad()
    def accuracy(self, data: Data) -> float:
        """Return the fraction of images that are classified correctly."""
        images, labels = data
        return float((self.model(images).argmax(1) == labels).float().mean())

    @torch.no_grad()
    def loss(self, data: Data) -> float:
        """Return the mean loss."""
        images, labels = data
        return float(F.cross_entropy(self.model(images), labels))

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of the weights: for each layer the matrix (inputs, outputs) and the biases."""
        return [_array(parameter) for parameter in self.model.parameters()]

    @torch.no_grad()
    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights."""
        for parameter, array in zip(self.model.parameters(), weights, strict=True):
            parameter.copy_(_tensor(array))

    def _backward(self, data: Data, chosen: Tensor) -> None:
        images, labels = (values.index_select(0, chosen) for values in data)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()


def _array(tensor: Tensor) -> np.ndarray:
    """Return a copy as an array; matrices as (inputs, outputs), whereas PyTorch has (outputs, inputs)."""
    return np.array(tensor.detach().cpu().numpy().T)


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.asarray(array, "float32").T)).to(DEVICE)
