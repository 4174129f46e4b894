"""What `hvdlab.keras.device` asks of PyTorch. `_gpus_tensorflow` answers to the same names."""

import torch


def gpus() -> list[str]:
    """UUIDs of the GPUs that PyTorch sees in this process, in CUDA's order.

    Keras has asked PyTorch for a GPU already, so a rank that sees slices of one (MIG) has the first of them.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"GPU-{torch.cuda.get_device_properties(i).uuid}" for i in range(count)]


def gather(hvd, value: list[str]) -> list[list[str]]:
    """The values of all ranks, in order of rank."""
    return hvd.allgather_object(value)


def use(name: str, index: int) -> str:
    """Make a GPU the one that Keras uses from now on; return its name."""
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def use_none() -> None:
    """Nothing to do: PyTorch sees no GPU."""
