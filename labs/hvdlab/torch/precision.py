"""Numerical precision of a network: settings of a GPU, dtypes of operations, and the size of gradients."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hvdlab import probe_mode


def use_fast_kernels(fast: bool = True) -> None:
    """Let GPUs compute float32 in TF32, and let cuDNN measure which kernels are the fastest.

    These are settings of the process, so a script calls this function once, before its first step. On a
    processor they have no effect. To compute convolutions in bfloat16 use `hvdlab.torch.models.autocast`.

    * TF32 (`allow_tf32`): tensor cores read float32 numbers with 10 bits of fraction instead of 23, and add
      the products in float32. Convolutions do so by default, matrix products do not. Networks learn
      equally well, but the relative error is about 1e-3 instead of 6e-8. float64 and bfloat16 do not
      change.
    * `cudnn.benchmark`: at the first step with a new shape cuDNN times its algorithms for each convolution
      and keeps the fastest. Therefore two runs may round differently. Every new shape takes this time
      again, so the setting is useful if all batches have the same size.

    In a run of the grader's probe (`hvdlab.probe_mode`) both settings are off, whatever `fast` is.

    Args:
        fast: True (default), or False if losses are compared to more than three digits.
    """
    fast = fast and not probe_mode.COPIES
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = fast


class _Types(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[tuple[str, tuple[str, ...]], str] = {}

    def __torch_dispatch__(
        self,
        function: Callable,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        first = out[0] if isinstance(out, tuple) else out
        name = str(function).removeprefix("aten.").partition(".")[0]
        if torch.is_tensor(first) and name not in ("_to_copy", "view", "t", "detach"):
            inputs = [_name(a) for a in args if torch.is_tensor(a) and a.is_floating_point()]
            self.rows[name, tuple(inputs)] = _name(first)
        return out


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def operation_types(function: Callable[[], object]) -> list[dict[str, str]]:
    """Run a function and return the dtypes of every operation that reaches a kernel.

    Args:
        function: a function without arguments, for example a training step.

    Returns:
        rows {"operation": name, "gets": dtypes of the inputs, "gives": dtype of the output}, each row
        once, in the order of their first call. Casts and views are left out.
    """
    with _Types() as seen:
        function()
    return [
        {"operation": name, "gets": ", ".join(inputs), "gives": out}
        for (name, inputs), out in seen.rows.items()
    ]


def output_gradients(model: nn.Module, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the gradients of a loss with respect to the outputs of all linear layers of a model.

    The gradients of the parameters are deleted afterwards.

    Args:
        model: the model.
        loss: a function without arguments that computes the loss of the model.

    Returns:
        all of these gradients in one tensor (n,), converted to float32.
    """
    gradients: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: out.register_hook(gradients.append) and None)
        for layer in model.modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        loss().backward()
    finally:
        for hook in hooks:
            hook.remove()
        model.zero_grad()
    return torch.cat([gradient.flatten().float() for gradient in gradients])
