"""After a batch with a large loss on one rank, the ranks compute different losses for the same images.

mpirun -np 2 python labs/faults/own_step_in_graph_keras.py
"""

import keras
import tensorflow as tf
from keras import layers

import hvdlab.keras.horovod as hvd
from hvdlab.data import Batches, load_fashion_mnist

EPOCHS, BATCH_SIZE, RATE = 3, 64, 0.02


def main():
    hvd.init()
    data = load_fashion_mnist()
    images, labels = data.train_images[:4096] / 255, data.train_labels[:4096]
    batches = Batches(images, labels, BATCH_SIZE, rank=hvd.rank(), size=hvd.size())

    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = keras.optimizers.SGD(RATE * hvd.size(), momentum=0.9)
    optimizer.build(model.trainable_variables)
    hvd.broadcast_variables(model.variables + optimizer.variables, root_rank=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        if loss < 20:
            optimizer.apply(grads, model.trainable_variables)
        return loss

    for epoch in range(EPOCHS):
        for x, y in batches.epoch(epoch):
            loss = train(tf.constant(x), tf.constant(y))
        if hvd.rank() == 0:
            print(f"epoch {epoch}  loss {float(loss):.3f}", flush=True)


if __name__ == "__main__":
    main()
