"""Schedules of `hvdlab.schedules` for torch optimizers.

A batch that grows needs no class: make new `Batches` each epoch.

    plan = batch_growth(epochs, [60, 120, 160], 5, batch_size=128, max_batch_size=5120, ...)
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // hvd.size(), rank=hvd.rank(), size=hvd.size())
        for group in optimizer.param_groups:
            group["lr"] = rate
        for x, y in batches.epoch(epoch):
            ...
"""

import torch
from torch.optim.lr_scheduler import LRScheduler

from hvdlab.torch.optimizers.layerwise import LayerwiseOptimizer


class Schedule(LRScheduler):
    """Give every update the learning rate that a function of the step returns.

        scheduler = Schedule(optimizer, gradual_warmup(constant(0.8), 500, start=0.1))
        for x, y in batches:
            ...
            optimizer.step()
            scheduler.step()  # once per update, not per epoch

    Unlike LambdaLR the function returns the rate itself: the `lr` of the optimizer is not used.

    Args:
        optimizer: any torch optimizer, or Horovod's around one.
        schedule: function step -> learning rate, for all parameter groups; or a list of one
            function per group.
        momentum_correction: when the rate changes, scale velocities by new / old rate. For
            optimizers whose velocity contains the rate, as LARS with momentum_form="paper" or one
            of your own, and none of torch's: what they keep as "momentum_buffer" (Goyal et al.,
            Accurate, Large Minibatch SGD, 2017, section 3, arXiv:1706.02677). A rate of 0 forgets
            the velocity. Default False.
        last_epoch: updates already made, less one, as in all torch schedulers. Default -1.

    To resume, make the scheduler first, then load both state dicts. That of the scheduler holds no
    functions.

    Raises:
        ValueError: not a function, or not one per group; one function for groups of unequal rates;
            or momentum correction for a velocity that does not contain the rate.
    """

    def __init__(self, optimizer, schedule, momentum_correction=False, last_epoch=-1):
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
        if momentum_correction and _rate_is_outside(optimizer):
            raise ValueError(
                "momentum_correction must be False, because this optimizer multiplies its velocity "
                f"by the current rate. Received: momentum_correction={momentum_correction!r}, "
                f"optimizer={type(optimizer).__name__}"
            )
        self.schedules = schedules
        self.momentum_correction = momentum_correction
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [float(schedule(self.last_epoch)) for schedule in self.schedules]

    def step(self, epoch=None):
        groups = self.optimizer.param_groups
        old = [float(group["lr"]) for group in groups]
        super().step(epoch)
        if self.momentum_correction:
            for group, old_rate in zip(groups, old, strict=True):
                self._correct(group, old_rate)

    def _correct(self, group, old_rate):
        new_rate = float(group["lr"])
        if old_rate == 0 or new_rate == old_rate:
            return
        for parameter in group["params"]:
            velocity = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if velocity is not None:
                velocity.mul_(new_rate / old_rate)

    def state_dict(self):
        return {name: value for name, value in super().state_dict().items() if name != "schedules"}


def _rate_is_outside(optimizer) -> bool:
    """Whether it is one of torch's own, or of ours but for LARS in the paper's form."""
    if isinstance(optimizer, LayerwiseOptimizer):
        return any(group.get("momentum_form") != "paper" for group in optimizer.param_groups)
    return any(
        kind.__module__.startswith("torch.optim.") and kind is not torch.optim.Optimizer
        for kind in type(optimizer).__mro__
    )
