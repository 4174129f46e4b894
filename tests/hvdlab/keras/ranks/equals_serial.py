"""Two ranks x batch 4 take the steps of one process x batch 8, through `fit`."""

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

import hvdlab.keras.horovod as hvd

hvd.init()
assert hvd.size() == 2
x, y = map(my_share, data())
SGD, Adam = keras.optimizers.SGD, keras.optimizers.Adam


def fit(make_optimizer, serial_optimizer=None, compile_options=None, **wrap_options):
    """Fit on both ranks, compare with the serial run, and return the weights."""
    model = seeded_model()
    before = on_all_ranks(model.weights)
    assert np.abs(before[0] - before[1]).max() > 0.1, "seeds must differ for this test to mean much"
    weights = root_weights(model)
    optimizer = hvd.DistributedOptimizer(make_optimizer(), **wrap_options)
    model.compile(optimizer, "mse", **(compile_options or {}))
    equal_ranks = EqualRanks()
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), equal_ranks]
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    assert equal_ranks.steps == 12
    serial = serial_weights(weights, (serial_optimizer or make_optimizer)())
    np.testing.assert_allclose(flat(model.weights), serial, rtol=0, atol=1e-6)
    assert np.abs(serial - np.concatenate([w.ravel() for w in weights])).max() > 1e-3
    return flat(model.weights)


def sgd(**options):
    return lambda: SGD(**{"learning_rate": 0.05, "momentum": 0.9, **options})


fit(sgd(nesterov=True))
fit(lambda: Adam(0.01, weight_decay=0.01))
# Clipping at 0.1 of the averaged gradient is not the average of clipped gradients.
fit(sgd(global_clipnorm=0.1))
fit(sgd(gradient_accumulation_steps=2))
fit(
    sgd(),
    serial_optimizer=sgd(gradient_accumulation_steps=3),
    backward_passes_per_step=3,
    average_aggregated_gradients=True,
)
fit(sgd(), groups=3, gradient_predivide_factor=2.0, compile_options={"run_eagerly": True})
# The sum of two ranks at half the rate: only one all-reduce a step gives this.
fit(sgd(learning_rate=0.025), serial_optimizer=sgd(), op=hvd.Sum)
