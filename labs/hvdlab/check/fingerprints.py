"""Numbers, and hashes of samples, from whatever a framework calls an array."""

import zlib

LAYERS, CHANNELS = 4, 64  # layers of batch norm, and channels of each, that are looked at
SAMPLE = 2048  # elements of an array that its hash reads


def number(value) -> float | None:
    """A Python number, or an array or tensor without dimensions, as a float; else None."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        if getattr(value, "ndim", 0) or getattr(value, "shape", ()) not in ((), None):
            return None
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):
        return None


def digest(value) -> str | None:
    """The hash of a sample of the arrays and tensors in a batch; None without any that can be read."""
    arrays, check = [], 0
    _arrays(value, arrays)
    try:
        for array in arrays:
            check = zlib.crc32(_sampled(array), check)
    except (AttributeError, TypeError, ValueError, RuntimeError):  # sparse, or a column of a table
        return None
    return f"{check:08x}" if arrays else None


def _arrays(value, found):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            _arrays(part, found)
    elif hasattr(value, "dtype") and len(getattr(value, "shape", ())) >= 1:
        found.append(value)


def _sampled(array) -> bytes:
    """At most SAMPLE elements of an array (NumPy, torch or TensorFlow), from all of it."""
    if hasattr(array, "detach"):  # torch: the sample is taken where the tensor is
        flat = array.detach().reshape(-1)
        flat = flat[:: _stride(flat)].cpu()
        return (flat.float() if flat.is_floating_point() else flat).numpy().tobytes()
    if hasattr(array, "numpy"):  # TensorFlow: its method would copy all of it
        array = array.__array__()
    flat = array.reshape(-1)
    return flat[:: _stride(flat)].tobytes()


def _stride(flat) -> int:
    return max(1, -(-flat.shape[0] // SAMPLE))
