"""Ghost batch normalisation in Keras: the statistics of small batches inside a large one.

`hvdlab.torch.normalization` says what for, and is the same layer in PyTorch. The conventions here are
those of `keras.layers.BatchNormalization`: momentum is the weight of the *old* value, and the moving
variance averages the biased variance, where torch and `hvdlab.reference.ghost_batch_norm` take the
unbiased one.

Source: Hoffer, Hubara, Soudry, Train longer, generalize better, 2017, algorithm 1,
arXiv:1705.08741.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="hvdlab")
class GhostBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalisation that normalises each ghost of a batch by its own mean and variance.

    In training, ghosts are `ghost_size` consecutive examples; the last one takes the remainder. The
    moving statistics take the ghosts one after the other. Inference is the plain layer's, and so is
    training on a batch of at most `ghost_size` examples. The batch size may differ from step to step,
    also in a graph.

    Weights are named and ordered as in the plain layer: `set_weights(plain.get_weights())` works both
    ways. (A .weights.h5 file calls layers by their class: it fits models of the same classes only.)

    As in the plain layer, one value per channel has the variance 0: its output is beta.

    Args:
        ghost_size: examples of a ghost.
        axis: the channels: -1 or 1. Default -1.
        **kwargs: those of `keras.layers.BatchNormalization`, but for `renorm` and `synchronized`.

    Raises:
        ValueError: at once for arguments that are none of these; when called with a mask.
    """

    def __init__(self, ghost_size, axis=-1, **kwargs):
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

    def call(self, inputs, training=None, mask=None):
        if mask is not None:
            raise ValueError("mask must be None: ghost batch norm knows no masked positions.")
        one_ghost = inputs.shape[0] is not None and inputs.shape[0] <= self.ghost_size
        if one_ghost or not (training and self.trainable):
            return super().call(inputs, training=training)

        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        batch, channels = ops.shape(x)[0], x.shape[self.axis]
        positions = self._reduction_axes[1:]
        ghosts = (batch + self.ghost_size - 1) // self.ghost_size
        index = ops.arange(ghosts)
        # how many examples each ghost has
        examples = ops.minimum(self.ghost_size, batch - index * self.ghost_size)
        examples = ops.cast(examples, x.dtype)[:, None]

        # Only tables of (batch, channels) are filled up to whole ghosts, never x itself: so a
        # remainder, or none, needs neither a branch nor a copy.
        def average(x):
            """(batch, ...) -> (ghosts, channels)."""
            table = ops.mean(x, positions) if positions else x
            missing = ops.zeros((ghosts * self.ghost_size - batch, channels), x.dtype)
            table = ops.concatenate([table, missing])
            table = ops.reshape(table, (-1, self.ghost_size, channels))
            return ops.sum(table, axis=1) / examples

        def align(table):
            """(batch, channels) -> (batch, channels, 1, 1) or (batch, 1, 1, channels)."""
            return ops.expand_dims(table, positions) if positions else table

        def spread(table):
            """(ghosts, channels) -> one row for each example, aligned with x."""
            return align(ops.repeat(table, self.ghost_size, axis=0)[:batch])

        mean = average(x)
        x = x - spread(mean)
        variance = average(ops.square(x))

        # moving <- momentum moving + (1 - momentum) statistic, ghost after ghost, written out
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

    def get_config(self):
        return {**super().get_config(), "ghost_size": self.ghost_size}


GhostBatchNorm = GhostBatchNormalization
