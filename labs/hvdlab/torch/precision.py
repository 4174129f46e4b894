"""How exactly a network computes: settings of a GPU, types of operations, and the size of gradients."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hvdlab import probe_mode


def use_fast_kernels(fast: bool = True) -> None:
    """Let GPUs compute float32 in TF32, and let cuDNN try which kernels are the fastest.

    They are settings of the process, so a script calls this once, before its first step. On a processor they
    have no effect. `hvdlab.torch.models.autocast` is what makes convolutions compute in bfloat16.

    * TF32 (`allow_tf32`): tensor cores read float32 numbers with 10 bits of fraction instead of 23, and add
      the products in float32. Convolutions do so by default, matrix products do not. Networks learn the
      same, and a relative error of about 1e-3 takes the place of 6e-8. float64 and bfloat16 stay as they are.
    * `cudnn.benchmark`: at the first step with a shape cuDNN times its algorithms for each convolution,
      and keeps the fastest. A run may then round differently from the one before. It takes time again
      for every new shape, so it pays where all batches are equally large.

    In a run of the grader's probe (`hvdlab.probe_mode`) both are off, whatever is passed.

    Args:
        fast: True (default), or False where losses are compared to more than three digits.
    """
    fast = fast and not probe_mode.COPIES
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = fast


class _Types(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.rows = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple) else out
        name = str(function).removeprefix("aten.").partition(".")[0]
        if torch.is_tensor(first) and name not in ("_to_copy", "view", "t", "detach"):
            inputs = [_name(a) for a in args if torch.is_tensor(a) and a.is_floating_point()]
            self.rows[name, tuple(inputs)] = _name(first)
        return out


def _name(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def operation_types(function: Callable[[], object]) -> list[dict[str, str]]:
    """Run `function` and return the types of every operation that reaches a kernel, each once.

    Returns:
        Rows {"operation", "gets", "gives"} in the order of their first call. Casts and views are
        left out.
    """
    with _Types() as seen:
        function()
    return [
        {"operation": name, "gets": ", ".join(inputs), "gives": out}
        for (name, inputs), out in seen.rows.items()
    ]


def output_gradients(model: nn.Module, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Gradients of `loss()` with respect to the outputs of all linear layers of `model`.

    Returns:
        One array of all of them, as float32 of whatever type they were computed in. The gradients of
        the parameters are emptied.
    """
    found = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: out.register_hook(found.append) and None)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        loss().backward()
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad()
    return torch.cat([gradient.flatten().float() for gradient in found])
