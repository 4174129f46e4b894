"""Learning rates and batch sizes for large-batch training, as pure functions of the step.

A schedule is a function that takes the number of an update (a step), from 0, and returns the learning rate of
that update. Each function below that returns a `Schedule` makes one. A warmup wraps another schedule:

    >>> schedule = gradual_warmup(step_decay(0.8, [300, 600], 0.1), warmup_steps=50, start=0.1)
    >>> [round(schedule(step), 3) for step in (0, 24, 49, 50, 299, 300)]
    [0.114, 0.45, 0.8, 0.8, 0.8, 0.08]

Milestones and lengths count from the start of training, and the warmup is part of it. `step_decay`,
`polynomial_decay` and `cosine_decay` may count epochs instead, also with a fraction. The other schedules
count updates. After its end a schedule keeps its last value.

Every function checks its arguments when it is called, and raises a ValueError for a value out of range.
`hvdlab.torch.schedules` and `hvdlab.keras.schedules` put a schedule into an optimizer.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

Schedule = Callable[[float], float]


def linear_scaling(learning_rate: float, factor: float) -> float:
    """Return the learning rate for a larger batch by the linear scaling rule: learning_rate * factor.

    Args:
        learning_rate: for the small batch, above 0.
        factor: global batch size divided by the small batch size, above 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.1, arXiv:1706.02677.
    """
    _check_positive(learning_rate=learning_rate, factor=factor)
    return float(learning_rate * factor)


def square_root_scaling(learning_rate: float, factor: float) -> float:
    """Return learning_rate * sqrt(factor), with which the variance of an update stays the same.

    Args:
        learning_rate: for the small batch, above 0.
        factor: global batch size divided by the small batch size, above 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Krizhevsky, One weird trick, 2014, arXiv:1404.5997; Hoffer et al., 2017, arXiv:1705.08741.
    """
    _check_positive(learning_rate=learning_rate, factor=factor)
    return learning_rate * math.sqrt(factor)


def momentum_correction(momentum: float, new_rate: float, old_rate: float) -> float:
    """Return the momentum of the first update at a new learning rate: momentum * new_rate / old_rate.

    It is for optimizers whose velocity is a sum of old updates, v <- momentum v + rate g. It rescales them as
    if the old gradients had been multiplied by the new learning rate, as happens in torch.optim.SGD.

    Args:
        momentum: from 0 to below 1.
        new_rate: learning rate of this update, at least 0.
        old_rate: learning rate of the update before, above 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Goyal et al., 2017, section 3, equation 10.
    """
    _check("a number from 0 to below 1", lambda m: _is_number(m) and 0 <= m < 1, momentum=momentum)
    _check_not_negative(new_rate=new_rate)
    _check_positive(old_rate=old_rate)
    return momentum * new_rate / old_rate


def gradual_warmup(schedule: Schedule, warmup_steps: int, start: float) -> Schedule:
    """Return a schedule that rises from `start` on a straight line, with every update of the warmup.

        rate(step) = start + (target - start) * (step + 1) / warmup_steps

    The target is the value of `schedule` at the last update of the warmup, step warmup_steps - 1, which has
    the full learning rate. The first update is already one step above `start`. Horovod's
    LearningRateWarmupCallback does the same with start = target / number of ranks. torch's LinearLR and
    Keras' CosineDecay follow the same line one step later.

    Args:
        schedule: the learning rate after the warmup. Its steps count the warmup too.
        warmup_steps: number of updates. 0 means no warmup.
        start: usually the learning rate of the small batch, at least 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Goyal et al., 2017, section 2.2: 5 epochs, per update.
    """
    _check("a function: step -> learning rate", callable, schedule=schedule)
    _check_count(0, warmup_steps=warmup_steps)
    _check_not_negative(start=start)

    def warmed(step: float) -> float:
        if step >= warmup_steps:
            return schedule(step)
        return _between(start, schedule(warmup_steps - 1), (step + 1) / warmup_steps)

    return warmed


def constant(rate: float) -> Schedule:
    """Return a schedule whose learning rate is always `rate`.

    Args:
        rate: above 0, else ValueError.
    """
    _check_positive(rate=rate)
    return lambda step: float(rate)


def step_decay(rate: float, milestones: Sequence[float], factor: float) -> Schedule:
    """Return a schedule that multiplies the learning rate by `factor` at every milestone.

    Args:
        rate: learning rate at first, above 0.
        milestones: steps that are the first with a new learning rate, increasing.
        factor: above 0, at most 1, for example 0.1.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_positive(rate=rate)
    _check_milestones(milestones)
    _check("a number above 0 to 1", lambda f: _is_number(f) and 0 < f <= 1, factor=factor)
    return lambda step: float(rate * factor ** bisect_right(milestones, step))


