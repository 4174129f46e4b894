"""A small fully connected network in NumPy, whose weights are one array, as lab 2 needs it.

    network = TanhNetwork(images, labels)
    weights = network.start(seed=1)
    loss, gradient = network.loss_and_gradient(weights)     # of all images; gradient has the shape of weights

It is the network of Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of
Stability, 2021, arXiv:2103.00065, with 64 units in place of 200.
"""

from itertools import pairwise

import numpy as np


class TanhNetwork:
    """Network 784-64-64-10 with tanh, and the mean squared error of its ten outputs.

    The error of an image is the sum of the squares over the ten outputs. Its right outputs are 1 for the
    class of the image and 0 for the others.

    Args:
        images: whole numbers from 0 to 255, shape (n, 28, 28). They are centred pixel by pixel.
        labels: whole numbers from 0 to 9, shape (n,).
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        pixels = (images.reshape(len(images), -1) / 255).astype("float32")
        self.inputs = (pixels - pixels.mean(axis=0)) / pixels.std()
        self.targets = np.eye(10, dtype="float32")[labels]
        self.shapes = list(pairwise([self.inputs.shape[1], 64, 64, 10]))

    def start(self, seed: int) -> np.ndarray:
        """Return random float32 weights, uniform within 1 / sqrt(inputs of the layer), and biases of 0."""
        rng = np.random.default_rng(seed)
        layers = [rng.uniform(-1, 1, shape) / np.sqrt(shape[0]) for shape in self.shapes]
        parts = [part for w in layers for part in (w.ravel(), np.zeros(w.shape[1]))]
        return np.concatenate(parts).astype("float32")

    def loss_and_gradient(self, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss of all images, and its gradient."""
        layers, values = self._layers(weights), [self.inputs]
        for matrix, bias in layers[:-1]:
            values.append(np.tanh(values[-1] @ matrix + bias))
        errors = values[-1] @ layers[-1][0] + layers[-1][1] - self.targets
        slope, parts = 2 * errors / len(errors), []
        for (matrix, _), inputs in zip(reversed(layers), reversed(values), strict=True):
            parts += [slope.sum(axis=0), (inputs.T @ slope).ravel()]
            slope = (slope @ matrix.T) * (1 - inputs**2)  # of tanh; the last one is not used
        return float(np.mean(np.sum(errors**2, axis=1))), np.concatenate(parts[::-1])

    def _layers(self, weights: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        layers, used = [], 0
        for inputs, outputs in self.shapes:
            matrix, bias = np.split(
                weights[used : used + (inputs + 1) * outputs], [inputs * outputs]
            )
            layers.append((matrix.reshape(inputs, outputs), bias))
            used += (inputs + 1) * outputs
        return layers
