"""Batches on a device: the same images as from `Batches`, and the same record of examples."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from hvdlab.data.batches import Batches  # noqa: E402
from hvdlab.torch.device_batches import DeviceBatches  # noqa: E402

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
PLACES = [
    pytest.param("cpu", False, id="processor"),
    # As on a GPU, on tensors of the processor.
    pytest.param("cpu", True, id="resident on the processor"),
    pytest.param("cuda", True, id="resident on a GPU", marks=on_gpu),
    pytest.param("cuda", False, id="streamed to a GPU", marks=on_gpu),
]


def batches(shape=(32, 32, 3), count=61, **options) -> Batches:
    rng = np.random.default_rng(7)
    images = rng.integers(0, 256, (count, *shape), np.uint8)
    return Batches(images, np.arange(count) % 10, 8, seed=3, **options)


@pytest.mark.parametrize("device, resident", PLACES)
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("shape", [(32, 32, 3), (6, 9, 2), (3, 4, 1)])
def test_the_images_are_those_of_batches(device, resident, augment, shape):
    ours = DeviceBatches(batches(shape, rank=1, size=2, augment=augment), device, resident)
    expected = batches(shape, rank=1, size=2, augment=augment)
    assert len(ours) == len(expected) == 4
    for epoch in range(12):  # 48 shifts, of 25 that there are
        pairs = itertools.zip_longest(ours.epoch(epoch), expected.epoch(epoch))
        for (images, labels), (wanted_images, wanted_labels) in pairs:
            assert images.device.type == labels.device.type == device
            assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
            assert images.cpu().numpy().tobytes() == wanted_images.tobytes()
            assert images.shape == wanted_images.shape
            assert labels.tolist() == wanted_labels.tolist()


@pytest.mark.parametrize("device, resident", PLACES)
def test_examples_count_as_read_when_they_are_handed_out(device, resident):
    source = batches(augment=True)
    for epoch, stop in ((0, 8), (1, 3), (2, 8)):  # the second epoch is given up after three batches
        for step, _ in enumerate(DeviceBatches(source, device, resident).epoch(epoch), 1):
            expected = batches(augment=True)
            for before in range(step):
                expected.get(epoch, before)
            assert source.examples_read(epoch).tolist() == expected.examples_read(epoch).tolist()
            if step == stop:
                break
    assert len(source.examples_read(1)) == 24


def test_the_data_set_stays_as_it_was():
    source = batches(augment=True)
    before = source.images.copy()
    for resident in (False, True):
        for images, _ in DeviceBatches(source, "cpu", resident).epoch(0):
            images.zero_()
    assert np.array_equal(source.images, before)
