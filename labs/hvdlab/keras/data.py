"""Feeds `hvdlab.data.Batches` to `model.fit`."""

import itertools

import tensorflow as tf

from hvdlab.data import Batches


def dataset(batches: Batches, first_epoch: int = 0, ahead: int | None = None) -> tf.data.Dataset:
    """One rank's batches as an endless TensorFlow data set: epoch 0, 1, 2, ... of `batches`.

        model.fit(dataset(batches), steps_per_epoch=len(batches), epochs=epochs)

    At the end of an epoch of `fit`, `batches.examples_read(epoch)` says exactly what it has read.

    Args:
        first_epoch: a run that resumes begins with another epoch than 0: `fit`'s `initial_epoch`.
        ahead: number of batches that another thread prepares while the device computes. Default: 2 where
            TensorFlow uses a GPU, so that it does not wait for its images. 0 on a processor, because
            that thread would take its time from the training.
    """
    if ahead is None:
        ahead = 2 if tf.config.list_logical_devices("GPU") else 0

    def read():
        for epoch in itertools.count(first_epoch):
            yield from batches.epoch(epoch)

    images = tf.TensorSpec((None, *batches.images.shape[1:]), tf.uint8)
    labels = tf.TensorSpec((None,), tf.int64)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    found = tf.data.Dataset.from_generator(read, output_signature=(images, labels))
    found = found.prefetch(ahead) if ahead else found
    return found.with_options(options)
