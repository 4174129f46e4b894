"""The data set that feeds `fit`: the batches of `Batches`, also where a thread reads ahead."""

import numpy as np
import pytest

keras = pytest.importorskip("keras")
pytest.importorskip("tensorflow")

from hvdlab.data.batches import Batches  # noqa: E402
from hvdlab.keras.data import dataset  # noqa: E402


def batches() -> Batches:
    images = np.random.default_rng(7).integers(0, 256, (50, 8, 8, 3), np.uint8)
    return Batches(images, np.arange(50) % 10, 8, seed=3, augment=True)


@pytest.mark.parametrize("ahead", [None, 0, 2])
def test_it_gives_the_batches_in_order(ahead):
    found = dataset(batches(), first_epoch=1, ahead=ahead).take(2 * 7)
    expected = [*batches().epoch(1), *batches().epoch(2)]
    for (images, labels), (wanted_images, wanted_labels) in zip(found, expected, strict=True):
        assert images.numpy().tobytes() == wanted_images.tobytes()
        assert labels.numpy().tolist() == wanted_labels.tolist()


@pytest.mark.parametrize("ahead", [0, 2])
def test_examples_read_is_what_fit_has_read(ahead):
    source, seen = batches(), []

    class Read(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(source.examples_read(epoch).tolist())

    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "sgd", loss, jit_compile=False
    )  # not built: fit looks at one batch before it starts
    model.fit(
        dataset(source, ahead=ahead), steps_per_epoch=7, epochs=3, callbacks=[Read()], verbose=0
    )
    expected = batches()
    for epoch in range(3):
        list(expected.epoch(epoch))
    assert seen == [expected.examples_read(epoch).tolist() for epoch in range(3)]
