"""Which GPU a rank of Keras on TensorFlow uses, and where its gradients are exchanged.

    hvd.init()
    mine = rank_device(hvd)     # before TensorFlow computes anything
    optimizer = hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0, mine.device_dense)])

Keras on PyTorch: `hvdlab.torch.device` has the function of the same name.
"""

import os
import socket
import sys
from dataclasses import dataclass

import tensorflow as tf

from hvdlab.gpu_assignment import assign, each_has_its_own
from hvdlab.hardware import visible_gpus


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank.

    Attributes:
        gpu: TensorFlow's name of the only GPU that it sees from now on; None on the processor.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
        direct: whether the ranks send tensors from GPU to GPU, by NCCL.
    """

    gpu: str | None
    ranks: int
    direct: bool

    @property
    def device_dense(self) -> str:
        """Where Horovod exchanges gradients: "" is where they are; else host memory."""
        return "" if self.direct or self.gpu is None else "CPU:0"


def rank_device(hvd) -> RankDevice:
    """Choose the device of this rank: a GPU of its own, a GPU that ranks share, or the processor.

    All ranks must call it, after `hvd.init()` and before TensorFlow uses a GPU: they compare what they see.
    TensorFlow then takes GPU memory as it needs it, in place of nearly all of it at once, so that another
    rank or a notebook can use the same GPU.

    Args:
        hvd: `hvdlab.keras.horovod` or `horovod.tensorflow`.
    """
    found = visible_gpus()
    slices = any(name.startswith("MIG-") for name in found)
    if not tf.test.is_built_with_cuda():
        found = []
    elif not slices:  # with slices TensorFlow must not start CUDA before one is chosen
        gpus = tf.config.list_physical_devices("GPU")
        if len(found) != len(gpus):  # no nvidia-smi, or a TensorFlow that cannot use them
            found = [f"{socket.gethostname()} {gpu.name}" for gpu in gpus]
    visible = hvd.allgather_object(found) if hvd.size() > 1 else [found]
    mine, own = assign(visible)[hvd.rank()], each_has_its_own(visible)
    direct = own and bool(hvd.nccl_built())
    if mine.index is None:
        if found or visible_gpus():
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # what asks nvidia-smi must find none either
        return RankDevice(None, 0, False)
    if slices:
        os.environ["CUDA_VISIBLE_DEVICES"] = found[mine.index]
    gpus = tf.config.list_physical_devices("GPU")
    gpu = gpus[0 if slices else mine.index]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    if hvd.rank() == 0 and not direct and hvd.size() > 1:
        why = "this build has no NCCL" if own else f"{mine.ranks} ranks share a GPU"
        print(f"{why}: gradients are exchanged through host memory.", file=sys.stderr, flush=True)
    return RankDevice(gpu.name, mine.ranks, direct)
