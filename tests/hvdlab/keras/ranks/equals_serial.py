"""Two ranks x batch 4 take the steps of one process x batch 8, and those of legacy Keras.

Reads `official.npz` of legacy_keras.py. Runs on every backend.
"""

import functools

import keras
import numpy as np
from common import (
    BATCH_SIZE,
    EqualRanks,
    data,
    flat,
    my_share,
    on_all_ranks,
    root_weights,
    seeded_model,
    serial_weights,
)
from settings import MOMENTUM, chosen, start, wrap

import hvdlab.keras.horovod as hvd
from hvdlab.keras.distributed_optimizer import backend

hvd.init()
assert hvd.size() == 2
x, y = map(my_share, data())
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam
OPTIONS = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}


def fit(optimizer, serial=None, **compile_options):
    """Fit on both ranks, compare with a serial run by the optimizer `serial`; return weights."""
    model = seeded_model()
    before = on_all_ranks(model.weights)
    assert np.abs(before[0] - before[1]).max() > 0.1, "seeds must differ for this test to mean much"
    if hvd.rank() == 0:
        model.set_weights(start())
    model.compile(optimizer, "mse", **compile_options)
    equal_ranks = EqualRanks()
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, **OPTIONS, callbacks=[broadcast, equal_ranks])
    assert equal_ranks.steps == 12
    end = flat(model.weights)
    assert np.abs(end - np.concatenate([w.ravel() for w in start()])).max() > 1e-3
    if serial:
        np.testing.assert_allclose(end, serial_weights(start(), serial), rtol=0, atol=1e-6)
    return end


# What settings are in one process. The others equal legacy Keras: eagerly, which is faster here.
SERIAL = {
    "nesterov": {},
    "global_clipnorm": {},
    "sum": {"learning_rate": 0.1},
    "sum of passes": {"learning_rate": 0.15, "gradient_accumulation_steps": 3},
    "mean of passes": {"gradient_accumulation_steps": 3},
}
official = np.load("official.npz")
for name, (kind, arguments, _) in chosen().items():
    optimizer = wrap(hvd, keras.optimizers, name)
    if name in SERIAL:
        serial = getattr(keras.optimizers, kind)(**{**arguments, **SERIAL[name]})
        end = fit(optimizer, serial)
    else:
        end = fit(optimizer, run_eagerly=True)
    np.testing.assert_allclose(end, official[name], rtol=0, atol=1e-6, err_msg=name)
plain = serial_weights(start(), SGD(**MOMENTUM))
assert 1e-6 < np.abs(official["fp16"] - plain).max() < 1e-2, "fp16 must round, but not much"

# Loss scaling: unscaled, averaged, clipped. In float32 a scale of 2**15 leaves no trace.
scaled = keras.optimizers.LossScaleOptimizer
clipped = {**MOMENTUM, "global_clipnorm": 0.1}
end = fit(hvd.DistributedOptimizer(scaled(SGD(**clipped))), SGD(**clipped))
np.testing.assert_array_equal(fit(scaled(hvd.DistributedOptimizer(SGD(**clipped)))), end)
mean_of_3 = {"backward_passes_per_step": 3, "average_aggregated_gradients": True}
fit(
    hvd.DistributedOptimizer(scaled(SGD(**clipped)), **mean_of_3),
    SGD(**clipped, gradient_accumulation_steps=3),
)

# Adam counts updates, not passes, and decays weights once an update.
decayed = {"learning_rate": 0.01, "weight_decay": 0.01}
fit(
    hvd.DistributedOptimizer(Adam(**decayed), groups=3, **mean_of_3),
    Adam(**decayed, gradient_accumulation_steps=3),
)

# One all-reduce an update: k passes, k times fewer.
operations = 0
send = backend.grouped_all_reduce


def count(*args, **kwargs):
    global operations
    operations += 1
    return send(*args, **kwargs)


backend.grouped_all_reduce = count
for optimizer, updates in (
    (hvd.DistributedOptimizer(SGD(**MOMENTUM)), 12),
    (hvd.DistributedOptimizer(SGD(**MOMENTUM), backward_passes_per_step=3), 4),
    (hvd.DistributedOptimizer(SGD(**MOMENTUM, gradient_accumulation_steps=2)), 6),
):
    operations = 0
    fit(optimizer, run_eagerly=True)
    assert operations == updates, (operations, updates)
backend.grouped_all_reduce = send


# Adasum: each rank steps by its own batch, and the steps are combined tensor by tensor.
def adasum(a, b):
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


for make in (lambda: SGD(**MOMENTUM, global_clipnorm=0.1), lambda: Adam(0.01)):
    model, alone = seeded_model(), seeded_model()
    for each, optimizer in (
        (model, hvd.DistributedOptimizer(make(), op=hvd.Adasum)),
        (alone, make()),
    ):
        each.set_weights(start())
        each.compile(optimizer, "mse")
    for first in range(0, len(x), BATCH_SIZE):
        before = [w.astype("f8") for w in alone.get_weights()]
        batch = slice(first, first + BATCH_SIZE)
        for each in (model, alone):
            each.train_on_batch(x[batch], y[batch])
        steps = [after - w for after, w in zip(alone.get_weights(), before, strict=True)]
        both = [hvd.allgather(step[None]).numpy() for step in steps]
        expected = [w + adasum(*step) for w, step in zip(before, both, strict=True)]
        for weight, wanted in zip(model.get_weights(), expected, strict=True):
            np.testing.assert_allclose(weight, wanted, rtol=0, atol=1e-6)
        alone.set_weights(root_weights(model))

# jit_compile=True. XLA cannot: see fit_safety.py. Compiled by PyTorch, the all-reduce still happens.
if keras.backend.backend() == "torch":
    import torch

    torch.compile = functools.partial(
        torch.compile, backend="eager"
    )  # but its slow code generation
    fit(hvd.DistributedOptimizer(SGD(**MOMENTUM)), SGD(**MOMENTUM), jit_compile=True)