def polynomial_decay(rate: float, total_steps: float, power: float = 2, end: float = 0) -> Schedule:
    """Return a schedule that falls from `rate` at step 0 to `end` at step total_steps.

        end + (rate - end) * (1 - step / total_steps) ** power

    Args:
        rate: learning rate at first, above 0.
        total_steps: length of the run, above 0. This step is the first step after the run.
        power: above 0. 1 gives a straight line. LARS is used with 2, the default.
        end: learning rate after the run, at least 0. Default 0.

    Raises:
        ValueError: an argument is out of range.
    """
    _check_positive(rate=rate, total_steps=total_steps, power=power)
    _check_not_negative(end=end)
    return lambda step: _between(end, rate, (1 - min(step / total_steps, 1)) ** power)


def cosine_decay(rate: float, total_steps: float, end: float = 0) -> Schedule:
    """Return a schedule that falls from `rate` at step 0 to `end` at step total_steps on a cosine wave.

        end + (rate - end) * (1 + cos(pi * step / total_steps)) / 2

    Args:
        rate: learning rate at first, above 0.
        total_steps: length of the run, above 0. This step is the first step after the run.
        end: learning rate after the run, at least 0. Default 0.

    Raises:
        ValueError: an argument is out of range.

    Source: Loshchilov, Hutter, SGDR, 2016, equation 5, without restarts, arXiv:1608.03983.
    """
    _check_positive(rate=rate, total_steps=total_steps)
    _check_not_negative(end=end)
    return lambda step: _between(rate, end, _half_wave(min(step / total_steps, 1)))


def one_cycle(
    peak: float,
    total_steps: int,
    rise_fraction: float,
    start: float,
    end: float,
    shape: str = "linear",
) -> Schedule:
    """Return a schedule that rises from `start` to `peak` and falls to `end` at the run's last update.

    The peak is at step rise_fraction * total_steps - 1. If that is not a whole number, the peak is between
    two updates, as in torch's OneCycleLR. A run of at most 1 / rise_fraction updates has no time to rise: it
    begins at or just after the peak. If `start` or `end` is 0, the update with that learning rate is wasted.

    Args:
        peak: highest learning rate, above 0.
        total_steps: number of updates of the run. The last update is step total_steps - 1.
        rise_fraction: fraction of the run until the peak, between 0 and 1. torch's default is 0.3.
        start: learning rate of the first update, at least 0. torch's default is peak / 25.
        end: learning rate of the last update, at least 0. torch's default is peak / 250,000.
        shape: how it rises and falls: "linear" (default), or half a "cosine" wave each.

    Raises:
        ValueError: an argument is out of range.

    Source: Smith, Topin, Super-Convergence, 2017, arXiv:1708.07120.
    """
    _check_positive(peak=peak)
    _check_count(total_steps=total_steps)
    _check_not_negative(start=start, end=end)
    inside = _is_number(rise_fraction) and 0 < rise_fraction < 1
    _check("above 0, below 1", lambda x: inside, rise_fraction=rise_fraction)
    _check("'linear' or 'cosine'", lambda s: s in ("linear", "cosine"), shape=shape)
    top, last = rise_fraction * total_steps - 1, total_steps - 1
    bend = _half_wave if shape == "cosine" else float

    def cycle(step: float) -> float:
        if 0 < top and step <= top:
            return _between(start, peak, bend(step / top))
        return _between(peak, end, bend((min(step, last) - top) / (last - top)))

    return cycle


