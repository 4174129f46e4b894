"""Train the network F1 of Hoffer et al. with Keras, as the experiments of lab 7 need it.

`f1_training_torch` has the same names with the same meaning for PyTorch.

    training = F1Training(seed=1, schedule=lambda step: 0.01, steps=942)
    rows = training.fit((x, y), (test_x, test_y), batch_size=64, epochs=6)

Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, arXiv:1705.08741.
"""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from hvdlab.keras import LAMB, LARS, GhostBatchNormalization, NovoGrad
from hvdlab.keras.noise import LossWeights, NoisySGD
from hvdlab.keras.schedules import Schedule

DECAY = 1e-4  # weight decay of the matrices
CONVOLUTIONS = [(16, 2), (32, 2), (64, 2), (64, 1)]  # channels and strides of "CNN"
HE = "he_normal"  # the initial weights of "CNN", which suit ReLU
DECOUPLED_DECAY = 0.1  # the same for AdamW and Muon, whose decay is not part of the gradient
IN_THE_LOSS = "SGD", "Adam"  # optimizers whose weight decay is a term of the loss
Data = tuple[np.ndarray, np.ndarray]  # images (n, pixels) and labels (n,)


class F1Training:
    """The network, F1 or a small convolutional one, and its optimizer.

    F1 is 784 - 512 x 5 - 10 with ReLU. "CNN" has four 3 x 3 convolutions of 16, 32, 64 and 64 channels, each
    with ReLU, and one dense layer.

    Args:
        network: "F1", or "CNN" for a convolutional network without a norm. Default "F1".
        image: height, width and channels of an image, for "CNN". Default (28, 28, 1).
        schedule: function step -> learning rate.
        steps: number of updates of the run.
        optimizer: "SGD" (with momentum 0.9), "Adam", "AdamW", "LARS", "LARC", "LAMB", "NovoGrad" or "Muon"
            (for the matrices of the hidden layers, with AdamW for the rest). Default "SGD".
        norm: "batch", "ghost", or "none": what normalises the output of each hidden layer. Default "batch".
        ghost_size: number of examples of a ghost. Default 64.
        hidden_layers: default 5.
        clip_norm: largest norm of the whole gradient. Default None: no clipping.
        gradient_noise: variance of the noise that is added to the gradients of SGD at the first step.
            Default 0.
        loss_weight_std: standard deviation of the random weights of the losses. Default 0.
    """

    def __init__(
        self,
        seed: int,
        schedule: Callable[[int], float],
        steps: int,
        *,
        network: str = "F1",
        image: tuple[int, int, int] = (28, 28, 1),
        optimizer: str = "SGD",
        norm: str = "batch",
        ghost_size: int = 64,
        hidden_layers: int = 5,
        clip_norm: float | None = None,
        gradient_noise: float = 0,
        loss_weight_std: float = 0,
    ) -> None:
        keras.utils.set_random_seed(seed)
        self.seed, self.loss_weight_std = seed, loss_weight_std
        # Keras' L2(c) adds c w^2 to the loss, and the gradient of that is 2 c w.
        decay = keras.regularizers.L2(DECAY / 2) if optimizer in IN_THE_LOSS else None
        if network == "CNN":
            modules, initial = _convolutions(*image, decay), HE
        else:
            modules, initial = (
                _dense_layers(hidden_layers, norm, ghost_size, decay),
                "glorot_uniform",
            )
        last = layers.Dense(10, kernel_initializer=initial, kernel_regularizer=decay, name="logits")
        self.model = keras.Sequential([*modules, last])
        rate = Schedule(schedule, steps)
        self._compile(_optimizer(optimizer, rate, clip_norm, gradient_noise, seed))

    def _compile(self, optimizer: keras.optimizers.Optimizer) -> None:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)

    def branch(self, schedule: Callable[[int], float], steps: int) -> "F1Training":
        """Return a copy that continues from this moment with another schedule and number of updates."""
        copy, old = object.__new__(F1Training), self.model.optimizer
        copy.seed, copy.loss_weight_std = self.seed, self.loss_weight_std
        copy.model = keras.models.clone_model(self.model)
        copy.model.set_weights(self.model.get_weights())
        settings = {**old.get_config(), "learning_rate": Schedule(schedule, steps)}
        new = type(old).from_config(settings)
        new.build(copy.model.trainable_variables)
        for to, variable in zip(new.variables, old.variables, strict=True):
            to.assign(variable)
        copy._compile(new)
        return copy

    def fit(self, train: Data, test: Data, batch_size: int, epochs: int, every: int = 1) -> list:
        """Train, and return a row {"epoch", "test_accuracy"} for each epoch that is tested.

        Args:
            batch_size: number of images of one update.
            epochs: number of passes over the images.
            every: the test images are looked at after every so many epochs. Default 1.
        """
        source = *train, batch_size
        if self.loss_weight_std:
            pairs = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=self.seed)
            weights = LossWeights(self.loss_weight_std, seed=self.seed)
            source = (pairs.batch(batch_size).map(weights),)
        history = self.model.fit(
            *source,
            epochs=epochs,
            shuffle=not self.loss_weight_std,
            verbose=0,
            validation_data=test,
            validation_batch_size=2500,
            validation_freq=every,
        ).history
        tested = zip(range(every, epochs + 1, every), history["val_accuracy"], strict=True)
        return [{"epoch": epoch, "test_accuracy": accuracy} for epoch, accuracy in tested]

    def matrix_norms(self, images: np.ndarray, labels: np.ndarray) -> list[tuple[float, float]]:
        """Return the norm of each weight matrix and the norm of its gradient.

        Args:
            images: one batch (n, 784).
        """
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = keras.ops.mean(losses)
        matrices = [w for w in self.model.trainable_weights if len(w.shape) > 1]
        gradients = tape.gradient(loss, [w.value for w in matrices])
        pairs = zip(matrices, gradients, strict=True)
        return [(float(np.linalg.norm(w)), float(np.linalg.norm(g))) for w, g in pairs]


