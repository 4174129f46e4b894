"""Checks of lab 1: doubling times, power laws, the compute of a run, results per week, a step, a ring."""

import math
from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, compare, exercise, number, numbers, right

DAY = 86_400  # seconds


@exercise
def check_doubling_months(doubling_months: Callable) -> None:
    """Demand 12 years / log2(factor)."""
    for factor, years, expected in ((8, 6, 24.0), (16, 2, 6.0), (2, 0.5, 6.0)):
        case = f"doubling_months({factor}, {years})"
        answer = number(call_unchanged(doubling_months, factor, years), case, "of months")
        doublings = math.log2(factor)
        compare(
            case, answer, expected,
            {
                "These are years. A year has 12 months.": years / doublings,
                "The number of doublings is the logarithm to base 2: use math.log2.":
                    [12 * years / math.log(factor), 12 * years / math.log10(factor)],
                "A growth by 8 is three doublings, 2 x 2 x 2, and not four or eight: take the logarithm.":
                    [12 * years / factor, 12 * years / (factor / 2)],
                "That is the number of doublings per month. The doubling time is its inverse.":
                    doublings / (12 * years),
            },
            f"{factor} is {doublings:g} doublings, and {years} years are {12 * years:g} months.",
        )  # fmt: skip
    right("the number of doublings is the logarithm of the factor to base 2.")


@exercise
def check_fit_power_law(fit_power_law: Callable) -> None:
    """Demand (a, b) of error = a n^-b, from points that lie on the curve and from points near it."""
    n = np.array([100.0, 200.0, 400.0, 800.0])
    case = "fit_power_law of n=(100, 200, 400, 800), error=(0.8, 0.4, 0.2, 0.1)"
    answer = numbers(
        call_unchanged(fit_power_law, n, 80 / n), case, 2, "a and b, as in `return a, b`"
    )
    straight = np.polyfit(n, 80 / n, 1)
    mistakes = {
        "The order is a, then b.": (1, 80),
        "The slope of the line is -b: change its sign.": (80, -1),
        "The intercept of the line is the logarithm of a: a is np.exp(intercept).": [
            (math.log(80), 1), (math.log(80), -1)],
        "np.exp undoes np.log, and 10**x undoes np.log10: use a pair that belongs together.": [
            (10 ** math.log(80), 1), (math.exp(math.log10(80)), 1)],
        "You fitted a straight line to n and the error. Only their logarithms lie on a line.": [
            tuple(straight), tuple(straight[::-1]), (straight[1], -straight[0])],
    }  # fmt: skip
    compare(
        case, answer, (80, 1), mistakes, "Each time n doubles the error halves, so b is 1.",
        rtol=1e-4,
    )  # fmt: skip
    noisy = np.array([0.8, 0.42, 0.19, 0.1])
    case = "fit_power_law with error=(0.8, 0.42, 0.19, 0.1), which lies near a power law,"
    answer = numbers(call_unchanged(fit_power_law, n, noisy), case, 2)
    logs = np.column_stack([np.ones(4), np.log(n)])
    (intercept, slope), *_ = np.linalg.lstsq(logs, np.log(noisy), rcond=None)
    first_and_last = math.log(noisy[0] / noisy[-1]) / math.log(8)
    compare(
        case, answer, (math.exp(intercept), -slope),
        {"You used two of the points. Fit the line to all of them, for example with np.polyfit.":
            (None, first_and_last)},
        "Fit a straight line to np.log(n) and np.log(error), for example with np.polyfit.", rtol=1e-3,
    )  # fmt: skip
    right(
        "on logarithmic axes a power law is a straight line, and your fit finds its slope and its height."
    )


