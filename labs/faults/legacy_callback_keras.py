"""The first epoch is trained. At its end the script fails with an AttributeError about keras.backend.

mpirun -np 2 python labs/faults/legacy_callback_keras.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

from hvdlab.data import load_fashion_mnist  # noqa: E402

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    hvd.init()
    data = load_fashion_mnist()
    images, labels = data.train_images[:4096] / 255, data.train_labels[:4096]
    train = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
    train = train.shard(hvd.size(), hvd.rank()).shuffle(4096).batch(BATCH_SIZE)

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Flatten(input_shape=(28, 28, 1)),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(RATE * hvd.size())
    optimizer = hvd.DistributedOptimizer(optimizer)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], experimental_run_tf_function=False)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    model.fit(train, epochs=EPOCHS, callbacks=callbacks, verbose=2 if hvd.rank() == 0 else 0)


if __name__ == "__main__":
    main()
