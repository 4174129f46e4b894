"""What `hvdlab.keras.device` asks of TensorFlow. `_gpus_torch` answers to the same names."""

import os
import socket

import tensorflow as tf

from hvdlab.system.hardware import visible_gpus


def gpus() -> list[str]:
    """UUIDs of the GPUs that TensorFlow sees in this process, in its order."""
    if not tf.test.is_built_with_cuda():
        return []
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    found = visible_gpus()
    if any(name.startswith("MIG-") for name in found):
        return found  # CUDA must not start before a slice is chosen
    there = tf.config.list_physical_devices("GPU")
    if len(found) == len(there):
        return found
    # No nvidia-smi, or a TensorFlow without CUDA's libraries, which sees none.
    return [f"{socket.gethostname()} {gpu.name}" for gpu in there]


def gather(hvd, value: list[str]) -> list[list[str]]:
    """The values of all ranks, in order of rank.

    An operation outside of a session would start TensorFlow's GPUs, and fix them. This session has none.
    """
    processor = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=processor) as session:
        return hvd.allgather_object(value, session=session)


def use(name: str, index: int) -> str:
    """Let TensorFlow see one GPU only, and take its memory as it needs it; return its name.

    Raises:
        RuntimeError: TensorFlow has computed already, so that its GPUs are fixed.
    """
    if name.startswith("MIG-"):
        os.environ["CUDA_VISIBLE_DEVICES"], index = name, 0
    gpu = tf.config.list_physical_devices("GPU")[index]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    return gpu.name


def use_none() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # what asks nvidia-smi must find none either
