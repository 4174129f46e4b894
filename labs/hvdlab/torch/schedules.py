"""Schedules of `hvdlab.schedules` for torch optimizers.

A growing batch needs no class. Make new `Batches` in every epoch:

    plan = batch_growth(epochs, [60, 120, 160], 5, batch_size=128, max_batch_size=5120, ...)
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size())
        for group in optimizer.param_groups:
            group["lr"] = rate
        for x, y in batches.epoch(epoch):
            ...
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from hvdlab.torch.optimizers.layerwise import LayerwiseOptimizer


class Schedule(LRScheduler):
    """Scheduler that sets the learning rate of every update to the value of a function of the step.

        scheduler = Schedule(optimizer, gradual_warmup(constant(0.8), 500, start=0.1))
        for x, y in batches:
            ...
            optimizer.step()
            scheduler.step()  # once per update, not per epoch

    In contrast to LambdaLR the function returns the learning rate itself, and the `lr` of the optimizer
    is not used.

    To resume, make the scheduler first, then load both state dicts. The state dict of the scheduler
    contains no functions.

    Args:
        optimizer: any torch optimizer, also one that Horovod wrapped.
        schedule: function step -> learning rate, for all parameter groups; or a list of functions, one
            per group.
        momentum_correction: whether the velocity is scaled by new / old learning rate when the learning
            rate changes (Goyal et al., Accurate, Large Minibatch SGD, 2017, section 3,
            arXiv:1706.02677). Use it for optimizers whose velocity contains the learning rate, which are
            LARS with momentum_form="paper" and perhaps your own, but none of torch's. The velocity is
            the state "momentum_buffer". A learning rate of 0 sets it to 0. Default False.
        last_epoch: number of updates already made, minus one, as in all torch schedulers. Default -1.

    Raises:
        ValueError: `schedule` is not a function or a list of one per group; it is one function, but the
            groups have unequal learning rates; or momentum correction was requested for a velocity that
            does not contain the learning rate.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float] | Sequence[Callable[[int], float]],
        momentum_correction: bool = False,
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        schedules = (
            list(schedule) if isinstance(schedule, list | tuple) else [schedule] * len(groups)
        )
        if len(schedules) != len(groups) or not all(map(callable, schedules)):
            raise ValueError(
                "schedule must be a function: step -> learning rate, or a list of one per parameter "
                f"group. Received: schedule={schedule!r} for {len(groups)} groups"
            )
        rates = {float(group.get("initial_lr", group["lr"])) for group in groups}
        if callable(schedule) and len(rates) > 1:
            raise ValueError(
                "schedule must be a list of one function per parameter group, because one function "
                f"would make their rates equal. Received: groups with lr={sorted(rates)}"
            )
        if momentum_correction and _multiplies_velocity(optimizer):
            raise ValueError(
                "momentum_correction must be False, because this optimizer multiplies its velocity "
                f"by the current rate. Received: momentum_correction={momentum_correction!r}, "
                f"optimizer={type(optimizer).__name__}"
            )
        self.schedules = schedules
        self.momentum_correction = momentum_correction
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Return the learning rate of each parameter group at the current step."""
        return [float(schedule(self.last_epoch)) for schedule in self.schedules]

    def step(self, epoch: int | None = None) -> None:
        """Set the learning rate of the next update. Call it after each `optimizer.step()`.

        Args:
            epoch: number of updates made, to jump to. Default None: one more than before.
        """
        groups = self.optimizer.param_groups
        old = [float(group["lr"]) for group in groups]
        super().step(epoch)
        if self.momentum_correction:
            for group, old_rate in zip(groups, old, strict=True):
                self._correct(group, old_rate)

    def _correct(self, group: dict[str, Any], old_rate: float) -> None:
        new_rate = float(group["lr"])
        if old_rate == 0 or new_rate == old_rate:
            return
        for parameter in group["params"]:
            velocity = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if velocity is not None:
                velocity.mul_(new_rate / old_rate)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scheduler, without its functions."""
        return {name: value for name, value in super().state_dict().items() if name != "schedules"}


def _multiplies_velocity(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the learning rate multiplies the velocity in each step.

    That is so for torch's own optimizers and for those of this package, except LARS in its paper form.
    """
    if isinstance(optimizer, LayerwiseOptimizer):
        return any(group.get("momentum_form") != "paper" for group in optimizer.param_groups)
    return any(
        kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer
        for kind in type(optimizer).__mro__
    )
