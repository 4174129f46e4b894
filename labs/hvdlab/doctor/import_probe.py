"""What only an import can tell, found in a child: `python -m hvdlab.doctor.import_probe torch`.

Prints lines of JSON, of which the last counts: a crash in the middle leaves what was found before.
"""

import ctypes
import importlib
import json
import sys
from pathlib import Path


def tell(found: dict) -> None:
    print(json.dumps(found), flush=True)


def pytorch() -> None:
    import torch

    found = {
        "version": torch.__version__,
        "cuda": torch.version.cuda or "",
        # device_count() also counts GPUs for which the driver is too old.
        "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "lacks_link_to": libcuda_without_link(),
    }
    gpus = range(found["gpus"])
    found["capabilities"] = [torch.cuda.get_device_capability(gpu) for gpu in gpus]
    found["architectures"] = torch.cuda.get_arch_list()
    tell(found)
    tell({**found, "horovod": horovod("torch")})


def tensorflow() -> None:
    import tensorflow as tf

    cuda, built = tf.test.is_built_with_cuda(), tf.sysconfig.get_build_info()
    found = {
        "version": tf.__version__,
        "cuda": str(built.get("cuda_version", "of an unknown version")) if cuda else "",
        "gpus": len(tf.config.list_physical_devices("GPU")),
    }
    tell(found)
    tell({**found, "horovod": horovod("tensorflow")})


def horovod(framework: str) -> dict:
    """What Horovod's half for a framework was built with, and the MPI library that it loads."""
    flags = ("mpi", "gloo", "nccl", "cuda")
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
        if not hasattr(hvd, "init"):  # horovod.torch without its extension only prints a warning
            return {"error": f"Horovod's build has skipped {framework}, its extension is not there"}
        built = {flag: bool(getattr(hvd, f"{flag}_built")()) for flag in flags}
    except Exception as error:  # whatever a broken build raises
        return {"error": f"{type(error).__name__}: {error}"}
    return {**built, **mpi_library()}


def libcuda_without_link() -> str:
    """The driver's library, where it is found as libcuda.so.1 and not as libcuda.so; "" elsewhere.

    Horovod opens it by the short name (horovod/torch/cuda_util.cc:41), also in the `lib` of the environment.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""  # no driver
    linked = Path(sys.prefix, "lib/libcuda.so").exists()
    try:
        ctypes.CDLL("libcuda.so")
        return ""
    except OSError:
        return "" if linked else loaded("/libcuda.so.1")[0]


def loaded(name: str) -> list:
    """The files of libraries with a name that are loaded into this process."""
    with open("/proc/self/maps") as maps:
        return sorted({line.split(maxsplit=5)[-1].strip() for line in maps if name in line})


def mpi_library() -> dict:
    """The MPI library that is loaded into this process, and what it says of itself."""
    for file in loaded("/libmpi"):
        library = ctypes.CDLL(file)
        if hasattr(library, "MPI_Get_library_version"):  # may be called before MPI_Init
            text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
            library.MPI_Get_library_version(text, ctypes.byref(length))
            return {"library": text.value.decode(errors="replace"), "file": file}
    return {"library": "", "file": ""}


def mpi4py() -> None:
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    tell(
        {"version": mpi4py.__version__, "library": MPI.Get_library_version(), "file": MPI.__file__}
    )


def data() -> None:
    from hvdlab.data import DataError, load_cifar10, load_fashion_mnist

    found = {}
    for name, load in (("cifar10", load_cifar10), ("fashion_mnist", load_fashion_mnist)):
        try:
            images = load()
            found[name] = {"folder": str(images.folder), "synthetic": images.synthetic}
        except DataError as error:
            found[name] = {"error": str(error), "broken": str(error.broken or "")}
    tell(found)


if __name__ == "__main__":
    {"torch": pytorch, "tensorflow": tensorflow, "mpi4py": mpi4py, "data": data}[sys.argv[1]]()
