"""Checks of lab 18: a link from timings, the time of a ring, where efficiency falls, hours to a goal."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, number, numbers, right

MAX_QUESTIONS = 100  # 14 are enough to halve 10,000 ranks down to one
ENDLESS_QUESTIONS = 50_000


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
        f"exact points, and ({alpha:.2g} s, {beta:.2g} bytes/s) from (5e-06, 2e+09) with two points 20 % off."
    )


@exercise
def check_ring_time(ring_time: Callable) -> None:
    """Demand 2(N-1) steps of alpha + S / (N beta) seconds, and 0 for one rank.

    Args:
        ring_time: The learner's `ring_time(nbytes, ranks, alpha, beta)`, in seconds.
    """
    known = {
        "That is one of the two phases: reduce-scatter takes N-1 steps, all-gather N-1 more.": 7.5,
        "These are 2N steps. No rank sends its own chunk to itself, so there are 2(N-1).": 20,
        "Each of the 2(N-1) steps starts a message: alpha counts each time.": 12.5,
        "Each step sends one chunk, S / N bytes, not the whole array.": 51,
        "That is one array and one start, the time of a plain message.": 8.5,
        "beta is bytes a second: divide by it.": 6 * (0.5 + 8000 / 4 * 1000),
    }
    for arguments, expected, mistakes, how in (
        ((8000, 4, 0.5, 1000), 15, known, "By hand it is 6 steps of 0.5 + 2 seconds."),
        ((7000, 3, 0.25, 2000), 4 * (0.25 + 7000 / 3 / 2000), {}, "4 ranks are right, 3 are not: by hand it "
         "is 4 steps of 0.25 + 7000 / 3 / 2000 seconds. (A chunk need not be a whole number of bytes.)"),
        ((8000, 1, 0.5, 1000), 0, {}, "A single rank has nobody to talk to."),
    ):  # fmt: skip
        case = f"ring_time{arguments}"
        seconds = number(call(ring_time, *arguments), case, "of seconds")
        compare(case, seconds, expected, mistakes, how)
    right("15 s for 8000 bytes on 4 ranks by hand, and nothing for one rank.")


@exercise
def check_falls_below(falls_below: Callable) -> None:
    """Demand the first number of ranks below a level, None if there is none, in few questions.

    Args:
        falls_below: The learner's `falls_below(efficiency, level, most)`.
    """
    asked, most = [], 10_000

    def efficiency(ranks: int) -> float:
        if not 1 <= ranks <= most:
            raise ValueError(f"efficiency knows 1 to {most} ranks, you asked for {ranks}")
        asked.append(ranks)
        if len(asked) > ENDLESS_QUESTIONS:
            raise NotYet(
                "falls_below asks for one efficiency after another and does not end: does the interval "
                "become smaller in every round, also when two numbers are left?"
            )
        return 1 / (1 + (ranks - 1) / 1000)

    questions = 0
    # fmt: off
    for level, most, expected, mistakes, why in (
        (0.5, 10_000, 1002, {"At 1001 ranks it is 0.5 exactly: below is one further.": 1001},
         "1002 is the first number of ranks below: at 1002 ranks it is below."),
        (0.05, 10_000, None, {}, "At 10,000 ranks it is still 0.09: return None, not a number."),
        (1.5, 10_000, 1, {}, "It is below from the first rank on."),
        (0.09092, 10_000, 10_000, {}, "It is below at 10,000 ranks only, the largest number."),
        (0.5, 500, None, {}, "With at most 500 ranks it is never below 0.5: return None, not a number."),
    ):  # fmt: on
        case = f"falls_below(efficiency, {level}, {most}), where efficiency = 1 / (1 + (N-1) / 1000),"
        answer = call(falls_below, efficiency, level, most)
        if answer is not None and expected is not None:
            compare(case, number(answer, case, "of ranks"), expected, mistakes, why)
        elif answer is not expected:
            raise NotYet(f"{case} is {answer}, expected {expected}. {why}")
        questions = questions or len(asked)
        if questions > MAX_QUESTIONS:
            raise NotYet(
                f"1002 is right, but you asked for {questions} efficiencies, and each is a prediction that "
                "takes time. Halve the interval: 14 questions are enough for 10,000 ranks."
            )
    right(f"1002, and None where it stays above; the first in {questions} questions.")


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
    right("7200 steps, 21.6 million images, 6 hours by hand.")
