"""Numbers, and hashes of samples, from the arrays and tensors of any framework."""

import zlib
from collections.abc import Iterator
from typing import Any

LAYERS, CHANNELS = (
    4,
    64,
)  # batch norm layers whose statistics are written down, and channels of each
SAMPLE = 2048  # elements of an array that its hash reads


def number(value: Any) -> float | None:
    """Return a value as a float.

    Args:
        value: a number, an array or tensor without dimensions, or anything else.

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


def digest(value: Any) -> str | None:
    """Return the hash of a sample of the arrays and tensors in a batch.

    Args:
        value: an array, a tensor, or lists, tuples and dictionaries of them.

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
