"""Train a small network on Fashion-MNIST with Horovod and Keras. The faults are edits of this script."""

import keras
import tensorflow as tf
from keras import layers

import hvdlab.keras.horovod as hvd
from hvdlab.data import load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    hvd.init()
    data = load_fashion_mnist()
    images, labels = data.train_images[:4096] / 255, data.train_labels[:4096]
    train = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
    train = train.shard(hvd.size(), hvd.rank()).shuffle(4096).batch(BATCH_SIZE)

    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    model.fit(train, epochs=EPOCHS, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)


if __name__ == "__main__":
    main()
