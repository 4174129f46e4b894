"""How a step of training grows with the number of ranks, measured against a run with one rank.

The size of a step is the learning rate times the scale of the loss and of the gradient: 1 for the average
over the ranks, their number for a sum. With N ranks a step reads N batches, so it should be about N times as
large.
"""

from statistics import median
from typing import NamedTuple

from hvdlab.check import gradient_shares
from hvdlab.check.run_events import Run
from hvdlab.trace import records

STEPS = 4  # of both runs that are compared
CONSTANT = 1.001  # largest growth of a rate that counts as constant
LESS = 0.75  # of a batch that has become smaller
NEAR = 0.2  # relative difference of a loss from one that is scaled by the number of ranks


class Growth(NamedTuple):
    """How the steps of an optimizer grow with the number of ranks.

    Attributes:
        factor: size of a step with all ranks in that with one rank.
        line: that has set the learning rate, or that has wrapped the optimizer.
        loss: scale of the loss: the number of ranks, or 1 divided by it, or 1.
        backward: line of the backward pass.
        rate: learning rate in the first step, with one rank and with all.
        total: scale of the gradient: 1 (average), the number of ranks (sum), or 1 / it (divided twice).
        batch: rows of a batch of one rank with all ranks, in that with one rank; None if unknown.
    """

    factor: float
    line: int | None
    loss: float
    backward: int | None
    rate: tuple[float, float]
    total: float
    batch: float | None


def growth(run: Run, number: int | None) -> Growth | None:
    """Return how the steps of an optimizer grow, or None if that is not known.

    A warmup may depend on the number of ranks, or of steps in an epoch. So a rate that grows during the first
    steps is compared only where that leaves no doubt.
    """
    if not run.single or not gradient_shares.averages(run, number):
        return None
    if any(event.reduces == "Adasum" for event in run.rank0(records.Wrap)):
        return None
    one, all_ranks = run.single.rates(number)[:STEPS], run.rates(number)[:STEPS]
    if not one or not all_ranks or not one[0]:
        return None
    size, ratio = len(run.ranks), all_ranks[0] / one[0]
    grows = [max(rates) > rates[0] * CONSTANT for rates in (one, all_ranks)]
    if grows == [True, True]:
        last = min(len(one), len(all_ranks)) - 1
        ratio = all_ranks[last] / one[last]
        if ratio > CONSTANT:
            return None  # also right: a warmup that is shorter with more ranks
    elif grows[0] or (grows[1] and abs(ratio * size - 1) > 0.05):
        return None
    total, loss = _total(run, number), _loss(run, number)
    first = run.steps(number)[0][0]
    rates = one[0], all_ranks[0]
    batch = _batch(run, number)
    made = run.rank0(records.Optimizer)
    line = first.rate_line or (made[0].line if len(made) == 1 else run.line(records.Wrap))
    return Growth(ratio * total * loss, line, loss, first.backward, rates, total, batch)


def _total(run: Run, number: int | None) -> float:
    """Return the scale of the gradient: the number of ranks if a step uses the sum, 1 / it, or else 1.

    Each step must show it, because gradients that are clipped have another scale in each step.
    """
    size, steps = len(run.ranks), gradient_shares.of_optimizer(run, number)
    shares = [share for step in steps for share in step]
    if run.all(records.Clip) or any(share.kind == "uneven" for share in shares):
        return 1.0
    totals = [share.total for share in shares if share.kind == "mean"]
    totals = totals or [share.total for share in shares if share.total]  # of equal gradients
    for scale in (size, 1 / size):
        if totals and all(abs(total / scale - 1) < 0.05 for total in totals):
            return float(scale)
    return 1.0


def _loss(run: Run, number: int | None) -> float:
    """Return the scale of the loss with all ranks, if each of the first losses shows it."""
    size = len(run.ranks)
    losses = [[e.loss for e in steps if e.loss] for steps in _first_steps(run, number)]
    ratios = [now / alone for alone, now in zip(*losses, strict=False)]
    for scale in (size, 1 / size):
        if len(ratios) > 1 and all(abs(ratio / scale - 1) < NEAR for ratio in ratios):
            return scale
    return 1.0


def _batch(run: Run, number: int | None) -> float | None:
    """Return the rows of a batch with all ranks, in those with one rank; None if unknown."""
    alone, now = ([e.rows for e in steps if e.rows] for steps in _first_steps(run, number))
    return median(now) / median(alone) if alone and now else None


def _first_steps(run: Run, number: int | None) -> list[list[records.Step]]:
    """Return the first steps of an optimizer with one rank, and those of the first rank of all."""
    both = (
        [e for e in one.rank0(records.Step) if e.optimizer == number] for one in (run.single, run)
    )
    return [steps[:STEPS] for steps in both]
