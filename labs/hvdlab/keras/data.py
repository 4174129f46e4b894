"""Make a TensorFlow data set of `hvdlab.data.Batches`, for `model.fit`."""

import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from hvdlab.data import Batches


def dataset(batches: Batches, first_epoch: int = 0, ahead: int | None = None) -> tf.data.Dataset:
    """Return one rank's batches as an endless TensorFlow data set: the epochs 0, 1, 2, ... of `batches`.

        model.fit(dataset(batches), steps_per_epoch=len(batches), epochs=epochs)

    At the end of an epoch of `fit`, `batches.examples_read(epoch)` returns exactly the examples that the
    epoch has read.

    Args:
        batches: the batches of this rank.
        first_epoch: the epoch at which a resumed run begins, equal to `initial_epoch` of `fit`.
            Default 0.
        ahead: number of batches that another thread prepares while the device computes. Default: 2 if
            TensorFlow uses a GPU, so that the GPU does not wait for its images; 0 on a processor, because
            the thread would take processor time from the training.

    Returns:
        a data set of (images, labels): uint8 (batch, height, width, channels) and int64 (batch,).
    """
    if ahead is None:
        ahead = 2 if tf.config.list_logical_devices("GPU") else 0

    def read() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for epoch in itertools.count(first_epoch):
            yield from batches.epoch(epoch)

    images = tf.TensorSpec((None, *batches.images.shape[1:]), tf.uint8)
    labels = tf.TensorSpec((None,), tf.int64)
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.inject_prefetch = False
    endless = tf.data.Dataset.from_generator(read, output_signature=(images, labels))
    endless = endless.prefetch(ahead) if ahead else endless
    return endless.with_options(options)
