"""Exercises of lab 1: doubling times, power laws, the compute of a run, results per week, a step, a ring."""

import math

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def doubling_months(factor, years):
    doublings = math.log2(factor)
    return 12 * years / doublings


# fmt: off
check_doubling_months = FunctionExercise(
    doubling_months,
    [
        Case((8, 6), "8 is 3 doublings, and 6 years are 72 months.", expected=24),
        Case((16, 2), "16 is 4 doublings, and 2 years are 24 months.", expected=6),
        Case((2, 0.5), "2 is 1 doubling, and half a year is 6 months.", expected=6),
        Case((12, 1), "12 is 3.585 doublings, because 2 ** 3.585 = 12, and a year has 12 months."),
    ],
    {
        "These are years. A year has 12 months.": ("12 * ", ""),
        "The number of doublings is the logarithm to base 2: use math.log2.":
            [("log2", "log"), ("log2", "log10")],
        "A growth by 8 is three doublings, 2 x 2 x 2, and not four or eight: take the logarithm.":
            [("math.log2(factor)", "factor"), ("math.log2(factor)", "factor / 2")],
        "That is the number of doublings per month. The doubling time is its inverse.":
            ("12 * years / doublings", "doublings / (12 * years)"),
    },
    passed="the number of doublings is the logarithm of the factor to base 2.", meaning="of months",
)
# fmt: on


def fit_power_law(n, error):
    slope, intercept = np.polyfit(np.log(n), np.log(error), 1)
    return np.exp(intercept), -slope


SIZES = np.array([100.0, 200.0, 400.0, 800.0])

# fmt: off
check_fit_power_law = FunctionExercise(
    fit_power_law,
    [
        Case((SIZES, 80 / SIZES), "Each time n doubles the error halves, so b is 1.", expected=(80, 1)),
        Case((SIZES, np.array([0.8, 0.42, 0.19, 0.1])),
             "These points only lie near a power law. Fit a straight line to np.log(n) and np.log(error), "
             "for example with np.polyfit."),
    ],
    {
        "The order is a, then b.": ("np.exp(intercept), -slope", "-slope, np.exp(intercept)"),
        "The slope of the line is -b: change its sign.": ("-slope", "slope"),
        "The intercept of the line is the logarithm of a: a is np.exp(intercept).":
            [("np.exp(intercept)", "intercept"), ("np.exp(intercept), -slope", "intercept, slope")],
        "np.exp undoes np.log, and 10**x undoes np.log10: use a pair that belongs together.":
            [("np.exp(", "10 ** ("), ("np.log(", "np.log10(")],
        "You fitted a straight line to n and the error. Only their logarithms lie on a line.":
            [("np.log(n), np.log(error)", "n, error", "np.exp(intercept), -slope", result)
             for result in ("slope, intercept", "intercept, slope", "intercept, -slope",
                            "np.exp(intercept), -slope")],
        "Only one of the two is a logarithm. Take the logarithm of n and of the error.":
            [("np.log(n)", "n"), ("np.log(error)", "error")],
        "You used two of the points. Fit the line to all of them, for example with np.polyfit.":
            [("(n)", f"(n[{two}])", "(error)", f"(error[{two}])") for two in ("[0, -1]", ":2", "-2:")],
    },
    passed="on logarithmic axes a power law is a straight line, and your fit finds its slope and its height.",
    shape=2, meaning="a and b, as in `return a, b`", rtol=1e-3,
)
# fmt: on


def examples_for_error(error, a, b):
    return (a / error) ** (1 / b)


