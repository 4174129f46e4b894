"""LARS and LARC: the learning rate of a layer follows the norm of its weights over that of its gradient."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from hvdlab.torch.optimizers.layerwise import (
    Group,
    LayerwiseOptimizer,
    Tensors,
    check_choice,
    check_numbers,
    norms,
)


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling (LARS); with `clip=True` LARC. See `hvdlab.reference.lars`.

    The learning rate of a tensor w with gradient g is

        lr * trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + eps)

    Args:
        params: parameters, or parameter groups, which may override any argument below.
        lr: global learning rate. Default 1.0.
        momentum: from 0 to below 1. Default 0.9.
        weight_decay: factor of the weights that are added to the gradient, inside the adapted step.
            Default 0.
        trust_coefficient: see the formula. Default None: 0.001, or 0.02 with `clip`.
        eps: added to the denominator. Default 0. A norm of zero needs no eps: the learning rate is then
            `lr`.
        clip: whether the learning rate of a tensor is at most `lr` (LARC). Default False.
        nesterov: whether to use Nesterov momentum. Default False.
        momentum_form: "torch" (default): the velocity is a sum of gradients, which the current `lr`
            multiplies, as in torch.optim.SGD. "paper": the velocity is a sum of steps, each with the
            `lr` of its time.
        exclude_1d: whether tensors of at most one dimension (biases, scales of norms) get plain
            momentum SGD at `lr`, without decay. Default True.
        fused: whether to use torch's fused CPU kernels. Default None: where they work, except for
            float64. True raises a RuntimeError in `step` where they do not work.

    Raises:
        ValueError: an argument is out of its range.

    Source: You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888. LARC: NVIDIA apex.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float | None = None,
        eps: float = 0.0,
        clip: bool = False,
        nesterov: bool = False,
        momentum_form: str = "torch",
        exclude_1d: bool = True,
        fused: bool | None = None,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            clip=clip,
            nesterov=nesterov,
            momentum_form=momentum_form,
            exclude_1d=exclude_1d,
            fused=fused,
        )
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        check_numbers(group, "lr", "weight_decay", "eps")
        check_numbers(group, "momentum", below=1)
        if group["trust_coefficient"] is not None:
            check_numbers(group, "trust_coefficient")
        check_choice(group, "momentum_form", "torch", "paper")
        for name in ("clip", "nesterov", "exclude_1d"):
            check_choice(group, name, True, False)
        check_choice(group, "fused", None, True, False)
        if group["fused"] and (group["nesterov"] or group["momentum"] == 0):
            raise ValueError("fused=True needs momentum, and not Nesterov's: leave fused=None.")

    def _init_state(self, state: dict[str, Tensor], p: Tensor) -> None:
        state["momentum_buffer"] = torch.zeros_like(p)

    def _can_fuse(self, group: Group, p: Tensor) -> bool:
        # Fused SGD uses its buffer and its dampening only with momentum.
        plain = group["momentum"] > 0 and not group["nesterov"]
        return plain and super()._can_fuse(group, p)

    def _local_rates(self, group: Group, params: Tensors, grads: Tensors) -> Tensor:
        """Return the factor of each tensor's update, without the global learning rate, as one vector."""
        trust = group["trust_coefficient"]
        if trust is None:
            trust = 0.02 if group["clip"] else 0.001
        w, g = norms(params), norms(grads)
        rates = trust * w / (g + group["weight_decay"] * w + group["eps"])
        if group["clip"]:  # division by a learning rate of 0 gives inf, which the clip makes 1
            rates = (rates / group["lr"]).clamp(max=1)
        return torch.where((w > 0) & (g > 0), rates, 1)

    def _fused(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        (buffers,) = states
        paper = group["momentum_form"] == "paper"
        # SGD computes buffer <- momentum buffer + (1 - dampening) g and w <- w - lr buffer.
        factor, lr = (group["lr"], 1.0) if paper else (1.0, group["lr"])
        options: dict[str, Any] = dict(
            momentum=group["momentum"],
            lr=lr,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        if not adapt:
            torch._fused_sgd_(
                params, grads, buffers, weight_decay=0.0, dampening=1 - factor, **options
            )
            return
        rates = self._local_rates(group, params, grads).tolist()
        for p, g, buffer, rate in zip(params, grads, buffers, rates, strict=True):
            torch._fused_sgd_(
                [p],
                [g],
                [buffer],
                weight_decay=group["weight_decay"],
                dampening=1 - factor * rate,
                **options,
            )

    def _foreach(
        self, group: Group, adapt: bool, params: Tensors, grads: Tensors, states: list[Tensors]
    ) -> None:
        (buffers,) = states
        lr, momentum = group["lr"], group["momentum"]
        paper = group["momentum_form"] == "paper"
        steps = grads
        if adapt:
            rates = list(self._local_rates(group, params, grads).unbind())
            steps = torch._foreach_add(grads, params, alpha=group["weight_decay"])
            torch._foreach_mul_(steps, rates)
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, steps, alpha=lr if paper else 1)
        if group["nesterov"]:  # looks one step of momentum ahead
            torch._foreach_add_(params, steps, alpha=-lr)
            torch._foreach_add_(params, buffers, alpha=-momentum if paper else -lr * momentum)
        else:
            torch._foreach_add_(params, buffers, alpha=-1 if paper else -lr)
