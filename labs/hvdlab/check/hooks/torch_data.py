"""Hooks in PyTorch's data sets: splits, samplers with their orders, and loaders."""

import functools
import zlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import SAMPLE, items
from hvdlab.check.hooks.horovod import remember_line
from hvdlab.trace import records


def watch(torch: ModuleType, watch: Watch) -> None:
    """Wrap the functions of torch.utils.data."""
    splits(torch, watch)
    samplers(torch, watch)
    orders(torch, watch)
    loaders(torch, watch)


def splits(torch: ModuleType, watch: Watch) -> None:
    """Write down how random_split divides a data set, and mark its parts."""
    data = torch.utils.data
    remember_line(data.Subset, watch)
    split = data.random_split

    @functools.wraps(split)
    def noting_split(*arguments: Any, **options: Any) -> list:
        parts = split(*arguments, **options)
        indices = str([list(part.indices) for part in parts]).encode()
        watch.note(records.Split, order=zlib.crc32(indices), of=None)
        for part in parts:
            part._hvdlab_split = watch.line()
        return parts

    data.random_split = data.dataset.random_split = noting_split


def samplers(torch: ModuleType, watch: Watch) -> None:
    """Write down each DistributedSampler, and what it samples."""
    cls = torch.utils.data.distributed.DistributedSampler
    remember_line(cls, watch)
    initialize = cls.__init__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        # The data set, or what it wraps, may be a part of a split.
        own = [self.dataset, *getattr(self.dataset, "__dict__", {}).values()]
        of = next((each._hvdlab_split for each in own if hasattr(each, "_hvdlab_split")), None)
        watch.note(records.Sampler, replicas=self.num_replicas, split=of, data=id(self.dataset))
        if self.num_replicas == 1:
            return
        data, made, again = self.dataset, None, False
        content, order = _hashes(data, torch.utils.data.Dataset)
        if isinstance(data, torch.utils.data.Subset):
            order = zlib.crc32(str([*map(int, data.indices)]).encode())
            again = len(data) * self.num_replicas <= len(data.dataset) + self.num_replicas
            made = getattr(data, "_hvdlab_line", None)
        whole = None if made else content  # a subset has rows of its own
        watch.note(records.Part, made, content=whole, order=order, again=again)
        which, content = [self.rank, self.num_replicas], content if watch.has_cut else None
        watch.note(records.Part, which=which, content=content)

    cls.__init__ = __init__


def orders(torch: ModuleType, watch: Watch) -> None:
    """Write down the order that a shuffling DistributedSampler gives to an epoch."""
    cls = torch.utils.data.distributed.DistributedSampler
    iterate, set_epoch = cls.__iter__, cls.set_epoch

    @functools.wraps(iterate)
    def __iter__(self: Any) -> Iterator[int]:
        watch.note(records.Sampled, made=getattr(self, "_hvdlab_line", None))
        order = list(iterate(self))
        if self.shuffle:
            watch.note(
                records.Order,
                made=getattr(self, "_hvdlab_line", None),
                epoch=self.epoch,
                set_at=getattr(self, "_hvdlab_epoch_line", None),
                order=zlib.crc32(str(order[:SAMPLE]).encode()),
            )
        return iter(order)

    @functools.wraps(set_epoch)
    def noting_set_epoch(self: Any, epoch: int) -> None:
        self._hvdlab_epoch_line = watch.line()
        set_epoch(self, epoch)

    cls.__iter__, cls.set_epoch = __iter__, noting_set_epoch


def loaders(torch: ModuleType, watch: Watch) -> None:
    """Write down which sampler a DataLoader gets and what it reads, and keep which loader is being read."""
    cls = torch.utils.data.DataLoader
    remember_line(cls, watch)
    initialize, iterate = cls.__init__, cls.__iter__

    @functools.wraps(initialize)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        if sampler := _distributed(self):
            watch.note(records.Sampled, made=getattr(sampler, "_hvdlab_line", None))

    @functools.wraps(iterate)
    def noting_iterate(self: Any) -> Iterator:
        sampler = _distributed(self)
        made = getattr(self, "_hvdlab_line", None)
        if made and not hasattr(self, "_hvdlab_read"):
            self._hvdlab_read = True
            own = {"data": id(self.dataset), "sampled": sampler is not None}
            own["sampler"] = getattr(sampler, "_hvdlab_line", None)
            watch.note(records.Reads, made=made, **own, **_read_by(self, torch))
        watch.reads(made, sharded=sampler is not None and sampler.num_replicas > 1)
        return iterate(self)

    cls.__init__, cls.__iter__ = __init__, noting_iterate


def _read_by(loader: Any, torch: ModuleType) -> dict[str, Any]:
    """Return the samples and batches of an epoch, and the hash of the data if the loader reads all of it."""
    utils = torch.utils.data
    plain = isinstance(loader.sampler, utils.RandomSampler | utils.SequentialSampler)
    try:
        rows, batches = len(loader.dataset), len(loader)
    except TypeError:  # a stream
        return {"rows": None, "batches": None, "content": None}
    whole = plain and len(loader.sampler) >= rows
    content = _hashes(loader.dataset, utils.Dataset)[0] if whole else None
    return {"rows": rows, "batches": batches, "content": content}


def _hashes(data: Any, dataset: type) -> tuple[int | None, int | None]:
    """Return the hashes of the arrays and lists of a data set, and of the data sets in it.

    Returns:
        Hash of the rows in any order, and in their order; None if they are not known.
    """
    rows, found = len(data), []
    for value in getattr(data, "__dict__", {}).values():
        if isinstance(value, dataset):
            found.append(_hashes(value, dataset))
        else:
            parts = value if isinstance(value, tuple) else [value]  # the tensors of a TensorDataset
            arrays = [
                part for part in parts if hasattr(part, "__len__") and not isinstance(part, str)
            ]
            known = [items(each, parts=1) for each in arrays if len(each) == rows]
            found += [(each.content, each.order) for each in known if each]
    if not found or (None, None) in found:
        return None, None
    return tuple(zlib.crc32(repr(each).encode()) for each in zip(*found, strict=True))


def _distributed(loader: Any) -> Any:
    """Return the DistributedSampler of a loader, which a batch sampler may contain, or None."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers += [getattr(each, "sampler", None) for each in samplers]
    return next((each for each in samplers if hasattr(each, "num_replicas")), None)