@exercise
def check_examples_for_error(examples_for_error: Callable) -> None:
    """Demand the number of examples at which a n^-b is the wanted error.

    Args:
        examples_for_error: The learner's `examples_for_error(error, a, b)`.
    """
    for error, a, b, expected in (
        (0.5, 2.0, 0.5, 16.0),
        (0.25, 2.0, 0.5, 64.0),
        (0.1, 1.0, 1.0, 10.0),
    ):
        case = f"examples_for_error({error}, a={a:g}, b={b})"
        answer = number(call_unchanged(examples_for_error, error, a, b), case, "of examples")
        compare(
            case, answer, expected,
            {
                "That is the error for this number of examples. Solve error = a n^-b for n.": a * error**-b,
                "The fraction is upside down: a is divided by the error.": (error / a) ** (1 / b),
                "The power is 1 / b, because n^b = a / error.": (a / error) ** b,
                "The sign of the power is wrong: a smaller error needs more examples.":
                    (a / error) ** (-1 / b),
            },
            f"n^{b:g} must be {a:g} / {error:g} = {a / error:g}.",
        )  # fmt: skip
    right(
        "with b = 0.5, half the error needs four times the examples. The smaller b is, the more they cost."
    )


@exercise
def check_gpu_days(gpu_days: Callable) -> None:
    """Demand 6 N D operations, divided by the speed that a GPU reaches, in days.

    Args:
        gpu_days: The learner's `gpu_days(parameters, tokens, peak, utilisation)`.
    """
    for arguments in ((1e9, 20e9, 1e15, 0.5), (7e9, 1e12, 4e14, 0.4)):
        parameters, tokens, peak, utilisation = arguments
        operations = 6 * parameters * tokens
        case = "gpu_days({:g}, {:g}, {:g}, {:g})".format(*arguments)
        answer = number(call_unchanged(gpu_days, *arguments), case, "of days")
        seconds = operations / (peak * utilisation)
        compare(
            case, answer, seconds / DAY,
            {
                "These are seconds. A day has 86,400 of them.": seconds,
                "These are hours. A day has 24 of them.": seconds / 3600,
                "You assume that the GPU reaches its peak. It reaches only the fraction `utilisation`.":
                    operations / peak / DAY,
                "A lower utilisation makes the training longer: divide by it.":
                    operations / peak * utilisation / DAY,
                "2 operations per parameter and token are the forward pass. The backward pass needs twice as "
                "many, so training needs 6.": seconds / 3 / DAY,
                "4 operations per parameter and token are the backward pass. Add the forward pass.":
                    seconds * 2 / 3 / DAY,
            },
            f"6 N D is {operations:.3g} operations, and the GPU does {peak * utilisation:.3g} per second.",
        )  # fmt: skip
    right(
        "6 operations per parameter and token, at the speed that the GPU reaches and not at its peak."
    )


@exercise
def check_compute_optimal(compute_optimal: Callable) -> None:
    """Demand N = sqrt(C / (6 r)) and D = r N, so that 6 N D is the given compute."""
    for operations, ratio in ((6 * 20 * 1e18, 20), (6 * 5 * 9e16, 5)):
        case = f"compute_optimal({operations:g}, {ratio})"
        answer = numbers(
            call_unchanged(compute_optimal, operations, ratio), case, 2, "parameters, tokens"
        )
        n = math.sqrt(operations / (6 * ratio))
        compare(
            case, answer, (n, ratio * n),
            {
                "The order is parameters, then tokens.": (ratio * n, n),
                "The 6 is missing: C = 6 N D.": (n * math.sqrt(6), ratio * n * math.sqrt(6)),
                "The square root is missing: C = 6 r N^2.": (n**2, None),
                "That splits the compute equally. There are r tokens per parameter.":
                    (math.sqrt(operations / 6), math.sqrt(operations / 6)),
                "The number of tokens is r times the number of parameters.": (n, None),
            },
            f"Put D = {ratio} N into C = 6 N D: then C is {6 * ratio} N^2.",
        )  # fmt: skip
    right(
        "6 N D is the compute again, and there are as many tokens per parameter as you asked for."
    )


