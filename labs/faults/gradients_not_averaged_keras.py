"""There is no error and no warning. Each rank reports a different accuracy, and the difference grows
from epoch to epoch, although the script has every line that Horovod's manual asks for.

    mpirun -np 2 python labs/faults/gradients_not_averaged_keras.py
"""

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import keras
import tensorflow as tf
from keras import layers

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
    hvd_tf.broadcast_variables([v.value for v in model.variables], root_rank=0)
    history = model.fit(train, epochs=EPOCHS, verbose=0).history
    print(f"rank {hvd.rank()}: accuracy {history['accuracy'][-1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
