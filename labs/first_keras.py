"""Train a small network on Fashion-MNIST in one process. Lab 1 runs this script on two ranks."""

import time

import keras
from keras import layers

from hvdlab.data import load_fashion_mnist

data = load_fashion_mnist()
images, labels = data.train_images[:8192] / 255, data.train_labels[:8192]

model = keras.Sequential([
    keras.Input((28, 28, 1)), layers.Conv2D(32, 5, activation="relu"), layers.MaxPooling2D(2),
    layers.Conv2D(64, 5, activation="relu"), layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(10),
])  # fmt: skip
optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
callbacks = []
model.compile(optimizer, loss, metrics=["accuracy"])

# The first step also builds TensorFlow's graph.
model.fit(images[:128], labels[:128], batch_size=128, callbacks=callbacks, verbose=0)
start = time.perf_counter()
model.fit(images, labels, batch_size=128, epochs=3, verbose=0)
print(f"three epochs in {time.perf_counter() - start:.1f} s", flush=True)