# fmt: off
check_examples_for_error = FunctionExercise(
    examples_for_error,
    [
        Case((0.5, 2.0, 0.5), "n^0.5 must be 2 / 0.5 = 4.", expected=16),
        Case((0.25, 2.0, 0.5), "n^0.5 must be 2 / 0.25 = 8.", expected=64),
        Case((0.1, 1.0, 1.0), "n must be 1 / 0.1 = 10.", expected=10),
    ],
    {
        "That is the error for this number of examples. Solve error = a n^-b for n.":
            ("(a / error) ** (1 / b)", "a * error**-b"),
        "Either the fraction is upside down (a is divided by the error), or the sign of the power is wrong: "
        "a smaller error needs more examples.": ("a / error", "error / a"),
        "The power is 1 / b, because n^b = a / error.": ("1 / b", "b"),
    },
    passed="with b = 0.5, half the error needs four times the examples. The smaller b is, the more they "
    "cost.",
    meaning="of examples",
)
# fmt: on


def gpu_days(parameters, tokens, peak, utilisation):
    operations = 6 * parameters * tokens
    seconds = operations / (peak * utilisation)
    return seconds / 86_400


# fmt: off
check_gpu_days = FunctionExercise(
    gpu_days,
    [
        Case((1e9, 20e9, 1e15, 0.5),
             "6 N D is 1.2e+20 operations, and the GPU does 5e+14 per second, so it needs 240,000 s."),
        Case((7e9, 1e12, 4e14, 0.4),
             "6 N D is 4.2e+22 operations, and the GPU does 1.6e+14 per second, so it needs 2.625e+08 s."),
    ],
    {
        "These are seconds. A day has 86,400 of them.": (" / 86_400", ""),
        "These are hours. A day has 24 of them.": ("86_400", "3600"),
        "You assume that the GPU reaches its peak. It reaches only the fraction `utilisation`.":
            ("(peak * utilisation)", "peak"),
        "A lower utilisation makes the training longer: divide by it.":
            ("(peak * utilisation)", "peak * utilisation"),
        "2 operations per parameter and token are the forward pass. The backward pass needs twice as many, "
        "so training needs 6.": ("6 * p", "2 * p"),
        "4 operations per parameter and token are the backward pass. Add the forward pass.":
            ("6 * p", "4 * p"),
    },
    passed="6 operations per parameter and token, at the speed that the GPU reaches and not at its peak.",
    meaning="of days",
)
# fmt: on


def compute_optimal(operations, tokens_per_parameter):
    parameters = math.sqrt(operations / (6 * tokens_per_parameter))
    return parameters, tokens_per_parameter * parameters


# fmt: off
check_compute_optimal = FunctionExercise(
    compute_optimal,
    [
        Case((6 * 20 * 1e18, 20), "Put D = 20 N into C = 6 N D: then C is 120 N^2.", expected=(1e9, 2e10)),
        Case((6 * 5 * 9e16, 5), "Put D = 5 N into C = 6 N D: then C is 30 N^2.", expected=(3e8, 1.5e9)),
    ],
    {
        "The order is parameters, then tokens.":
            ("parameters, tokens_per_parameter * parameters",
             "tokens_per_parameter * parameters, parameters"),
        "The 6 is missing: C = 6 N D.": ("6 * ", ""),
        "The square root is missing: C = 6 r N^2.": ("math.sqrt", ""),
        "That splits the compute equally. There are r tokens per parameter.":
            ("(6 * tokens_per_parameter)", "6", "tokens_per_parameter * parameters", "parameters"),
        "The number of tokens is r times the number of parameters.":
            [("tokens_per_parameter * parameters", tokens)
             for tokens in ("parameters", "parameters / tokens_per_parameter", "operations / parameters")],
    },
    passed="6 N D is the compute again, and there are as many tokens per parameter as you asked for.",
    shape=2, meaning="parameters, tokens",
)
# fmt: on