def _dense_layers(
    hidden_layers: int, norm: str, ghost_size: int, decay: keras.regularizers.Regularizer | None
) -> list[layers.Layer]:
    """Return the layers of F1 but the last one."""
    modules = [layers.Input((784,))]
    for _ in range(hidden_layers):
        modules.append(layers.Dense(512, kernel_regularizer=decay))
        if norm == "batch":
            modules.append(layers.BatchNormalization(momentum=0.9))
        if norm == "ghost":
            modules.append(GhostBatchNormalization(ghost_size, momentum=0.9))
        modules.append(layers.ReLU())
    return modules


def _convolutions(
    height: int, width: int, channels: int, decay: keras.regularizers.Regularizer | None
) -> list[layers.Layer]:
    """Return the layers of "CNN" but the last one. The padding is that of PyTorch: one pixel on each side."""
    modules = [
        layers.Input((height * width * channels,)),
        layers.Reshape((height, width, channels)),
    ]
    for outputs, stride in CONVOLUTIONS:
        modules += [
            layers.ZeroPadding2D(1),
            layers.Conv2D(outputs, 3, stride, kernel_initializer=HE, kernel_regularizer=decay),
            layers.ReLU(),
        ]
    return [*modules, layers.Flatten()]


def _optimizer(
    name: str, rate: Schedule, clip_norm: float | None, gradient_noise: float, seed: int
) -> keras.optimizers.Optimizer:
    if gradient_noise:
        return NoisySGD(rate, momentum=0.9, eta=gradient_noise, seed=seed)
    if name == "SGD":
        return keras.optimizers.SGD(rate, 0.9, global_clipnorm=clip_norm)
    if name == "Adam":
        return keras.optimizers.Adam(rate)
    if name in ("AdamW", "Muon"):
        decay, without = DECOUPLED_DECAY, {}
        if name == "Muon":
            without = {"exclude_layers": ["logits"], "adam_weight_decay": decay}
        made = getattr(keras.optimizers, name)(rate, weight_decay=decay, **without)
        made.exclude_from_weight_decay(var_names=["bias"])
        return made
    if name == "LARS":
        return LARS(rate, 0.9, DECAY, trust_coefficient=0.02)
    if name == "LARC":
        return LARS(rate, 0.9, DECAY, clip=True)
    return {"LAMB": LAMB, "NovoGrad": NovoGrad}[name](rate, weight_decay=DECAY)
