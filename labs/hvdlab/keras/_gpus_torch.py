"""The functions of PyTorch that `hvdlab.keras.device` needs. `_gpus_tensorflow` has them for TensorFlow."""

from types import ModuleType

import torch


def gpus() -> list[str]:
    """Return the UUIDs of the GPUs that PyTorch sees in this process, in CUDA's order.

    Keras has already made PyTorch choose a GPU. So a rank that sees slices of a GPU (MIG) has the first
    slice.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]


def gather(hvd: ModuleType, value: list[str]) -> list[list[str]]:
    """Return the values of all ranks, in order of rank."""
    return hvd.allgather_object(value)


def use(name: str, index: int) -> str:
    """Make Keras use one GPU from now on; return the GPU's name.

    Args:
        name: UUID of the GPU, which this backend does not need.
        index: position of the GPU in `gpus()`.
    """
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def use_none() -> None:
    """Do nothing, because PyTorch sees no GPU."""
