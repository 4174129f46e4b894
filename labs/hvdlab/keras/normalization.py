"""Ghost batch normalisation in Keras: the statistics of small batches inside a large one.

`hvdlab.torch.normalization` is the same layer in PyTorch and explains its purpose. The conventions here
are those of `keras.layers.BatchNormalization`: momentum is the weight of the *old* value, and the moving
variance averages the biased variance. In contrast, torch and `hvdlab.reference.ghost_batch_norm` average
the unbiased variance.

Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
arXiv:1705.08741.
"""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="hvdlab")
class GhostBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalisation that normalises each ghost of a batch by its own mean and variance.

    In training a ghost is a group of `ghost_size` consecutive examples; the last ghost takes the
    remainder. The moving statistics are updated with one ghost after the other. Inference works as in
    `keras.layers.BatchNormalization`, and so does training on a batch of at most `ghost_size` examples.
    The batch size may differ from step to step, also in a graph.

    Weights have the names and the order of the plain layer, so `set_weights(plain.get_weights())` works
    in both directions. (A .weights.h5 file names layers by their class, so it fits only models with the
    same classes.)

    As in the plain layer, a ghost with one value per channel has the variance 0, and its output is beta.

    Args:
        ghost_size: number of examples of a ghost, at least 1.
        axis: axis of the channels, -1 (default) or 1.
        **kwargs: other arguments of `keras.layers.BatchNormalization`, except `renorm` and
            `synchronized`.

    Raises:
        ValueError: an argument is out of its range; when called: with a mask.

    Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
    arXiv:1705.08741.
    """

    def __init__(self, ghost_size: int, axis: int = -1, **kwargs: Any) -> None:
        if not isinstance(ghost_size, int) or isinstance(ghost_size, bool) or ghost_size < 1:
            raise ValueError(
                f"ghost_size must be an integer of at least 1. Received: ghost_size={ghost_size!r}"
            )
        if axis not in (-1, 1):
            raise ValueError(f"axis must be -1 or 1. Received: axis={axis!r}")
        for name in ("renorm", "synchronized"):
            if kwargs.get(name):
                raise ValueError(
                    f"{name} must be False: a ghost has its own statistics. "
                    f"Received: {name}={kwargs[name]!r}"
                )
        super().__init__(axis=axis, **kwargs)
        self.ghost_size = ghost_size

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Return the normalised inputs, in their shape.

        Args:
            inputs: tensor (batch, ..., channels), or (batch, channels, ...) with axis=1.
            training: whether to normalise by the statistics of the ghosts. Default None: no.
            mask: must be None.

        Raises:
            ValueError: there is a mask.
        """
        if mask is not None:
            raise ValueError("mask must be None: ghost batch norm does not support masks.")
        one_ghost = inputs.shape[0] is not None and inputs.shape[0] <= self.ghost_size
        if one_ghost or not (training and self.trainable):
            return super().call(inputs, training=training)

        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        batch, channels = ops.shape(x)[0], x.shape[self.axis]
        positions = self._reduction_axes[1:]
        ghosts = (batch + self.ghost_size - 1) // self.ghost_size
        index = ops.arange(ghosts)
        # The number of examples of each ghost.
        examples = ops.minimum(self.ghost_size, batch - index * self.ghost_size)
        examples = ops.cast(examples, x.dtype)[:, None]

        # Only tables of (batch, channels) are padded to whole ghosts, and never x itself. So a remainder
        # needs neither a branch nor a copy.
        def average(x: Any) -> Any:
            """Return the averages (ghosts, channels) of (batch, ...)."""
            table = ops.mean(x, positions) if positions else x
            missing = ops.zeros((ghosts * self.ghost_size - batch, channels), x.dtype)
            table = ops.concatenate([table, missing])
            table = ops.reshape(table, (-1, self.ghost_size, channels))
            return ops.sum(table, axis=1) / examples

        def align(table: Any) -> Any:
            """Return (batch, channels) as (batch, channels, 1, 1) or (batch, 1, 1, channels)."""
            return ops.expand_dims(table, positions) if positions else table

        def spread(table: Any) -> Any:
            """Return a row of (ghosts, channels) for each example, aligned with x."""
            return align(ops.repeat(table, self.ghost_size, axis=0)[:batch])

        mean = average(x)
        x = x - spread(mean)
        variance = average(ops.square(x))

        # moving <- momentum moving + (1 - momentum) statistic for each ghost in turn, as one sum
        age = ops.cast(ghosts - 1 - index, x.dtype)
        weights = (1 - self.momentum) * self.momentum ** age[:, None]
        for moving, new in (self.moving_mean, mean), (self.moving_variance, variance):
            kept = (1 - ops.sum(weights)) * ops.cast(moving, x.dtype)
            moving.assign(kept + ops.sum(weights * new, axis=0))

        scale = ops.rsqrt(variance + self.epsilon)
        if self.scale:
            scale = scale * ops.cast(self.gamma, x.dtype)
        y = x * spread(scale)
        if self.center:
            y = y + align(ops.cast(self.beta, x.dtype)[None])
        return ops.cast(y, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, from which `from_config` makes an equal layer."""
        return {**super().get_config(), "ghost_size": self.ghost_size}


GhostBatchNorm = GhostBatchNormalization