@exercise
def check_experiments(experiments: Callable) -> None:
    """Demand how many runs end in a time, one after the other, as a whole number.

    Args:
        experiments: The learner's `experiments(hours, gpu_hours, gpus, efficiency)`.
    """
    for arguments, expected in (
        ((100, 48, 1, 1.0), 2), ((100, 48, 8, 1.0), 16), ((100, 48, 8, 0.75), 12), ((10, 48, 1, 1.0), 0),
    ):  # fmt: skip
        hours, gpu_hours, gpus, efficiency = arguments
        case = f"experiments{arguments}"
        answer = number(call_unchanged(experiments, *arguments), case, "of runs")
        each = gpu_hours / (gpus * efficiency)
        compare(
            case, answer, expected,
            {
                "Only complete runs count: round down.": [hours / each, math.ceil(hours / each)],
                "Several GPUs shorten a run by the factor gpus x efficiency; yours forgets the efficiency.":
                    hours // (gpu_hours / gpus),
                "That is the time of one run in hours. How many of them fit?": each,
                "More GPUs make a run shorter: divide the GPU-hours by them.": hours // (gpu_hours * gpus),
            },
            f"One run takes {gpu_hours} / ({gpus} x {efficiency:g}) = {each:g} hours.",
        )  # fmt: skip
    right("eight GPUs at 75 % efficiency give 12 results in 100 hours in place of 2.")


@exercise
def check_step_seconds(step_seconds: Callable) -> None:
    """Demand the time of a step: the sum without prefetching, the longer of input and training with it.

    Args:
        step_seconds: The learner's `step_seconds(load, compute, exchange, prefetch)`.
    """
    for load, compute, exchange in ((0.3, 0.5, 0.1), (0.9, 0.5, 0.1), (0.55, 0.5, 0.1)):
        train = compute + exchange
        for prefetch in (False, True):
            case = f"step_seconds({load}, {compute}, {exchange}, prefetch={prefetch})"
            answer = number(
                call_unchanged(step_seconds, load, compute, exchange, prefetch), case, "of seconds"
            )
            compare(
                case, answer, max(load, train) if prefetch else load + train,
                {
                    "Without prefetching nothing overlaps: add the three times.": max(load, train),
                    "With prefetching the next batch is loaded during all of the step, also in the exchange.":
                        max(load, compute) + exchange,
                    "The longer of the two decides, and not the shorter.": min(load, train),
                    "With prefetching the loading of the next batch costs no time of its own, unless it "
                    "takes longer than the step.": [load + train, max(load, compute, exchange)],
                },
                f"Computing and exchanging take {train:g} s, and loading takes {load:g} s.",
            )  # fmt: skip
    right("prefetching hides the loading as long as loading is faster than training.")


@exercise
def check_ring_seconds(ring_seconds: Callable) -> None:
    """Demand 2 (R-1) / R of the bytes through the slowest link.

    Args:
        ring_seconds: The learner's `ring_seconds(size, links)`, with one link per rank.
    """
    if call_unchanged(ring_seconds, 8e9, [1e9]) not in (0, 0.0):
        raise NotYet("ring_seconds(8e9, [1e9]): a single rank sends nothing, so the time is 0.")
    for size, links in (
        (8e9, [4e9, 4e9, 1e9, 4e9]), (1e9, [2e9, 8e9, 8e9]), (8e9, [4e9, 4e9]),
    ):  # fmt: skip
        ranks = len(links)
        case = f"ring_seconds({size:g}, {[float(f'{link:g}') for link in links]})"
        answer = number(call_unchanged(ring_seconds, size, links), case, "of seconds")
        part = (ranks - 1) / ranks * size
        compare(
            case, answer, 2 * part / min(links),
            {
                "The slowest link decides, and yours is the fastest.": 2 * part / max(links),
                "Every link works at the same time, so the slowest decides and not the mean.":
                    2 * part / (sum(links) / ranks),
                "The links work at the same time: do not add their times up.":
                    sum(2 * part / link for link in links),
                "The ring has two phases: form the sums, pass them on. The factor 2 is missing.":
                    part / min(links),
                "A link carries 2 (R-1) / R of the bytes, and not all of them.":
                    [size / min(links), 2 * size / min(links)],
                "Each of the 2 (R-1) messages is only one of R pieces: divide by R.":
                    2 * (ranks - 1) * size / min(links),
            },
            f"Each link carries 2 x {ranks - 1}/{ranks} of {size:g} bytes.",
        )  # fmt: skip
    right("each link carries nearly twice the bytes, and the slowest link of the ring decides.")
