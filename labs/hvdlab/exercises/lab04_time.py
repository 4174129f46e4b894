"""Exercise of lab 4: the time of an all-reduce from the latency and the bandwidth of a message."""

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def all_reduce_time(algorithm, ranks, size, latency, bandwidth):
    steps, part = {
        "tree": (2 * np.log2(ranks), 1),
        "ring": (2 * (ranks - 1), 1 / ranks),
    }[algorithm]
    return steps * (latency + part * size / bandwidth)


# fmt: off
check_all_reduce_time = FunctionExercise(
    all_reduce_time,
    [
        Case(("tree", 8, 16e6, 5e-6, 2e9), "The tree has 2 * 3 steps with the whole array.",
             expected=6 * (5e-6 + 8e-3)),
        Case(("ring", 8, 16e6, 5e-6, 2e9), "The ring has 2 * 7 steps with an eighth of the array.",
             expected=14 * (5e-6 + 1e-3)),
        Case(("ring", 4, 16.0, 2e-6, 1e9), "The ring has 2 * 3 steps with a quarter of the array.",
             expected=6 * (2e-6 + 4e-9)),
    ],
    {
        "The latency counts in each step, not once.":
            ("steps * (latency + part * size / bandwidth)", "latency + steps * part * size / bandwidth"),
        "The latency is missing.": ("latency + part", "part"),
        "The tree sends up and down: 2 log2(ranks) steps.": ("2 * np.log2", "np.log2"),
        "The tree has log2(ranks) steps up and as many down, not ranks - 1.":
            ("2 * np.log2(ranks)", "2 * (ranks - 1)"),
        "The ring has two phases of ranks - 1 steps.": ("2 * (ranks - 1)", "(ranks - 1)"),
        "A step of the ring sends a chunk of 1/ranks of the array.": ("1 / ranks", "1"),
        "Divide the bytes by the bandwidth.": ("size / bandwidth", "size * bandwidth"),
    },
    passed="the steps of both algorithms, each with its latency and its bytes.",
    meaning="of seconds",
    atol=0,
)
# fmt: on
