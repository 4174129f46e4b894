"""LAMB."""

import torch
from torch import Tensor

from hvdlab.torch.optimizers.layerwise import (
    LayerwiseOptimizer,
    check_betas,
    check_choice,
    check_numbers,
    norms,
)


class LAMB(LayerwiseOptimizer):
    """Adam whose step of a tensor is as long as lr times the tensor's norm; `hvdlab.reference.lamb`.

    Args:
        params: parameters, or groups that may override any argument below.
        lr: learning rate. Default 0.001.
        betas: decay of the averages of the gradient and its square. Default (0.9, 0.999).
        eps: added to the root, outside of it. Default 1e-6.
        weight_decay: inside the adapted step. Default 0.01.
        bias_correction: Default True.
        clip: (low, high) for the norm of the weights, or None (default) to take it as it is.
        exclude_1d: True (default): tensors of at most one dimension get Adam at `lr`, without decay.
        fused: None (default): the CPU kernels where they work, but not for float64.

    Raises:
        ValueError: an argument is out of its range.

    Source: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes,
    2020, algorithm 2, arXiv:1904.00962.
    """

    state_names = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params,
        lr=0.001,
        betas=(0.9, 0.999),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=True,
        clip=None,
        exclude_1d=True,
        fused=None,
    ):
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

    def _check(self, group):
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

    def _init_state(self, state, p):
        state["step"] = torch.tensor(
            0.0
        )  # on the CPU, as in torch's Adam: reading it waits for nothing
        state["exp_avg"] = torch.zeros_like(p)
        state["exp_avg_sq"] = torch.zeros_like(p)

    def _ratios(self, group, params, updates) -> Tensor:
        w, r = norms(params), norms(updates)
        phi = w.clamp(*group["clip"]) if group["clip"] else w
        return torch.where((w > 0) & (r > 0), phi / r, 1)

    def _fused(self, group, adapt, params, grads, states):
        steps, averages, squares = states
        torch._foreach_add_(steps, 1)
        if not group["bias_correction"]:  # 1 - beta^inf = 1
            steps = [torch.tensor(float("inf"))] * len(steps)
        same = dict(
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=0.0,
            amsgrad=False,
        )
        if not adapt:
            torch._fused_adam_(
                params, grads, averages, squares, [], steps, lr=group["lr"], maximize=False, **same
            )
            return
        scratch = torch.empty(max(p.numel() for p in params), dtype=params[0].dtype)
        for p, g, m, v, step in zip(params, grads, averages, squares, steps, strict=True):
            # Adam, going up at rate 1 from weight_decay w, arrives at the update of LAMB.
            update = scratch[: p.numel()].as_strided(p.shape, p.stride())
            torch.mul(p, group["weight_decay"], out=update)
            torch._fused_adam_([update], [g], [m], [v], [], [step], lr=-1.0, maximize=False, **same)
            ratio = self._ratios(group, [p], [update]).item()
            p.add_(update, alpha=-group["lr"] * ratio)

    def _foreach(self, group, adapt, params, grads, states):
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
