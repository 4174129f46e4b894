"""Import a package in a child process and print facts about it: `python import_probe.py torch`.

It prints lines of JSON. The last line counts, so after a crash the facts printed before it are still known.
"""

import ctypes
import importlib
import json
import os
import sys
import traceback
from pathlib import Path


def tell(found: dict) -> None:
    """Print facts as a line of JSON."""
    print(json.dumps(found), flush=True)


def pytorch() -> None:
    """Print version, CUDA and GPUs of PyTorch, and how Horovod was built for it."""
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
    """Print version, CUDA and GPUs of TensorFlow, and how Horovod was built for it."""
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
    """Return with what Horovod was built for a framework, and the MPI library that it loads."""
    flags = ("mpi", "gloo", "nccl", "cuda")
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
        if not hasattr(hvd, "init"):  # horovod.torch without its extension only prints a warning
            return {"error": f"Horovod's build has skipped {framework}, its extension is not there"}
        built = {flag: bool(getattr(hvd, f"{flag}_built")()) for flag in flags}
    except Exception as error:  # a broken build may raise any error
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    return {**built, **mpi_library()}


def libcuda_without_link() -> str:
    """Return the driver's library if it is found as libcuda.so.1 but not as libcuda.so; else "".

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
    """Return the files of the loaded libraries whose path contains a name."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return sorted({line.split(maxsplit=5)[-1].strip() for line in maps if name in line})


def mpi_library() -> dict:
    """Return the file of the MPI library that is loaded into this process, and its version text."""
    for file in loaded("/libmpi"):
        library = ctypes.CDLL(file)
        if hasattr(library, "MPI_Get_library_version"):  # may be called before MPI_Init
            text, length = ctypes.create_string_buffer(8192), ctypes.c_int()
            library.MPI_Get_library_version(text, ctypes.byref(length))
            return {"library": text.value.decode(errors="replace"), "file": file}
    return {"library": "", "file": ""}


def mpi4py() -> None:
    """Print the version of mpi4py and the MPI library that it uses."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    tell(
        {"version": mpi4py.__version__, "library": MPI.Get_library_version(), "file": MPI.__file__}
    )


def data() -> None:
    """Print where each data set is, or why it cannot be read."""
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
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        # Import from the current folder, as a script in it does, and not from the folder of this file.
        sys.path[0] = os.getcwd()
    sys.path.append(str(Path(__file__).parents[2]))  # where hvdlab is, if no package is installed
    {"torch": pytorch, "tensorflow": tensorflow, "mpi4py": mpi4py, "data": data}[sys.argv[1]]()
