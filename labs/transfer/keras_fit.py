"""Keras with compile and fit, a validation set and a callback that stops."""

import keras
import numpy as np
from keras import layers

EPOCHS, BATCH_SIZE, LEARNING_RATE = 4, 32, 0.05


def data(count, seed):
    """Points in 16 dimensions in two classes, inside and outside of a sphere. These data are synthetic."""
    points = np.random.default_rng(seed).normal(size=(count, 16)).astype("float32")
    return points, (points**2).sum(1) > 15.5


train, test = data(2001, 1), data(500, 2)
model = keras.Sequential([keras.Input((16,)), layers.Dense(64, "relu"), layers.Dense(1, "sigmoid")])
optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
callbacks = [keras.callbacks.EarlyStopping("val_loss", patience=2)]
model.fit(
    *train,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    validation_data=test,
    callbacks=callbacks,
    verbose=2,
)
