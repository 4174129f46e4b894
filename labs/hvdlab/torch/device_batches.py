"""Batches as tensors on the device that trains, so that a GPU does not wait for its images.

    batches = Batches(images, labels, 128, rank=hvd.rank(), size=hvd.size(), augment=True)
    for epoch in range(epochs):
        for images, labels in DeviceBatches(batches, device).epoch(epoch):
            ...

A GPU computes a step of a small network in less time than the processor needs to gather and augment the
images of the next one. Three measures help:

* The GPU augments the images. The random numbers are those of `Batches`, and so are the images, to the byte.
* The whole data set is copied to the GPU once if it is small, as CIFAR-10's 154 MB are. A batch is then
  gathered there, and only its indices are copied.
* Otherwise a batch is gathered in pinned memory, and copied in a stream of its own while the GPU still
  computes the step before.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hvdlab.data.batches import Augmentation, Batches, Choice

RESIDENT_FRACTION = 0.1  # of a GPU's memory, which a data set that stays there may take


class DeviceBatches:
    """The batches of `Batches`, on a device.

    `batches.examples_read` counts a batch when it is handed out here, so a recorder takes `batches` as ever.

    Args:
        batches: what to read.
        device: where the tensors shall be. On the processor they are those of `batches`, without a copy.
        resident: whether the data set is kept on the device. Default: on a GPU, if it takes at most a tenth
            of its memory.
    """

    def __init__(self, batches: Batches, device: torch.device | str, resident: bool | None = None):
        self.batches, self.device = batches, torch.device(device)
        if resident is None:
            resident = self.device.type == "cuda" and batches.images.nbytes < (
                RESIDENT_FRACTION * torch.cuda.get_device_properties(self.device).total_memory
            )
        if resident:
            self.images = torch.from_numpy(batches.images).to(self.device)
            self.labels = torch.from_numpy(batches.labels).to(self.device)
            self._read = self._gathered
        elif self.device.type == "cuda":
            self._read, self._stream = self._streamed, torch.cuda.Stream(self.device)
        else:
            self._read = self._of_processor

    def __len__(self) -> int:
        """Return the steps of one epoch."""
        return len(self.batches)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch: images uint8 (b, height, width, channels), labels int64 (b,)."""
        choices = (self.batches.choose(epoch, step) for step in range(len(self)))
        for choice, images, labels in self._read(choices):
            self.batches.mark_as_read(choice)
            yield images, labels

    def _of_processor(self, choices: Iterator[Choice]):
        for choice in choices:
            images, labels = self.batches.load(choice)
            yield choice, torch.from_numpy(images), torch.from_numpy(labels)

    def _gathered(self, choices: Iterator[Choice]):
        """From a data set that is on the device."""
        for choice in choices:
            indices = _copied(choice.indices, self.device)
            images = gather(self.images, indices, choice.augmentation)
            yield choice, images, self.labels[indices]

    def _streamed(self, choices: Iterator[Choice]):
        """From host memory: the copy of a batch is under way while the one before is in use."""
        ready = None
        for choice in itertools.chain(choices, [None]):
            coming = None if choice is None else self._copy(choice)
            if ready:
                before, images, labels, copied = ready
                computing = torch.cuda.current_stream(self.device)
                computing.wait_event(copied)
                for tensor in (images, labels):  # not to be used again before the step is done
                    tensor.record_stream(computing)
                yield before, images, labels
            ready = coming

    def _copy(self, choice: Choice):
        with torch.cuda.stream(self._stream):
            raw = _copied(self.batches.images, self.device, choice.indices)
            labels = _copied(self.batches.labels, self.device, choice.indices)
            images = gather(raw, slice(None), choice.augmentation)
            return choice, images, labels, self._stream.record_event()


def gather(images: Tensor, chosen: Tensor | slice, augmentation: Augmentation | None) -> Tensor:
    """Return `images[chosen]`, augmented on their device: the images that `Batches.get` gives.

    Args:
        images: uint8 (n, height, width, channels).
        chosen: int64 (b,) on the same device, or slice(None) for all.
        augmentation: of b images.
    """
    if augmentation is None:
        return images[chosen]
    count, (height, width) = len(augmentation.flipped), images.shape[1:3]
    rows = _sources(height, augmentation.down)
    columns = np.tile(_sources(width, augmentation.right), (count, 1))
    columns[augmentation.flipped] = width - 1 - columns[augmentation.flipped]
    places = _copied(np.concatenate([rows, columns.ravel()]), images.device)  # one copy for both
    rows, columns = places[:height], places[height:].view(count, 1, width)
    if isinstance(chosen, slice):
        chosen = torch.arange(count, device=images.device)
    return images[chosen.view(-1, 1, 1), rows.view(1, -1, 1), columns]


def _sources(length: int, by: int) -> np.ndarray:
    """Where each pixel of a line that moves by `by` comes from; np.pad's "reflect" fills what comes free."""
    places = np.abs(np.arange(length) - by)
    return length - 1 - np.abs(length - 1 - places)


def _copied(array: np.ndarray, device: torch.device, rows: np.ndarray | None = None) -> Tensor:
    """A copy of an array, or of some of its rows, on the device.

    To a GPU it goes through pinned memory, from where the GPU fetches it while the processor continues.
    """
    pinned = device.type == "cuda"
    shape = array.shape if rows is None else (len(rows), *array.shape[1:])
    dtype = torch.from_numpy(array[:0]).dtype
    tensor = torch.empty(shape, dtype=dtype, pin_memory=pinned)
    if rows is None:
        tensor.numpy()[...] = array
    else:
        np.take(array, rows, axis=0, out=tensor.numpy(), mode="clip")  # without mode it buffers
    return tensor.to(device, non_blocking=True)
