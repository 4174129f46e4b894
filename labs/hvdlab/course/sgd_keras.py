"""The networks and the training loop of lab 3 in Keras. `sgd_torch` has the same names in PyTorch.

    model = small_cnn(seed=1)
    log = train(model, images, labels, batch_size=64, learning_rate=0.1, epochs=3)

Images are float arrays of shape (n, height, width, 1), labels are integers.

NOTE: `fit` of Keras 3 with TensorFlow reads arrays in the same random order in every epoch if a seed is
set for the whole program, as the networks below do. The reference results of lab 3 were measured so.
"""

import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdlab.course.sgd_log import TrainingLog

FILTER_AXIS = -1  # the axis of a kernel that counts its filters
cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def small_cnn(seed: int) -> keras.Model:
    """Return a network of two convolutions and two dense layers for images of 28 x 28 pixels."""
    keras.utils.set_random_seed(seed)
    images = keras.Input((28, 28, 1))
    hidden = layers.Conv2D(8, 5, strides=2, activation="relu")(images)
    hidden = layers.Conv2D(16, 3, strides=2, activation="relu")(hidden)
    hidden = layers.Dense(64, activation="relu")(layers.Flatten()(hidden))
    return keras.Model(images, layers.Dense(10)(hidden))


def deep_network(blocks: int, skips: bool, seed: int, width: int = 32) -> keras.Model:
    """Return a network of 2 blocks + 2 dense layers for images of 14 x 14 pixels.

    Args:
        blocks: number of blocks of two layers.
        skips: whether each block has a skip connection.
        width: number of neurons in each layer. Default 32.
    """
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((14, 14, 1))
    hidden = layers.Dense(width)(layers.Flatten()(inputs))
    for _ in range(blocks):
        branch = hidden
        for _ in range(2):
            branch = layers.Activation("relu")(layers.BatchNormalization()(branch))
            branch = layers.Dense(width, kernel_initializer="he_normal")(branch)
        hidden = layers.Add()([hidden, branch]) if skips else branch
    hidden = layers.Activation("relu")(layers.BatchNormalization()(hidden))
    return keras.Model(inputs, layers.Dense(10)(hidden))


def count_parameters(model: keras.Model) -> int:
    """Return the number of trained weights."""
    return sum(int(np.prod(weight.shape)) for weight in model.trainable_variables)


def training_step(
    model: keras.Model, images: np.ndarray, labels: np.ndarray, learning_rate: float
) -> float:
    """Make one step of SGD on a batch, and return the loss before the step."""
    weights = model.trainable_variables
    with tf.GradientTape() as tape:
        outputs = model(images, training=True)  # 1. forward pass
        loss = cross_entropy(labels, outputs)  # 2. loss
    gradients = tape.gradient(loss, weights)  # 3. backward pass
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.assign_sub(learning_rate * gradient)  # 4. update
    return float(loss)


class _Log(keras.callbacks.Callback):
    """Measures each epoch, and ends the training when `stop` returns True."""

    def __init__(self, stop: Callable[[list[float]], bool] | None) -> None:
        super().__init__()
        self.log, self.stop = TrainingLog(), stop

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self.started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.now = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.log.seconds.append(self.now - self.started)
        self.log.losses.append(logs["loss"])
        if "val_accuracy" in logs:
            self.log.accuracies.append(logs["val_accuracy"])
        self.model.stop_training = bool(self.stop and self.stop(self.log.accuracies))


def train(
    model: keras.Model,
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
    optimizer = keras.optimizers.SGD(learning_rate, momentum)
    model.compile(optimizer, cross_entropy, metrics=["accuracy"], jit_compile=False)
    if held_out:  # compile the step now, so that the measured seconds do not contain it
        start = model.get_weights()
        model.fit(images[:batch_size], labels[:batch_size], batch_size, verbose=0)
        model.set_weights(start)
    callback = _Log(stop)
    model.fit(
        images,
        labels,
        batch_size,
        epochs,
        verbose=0,
        callbacks=[callback],
        validation_data=held_out,
        validation_batch_size=500,
    )
    return callback.log


def get_weights(model: keras.Model) -> list[np.ndarray]:
    """Return the weights of a network, in a fixed order."""
    return model.get_weights()


def loss_function(
    model: keras.Model, images: np.ndarray, labels: np.ndarray
) -> Callable[[list[np.ndarray]], float]:
    """Return a function that puts weights into the network and returns its loss on these images.

    Batch normalization uses the statistics of these images, as in training.
    """
    fixed_images, fixed_labels = tf.constant(images), tf.constant(labels)

    @tf.function(autograph=False)
    def forward(weights: list[tf.Tensor]) -> tf.Tensor:
        # model.set_weights would need twenty times as long as the forward pass of a small network.
        for variable, values in zip(model.weights, weights, strict=True):
            variable.assign(values)
        return cross_entropy(fixed_labels, model(fixed_images, training=True))

    def loss(weights: list[np.ndarray]) -> float:
        return float(forward([tf.constant(values) for values in weights]))

    return loss
