"""What mixed precision does inside a network: the types of its operations, the size of its gradients."""

from collections.abc import Callable

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


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
