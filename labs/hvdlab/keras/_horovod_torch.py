"""The functions of Horovod that `hvdlab.keras.collectives` needs if Keras runs on PyTorch.

`_horovod_tensorflow` has the same functions for TensorFlow.

A Horovod without NCCL must not get a tensor on a GPU: version 0.28.1 copies the tensor without waiting
for the copy, and then waits for ever. Gradients are sent from the GPU only if Horovod has NCCL. All other
tensors are small or are sent only once, so they always go through host memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import horovod.torch as hvd
import keras
import torch
from horovod.torch import allgather_object, broadcast_object  # noqa: F401


def to_tensor(value: Any) -> torch.Tensor:
    """Return a value as a tensor that Horovod can send.

    Horovod does not support bfloat16. Such a value becomes float32, which represents all of its numbers.
    """
    tensor = keras.ops.convert_to_tensor(value).detach().contiguous()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


@torch.compiler.disable
def through_host(operation: Callable, value: Any, *arguments: Any, **options: Any) -> torch.Tensor:
    """Return the result of one of Horovod's operations, computed in host memory.

    The result is on the device of the value.
    """
    tensor = to_tensor(value)
    return operation(tensor.cpu(), *arguments, **options).to(tensor.device)


def message(name: str | None, kind: str) -> str:
    """Return the name of a message.

    Without a name Horovod would number the message by all messages that the rank has sent so far, also
    those to a smaller process set. Such numbers may differ between ranks.
    """
    return name or kind


def native(variables: Sequence[Any]) -> list[Any]:
    """Return PyTorch's tensors inside Keras variables; other variables unchanged."""
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def refuse_compilation() -> None:
    """Do nothing: `torch.compile` leaves out the functions that are disabled in this module."""


def is_sparse(grad: Any) -> bool:
    """Return False, because Keras' embeddings have dense gradients on PyTorch."""
    return False


@torch.compiler.disable
def grouped_all_reduce(
    grads: Sequence[torch.Tensor],
    name: str,
    device_dense: str,
    device_sparse: str,
    **options: Any,
) -> list[torch.Tensor]:
    """Return the reductions of several tensors of one dtype, sent in one fused operation."""
    host = device_dense.upper().startswith("CPU") or not hvd.nccl_built()
    sent = [grad.contiguous().cpu() if host else grad.contiguous() for grad in grads]
    averages = hvd.grouped_allreduce(sent, name=name, **options)
    return [average.to(grad.device) for average, grad in zip(averages, grads, strict=True)]


def all_reduce_min(number: torch.Tensor, name: str, process_set: hvd.ProcessSet) -> torch.Tensor:
    """Return the smallest of the numbers of all ranks."""
    return through_host(hvd.allreduce, number, op=hvd.Min, name=name, process_set=process_set)


def adasum(deltas: Sequence[torch.Tensor], name: str, compression: type) -> list[torch.Tensor]:
    """Return tensors combined by Adasum, one by one."""
    options = {"op": hvd.Adasum, "compression": compression}
    return [
        through_host(hvd.allreduce, delta, name=f"{name}_{i}", **options)
        for i, delta in enumerate(deltas)
    ]


def broadcast_variables(
    variables: Sequence[Any], root_rank: int, process_set: hvd.ProcessSet
) -> None:
    """Overwrite variables on every rank with the values that they have on one rank."""
    options = {"root_rank": root_rank, "process_set": process_set}
    sent = [
        hvd.broadcast_async(to_tensor(tensor).cpu(), name=f"variable_{i}", **options)
        for i, tensor in enumerate(native(variables))
    ]
    with torch.no_grad():
        for tensor, handle in zip(native(variables), sent, strict=True):
            tensor.copy_(hvd.synchronize(handle))
