"""Two ranks need as many steps for an epoch as a single rank.

mpirun -np 2 python labs/faults/identical_batches_shuffled_keras.py
"""

import keras
from keras import layers

import hvdlab.keras.horovod as hvd
from hvdlab.data import load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    hvd.init()
    data = load_fashion_mnist()
    images, labels = data.train_images[:4096] / 255, data.train_labels[:4096]

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
    verbose = 2 if hvd.rank() == 0 else 0
    model.fit(images, labels, BATCH_SIZE, epochs=EPOCHS, callbacks=callbacks, verbose=verbose)


if __name__ == "__main__":
    main()
