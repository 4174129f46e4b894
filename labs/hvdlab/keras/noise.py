"""Two kinds of noise on gradients: multiplicative noise on losses, and additive annealed noise.

`LossWeights` gives the gradient of a large batch the noise of a small one. `GradientNoise` lets an
optimizer add Gaussian noise whose variance falls with the steps. Neither reads or changes Keras' global
random generator. All numbers follow from a seed and a count, so a run can be repeated.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from hvdlab.noise_scale import loss_weight_std


class LossWeights:
    """Multiplicative noise: a weight z ~ N(1, std^2) for the loss of each example.

    A callable that turns a batch (x, y) into (x, y, sample_weight). Put it into the pipeline of the
    *training* data, so that evaluation has no noise. A noisy loss function would not do, because Keras
    calls the same loss in training and evaluation.

        weights = LossWeights(LossWeights.std_for(4096, 128), rank=hvd.rank())
        model.fit(dataset(batches).map(weights), steps_per_epoch=len(batches))

    Without tf.data use a generator: `(weights(x, y) for x, y in pairs)`. A fixed array as
    `sample_weight=` would not do, because new weights must be drawn each time an example is read.

    The gradient of a batch of M examples becomes (1/M) sum_n z_n g_n, because Keras divides by M. (Keep
    the default reduction; "mean_with_sample_weight" divides by sum_n z_n.) Let G be the mean and C the
    covariance of the per-example gradients g_n. Then the new gradient is unbiased, and its covariance is

        ((1 + std^2) C + std^2 G G^T) / M,    about (1 + std^2) C / M if the noise exceeds G

    Batch norm couples the examples of a batch; with it g_n is the contribution of example n's loss to
    the gradient. The `loss` that `fit` prints is the weighted loss and therefore noisier. The metrics
    are not weighted.

    Args:
        std: standard deviation of the weights, at least 0. `std_for(large_batch, small_batch)` computes
            it.
        seed: the same on all ranks. Default 0.
        rank: this rank's number, so that each rank draws its own weights. Default 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, section 4,
    arXiv:1705.08741.
    """

    def __init__(self, std: float, seed: int = 0, rank: int = 0) -> None:
        _check_at_least_0(std=std, seed=seed, rank=rank)
        self.std, self.seed, self.rank = std, seed, rank
        self._seeds = keras.random.SeedGenerator(_hash(seed, 1, rank))

    std_for = staticmethod(loss_weight_std)

    def __call__(self, x: Any, y: Any) -> tuple[Any, Any, Any]:
        """Return (x, y, z) with new weights z, float32 of shape (batch,)."""
        shape = (ops.shape(y)[0],)
        z = keras.random.normal(shape, 1.0, self.std, dtype="float32", seed=self._seeds)
        return x, y, z


class GradientNoise:
    """Additive annealed noise: N(0, eta / (1 + t)^gamma) on every gradient at step t = 0, 1, ...

    A mixin that stands in front of an optimizer class, as in `NoisySGD` below:

        @keras.saving.register_keras_serializable("my_course")
        class NoisyAdam(GradientNoise, keras.optimizers.Adam):
            pass

        model.compile(hvd.DistributedOptimizer(NoisyAdam(0.001, eta=0.01, seed=1)), loss)

    With the same seed, all ranks add the same numbers, before or after the all-reduce, and their weights
    stay equal. With different numbers *after* the all-reduce the weights of the ranks would drift apart.
    Different numbers *before* it are safe, but averaging N ranks divides their variance by N.

    The numbers follow from (seed, iterations), so a model that is saved and loaded continues with the
    same noise as without the interruption. The noise is added before clipping. With gradient accumulation
    all batches of one update get the same noise, and their mean has that noise. (If Horovod sums the
    batches instead, the noise grows with the gradient.) Sparse gradients of embeddings become dense. To
    load a model that was saved with `hvd.DistributedOptimizer`, name the class:
    `hvd.load_model(path, custom_optimizers=[NoisyAdam])`.

    Args:
        *args: arguments of the optimizer.
        eta: variance at the first step, at least 0. The paper tries 0.01, 0.3 and 1.
        gamma: exponent with which the variance falls, at least 0. Default 0.55, as in the paper.
        seed: the same on all ranks. Default 0.
        **kwargs: arguments of the optimizer.

    Raises:
        ValueError: an argument is out of range.

    Source: Neelakantan et al., Adding Gradient Noise Improves Learning for Very Deep Networks,
    2015, arXiv:1511.06807.
    """

    def __init__(
        self, *args: Any, eta: float, gamma: float = 0.55, seed: int = 0, **kwargs: Any
    ) -> None:
        _check_at_least_0(eta=eta, gamma=gamma, seed=seed)
        super().__init__(*args, **kwargs)
        self.eta, self.gamma, self.seed = eta, gamma, seed
        self._seed_hash = _hash(seed, 2)
        self._seeds = keras.random.SeedGenerator(self._seed_hash)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Add noise to the gradients and update the variables.

        Args:
            grads: tensors, or None where a variable has no gradient.
            trainable_variables: as in Keras. Default: the variables of the optimizer.
        """
        t = ops.cast(self.iterations, "int32")
        # The counter differs for every step and gradient, because each draw below raises it by one.
        self._seeds.state.assign(ops.stack([self._seed_hash, t * len(grads)]))
        std = math.sqrt(self.eta) * ops.power(1.0 + ops.cast(t, "float32"), -self.gamma / 2)
        if self.loss_scale_factor is not None:
            std = std * self.loss_scale_factor  # because the optimizer divides gradients by it

        def noisy(grad: Any) -> Any:
            noise = std * keras.random.normal(grad.shape, dtype="float32", seed=self._seeds)
            return ops.add(grad, ops.cast(noise, grad.dtype))

        super().apply([g if g is None else noisy(g) for g in grads], trainable_variables)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` makes an equal optimizer."""
        return super().get_config() | {"eta": self.eta, "gamma": self.gamma, "seed": self.seed}


@keras.saving.register_keras_serializable("hvdlab")
class NoisySGD(GradientNoise, keras.optimizers.SGD):
    """`keras.optimizers.SGD` with annealed gradient noise: `NoisySGD(0.1, momentum=0.9, eta=0.01)`."""


def squared_norm(gradients: Sequence[Any]) -> Any:
    """Return |g|^2 over a list of gradients as a float32 scalar tensor, for `hvdlab.noise_scale`.

    Args:
        gradients: dense or sparse tensors. None, the gradient of a variable without one, is skipped.

    Raises:
        ValueError: there is no gradient.
    """
    gradients = [g for g in gradients if g is not None]
    if not gradients:
        raise ValueError("gradients must hold at least one tensor. Received: none")
    # Adding 0 makes sparse gradients dense, because repeated rows must be summed before squaring.
    return sum(ops.sum(ops.square(ops.cast(ops.add(g, 0.0), "float32"))) for g in gradients)


def _hash(*key: int) -> int:
    """Return a seed of 31 bits.

    Keys are hashed because Keras on torch adds seed and count, so neighbouring seeds would share numbers.
    """
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> 1)


def _check_at_least_0(**arguments: float) -> None:
    for name, value in arguments.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be at least 0 and finite. Received: {name}={value!r}")
