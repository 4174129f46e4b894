"""LARS and LARC."""

import torch
from torch import Tensor

from hvdlab.torch.optimizers.layerwise import LayerwiseOptimizer, check_choice, check_numbers, norms


class LARS(LayerwiseOptimizer):
    """Layer-wise adaptive rate scaling; with `clip=True` LARC.

    The step of a tensor is lr * trust_coefficient * ||w|| / (||g|| + weight_decay * ||w|| + eps)
    times its momentum; see `hvdlab.reference.lars`.

    Args:
        params: parameters, or groups that may override any argument below.
        lr: global learning rate. Default 1.0.
        momentum: from 0 to below 1. Default 0.9.
        weight_decay: inside the adapted step. Default 0.
        trust_coefficient: Default None: 0.001, or 0.02 with `clip`.
        eps: added to the denominator. Default 0: a norm of zero is guarded without it.
        clip: LARC: the local rate never exceeds `lr`. Default False.
        nesterov: Nesterov momentum. Default False.
        momentum_form: "torch" (default): the velocity holds gradients and `lr` multiplies it, as in
            torch.optim.SGD; "paper": the velocity holds steps that keep the `lr` of their time.
        exclude_1d: True (default): tensors of at most one dimension (biases, scales of norms) get
            plain momentum SGD at `lr`, without decay.
        fused: None (default): the CPU kernels where they work, but not for float64.

    Raises:
        ValueError: an argument is out of its range.

    Source: You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, 2017,
    arXiv:1708.03888. LARC: NVIDIA apex.
    """

    state_names = ("momentum_buffer",)

    def __init__(
        self,
        params,
        lr=1.0,
        momentum=0.9,
        weight_decay=0.0,
        trust_coefficient=None,
        eps=0.0,
        clip=False,
        nesterov=False,
        momentum_form="torch",
        exclude_1d=True,
        fused=None,
    ):
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

    def _check(self, group):
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

    def _init_state(self, state, p):
        state["momentum_buffer"] = torch.zeros_like(p)

    def _can_fuse(self, group, p):
        # Fused SGD keeps a buffer, and its dampening, only with momentum.
        plain = group["momentum"] > 0 and not group["nesterov"]
        return plain and super()._can_fuse(group, p)

    def _local_rates(self, group, params, grads) -> Tensor:
        """The factor of each tensor's update, without the global rate."""
        trust = group["trust_coefficient"]
        if trust is None:
            trust = 0.02 if group["clip"] else 0.001
        w, g = norms(params), norms(grads)
        rates = trust * w / (g + group["weight_decay"] * w + group["eps"])
        if group["clip"]:  # a rate of 0 divides to inf, which the clip makes 1
            rates = (rates / group["lr"]).clamp(max=1)
        return torch.where((w > 0) & (g > 0), rates, 1)

    def _fused(self, group, adapt, params, grads, states):
        (buffers,) = states
        paper = group["momentum_form"] == "paper"
        # SGD's buffer <- momentum buffer + (1 - dampening) g and its w <- w - lr buffer.
        factor, lr = (group["lr"], 1.0) if paper else (1.0, group["lr"])
        same = dict(
            momentum=group["momentum"],
            lr=lr,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        if not adapt:
            torch._fused_sgd_(
                params, grads, buffers, weight_decay=0.0, dampening=1 - factor, **same
            )
            return
        for p, g, buffer in zip(params, grads, buffers, strict=True):
            rate = factor * self._local_rates(group, [p], [g]).item()
            torch._fused_sgd_(
                [p], [g], [buffer], weight_decay=group["weight_decay"], dampening=1 - rate, **same
            )

    def _foreach(self, group, adapt, params, grads, states):
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
        if group["nesterov"]:  # one more step of momentum ahead
            torch._foreach_add_(params, steps, alpha=-lr)
            torch._foreach_add_(params, buffers, alpha=-momentum if paper else -lr * momentum)
        else:
            torch._foreach_add_(params, buffers, alpha=-1 if paper else -lr)