def batch_growth(
    epochs: int,
    milestones: Sequence[float],
    factor: int,
    batch_size: int,
    max_batch_size: int,
    learning_rate: float,
) -> list[tuple[int, float]]:
    """Return batch size and learning rate of each epoch: the batch grows where the learning rate would fall.

    At a milestone the batch grows by `factor`, but not beyond `max_batch_size`. If it cannot grow by the
    whole factor, the learning rate falls by the rest of it. Both reduce the quotient learning rate / batch
    size, and with it the noise of the gradient, by `factor`.

    Args:
        epochs: number of epochs.
        milestones: epochs that are the first of a new phase, increasing.
        factor: whole number above 1, for example 5 where the learning rate would be multiplied by 0.2.
        batch_size: global batch size at first.
        max_batch_size: largest global batch size. In the paper it is about a tenth of the examples.
        learning_rate: at first, above 0.

    Returns:
        (batch size, learning rate) for each epoch.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> batch_growth(4, [1, 2, 3], 5, batch_size=128, max_batch_size=1280, learning_rate=0.1)
        [(128, 0.1), (640, 0.1), (1280, 0.04), (1280, 0.008)]

    Source: Smith et al., Don't Decay the Learning Rate, Increase the Batch Size, 2018, arXiv:1711.00489.
    """
    _check_count(epochs=epochs, batch_size=batch_size)
    _check_count(2, factor=factor)
    _check_milestones(milestones)
    _check_positive(learning_rate=learning_rate)
    _check_count(batch_size, max_batch_size=max_batch_size)

    def phase(epoch: int) -> tuple[int, float]:
        wanted = batch_size * factor ** bisect_right(milestones, epoch)
        granted = min(wanted, max_batch_size)
        return granted, learning_rate / (wanted / granted)

    return [phase(epoch) for epoch in range(epochs)]


def updates(examples: int, batch_sizes: Sequence[int], drop_last: bool = False) -> int:
    """Return the number of parameter updates of a run.

    Args:
        examples: size of the training set.
        batch_sizes: the global batch size of each epoch.
        drop_last: leave out an epoch's last batch if it is smaller than the others. Default False.

    Raises:
        ValueError: an argument is out of range.

    Example, WRN-16-4 on CIFAR-10 of Smith et al., 2018:
        >>> plan = batch_growth(200, [60, 120, 160], 5, 128, 16000, learning_rate=0.1)
        >>> updates(50000, [128] * 200), updates(50000, [batch_size for batch_size, _ in plan])
        (78200, 29000)
    """
    _check_count(examples=examples)
    _check(
        "a list of whole numbers of at least 1, one per epoch",
        lambda sizes: isinstance(sizes, Sequence) and all(_is_count(size) for size in sizes),
        batch_sizes=batch_sizes,
    )
    return sum(examples // size if drop_last else -(-examples // size) for size in batch_sizes)


def _between(a: float, b: float, fraction: float) -> float:
    """Return the number at `fraction` of the distance from a to b; exactly a at 0 and b at 1."""
    return float((1 - fraction) * a + fraction * b)


def _half_wave(fraction: float) -> float:
    return (1 - math.cos(math.pi * fraction)) / 2


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object, least: int = 1) -> bool:
    return isinstance(value, Integral) and _is_number(value) and value >= least


def _check(expected: str, holds: Callable[[Any], bool], **arguments: object) -> None:
    for name, value in arguments.items():
        if not holds(value):
            raise ValueError(f"{name} must be {expected}. Received: {name}={value!r}")


def _check_positive(**arguments: object) -> None:
    _check("a number above 0", lambda x: _is_number(x) and x > 0, **arguments)


def _check_not_negative(**arguments: object) -> None:
    _check("a number of at least 0", lambda x: _is_number(x) and x >= 0, **arguments)


def _check_count(least: int = 1, /, **arguments: object) -> None:
    _check(f"a whole number of at least {least}", lambda x: _is_count(x, least), **arguments)


def _check_milestones(milestones: object) -> None:
    def are_increasing(items: object) -> bool:
        if not (isinstance(items, Sequence) and all(_is_number(item) for item in items)):
            return False
        return min(items, default=0) >= 0 and all(a < b for a, b in pairwise(items))

    _check("a list of increasing numbers of at least 0", are_increasing, milestones=milestones)
