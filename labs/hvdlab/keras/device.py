"""Which GPU a rank of Keras uses, on TensorFlow or PyTorch, and where its gradients are exchanged.

    hvd.init()
    mine = rank_device(hvd)     # before Keras computes anything
    optimizer = hvd.DistributedOptimizer(optimizer, device_dense=mine.device_dense)

Only gradients need `device_dense`. `hvdlab.keras.horovod` sends all other values, such as the weights at
the start and the metrics, through host memory.
"""

import sys
from dataclasses import dataclass
from types import ModuleType

import keras

from hvdlab.system.gpu_assignment import assign, obstacle

if keras.backend.backend() == "torch":
    from hvdlab.keras import _gpus_torch as backend
else:
    from hvdlab.keras import _gpus_tensorflow as backend


@dataclass(frozen=True)
class RankDevice:
    """The device of this rank.

    Attributes:
        gpu: the backend's name of the GPU that Keras uses from now on; None on the processor.
        ranks: number of ranks that use this GPU, this one included; 0 on the processor.
        direct: whether the ranks send tensors from GPU to GPU, by NCCL. It is the same on all ranks.
    """

    gpu: str | None
    ranks: int
    direct: bool

    @property
    def device_dense(self) -> str:
        """Device from which Horovod sends gradients: "" for their own device, "CPU:0" for host memory."""
        return "" if self.direct or self.gpu is None else "CPU:0"


def rank_device(hvd: ModuleType) -> RankDevice:
    """Choose the device of this rank: a GPU of its own, a GPU that ranks share, or the processor.

    All ranks must call it after `hvd.init()` and before Keras computes, because the ranks compare the
    GPUs that they see. TensorFlow then allocates GPU memory as it needs it, instead of nearly all memory
    at once, so that another rank or a notebook can use the same GPU.

    Args:
        hvd: `hvdlab.keras.horovod`, or Horovod's own module for the backend.

    Returns:
        the device, which Keras uses from now on.

    Raises:
        RuntimeError: TensorFlow has computed already, so its GPUs can no longer be chosen.
    """
    own = backend.gpus()
    visible = backend.gather(hvd, own) if hvd.size() > 1 else [own]
    mine, why = assign(visible)[hvd.rank()], obstacle(visible, int(hvd.nccl_built()))
    if hvd.rank() == 0 and why and len(visible) > 1 and any(visible):
        consequence = "so the ranks exchange gradients through host memory"
        print(f"{why}, {consequence}.", file=sys.stderr, flush=True)
    if mine.index is None:
        backend.use_none()
        return RankDevice(None, 0, False)
    return RankDevice(backend.use(own[mine.index], mine.index), mine.ranks, not why)
