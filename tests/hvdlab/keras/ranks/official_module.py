"""Horovod's own module on Keras 3: two models, no error. Our callbacks recognise and refuse it."""

import horovod.tensorflow.keras as official
import keras
import numpy as np
from common import BATCH_SIZE, data, my_share, on_all_ranks, raises, seeded_model

import hvdlab.keras.horovod as hvd

hvd.init()
x, y = map(my_share, data())
model = seeded_model()
model.set_weights([hvd.broadcast(w, 0).numpy() for w in model.get_weights()])
start = on_all_ranks(model.weights)
np.testing.assert_array_equal(start[0], start[1])

wrapped = official.DistributedOptimizer(keras.optimizers.SGD(0.05))
model.compile(wrapped, "mse")
model.fit(x, y, batch_size=BATCH_SIZE, shuffle=False, verbose=0)
end = on_all_ranks(model.weights)
assert np.abs(end[0] - end[1]).max() > 1e-3, "Horovod's own module averages: this file is outdated"

assert hvd.official_module_in_use(wrapped)
assert hvd.official_module_in_use(keras.optimizers.LossScaleOptimizer(wrapped))
for fine in (keras.optimizers.SGD(), hvd.DistributedOptimizer(keras.optimizers.SGD())):
    assert not hvd.official_module_in_use(fine)
    hvd.warn_if_not_averaging(fine)
raises(RuntimeError, "import hvdlab.keras.horovod as hvd", hvd.warn_if_not_averaging, wrapped)
raises(ValueError, "wrapped already", hvd.DistributedOptimizer, wrapped)
for callback in (
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.1),
):
    raises(RuntimeError, "its own model", model.fit, x, y, verbose=0, callbacks=[callback])
