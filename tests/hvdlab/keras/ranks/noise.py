"""On two ranks: noise meets the averaged gradient, replicas agree, weights of losses differ."""

import keras
import numpy as np
from common import (
    BATCH_SIZE,
    STEPS,
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
from hvdlab.keras.noise import LossWeights, NoisySGD

hvd.init()


def noisy_sgd():
    return NoisySGD(0.05, momentum=0.9, eta=0.3, seed=1)


# Both ranks' weights after every step are equal, and in the end those of one process on the union
# of the batches, which adds this noise once.
model = seeded_model()
weights = root_weights(model)
model.compile(hvd.DistributedOptimizer(noisy_sgd()), "mse")
equal = EqualRanks()
model.fit(
    *map(my_share, data()),
    batch_size=BATCH_SIZE,
    epochs=2,
    shuffle=False,
    verbose=0,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), equal],
)
assert equal.steps == 2 * STEPS
serial = serial_weights(weights, noisy_sgd())
np.testing.assert_allclose(flat(model.weights), serial, rtol=0, atol=1e-5)
assert abs(serial - serial_weights(weights, keras.optimizers.SGD(0.05, 0.9))).max() > 0.01

# A saved model loads with and without Horovod, if told the class.
if hvd.rank() == 0:
    model.save("model.keras")
    known = {"NoisySGD": NoisySGD}
    loaded = keras.models.load_model("model.keras", custom_objects=known).optimizer
    assert type(loaded) is NoisySGD and loaded.get_config() == model.optimizer.get_config()
    loaded = hvd.load_model("model.keras", custom_optimizers=[NoisySGD]).optimizer
    assert isinstance(loaded, NoisySGD) and loaded.eta == 0.3

first, second = on_all_ranks([LossWeights(1.0, rank=hvd.rank())(None, np.zeros(1000))[2]])
assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
