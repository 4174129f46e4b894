"""The data sets of the course: find them on this machine, and read them in batches, one shard per rank."""

from hvdlab.data.batches import Batches, shard, steps
from hvdlab.data.files import (
    DataError,
    Dataset,
    cache_folder,
    load_cifar10,
    load_fashion_mnist,
)

__all__ = [
    "Batches",
    "DataError",
    "Dataset",
    "cache_folder",
    "load_cifar10",
    "load_fashion_mnist",
    "shard",
    "steps",
]
