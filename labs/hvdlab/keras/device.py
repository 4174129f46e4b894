"""Which GPU a rank of Keras on TensorFlow uses, and where its gradients are exchanged.

    hvd.init()
    mine = rank_device(hvd)     # before TensorFlow computes anything
    optimizer = hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)

Only gradients need `device_dense`: `hvdlab.keras.horovod` sends all else, such as the weights at the start
and metrics, through host memory.

Keras on PyTorch: `hvdlab.torch.device` has the function of the same name, and its result is passed as
`hvd.DistributedOptimizer(optimizer, compression=mine.compression)`.
"""

import os
import socket
import sys
from dataclasses import dataclass

import tensorflow as tf

from hvdlab.gpu_assignment import assign, obstacle
from hvdlab.hardware import visible_gpus


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank.

    Attributes:
        gpu: TensorFlow's name of the only GPU that it sees from now on; None on the processor.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
        direct: whether the ranks send tensors from GPU to GPU, by NCCL. It is the same on all ranks.
    """

    gpu: str | None
    ranks: int
    direct: bool

    @property
    def device_dense(self) -> str:
        """Where Horovod exchanges gradients: "" is where they are, "CPU:0" is host memory."""
        return "" if self.direct or self.gpu is None else "CPU:0"


def rank_device(hvd) -> RankDevice:
    """Choose the device of this rank: a GPU of its own, a GPU that ranks share, or the processor.

    All ranks must call it, after `hvd.init()` and before TensorFlow computes: they compare what they see.
    TensorFlow then takes GPU memory as it needs it, in place of nearly all of it at once, so that another
    rank or a notebook can use the same GPU.

    Args:
        hvd: `hvdlab.keras.horovod` or `horovod.tensorflow`.

    Raises:
        RuntimeError: TensorFlow has computed already, so that its GPUs are fixed.
    """
    visible = _gather(hvd, _gpus_of_tensorflow())
    index, why = hvd.rank(), obstacle(visible, int(hvd.nccl_built()))
    mine = assign(visible)[index]
    if index == 0 and why and len(visible) > 1 and any(visible):
        how = "so the ranks exchange gradients through host memory"
        print(f"{why}, {how}.", file=sys.stderr, flush=True)
    if mine.index is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # what asks nvidia-smi must find none either
        return RankDevice(None, 0, False)
    name = visible[index][mine.index]
    slices = name.startswith("MIG-")
    if slices:
        os.environ["CUDA_VISIBLE_DEVICES"] = name
    gpu = tf.config.list_physical_devices("GPU")[0 if slices else mine.index]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    return RankDevice(gpu.name, mine.ranks, not why)


def _gpus_of_tensorflow() -> list[str]:
    """UUIDs of the GPUs that TensorFlow sees in this process, in its order."""
    if not tf.test.is_built_with_cuda():
        return []
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # the order of nvidia-smi
    found = visible_gpus()
    if any(name.startswith("MIG-") for name in found):
        return found  # CUDA must not start before a slice is chosen
    gpus = tf.config.list_physical_devices("GPU")
    if len(found) == len(gpus):
        return found
    # No nvidia-smi, or a TensorFlow without CUDA's libraries, which sees none.
    return [f"{socket.gethostname()} {gpu.name}" for gpu in gpus]


def _gather(hvd, value: list[str]) -> list[list[str]]:
    """The values of all ranks, in order of rank.

    An operation outside of a session would start TensorFlow's GPUs, and fix them. This session has none.
    """
    if hvd.size() == 1:
        return [value]
    processor = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    with tf.Graph().as_default(), tf.compat.v1.Session(config=processor) as session:
        return hvd.allgather_object(value, session=session)
