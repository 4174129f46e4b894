"""Batches as tensors on the device that trains, so that a GPU does not wait for its images.

    batches = Batches(images, labels, 128, rank=hvd.rank(), size=hvd.size(), augment=True)
    for epoch in range(epochs):
        for images, labels in DeviceBatches(batches, device).epoch(epoch):
            ...

A GPU computes a step of a small network in less time than the processor needs to gather and augment the
images of the next step. Three measures help:

* The GPU augments the images. It uses the random numbers of `Batches`, so the images are equal to the byte.
* A small data set, such as CIFAR-10 with 154 MB, is copied to the GPU once. A batch is then gathered
  there, and only its indices are copied.
* Otherwise a batch is gathered in pinned memory, and copied in a separate stream while the GPU still
  computes the previous step.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hvdlab.data.batches import Augmentation, Batches, Choice

RESIDENT_FRACTION = 0.1  # fraction of a GPU's memory that a data set may take to stay there


class DeviceBatches:
    """The batches of `Batches`, as tensors on a device.

    `batches.examples_read` counts a batch when this class yields it, so pass `batches` to a recorder as
    usual.

    Args:
        batches: the batches to read.
        device: device of the tensors. On the processor the tensors share the memory of `batches`.
        resident: whether the data set is kept on the device. Default: on a GPU, if it takes less than a
            tenth of the GPU's memory.
    """

    def __init__(
        self, batches: Batches, device: torch.device | str, resident: bool | None = None
    ) -> None:
        self.batches, self.device = batches, torch.device(device)
        if resident is None:
            resident = self.device.type == "cuda" and batches.images.nbytes < (
                RESIDENT_FRACTION * torch.cuda.get_device_properties(self.device).total_memory
            )
        if resident:
            self.images = torch.tensor(batches.images, device=self.device)
            self.labels = torch.tensor(batches.labels, device=self.device)
            self._read = self._gathered
        elif self.device.type == "cuda":
            self._read, self._stream = self._streamed, torch.cuda.Stream(self.device)
        else:
            self._read = self._of_processor

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return len(self.batches)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch.

        Args:
            epoch: number of the epoch, from 0.

        Yields:
            images uint8 (batch, height, width, channels) and labels int64 (batch,).
        """
        choices = (self.batches.choose(epoch, step) for step in range(len(self)))
        for choice, images, labels in self._read(choices):
            self.batches.mark_as_read(choice)
            yield images, labels

    def _of_processor(self, choices: Iterator[Choice]) -> Iterator[tuple[Choice, Tensor, Tensor]]:
        for choice in choices:
            images, labels = self.batches.load(choice)
            yield choice, torch.from_numpy(images), torch.from_numpy(labels)

    def _gathered(self, choices: Iterator[Choice]) -> Iterator[tuple[Choice, Tensor, Tensor]]:
        """Yield batches from a data set that is on the device."""
        for choice in choices:
            indices = _copied(choice.indices, self.device)
            images = gather(self.images, indices, choice.augmentation)
            yield choice, images, self.labels[indices]

    def _streamed(self, choices: Iterator[Choice]) -> Iterator[tuple[Choice, Tensor, Tensor]]:
        """Yield batches from host memory; the next batch is copied while a batch is in use."""
        ready = None
        for choice in itertools.chain(choices, [None]):
            coming = None if choice is None else self._copy(choice)
            if ready:
                before, images, labels, copied = ready
                computing = torch.cuda.current_stream(self.device)
                computing.wait_event(copied)
                for tensor in (
                    images,
                    labels,
                ):  # their memory must not be reused before the step is done
                    tensor.record_stream(computing)
                yield before, images, labels
            ready = coming

    def _copy(self, choice: Choice) -> tuple[Choice, Tensor, Tensor, torch.cuda.Event]:
        with torch.cuda.stream(self._stream):
            raw = _copied(self.batches.images, self.device, choice.indices)
            labels = _copied(self.batches.labels, self.device, choice.indices)
            images = gather(raw, slice(None), choice.augmentation)
            return choice, images, labels, self._stream.record_event()


def gather(images: Tensor, chosen: Tensor | slice, augmentation: Augmentation | None) -> Tensor:
    """Return `images[chosen]`, augmented on their device, equal to the images of `Batches.get`.

    Args:
        images: uint8 (n, height, width, channels).
        chosen: int64 (batch,) on the same device, or slice(None) for all images.
        augmentation: the augmentation of each image of the batch, or None.

    Returns:
        uint8 (batch, height, width, channels) on the same device.
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
    """Return the source of each pixel of a line that moves by `by`; the gap is filled by reflection."""
    places = np.abs(np.arange(length) - by)
    return length - 1 - np.abs(length - 1 - places)


def _copied(array: np.ndarray, device: torch.device, rows: np.ndarray | None = None) -> Tensor:
    """Return a copy of an array, or of some of its rows, on the device.

    A copy to a GPU goes through pinned memory, from which the GPU reads it while the processor continues.
    """
    pinned = device.type == "cuda"
    shape = array.shape if rows is None else (len(rows), *array.shape[1:])
    dtype = torch.from_numpy(array[:0]).dtype
    tensor = torch.empty(shape, dtype=dtype, pin_memory=pinned)
    if rows is None:
        tensor.numpy()[...] = array
    else:
        np.take(
            array, rows, axis=0, out=tensor.numpy(), mode="clip"
        )  # other modes would buffer the result
    return tensor.to(device, non_blocking=True)
