"""What `hvdlab.keras.horovod` asks of Horovod where Keras runs on PyTorch.

`_horovod_tensorflow` answers to the same names.

A Horovod without NCCL must not be given a tensor on a GPU: version 0.28.1 copies it without waiting for the
copy, and then waits for ever. Gradients are sent from the GPU only where Horovod has NCCL. All else is small
or is sent once, so it always goes through host memory.
"""

import horovod.torch as hvd
import keras
import torch
from horovod.torch import allgather_object, broadcast_object  # noqa: F401


def to_tensor(value):
    """What can be sent: of bfloat16, which Horovod has not, float32, which holds all of its numbers."""
    tensor = keras.ops.convert_to_tensor(value).detach().contiguous()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


@torch.compiler.disable
def through_host(operation, value, *arguments, **options):
    """Call one of Horovod's operations on a value in host memory; the result is where the value is."""
    tensor = to_tensor(value)
    return operation(tensor.cpu(), *arguments, **options).to(tensor.device)


def message(name, kind):
    """The name of a message: without one Horovod counts all that a rank has sent, to whomever."""
    return name or kind


def native(variables):
    """Return PyTorch's tensors inside Keras variables; others unchanged."""
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def refuse_compilation():
    """Refuse nothing: `torch.compile` runs what is disabled below as it is."""


def is_sparse(grad):
    return False  # Keras' embeddings have dense gradients on PyTorch


@torch.compiler.disable
def grouped_all_reduce(grads, name, device_dense, device_sparse, **options):
    host = device_dense.upper().startswith("CPU") or not hvd.nccl_built()
    sent = [grad.contiguous().cpu() if host else grad.contiguous() for grad in grads]
    averages = hvd.grouped_allreduce(sent, name=name, **options)
    return [average.to(grad.device) for average, grad in zip(averages, grads, strict=True)]


def all_reduce_min(number, name, process_set):
    return through_host(hvd.allreduce, number, op=hvd.Min, name=name, process_set=process_set)


def adasum(deltas, name, compression):
    """Combine tensors by Adasum, each by itself."""
    options = {"op": hvd.Adasum, "compression": compression}
    return [
        through_host(hvd.allreduce, delta, name=f"{name}_{i}", **options)
        for i, delta in enumerate(deltas)
    ]


def broadcast_variables(variables, root_rank, process_set):
    options = {"root_rank": root_rank, "process_set": process_set}
    sent = [
        hvd.broadcast_async(to_tensor(tensor).cpu(), name=f"variable_{i}", **options)
        for i, tensor in enumerate(native(variables))
    ]
    with torch.no_grad():
        for tensor, handle in zip(native(variables), sent, strict=True):
            tensor.copy_(hvd.synchronize(handle))
