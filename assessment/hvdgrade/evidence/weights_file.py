"""Read one weight file of a submission, which may hold anything."""

import io
import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from hvdgrade.output.text import printable
from hvdgrade.record_limits import weights_bytes
from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights

SPARE_BYTES = 30 << 20  # what an unpacked file may hold in addition to the weights
# How many arrays of a file are read in addition to the weights: enough to name one that does not belong.
SPARE_ARRAYS = 80
MAX_EXAMPLES = 1_000_000
DIVERGED = "is not finite: the training diverged"
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def max_unpacked_bytes(network: str) -> int:
    """Return how many bytes a file with the weights of `network` may unpack to."""
    return weights_bytes(network) + SPARE_BYTES


def read_weights(
    path: Path, network: str = ASSESSMENT_NET
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Read one weight file; return its weights and the indices of the examples that the rank read.

    Args:
        path: the .npz file, which may hold anything.
        network: name of the network. Default: the assessment network.

    Returns:
        The weights (name -> float32 array with the shape that the network has), and the indices, an int64
        array of shape (n,).

    Raises:
        ValueError: the file is not acceptable; the message says what is wrong.
    """
    shapes, most = network_weights(network), max_unpacked_bytes(network)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > most:
                raise ValueError(f"it unpacks to more than {most} bytes")
            # With other compression methods Python unpacks whole blocks, even if the reader asks for
            # fewer bytes, so the size limit would not hold.
            if any(entry.compress_type not in PLAIN for entry in entries):
                raise ValueError("it is packed in another way than np.savez packs")
            arrays = {}
            for entry in entries[: len(shapes) + SPARE_ARRAYS]:
                with archive.open(entry) as file:
                    data = file.read(most)
                arrays[entry.filename.removesuffix(".npy")] = plain_array(data)
    except Exception as error:  # a malformed file can raise almost any exception
        said = printable(str(error))[:200]  # the message may quote bytes of the file
        raise ValueError(f"it is not a file of plain arrays ({said})") from None
    examples = arrays.pop("examples_read", np.zeros(0, np.int32))
    if examples.ndim != 1 or examples.dtype.kind not in "iu" or len(examples) > MAX_EXAMPLES:
        raise ValueError("examples_read is not a list of at most a million indices")
    for name, shape in shapes.items():
        if name not in arrays:
            raise ValueError(f"the weight {name} is missing")
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            came = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{name} is {came[:100]}, and the network has float32 {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} {DIVERGED}")
    if extra := arrays.keys() - shapes.keys():
        raise ValueError(
            f"it has arrays that the network has not: {', '.join(map(ascii, sorted(extra)))[:200]}"
        )
    return arrays, examples.astype(np.int64)


def plain_array(data: bytes) -> np.ndarray:
    """Return the array in the bytes of an .npy file.

    NumPy's own reader allocates memory for any size that the header claims. This function instead requires
    that the size in the header equals the number of bytes that follow it.

    Args:
        data: the bytes of the file.

    Raises:
        ValueError: the array holds objects, or its size does not match the number of bytes.
    """
    file = io.BytesIO(data)
    header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, fortran_order, dtype = header[npy.read_magic(file)](file)
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise ValueError(f"{dtype} {shape} in {len(data)} bytes")
    flat = np.frombuffer(data[file.tell() :], dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C")
