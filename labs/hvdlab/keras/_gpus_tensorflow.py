"""The functions of TensorFlow that `hvdlab.keras.device` needs. `_gpus_torch` has them for PyTorch."""

import os
import socket
from types import ModuleType

import tensorflow as tf

from hvdlab.system.hardware import visible_gpus


def gpus() -> list[str]:
    """Return the UUIDs of the GPUs that TensorFlow sees in this process, in its order."""
    if not tf.test.is_built_with_cuda():
        return []
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    uuids = visible_gpus()
    if any(name.startswith("MIG-") for name in uuids):
        return uuids  # CUDA must not start before a slice is chosen
    devices = tf.config.list_physical_devices("GPU")
    if len(uuids) == len(devices):
        return uuids
    # There is no nvidia-smi, or TensorFlow lacks CUDA's libraries and sees no GPU.
    return [f"{socket.gethostname()} {gpu.name}" for gpu in devices]


def gather(hvd: ModuleType, value: list[str]) -> list[list[str]]:
    """Return the values of all ranks, in order of rank.

    An operation outside a session would start TensorFlow's GPUs, and the choice of GPUs could not be
    changed after that. The session of this function has no GPU.
    """
    processor = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=processor) as session:
        return hvd.allgather_object(value, session=session)


def use(name: str, index: int) -> str:
    """Let TensorFlow see one GPU only, and allocate its memory as needed; return the GPU's name.

    Args:
        name: UUID of the GPU, or of a slice of it ("MIG-...").
        index: position of the GPU in `gpus()`.

    Raises:
        RuntimeError: TensorFlow has computed already, so its GPUs can no longer be chosen.
    """
    if name.startswith("MIG-"):
        os.environ["CUDA_VISIBLE_DEVICES"], index = name, 0
    gpu = tf.config.list_physical_devices("GPU")[index]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    return gpu.name


def use_none() -> None:
    """Hide all GPUs from this process, also from functions that call nvidia-smi."""
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
