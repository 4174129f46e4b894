"""Checks of lab 18: a link from timings, ring and tree, efficiency of a step, its limit, hours to a goal."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, number, numbers, right

COSTS = "stragglers", "latency", "bandwidth"


@exercise
def check_fit_link(fit_link: Callable) -> None:
    """Demand alpha and beta of t = alpha + S / beta, with errors relative to the measured time.

    Args:
        fit_link: The learner's `fit_link(nbytes, seconds)`, which returns (alpha, beta).
    """
    case = "fit_link([1000, 2000, 4000], [3e-6, 4e-6, 6e-6])"
    answer = call(fit_link, np.array([1000.0, 2000.0, 4000.0]), np.array([3e-6, 4e-6, 6e-6]))
    alpha, beta = numbers(answer, case, 2, "(alpha, beta)")
    mistakes = {
        "1e-9 is the slope, in seconds per byte; beta is bytes a second: 1 / slope.": (2e-6, 1e-9),
        "That is (slope, intercept), as np.polyfit returns them.": (1e-9, 2e-6),
        "That is (beta, alpha): return alpha first.": (1e9, 2e-6),
    }
    exactly = "The three points lie exactly on 2e-6 s + S / (1e9 bytes/s)."
    compare(case, (alpha, beta), (2e-6, 1e9), mistakes, exactly, rtol=1e-3, atol=0)

    sizes = 4.0 ** np.arange(5, 13)
    # Weights of 1/seconds give 5.5e-6 and 1.96e9, a fit of logarithms 5.5e-6 and 1.95e9; equal weights
    # -6e-5 and 1.67e9, 1/sqrt(seconds) 3.8e-6 and 1.75e9, 1/seconds^2 5.9e-6 and 2.5e9, a line
    # through the two ends 6e-6 and 1.67e9.
    times = (5e-6 + sizes / 2e9) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]
    answer = call(fit_link, sizes, times)
    alpha, beta = numbers(answer, "fit_link of eight sizes", 2, "(alpha, beta)")
    if not (5.2e-6 < alpha < 5.8e-6 and 1.85e9 < beta < 2.1e9):
        raise NotYet(
            "The fit of exact points is right. Eight sizes from 1 KB to 16 MB, made with alpha = 5e-6, "
            f"beta = 2e9 and 20 % more time at both ends, give ({alpha:.3g}, {beta:.3g}), expected "
            "(5.46e-06, 1.96e+09), where the relative error of each point counts the same. The error of a "
            "point grows with its time, so give np.polyfit the weights w = 1 / seconds: not their root or "
            "square, and leave out no point."
        )
    right(
        f"your fit recovers both constants of an exact line. With two sizes 20 % off it still finds "
        f"{alpha:.2g} s and {beta:.2g} bytes/s, because every size has the same weight in percent."
    )


@exercise
def check_ring_time(ring_time: Callable) -> None:
    """Demand 2(N-1) messages of alpha + S / (N beta) seconds, N-1 additions, and 0 for one rank.

    Args:
        ring_time: The learner's `ring_time(nbytes, ranks, alpha, beta, gamma)`, in seconds.
    """
    known = {
        "The additions are missing: a rank adds N-1 chunks of S / N bytes, gamma seconds per byte.": 15,
        "The additions count in one phase only: in the all-gather nothing is added.": 27,
        "A rank adds N-1 chunks of S / N bytes, not the whole array.": [23, 39],
        "That is one of the two phases: reduce-scatter takes N-1 messages, all-gather N-1 more.": 13.5,
        "These are 2N messages. No rank sends its own chunk to itself, so there are 2(N-1).": [
            26,
            28,
        ],
        "Each of the 2(N-1) messages has a latency: alpha counts each time.": 18.5,
        "Each message carries one chunk, S / N bytes, not the whole array.": [57, 75],
        "That is one array and one start, the time of a plain message.": 8.5,
        "beta is bytes a second: divide by it.": 6 * (0.5 + 8000 / 4 * 1000) + 6,
    }
    for arguments, expected, mistakes, how in (
        ((8000, 4, 0.5, 1000, 0.001), 21, known, "By hand it is 6 messages of 0.5 + 2 seconds and 3 "
         "additions of 2 seconds."),
        ((7000, 3, 0.25, 2000, 0.003), 4 * (0.25 + 7000 / 3 / 2000) + 14, {}, "4 ranks are right, 3 are "
         "not: by hand it is 4 messages of 0.25 + 7000 / 3 / 2000 seconds and 2 additions of 7 seconds. (A "
         "chunk "
         "need not be a whole number of bytes.)"),
        ((8000, 1, 0.5, 1000, 0.001), 0, {}, "A single rank sends nothing and adds nothing."),
    ):  # fmt: skip
        case = f"ring_time{arguments}"
        seconds = number(call(ring_time, *arguments), case, "of seconds")
        compare(case, seconds, expected, mistakes, how)
    right(
        "latency, bytes and additions each have their own factor, and only the latency term grows without "
        "limit when ranks are added."
    )


@exercise
def check_tree_time(tree_time: Callable) -> None:
    """Demand 2 ceil(log2 N) latencies, and the bytes and additions of a ring.

    Args:
        tree_time: The learner's `tree_time(nbytes, ranks, alpha, beta, gamma)`, in seconds.
    """
    known = {
        "That is the way up only: the sum must come down again, so the latency counts twice.": 19,
        "That is the latency of a ring, 2(N-1). A tree has 2 log2(N) levels on the way up and down.": 21,
        "That is the natural logarithm. A binary tree doubles in each level: use log2.": 18 + np.log(4),
        "The additions are missing: (N-1)/N S bytes, gamma seconds each.": 14,
        "Only (N-1)/N of the additions fall on a rank: there are N-1 sums of S bytes on N ranks.": 20 + 2,
        "A rank sends (N-1)/N S bytes up and as many down, on average, not S.": [24, 26],
        "A rank sends its bytes twice: up the tree and down again.": [2 + 6 + 6, 2 + 6],
        "The pieces follow each other without a pause, so the bytes do not count once per level.":
            [2 * 2 * (0.5 + 8) + 6, 2 * 2 * (0.5 + 8), 2 * 2 * (0.5 + 6) + 6],
    }  # fmt: skip
    five = 2 * 3 * 0.25 + 0.8 * 7000 * (2 / 2000 + 0.003)
    levels = {
        "A tree of 5 ranks has 3 levels: round log2(5) = 2.3 up.": [
            five - 2 * 0.25 * (3 - depth) for depth in (2, np.log2(5))
        ]
    }
    for arguments, expected, mistakes, how in (
        ((8000, 4, 0.5, 1000, 0.001), 20, known, "By hand it is 4 latencies of 0.5 s, 12 s for 2 x 6000 "
         "bytes that are sent, and 6 s for 6000 bytes that are added."),
        ((7000, 5, 0.25, 2000, 0.003), five, levels, "4 ranks are right, 5 are not: by hand it is 6 "
         "latencies, 2 x 5600 bytes sent and 5600 bytes added."),
        ((8000, 1, 0.5, 1000, 0.001), 0, {}, "A single rank sends nothing and adds nothing."),
    ):  # fmt: skip
        case = f"tree_time{arguments}"
        seconds = number(call(tree_time, *arguments), case, "of seconds")
        compare(case, seconds, expected, mistakes, how)
    right(
        "a tree sends and adds as many bytes as a ring. Only its latency differs: it grows by two messages "
        "when the ranks double, while that of a ring doubles."
    )


@exercise
def check_step_efficiency(step_efficiency: Callable) -> None:
    """Demand compute / (compute + what the overlap does not hide).

    Args:
        step_efficiency: The learner's `step_efficiency(compute, communication, overlap)`.
    """
    hidden = {
        "More is hidden than there is: the communication that remains visible is at least 0.": 1.2,
        "Nothing is hidden: the fraction `overlap` of the compute time can hide communication.": 0.75,
        "`overlap` is a fraction of the compute time, not of the communication.": 0.3 / 0.35,
    }
    known = {
        "Nothing is hidden: the fraction `overlap` of the compute time can hide communication.": 0.3
        / 0.55,
        "`overlap` is a fraction of the compute time, not of the communication.": 0.3 / 0.425,
        "That is the time of the step. The efficiency is compute / step.": 0.4,
        "That is upside down: the step with communication is the longer one.": 4 / 3,
        "That is the visible communication. The efficiency is compute / (compute + visible).": 0.1,
    }
    for arguments, expected, mistakes, how in (
        ((0.3, 0.25, 0.5), 0.75, known, "0.15 s are hidden, 0.1 s remain, and the step takes 0.4 s."),
        ((0.3, 0.1, 0.5), 1, hidden, "All of the 0.1 s are hidden behind 0.15 s of computing."),
        ((0.2, 0.2, 0.0), 0.5, {}, "Without overlap the step takes 0.4 s."),
    ):  # fmt: skip
        case = "step_efficiency(compute={}, communication={}, overlap={})".format(*arguments)
        found = number(call(step_efficiency, *arguments), case, "between 0 and 1")
        compare(case, found, expected, mistakes, how)
    right(
        "communication costs nothing until the computing that hides it is used up. After that every "
        "millisecond of it makes the step longer."
    )


@exercise
def check_limit(limit: Callable) -> None:
    """Demand the cost whose removal shortens the step most, or "compute" below 5 % of the step."""
    for step, without, expected, why in (
        (1.0, (0.95, 0.9, 0.7), "bandwidth", "Without the bandwidth term the step is 0.3 s shorter."),
        (2.0, (1.95, 1.2, 1.99), "latency", "Without the latency the step is 0.8 s shorter."),
        (0.5, (0.4, 0.5, 0.5), "stragglers", "Without stragglers the step is 0.1 s shorter."),
        (1.0, (0.97, 0.96, 0.98), "compute", "No cost takes 5 % of the step, so computing is the limit."),
        (2.0, (1.98, 1.93, 1.94), "compute", "0.07 s are less than 5 % of a step of 2 s."),
    ):  # fmt: skip
        seconds = dict(zip(COSTS, without, strict=True))
        answer = call(limit, step, dict(seconds))
        case = f"limit({step}, {seconds})"
        if answer not in (*COSTS, "compute"):
            raise NotYet(
                f"{case} must return a name, one of {COSTS} or 'compute'. Received: {answer!r}"
            )
        if answer != expected:
            longest = max(seconds, key=seconds.get)
            hint = (
                " A small value in `without` means a large loss."
                if answer == longest
                else " Compare with 5 % of the step."
                if "compute" in (answer, expected)
                else ""
            )
            raise NotYet(f"{case} is {answer!r}, expected {expected!r}. {why}{hint}")
    right(
        "you name a cost by removing it and looking how much shorter the step becomes. This also works if "
        "two costs overlap, where adding them up would count the same seconds twice."
    )


@exercise
def check_hours_to_goal(hours_to_goal: Callable) -> None:
    """Demand steps s_min (1 + b_crit / B), times B images per step, over the images per hour.

    Args:
        hours_to_goal: The learner's `hours_to_goal(images_per_second, global_batch, s_min, b_crit)`.
    """
    known = {
        "That is in seconds.": 21600,
        "These are the steps of an endless batch, s_min: a batch of B needs s_min (1 + b_crit / B).": 2,
        "b_crit / B is upside down.": 3,
        "s_min counts too: there are s_min (1 + b_crit / B) steps.": 4,
        "That many images, not steps: each step has global_batch of them.": 7200 / 1000 / 3600,
    }
    for arguments, expected, mistakes, how in (
        ((1000, 3000, 2400, 6000), 6, known, "By hand: 7200 steps of 3000 images are 21.6 million."),
        ((500, 1000, 100, 9000), 1000 * 1000 / 500 / 3600, {}, "One case is right, another is not. By hand: "
         "1000 steps of 1000 images are a million, 2000 seconds."),
    ):  # fmt: skip
        case = "hours_to_goal(images_per_second={}, global_batch={}, s_min={}, b_crit={})".format(
            *arguments
        )
        hours = number(call(hours_to_goal, *arguments), case, "of hours")
        compare(case, hours, expected, mistakes, how)
    right(
        "a larger batch needs fewer steps but more images, and the time is the number of images divided by "
        "the images per second."
    )
