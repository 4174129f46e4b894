"""A hook in scikit-learn: how train_test_split divides the data."""

import functools
import zlib
from types import ModuleType
from typing import Any

from hvdlab.check.event_log import Watch
from hvdlab.check.fingerprints import digest
from hvdlab.trace import records


def watch(module: ModuleType, watch: Watch) -> None:
    """Write down what train_test_split gets, and what it returns."""
    split = getattr(module, "train_test_split", None)
    if split is None:  # another package of this name
        return

    @functools.wraps(split)
    def noting_split(*arrays: Any, **options: Any) -> list:
        parts = split(*arrays, **options)
        watch.note(records.Split, order=_fingerprint(parts), of=_fingerprint(arrays))
        return parts

    module.train_test_split = noting_split


def _fingerprint(values: Any) -> str | None:
    """Return the hash of arrays, tables of pandas, or lists of numbers and texts; None for anything else."""
    values = [each.index.to_numpy() if hasattr(each, "iloc") else each for each in values]
    lists = [value for value in values if isinstance(value, list)]
    if lists and len(lists) == len(values):
        return f"{zlib.crc32(repr(lists).encode()):08x}"
    return digest(list(values))
