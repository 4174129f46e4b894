"""Ranks that have built different numbers of models train together, because message names are equal."""

import keras
import numpy as np
from common import EqualRanks

import hvdlab.keras.horovod as hvd

hvd.init()
rng = np.random.default_rng(hvd.rank())
tokens, targets = rng.integers(0, 9, (32, 3)), rng.normal(size=(32, 1))


def compiled(policy="float32", **options):
    keras.utils.set_random_seed(100 + hvd.rank())
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            layers.Embedding(9, 4, dtype=policy),  # on TensorFlow its gradients are slices
            layers.Flatten(dtype=policy),
            layers.Dense(1, dtype=policy),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    model.compile(hvd.DistributedOptimizer(optimizer, **options), "mse", jit_compile=False)
    return model


for case in (
    {},
    {"sparse_as_dense": True},
    {"policy": "mixed_float16"},
    {"backward_passes_per_step": 2},
    {"op": hvd.Adasum, "sparse_as_dense": True},
):
    if hvd.rank() == 1:  # as who looks at a model first, or resumes from a file
        compiled(**case)
    model, equal = compiled(**case), EqualRanks()
    weights = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(tokens, targets, batch_size=8, callbacks=[weights, equal], verbose=0)
    assert equal.steps == 4, case
