"""A single process continues from the checkpoint that fit_safety.py has saved on two ranks."""

import keras
import numpy as np
from common import BATCH_SIZE, data, flat

import hvdlab.keras.horovod as hvd

hvd.init()
assert hvd.size() == 1
x, y = data()
for load in (hvd.load_model, keras.models.load_model):
    model = load("resume.keras")
    assert int(model.optimizer.iterations.numpy()) == 6
    before = flat(model.weights)
    model.fit(x, y, batch_size=2 * BATCH_SIZE, shuffle=False, verbose=0)
    uninterrupted = np.load("resumed.npy")
    np.testing.assert_allclose(flat(model.weights), uninterrupted, rtol=0, atol=1e-6)
    assert np.abs(uninterrupted - before).max() > 1e-2