def experiments(hours, gpu_hours, gpus, efficiency):
    hours_each = gpu_hours / (gpus * efficiency)
    return int(hours // hours_each)


# fmt: off
check_experiments = FunctionExercise(
    experiments,
    [
        Case((100, 48, 1, 1.0), "One run takes 48 / (1 x 1) = 48 hours.", expected=2),
        Case((100, 48, 8, 1.0), "One run takes 48 / (8 x 1) = 6 hours.", expected=16),
        Case((100, 48, 8, 0.75), "One run takes 48 / (8 x 0.75) = 8 hours.", expected=12),
        Case((10, 48, 1, 1.0), "One run takes 48 hours, and there are only 10.", expected=0),
    ],
    {
        "Only complete runs count: round down.":
            [("int(hours // hours_each)", f"{rounded}(hours / hours_each)")
             for rounded in ("float", "math.ceil", "round")],
        "Several GPUs shorten a run by the factor gpus x efficiency; yours forgets the efficiency.":
            ("(gpus * efficiency)", "gpus"),
        "That is the time of one run in hours. How many of them fit?":
            ("int(hours // hours_each)", "hours_each"),
        "More GPUs make a run shorter: divide the GPU-hours by them.": ("/ (gpus * efficiency)", "* gpus"),
    },
    passed="eight GPUs at 75 % efficiency give 12 results in 100 hours in place of 2.", meaning="of runs",
)
# fmt: on


def step_seconds(load, compute, exchange, prefetch):
    if prefetch:
        return max(load, compute + exchange)
    return load + compute + exchange


# fmt: off
check_step_seconds = FunctionExercise(
    step_seconds,
    [Case((load, 0.5, 0.1, prefetch), f"Computing and exchanging take 0.6 s, and loading takes {load} s.")
     for load in (0.3, 0.9, 0.55) for prefetch in (False, True)],
    {
        "Without prefetching nothing overlaps: add the three times.": ("if prefetch", "if True"),
        "With prefetching the next batch is loaded during all of the step, also in the exchange.":
            ("max(load, compute + exchange)", "max(load, compute) + exchange"),
        "The longer of the two decides, and not the shorter.": ("max(", "min("),
        "With prefetching the loading of the next batch costs no time of its own, unless it takes longer "
        "than the step.": ("if prefetch", "if False"),
        "The exchange begins after the computing, so add these two times.":
            ("compute + exchange)", "compute, exchange)"),
        "Where loading takes longer than computing and exchanging, the loading decides.":
            ("max(load, compute + exchange)", "compute + exchange"),
        "You swapped the two cases: the times overlap with prefetching only.":
            ("if prefetch", "if not prefetch"),
    },
    passed="prefetching hides the loading as long as loading is faster than training.", meaning="of seconds",
)
# fmt: on


def ring_seconds(size, links):
    ranks = len(links)
    sent = 2 * (ranks - 1) / ranks * size
    return sent / min(links)


# fmt: off
check_ring_seconds = FunctionExercise(
    ring_seconds,
    [
        Case((8e9, [1e9]), "A single rank sends nothing, so the time is 0.", expected=0),
        Case((8e9, [4e9, 4e9, 1e9, 4e9]), "Each link carries 2 x 3/4 of 8e+09 bytes.", expected=12),
        Case((1e9, [2e9, 8e9, 8e9]), "Each link carries 2 x 2/3 of 1e+09 bytes.", expected=2 / 3),
        Case((8e9, [4e9, 4e9]), "Each link carries 2 x 1/2 of 8e+09 bytes.", expected=2),
    ],
    {
        "The slowest link decides, and yours is the fastest.": ("min(", "max("),
        "Every link works at the same time, so the slowest decides and not the mean.": ("min(", "np.mean("),
        "The links work at the same time: do not add their times up.":
            ("sent / min(links)", "sum(sent / link for link in links)"),
        "The ring has two phases: form the sums, pass them on. The factor 2 is missing.": ("2 * (", "("),
        "A link carries 2 (R-1) / R of the bytes, and not all of them.":
            [("2 * (ranks - 1) / ranks", part) for part in ("1", "2", "(ranks > 1)", "2 * (ranks > 1)")],
        "Each of the 2 (R-1) messages is only one of R pieces: divide by R.": (" / ranks", ""),
    },
    passed="each link carries nearly twice the bytes, and the slowest link of the ring decides.",
    meaning="of seconds",
)
# fmt: on
