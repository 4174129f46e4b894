"""Feeds `hvdlab.data.Batches` to `model.fit`."""

import itertools

import tensorflow as tf

from hvdlab.data import Batches


def dataset(batches: Batches, first_epoch: int = 0) -> tf.data.Dataset:
    """One rank's batches as an endless TensorFlow data set: epoch 0, 1, 2, ... of `batches`.

        model.fit(dataset(batches), steps_per_epoch=len(batches), epochs=epochs)

    Nothing is read ahead. A batch in memory takes a third of a millisecond, and what an epoch of
    `fit` has read is then exactly what `batches.examples_read(epoch)` says. (Keras reads a
    `PyDataset` or a plain generator ahead, in another thread, into the next epoch.) A run that
    resumes begins with another epoch than 0: `first_epoch`, `fit`'s `initial_epoch`.
    """

    def read():
        for epoch in itertools.count(first_epoch):
            yield from batches.epoch(epoch)

    images = tf.TensorSpec((None, *batches.images.shape[1:]), tf.uint8)
    labels = tf.TensorSpec((None,), tf.int64)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    return tf.data.Dataset.from_generator(read, output_signature=(images, labels)).with_options(
        options
    )
