"""A loop of TensorFlow with a GradientTape in a tf.function, over a tf.data pipeline."""

import numpy as np
import tensorflow as tf

EPOCHS, BATCH_SIZE, LEARNING_RATE = 3, 32, 0.05


def data(count, seed):
    """Points in 16 dimensions in two classes, inside and outside of a sphere. These data are synthetic."""
    points = np.random.default_rng(seed).normal(size=(count, 16)).astype("float32")
    labels = ((points**2).sum(1) > 15.5).astype("int64")
    return tf.data.Dataset.from_tensor_slices((points, labels))


train = data(2001, 1).shuffle(2001).batch(BATCH_SIZE, drop_remainder=True)
model = tf.keras.Sequential(
    [tf.keras.Input((16,)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(2)]
)
optimizer = tf.keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def step(points, labels):
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(points, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


for epoch in range(EPOCHS):
    for points, labels in train:
        loss = step(points, labels)
    print(f"epoch {epoch}: loss {float(loss):.3f}")
