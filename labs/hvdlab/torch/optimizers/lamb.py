"""LAMB: Adam with a separate learning rate for each layer."""

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
    norms,
)


class LAMB(LayerwiseOptimizer):
    """Adam whose step of a tensor w has the length lr * ||w||. See `hvdlab.reference.lamb`.

    Args:
        params: parameters, or parameter groups, which may override any argument below.
        lr: learning rate. Default 0.001.
        betas: decay of the averages of the gradient and of its square, from 0 to below 1. Default
            (0.9, 0.999).
        eps: added to the square root, outside of it. Default 1e-6.
        weight_decay: factor of the weights that are added to Adam's update, inside the adapted step.
            Default 0.01.
        bias_correction: whether the averages are divided by 1 - beta ** step. Default True.
        clip: (low, high), the range to which the norm of the weights is clipped. Default None: no
            clipping.
        exclude_1d: whether tensors of at most one dimension (biases, scales of norms) get Adam at `lr`,
            without decay. Default True.
        fused: whether to use torch's fused CPU kernels. Default None: where they work, except for
            float64. True raises a RuntimeError in `step` where they do not work.

    Raises:
        ValueError: an argument is out of its range.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, algorithm 2, arXiv:1904.00962.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = True,
        clip: tuple[float, float] | None = None,
        exclude_1d: bool = True,
        fused: bool | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            bias_correction=bias_correction,
            clip=clip,
            exclude_1d=exclude_1d,
            fused=fused,
        )
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        check_numbers(group, "lr", "weight_decay", "eps")
        check_betas(group)
        for name in ("bias_correction", "exclude_1d"):
            check_choice(group, name, True, False)
        check_choice(group, "fused", None, True, False)
        clip = group["clip"]
        pair = isinstance(clip, tuple | list) and len(clip) == 2
        if clip is not None and not (pair and 0 <= clip[0] <= clip[1]):
            raise ValueError(
                f"clip must be None or (low, high) with 0 <= low <= high. Received: clip={clip!r}"
            )

    def _init_state(self, state: dict[str, Tensor], p: Tensor) -> None:
        # On the CPU, as in torch's Adam, so that reading it does not wait for the GPU.
        state["step"] = torch.tensor(0.0)
        state["exp_avg"] = torch.zeros_like(p)
        state["exp_avg_sq"] = torch.zeros_like(p)

    def _ratios(self, group: Group, params: Tensors, updates: Tensors) -> Tensor:
        """Return ||w|| / ||update|| of each tensor as one vector; 1 where one of the two is 0."""
        w, r = norms(params), norms(updates)
        phi = w.clamp(*group["clip"]) if group["clip"] else w
        return torch.where((w > 0) & (r > 0), phi / r, 1)

    def _fused(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        steps, averages, squares = states
        torch._foreach_add_(steps, 1)
        if not group["bias_correction"]:  # 1 - beta^inf = 1
            steps = [torch.tensor(float("inf"))] * len(steps)
        options: dict[str, Any] = dict(
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )
        if not adapt:
            torch._fused_adam_(
                params, grads, averages, squares, [], steps, lr=group["lr"], **options
            )
            return
        scratch = torch.empty(max(p.numel() for p in params), dtype=params[0].dtype)
        for p, g, m, v, step in zip(params, grads, averages, squares, steps, strict=True):
            # Adam with the learning rate -1, started from weight_decay * w, computes the update of LAMB.
            update = scratch[: p.numel()].as_strided(p.shape, p.stride())
            torch.mul(p, group["weight_decay"], out=update)
            torch._fused_adam_([update], [g], [m], [v], [], [step], lr=-1.0, **options)
            ratio = self._ratios(group, [p], [update]).item()
            p.add_(update, alpha=-group["lr"] * ratio)

    def _foreach(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        steps, averages, squares = states
        beta1, beta2 = group["betas"]
        torch._foreach_add_(steps, 1)
        torch._foreach_lerp_(averages, grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
        if group["bias_correction"]:
            t = [step.item() for step in steps]
            roots = torch._foreach_div(squares, [1 - beta2**n for n in t])
            updates = torch._foreach_div(averages, [1 - beta1**n for n in t])
            torch._foreach_sqrt_(roots)
        else:
            roots = torch._foreach_sqrt(squares)
            updates = torch._foreach_clone(averages)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_div_(updates, roots)
        if adapt:
            torch._foreach_add_(updates, params, alpha=group["weight_decay"])
            torch._foreach_mul_(updates, list(self._ratios(group, params, updates).unbind()))
        torch._foreach_add_(params, updates, alpha=-group["lr"])
