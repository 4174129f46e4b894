"""NovoGrad: momentum over gradients that are divided by the running norm of their layer."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hvdlab.torch.optimizers.layerwise import (
    Group,
    LayerwiseOptimizer,
    Tensors,
    check_betas,
    check_choice,
    check_numbers,
    norm_dtype,
    norms,
)


class NovoGrad(LayerwiseOptimizer):
    """Momentum over gradients divided by the norm of their layer. See `hvdlab.reference.novograd`.

    Args:
        params: parameters, or parameter groups, which may override any argument below.
        lr: learning rate. Default 0.001.
        betas: decay of the momentum and of the squared norm, from 0 to below 1. Default (0.95, 0.98).
        eps: added to the norm, above 0. Default 1e-8.
        weight_decay: factor of the weights that are added to the normalised gradient. Default 0.
        grad_averaging: whether the normalised gradient is multiplied by 1 - betas[0] before it is added
            to the momentum. Default False.
        exclude_1d: whether tensors of at most one dimension (biases, scales of norms) get no weight
            decay. Their gradients are normalised in any case, as the algorithm says. Default True.
        fused: whether to use torch's fused CPU kernels. Default None: where they work, except for
            float64. True raises a RuntimeError in `step` where they do not work.

    Raises:
        ValueError: an argument is out of its range.

    Source: Ginsburg et al., Stochastic Gradient Methods with Layer-wise Adaptive Moments, 2019,
    algorithm 1, arXiv:1905.11286.
    """

    state_names = ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.95, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        grad_averaging: bool = False,
        exclude_1d: bool = True,
        fused: bool | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            grad_averaging=grad_averaging,
            exclude_1d=exclude_1d,
            fused=fused,
        )
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        check_numbers(group, "lr", "weight_decay", "eps")
        if group["eps"] == 0:
            raise ValueError(
                "eps must be above 0: a gradient of zero is divided by it. Received: eps=0"
            )
        check_betas(group)
        if group["fused"] and group["betas"][0] == 0:
            raise ValueError("fused=True needs betas[0] above 0: leave fused=None.")
        for name in ("grad_averaging", "exclude_1d"):
            check_choice(group, name, True, False)
        check_choice(group, "fused", None, True, False)

    def _init_state(self, state: dict[str, Tensor], p: Tensor) -> None:
        state["exp_avg"] = torch.zeros_like(p)
        state["exp_avg_sq"] = torch.zeros((), dtype=norm_dtype(p) or p.dtype, device=p.device)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state as `torch.optim.Optimizer` does, but keep the dtype of the squared norms.

        PyTorch gives a state the dtype of its parameter. A squared norm above 65504 would become infinite
        in float16, and no later step would change its tensor.
        """
        super().load_state_dict(state_dict)
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for index, p in zip(saved, params, strict=True):
            if "exp_avg_sq" in state_dict["state"].get(index, {}):
                norm = state_dict["state"][index]["exp_avg_sq"]
                self.state[p]["exp_avg_sq"] = norm.to(p.device, norm_dtype(p) or p.dtype, copy=True)

    def _can_fuse(self, group: Group, p: Tensor) -> bool:
        # Fused SGD uses its buffer and its dampening only with momentum.
        return group["betas"][0] > 0 and super()._can_fuse(group, p)

    def _denominators(self, group: Group, grads: Tensors, squares: Tensors) -> Tensor:
        """Update the running squared norms `squares`; return the divisor of each gradient as one vector."""
        beta2 = group["betas"][1]
        new, old = norms(grads).square(), torch.stack(squares)
        new = torch.where(old == 0, new, beta2 * old + (1 - beta2) * new)
        torch._foreach_copy_(squares, list(new.unbind()))
        return new.sqrt() + group["eps"]

    def _fused(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        averages, squares = states
        beta1 = group["betas"][0]
        factor = 1 - beta1 if group["grad_averaging"] else 1.0
        denominators = self._denominators(group, grads, squares).tolist()
        for p, g, m, denominator in zip(params, grads, averages, denominators, strict=True):
            # m <- beta1 m + factor / denominator (g + weight_decay denominator w)
            torch._fused_sgd_(
                [p],
                [g],
                [m],
                weight_decay=group["weight_decay"] * denominator if adapt else 0.0,
                dampening=1 - factor / denominator,
                momentum=beta1,
                lr=group["lr"],
                nesterov=False,
                maximize=False,
                is_first_step=False,
            )

    def _foreach(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        averages, squares = states
        beta1 = group["betas"][0]
        updates = torch._foreach_div(
            grads, list(self._denominators(group, grads, squares).unbind())
        )
        if adapt:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        torch._foreach_mul_(averages, beta1)
        torch._foreach_add_(averages, updates, alpha=1 - beta1 if group["grad_averaging"] else 1)
        torch._foreach_add_(params, averages, alpha=-group["lr"])
