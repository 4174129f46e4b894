"""Train a small fully connected network with Keras, as the experiments of lab 6 need it.

`dense_training_torch` has the same names with the same meaning for PyTorch.

    train_set = tensors(images, labels)
    network = DenseNetwork([128])
    network.restart(seed=1, learning_rate=0.1)
    network.train(train_set, order)     # order: numbers of images, shape (steps, batch size)
    network.accuracy(test_set)
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

Data = tuple[tf.Tensor, tf.Tensor]  # images (n, 784) and labels (n,)


def tensors(images: np.ndarray, labels: np.ndarray) -> Data:
    """Return images as rows of 784 pixels with mean 0 and standard deviation 1, and their labels.

    Args:
        images: whole numbers from 0 to 255, shape (n, 28, 28).
        labels: whole numbers from 0 to 9, shape (n,).
    """
    pixels = (images.reshape(-1, 784) / np.float32(255) - 0.286) / 0.353
    return tf.constant(pixels, tf.float32), tf.constant(labels.astype("int32"))


class DenseNetwork:
    """Fully connected network with ReLU that classifies 784 pixels into ten classes, and its optimizer.

    Args:
        widths: number of units of each hidden layer.
        optimizer: "sgd" (default) or "adam".
    """

    def __init__(self, widths: Sequence[int], optimizer: str = "sgd") -> None:
        hidden = [keras.layers.Dense(width, activation="relu") for width in widths]
        self.model = keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10)])
        kinds = {"sgd": keras.optimizers.SGD, "adam": keras.optimizers.Adam}
        self.optimizer = kinds[optimizer]()
        self.optimizer.build(self.model.trainable_variables)
        loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def gradient(images: tf.Tensor, labels: tf.Tensor, chosen: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                logits = self.model(tf.gather(images, chosen))
                loss = loss_function(tf.gather(labels, chosen), logits)
            return tape.gradient(loss, self.model.trainable_variables)

        @tf.function
        def train(images: tf.Tensor, labels: tf.Tensor, order: tf.Tensor) -> None:
            for chosen in order:
                self.optimizer.apply(gradient(images, labels, chosen))

        @tf.function
        def curvature(
            images: tf.Tensor, labels: tf.Tensor, chosen: tf.Tensor, direction: list[tf.Tensor]
        ) -> tf.Tensor:
            with tf.GradientTape() as tape:
                parts = zip(gradient(images, labels, chosen), direction, strict=True)
                slope = tf.add_n([tf.reduce_sum(g * d) for g, d in parts])
            product = tape.gradient(slope, self.model.trainable_variables)
            parts = zip(product, direction, strict=True)
            return tf.add_n([tf.reduce_sum(p * d) for p, d in parts if p is not None])

        @tf.function
        def accuracy(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            right = tf.argmax(self.model(images), axis=1, output_type=tf.int32) == labels
            return tf.reduce_mean(tf.cast(right, tf.float32))

        @tf.function
        def loss(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return loss_function(labels, self.model(images))

        self._gradient, self._train, self._curvature = gradient, train, curvature
        self._accuracy, self._loss = accuracy, loss

    def restart(self, seed: int, learning_rate: float) -> None:
        """Draw new weights, clear the state of the optimizer and set its learning rate.

        Args:
            learning_rate: of all following steps.
        """
        keras.utils.set_random_seed(seed)
        self.model.set_weights(keras.models.clone_model(self.model).get_weights())
        for variable in self.optimizer.variables:
            variable.assign(tf.zeros_like(variable))
        self.optimizer.learning_rate = learning_rate

    def train(self, data: Data, order: np.ndarray) -> None:
        """Make one step for each row of `order`.

        Args:
            order: numbers of images, shape (steps, batch size).
        """
        self._train(*data, tf.constant(order, tf.int32))

    def gradient(self, data: Data, chosen: np.ndarray) -> list[np.ndarray]:
        """Return the mean gradient over the chosen images: one array for each array of weights.

        Args:
            chosen: numbers of images, shape (batch size,).
        """
        parts = self._gradient(*data, tf.constant(chosen, tf.int32))
        return [part.numpy() for part in parts]

    def curvatures(
        self, data: Data, chosen: np.ndarray, directions: Sequence[Sequence[np.ndarray]]
    ) -> list[float]:
        """Return d^T H d for each direction d, where H is the Hessian of the mean loss of the chosen images.

        Args:
            chosen: numbers of images, shape (batch size,).
        """
        rows, found = tf.constant(chosen, tf.int32), []
        for direction in directions:
            parts = [tf.constant(part, tf.float32) for part in direction]
            found.append(float(self._curvature(*data, rows, parts)))
        return found

    def apply(self, gradient: Sequence[np.ndarray]) -> None:
        """Make one step of the optimizer with a given gradient."""
        self.optimizer.apply([tf.constant(part, tf.float32) for part in gradient])

    def accuracy(self, data: Data) -> float:
        """Return the fraction of images that are classified correctly."""
        return float(self._accuracy(*data))

    def loss(self, data: Data) -> float:
        """Return the mean loss."""
        return float(self._loss(*data))

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of the weights: for each layer the matrix (inputs, outputs) and the biases."""
        return self.model.get_weights()

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Replace the weights."""
        self.model.set_weights(list(weights))
