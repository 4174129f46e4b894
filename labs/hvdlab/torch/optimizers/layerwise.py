"""Base class of LARS, LAMB and NovoGrad: groups of tensors, norms and checks of arguments."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Group = dict[str, Any]  # a parameter group: its parameters and its arguments
Tensors = list[Tensor]


class LayerwiseOptimizer(torch.optim.Optimizer):
    """Base class that groups parameters by device, dtype and treatment, and updates group by group.

    A subclass implements `_foreach` and `_fused` (see `hvdlab.torch.optimizers`), `_check` for the
    arguments of a parameter group, and `_init_state`.
    """

    state_names: tuple[str, ...]  # in the order in which _foreach and _fused receive the states

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group as `torch.optim.Optimizer` does, and check its arguments.

        Args:
            param_group: {"params": parameters, ...}; other keys override arguments of the optimizer.

        Raises:
            ValueError: an argument is out of its range. The group is not added then.
        """
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters.

        Parameters without a gradient do not change. NaN and infinite gradients lead to NaN weights, as in
        torch's optimizers. Use a `GradScaler` to skip such steps.

        Args:
            closure: function that recomputes the loss and its gradients. Default: none.

        Returns:
            the result of `closure`, or None.

        Raises:
            RuntimeError: a gradient is sparse, a parameter is complex, or the fused kernels of
                `fused=True` do not work for a parameter.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)  # parameters by what they have in common
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{type(self).__name__} needs dense gradients, and a parameter of shape "
                        f"{tuple(p.shape)} has a sparse one: use sparse=False in nn.Embedding, or "
                        "torch.optim.SparseAdam for it."
                    )
                if p.is_complex():
                    raise RuntimeError(
                        f"{type(self).__name__} needs real parameters, and one of shape {tuple(p.shape)} is "
                        "complex: give it to another optimizer, such as torch.optim.Adam."
                    )
                if not self.state[p]:
                    self._init_state(self.state[p], p)
                adapt = p.ndim > 1 or not group["exclude_1d"]
                alike[p.device, p.dtype, adapt, self._can_fuse(group, p)].append(p)
            for (device, _, adapt, fused), params in alike.items():
                update = self._fused if fused else self._foreach
                # On a CPU lists save nothing, and temporaries of a single tensor fit into the cache.
                one_by_one = device.type == "cpu" and not fused
                for batch in [[p] for p in params] if one_by_one else [params]:
                    update(group, adapt, batch, [p.grad for p in batch], self._states(batch))
        return loss

    def _states(self, params: Tensors) -> list[Tensors]:
        return [[self.state[p][name] for p in params] for name in self.state_names]

    def _can_fuse(self, group: Group, p: Tensor) -> bool:
        # The kernels run through memory, so weight, gradient and state must have the same order there.
        # They may differ if the model changed its memory format, or if the state is that of another
        # model. For float16 and bfloat16, torch 2.13's fused SGD with momentum leaves most weights
        # unchanged.
        dense = p.is_contiguous() or p.is_contiguous(memory_format=torch.channels_last)
        states = [self.state[p][name] for name in self.state_names]
        strides = {t.stride() for t in (p.grad, *states) if t.shape == p.shape}
        layout = p.device.type == "cpu" and dense and strides == {p.stride()}
        possible = layout and p.dtype in (torch.float32, torch.float64)
        if group["fused"] and not possible:
            raise RuntimeError(
                "fused=True needs dense float32 or float64 weights on the CPU, with gradients and state "
                f"of the same memory format. Received: shape {tuple(p.shape)}, {p.dtype}, {p.device}, "
                f"strides {sorted({p.stride(), *strides})}. fused=None uses it where it works."
            )
        if group["fused"] is None:  # 1 - (1 - rate) loses digits that only float64 has
            return possible and p.dtype != torch.float64
        return group["fused"]


def norm_dtype(p: Tensor) -> torch.dtype | None:
    """Return float32 for float16 and bfloat16, whose squares overflow or lose digits; otherwise None."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else None


def norms(tensors: list[Tensor]) -> Tensor:
    """Return the L2 norms of tensors of one dtype and device, as one vector.

    On the CPU, the norm of a tensor is computed as the norm of the norms of its rows. Torch uses all threads
    for the rows, but a single thread for the norm of a whole tensor, where it also adds up all squares in
    float32, so that it loses digits.
    """
    dtype = norm_dtype(tensors[0])
    if tensors[0].device.type == "cpu":
        tensors = [_row_norms(t, dtype) if t.ndim > 1 else t for t in tensors]
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=dtype))


def _row_norms(t: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return the L2 norm of each t[i], as one vector."""
    return torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim)), dtype=dtype)


def check_numbers(group: Group, *names: str, below: float = float("inf")) -> None:
    """Check that arguments are numbers of at least 0 and below a limit.

    Args:
        group: the parameter group.
        *names: names of the arguments.
        below: the limit. Default: none.

    Raises:
        ValueError: an argument is out of its range.
    """
    for name in names:
        value = group[name]
        if not (isinstance(value, int | float) and 0 <= value < below):
            until = "" if below == float("inf") else f" and below {below}"
            raise ValueError(
                f"{name} must be a number of at least 0{until}. Received: {name}={value!r}"
            )


def check_betas(group: Group) -> None:
    """Check that the argument `betas` is a pair of numbers from 0 to below 1.

    Raises:
        ValueError: it is something else.
    """
    betas = group["betas"]
    if not (
        isinstance(betas, tuple | list)
        and len(betas) == 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    ):
        raise ValueError(
            f"betas must be two numbers of at least 0 and below 1. Received: betas={betas!r}"
        )


def check_choice(group: Group, name: str, *choices: Any) -> None:
    """Check that an argument has one of the allowed values.

    Raises:
        ValueError: the value is another one.
    """
    if not any(group[name] is choice or group[name] == choice for choice in choices):
        expected = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be {expected}. Received: {name}={group[name]!r}")
