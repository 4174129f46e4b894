"""What LARS, LAMB and NovoGrad share: sorting tensors, norms, and checks of arguments."""

from collections import defaultdict

import torch
from torch import Tensor


class LayerwiseOptimizer(torch.optim.Optimizer):
    """Sort parameters by device, dtype and treatment, and hand each sort to one of two kernels."""

    state_names: tuple[str, ...]  # in the order in which _foreach and _fused receive them

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        try:
            self._check(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters; return what `closure`, which recomputes the loss, returns.

        Parameters without a gradient are left alone. NaN and infinite gradients end in NaN weights,
        as in torch's optimizers: use a `GradScaler` to skip such steps.

        Raises:
            RuntimeError: a gradient is sparse, or a parameter complex.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            sorts = defaultdict(list)
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
                sorts[p.device, p.dtype, adapt, self._can_fuse(group, p)].append(p)
            for (device, _, adapt, fused), params in sorts.items():
                update = self._fused if fused else self._foreach
                # A CPU gains nothing from lists, and takes its temporaries from the cache without.
                one_by_one = device.type == "cpu" and not fused
                for some in [[p] for p in params] if one_by_one else [params]:
                    update(group, adapt, some, [p.grad for p in some], self._states(some))
        return loss

    def _states(self, params) -> list[list[Tensor]]:
        return [[self.state[p][name] for p in params] for name in self.state_names]

    def _can_fuse(self, group, p: Tensor) -> bool:
        # The kernels walk over memory, so weight, gradient and state must lie there in the same order;
        # a model may have changed its format since, or the state come from another one. For half
        # floats, torch 2.13's fused SGD with momentum leaves most weights as they are.
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
        if group["fused"] is None:  # 1 - (1 - rate) costs digits that only float64 has
            return possible and p.dtype != torch.float64
        return group["fused"]


def norm_dtype(p: Tensor) -> torch.dtype | None:
    """float32 for shorter floats, whose squares overflow or lose their digits."""
    return torch.float32 if p.dtype in (torch.float16, torch.bfloat16) else None


def norms(tensors: list[Tensor]) -> Tensor:
    """The L2 norms of tensors of one dtype and device, as one vector."""
    return torch.stack(torch._foreach_norm(tensors, 2, dtype=norm_dtype(tensors[0])))


def check_numbers(group, *names, below=float("inf")):
    """Numbers from 0 to below `below`."""
    for name in names:
        value = group[name]
        if not (isinstance(value, int | float) and 0 <= value < below):
            until = "" if below == float("inf") else f" and below {below}"
            raise ValueError(
                f"{name} must be a number of at least 0{until}. Received: {name}={value!r}"
            )


def check_betas(group):
    betas = group["betas"]
    if not (
        isinstance(betas, tuple | list)
        and len(betas) == 2
        and all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in betas)
    ):
        raise ValueError(
            f"betas must be two numbers of at least 0 and below 1. Received: betas={betas!r}"
        )


def check_choice(group, name, *choices):
    if not any(group[name] is choice or group[name] == choice for choice in choices):
        expected = " or ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be {expected}. Received: {name}={group[name]!r}")
