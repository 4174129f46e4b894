"""Numbers, and hashes of samples, from the arrays and tensors of any framework."""

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

LAYERS, CHANNELS = (
    4,
    64,
)  # batch norm layers whose statistics are written down, and channels of each
SAMPLE = 2048  # elements of an array that its hash reads
MAX_ITEMS = 1_000_000  # of an array or list of which each item gets a hash
PLAIN = (str, bytes, int, float)


def number(value: Any) -> float | None:
    """Return a value as a float.

    Returns:
        The number; None for anything else.
    """
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        if getattr(value, "ndim", 0) or getattr(value, "shape", ()) not in ((), None):
            return None
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        return None


def identity(weight: Any) -> int:
    """Return a number that all references to one weight have in common."""
    if hasattr(weight, "data_ptr"):
        return weight.data_ptr()
    inner = getattr(weight, "_value", None)  # Keras 3
    return id(weight if inner is None else inner)


def digest(value: Any) -> str | None:
    """Return the hash of a sample of the arrays and tensors in a batch.

    Returns:
        8 hexadecimal digits; None if the batch has no array, or an array that cannot be read.
    """
    arrays, check = list(_arrays(value)), 0
    try:
        for array in arrays:
            check = zlib.crc32(_sampled(array), check)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # sparse, or a column of a table
        return None
    return f"{check:08x}" if arrays else None


def rows(value: Any) -> int | None:
    """Return the length of the first array or tensor in a batch, or None if there is none."""
    first = next(_arrays(value), None)
    return None if first is None or first.shape[0] is None else int(first.shape[0])


class Items(NamedTuple):
    """The hash of the items of an array or list.

    Attributes:
        count: number of items.
        content: hash of the items in any order.
        order: hash of the items in their order.
    """

    count: int
    content: int
    order: int


def items(value: Any, parts: int) -> Items | None:
    """Return the hashes of the items of an array or list, or of all items of a list of such parts.

    Args:
        parts: number of ranks.

    Returns:
        The hashes; None for anything else, and for fewer than two items.
    """
    if type(value).__name__ in ("_iLocIndexer", "_LocIndexer"):  # table.iloc
        value = value.obj
    if isinstance(value, list | tuple) and len(value) == parts:
        if all(isinstance(part, list | tuple) or _is_array(part) for part in value):
            value = [item for part in value for item in part]
    value = getattr(value, "index", value) if hasattr(value, "iloc") else value
    try:
        hashes = _hashes(value)
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None  # a tensor of a graph or of a GPU, for example
    if len(hashes) < 2:
        return None
    order = zlib.crc32(repr(hashes).encode())
    return Items(len(hashes), zlib.crc32(repr(sorted(hashes)).encode()), order)


def content(value: Any) -> int | None:
    """Return the hash of the items of an array or list in any order; None for anything else."""
    found = items(value, parts=1)
    return found.content if found else None


def inputs(batch: Any) -> list[int] | None:
    """Return the hash of each row of the first array or tensor in a batch; None if it cannot be read."""
    first = next(_arrays(batch), None)
    if hasattr(first, "detach"):  # torch: a GPU may hold it
        first = first.detach().cpu()
        first = (first.float() if first.is_floating_point() else first).numpy()
    try:
        return _hashes(first) or None
    except (AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None


def _hashes(value: Any) -> list[int]:
    """Return the hash of each item of an array, an index of pandas, or a list; none for anything else."""
    if isinstance(value, list | tuple | range):
        plain = len(value) <= MAX_ITEMS and all(map(_is_row, value))
        return [zlib.crc32(repr(item).encode()) for item in value] if plain else []
    if not _is_array(value) and not hasattr(value, "to_numpy"):
        return []  # a file, for example, which may be larger than the memory
    array = value.__array__()
    if len(array) > MAX_ITEMS:
        return []
    if array.dtype == object:
        return _hashes(array.tolist())
    rows = array.reshape(len(array), -1)
    return [zlib.crc32(row[:: _stride(row)].tobytes()) for row in rows]


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or tensor in memory, with at least one dimension."""
    kind = type(value).__name__ in ("ndarray", "Tensor", "EagerTensor")
    return kind and bool(getattr(value, "shape", ()))


def _is_row(item: Any) -> bool:
    """Return whether an item is a number or text, or a tuple or list of them."""
    if isinstance(item, list | tuple):
        return all(isinstance(part, PLAIN) for part in item)
    number = hasattr(item, "dtype") and getattr(item, "shape", None) == ()
    return number or isinstance(item, PLAIN)


def _arrays(value: Any) -> Iterator[Any]:
    """Yield the arrays and tensors of at least one dimension in a batch."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _arrays(part)
    elif hasattr(value, "dtype") and len(getattr(value, "shape", ())) >= 1:
        yield value


def _sampled(array: Any) -> bytes:
    """Return at most SAMPLE elements of an array (NumPy, torch or TensorFlow), spread over all of it."""
    if hasattr(array, "detach"):  # torch: the sample is taken on the device of the tensor
        flat = array.detach().reshape(-1)
        flat = flat[:: _stride(flat)].cpu()
        return (flat.float() if flat.is_floating_point() else flat).numpy().tobytes()
    if hasattr(array, "numpy"):  # TensorFlow: its method `numpy` would copy the whole tensor
        array = array.__array__()
    flat = array.reshape(-1)
    return flat[:: _stride(flat)].tobytes()


def _stride(flat: Any) -> int:
    return max(1, -(-flat.shape[0] // SAMPLE))
