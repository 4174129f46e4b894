"""What `hvdlab.keras.horovod` asks of Horovod where Keras runs on PyTorch.

`_horovod_tensorflow` answers to the same names.
"""

import horovod.torch as hvd
import keras
import torch


def to_tensor(value):
    """What can be sent: of bfloat16, which Horovod has not, float32, which holds all of its numbers."""
    tensor = keras.ops.convert_to_tensor(value).detach().contiguous()
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


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
    return hvd.grouped_allreduce([grad.contiguous() for grad in grads], name=name, **options)


@torch.compiler.disable
def all_reduce_min(number, name, process_set):
    return hvd.allreduce(number, op=hvd.Min, name=name, process_set=process_set)


@torch.compiler.disable
def adasum(deltas, name, compression):
    """Combine tensors by Adasum, each by itself."""
    return [
        hvd.allreduce(delta, op=hvd.Adasum, name=f"{name}_{i}", compression=compression)
        for i, delta in enumerate(deltas)
    ]


def broadcast_variables(variables, root_rank, process_set, inplace):
    options = {"root_rank": root_rank, "process_set": process_set}
    sent = [
        hvd.broadcast_async(to_tensor(tensor), name=f"variable_{i}", **options)
        for i, tensor in enumerate(native(variables))
    ]
    with torch.no_grad():
        for tensor, handle in zip(native(variables), sent, strict=True):
            tensor.copy_(hvd.synchronize(handle))
