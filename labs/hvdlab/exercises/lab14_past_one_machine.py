"""Checks of lab 14: a link from timings, the time of a ring, where efficiency falls, hours to a goal."""

import numpy as np

from hvdlab.exercises import NotYet, call, right


def check_fit_link(fit_link) -> None:
    """Demand alpha and beta of t = alpha + S / beta, with errors counted in percent."""
    sizes = np.array([1000.0, 2000.0, 4000.0])
    case = "fit_link([1000, 2000, 4000], [3e-6, 4e-6, 6e-6])"
    alpha, beta = _numbers(
        call(fit_link, sizes, np.array([3e-6, 4e-6, 6e-6])), 2, case, "(alpha, beta)"
    )
    for wrong, says in (
        ((2e-6, 1e-9), "1e-9 is the slope, seconds a byte; beta is bytes a second: 1 / slope."),
        ((1e-9, 2e-6), "that is (slope, intercept), as np.polyfit returns them."),
        ((1e9, 2e-6), "that is (beta, alpha): return alpha first."),
    ):
        if np.allclose((alpha, beta), wrong, rtol=1e-3, atol=0):
            raise NotYet(f"{case} is ({alpha:.3g}, {beta:.3g}): {says}")
    if not np.allclose((alpha, beta), (2e-6, 1e9), rtol=1e-3, atol=0):
        raise NotYet(
            f"{case} is ({alpha:.3g}, {beta:.3g}). The three points lie exactly on "
            "2e-6 s + S / (1e9 bytes/s)."
        )
    sizes = 4.0 ** np.arange(5, 13)
    # Weights of 1/seconds give 5.5e-6 and 1.96e9, a fit of logarithms 5.5e-6 and 1.95e9; all weights
    # alike -6e-5 and 1.67e9, 1/sqrt(seconds) 3.8e-6 and 1.75e9, 1/seconds^2 5.9e-6 and 2.5e9, a line
    # through the two ends 6e-6 and 1.67e9.
    times = (5e-6 + sizes / 2e9) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]
    alpha, beta = _numbers(
        call(fit_link, sizes, times), 2, "fit_link of eight sizes", "(alpha, beta)"
    )
    if not (5.2e-6 < alpha < 5.8e-6 and 1.85e9 < beta < 2.1e9):
        raise NotYet(
            "Exact points are fitted. Eight sizes from 1 KB to 16 MB, made with alpha = 5e-6, beta = 2e9 "
            f"and 20 % more time at both ends, give ({alpha:.3g}, {beta:.3g}), and (5.46e-06, 1.96e+09) "
            "where all points count alike in percent. The error of a point grows with its time, so give "
            "np.polyfit the weights w = 1 / seconds: not their root or square, and leave out no point."
        )
    right(
        f"exact points, and ({alpha:.2g} s, {beta:.2g} bytes/s) from (5e-06, 2e+09) with two points 20 % off."
    )


def check_ring_time(ring_time) -> None:
    """Demand 2(N-1) steps of alpha + S / (N beta) seconds, and nothing for one rank."""
    case = "ring_time(8000, 4, alpha=0.5, beta=1000)"  # by hand: 6 steps of 0.5 + 2 seconds
    (seconds,) = _numbers(call(ring_time, 8000, 4, 0.5, 1000), 1, case, "of seconds")
    for wrong, says in (
        (
            7.5,
            "that is one of the two phases: reduce-scatter takes N-1 steps, all-gather N-1 more.",
        ),
        (20, "2N steps: nobody has to send its own chunk to itself, so there are 2(N-1)."),
        (12.5, "every one of the 2(N-1) steps starts a message: alpha counts each time."),
        (51, "a step sends one chunk, S / N bytes, not the whole array."),
        (8.5, "one array and one start: that is a plain message."),
        (6 * (0.5 + 8000 / 4 * 1000), "beta is bytes a second: divide by it."),
    ):
        if np.isclose(seconds, wrong):
            raise NotYet(f"{case} is {seconds:g}: {says}")
    if not np.isclose(seconds, 15):
        raise NotYet(f"{case} is {seconds:g}; by hand it is 6 steps of 0.5 + 2 seconds: 15.")
    case = "ring_time(7000, 3, alpha=0.25, beta=2000)"
    (seconds,) = _numbers(call(ring_time, 7000, 3, 0.25, 2000), 1, case, "of seconds")
    if not np.isclose(seconds, 4 * (0.25 + 7000 / 3 / 2000)):
        raise NotYet(
            f"4 ranks are right, 3 are not: {case} is {seconds:.4g}; by hand it is 4 steps of "
            "0.25 + 7000 / 3 / 2000 seconds: 5.667. (A chunk need not be a whole number of bytes.)"
        )
    (alone,) = _numbers(
        call(ring_time, 8000, 1, 0.5, 1000), 1, "ring_time of one rank", "of seconds"
    )
    if alone != 0:
        raise NotYet(f"one rank has nobody to talk to: 0 seconds, not {alone:g}.")
    right("15 s for 8000 bytes on 4 ranks by hand, and nothing for one rank.")


def check_falls_below(falls_below) -> None:
    """Demand the first number of ranks below a level, None if there is none, in few questions."""
    asked, most = [], 10_000

    def efficiency(ranks):
        if not 1 <= ranks <= most:
            raise ValueError(f"efficiency knows 1 to {most} ranks, you asked for {ranks}")
        asked.append(ranks)
        if len(asked) > 50_000:
            raise NotYet(
                "falls_below asks for one efficiency after another and does not end: does the interval "
                "become smaller in every round, also when two numbers are left?"
            )
        return 1 / (1 + (ranks - 1) / 1000)

    case = "For efficiency = 1 / (1 + (N-1) / 1000) and the level 0.5"
    found = call(falls_below, efficiency, 0.5, 10_000)
    if found is None:
        raise NotYet(f"{case} you return None; at 1002 ranks it is below.")
    (found,) = _numbers(found, 1, case, "of ranks")
    if found == 1001:
        raise NotYet(f"{case} you return 1001, where it is 0.5 exactly: below is one further.")
    if found != 1002:
        raise NotYet(f"{case} you return {found:g}; 1002 is the first number of ranks below.")
    if len(asked) > 100:
        raise NotYet(
            f"1002 is right, but you asked for {len(asked)} efficiencies, and each is a forecast. "
            "Halve the interval: 14 questions are enough for 10,000."
        )
    questions = len(asked)
    if (never := call(falls_below, efficiency, 0.05, 10_000)) is not None:
        raise NotYet(
            f"at 10,000 ranks it is still 0.09, never below 0.05: return None, not {never}."
        )
    if (first := call(falls_below, efficiency, 1.5, 10_000)) != 1:
        raise NotYet(f"below 1.5 it is from the first rank on: return 1, not {first}.")
    if (last := call(falls_below, efficiency, 0.09092, 10_000)) != 10_000:
        raise NotYet(
            f"below 0.09092 it is at 10,000 ranks only, the most: return 10000, not {last}."
        )
    most = 500
    if (never := call(falls_below, efficiency, 0.5, 500)) is not None:
        raise NotYet(f"with at most 500 ranks it is never below 0.5: return None, not {never}.")
    right(f"1002, and None where it stays above; the first in {questions} questions.")


def check_hours_to_goal(hours_to_goal) -> None:
    """Demand steps s_min (1 + b_crit / B), times B images a step, over the images of an hour."""
    case = "hours_to_goal(images_per_second=1000, global_batch=3000, s_min=2400, b_crit=6000)"
    (hours,) = _numbers(call(hours_to_goal, 1000, 3000, 2400, 6000), 1, case, "of hours")
    for wrong, says in (
        (21600, "that is in seconds."),
        (2, "the steps of an endless batch, s_min: a batch of B needs s_min (1 + b_crit / B)."),
        (3, "b_crit / B is upside down."),
        (4, "s_min counts too: s_min (1 + b_crit / B) steps."),
        (7200 / 1000 / 3600, "that many images, not steps: each step has global_batch of them."),
    ):
        if np.isclose(hours, wrong):
            raise NotYet(f"{case} is {hours:g}: {says}")
    if not np.isclose(hours, 6):
        raise NotYet(
            f"{case} is {hours:g}; by hand: 7200 steps of 3000 images are 21.6 million, 6 hours."
        )
    case = "hours_to_goal(images_per_second=500, global_batch=1000, s_min=100, b_crit=9000)"
    (hours,) = _numbers(call(hours_to_goal, 500, 1000, 100, 9000), 1, case, "of hours")
    if not np.isclose(hours, 1000 * 1000 / 500 / 3600):
        raise NotYet(
            f"One case is right, another is not: {case} is {hours:.4g}; by hand: 1000 steps of 1000 images "
            "are a million, 2000 seconds, 0.5556 hours."
        )
    right("7200 steps, 21.6 million images, 6 hours by hand.")


def _numbers(got, how_many, case, what):
    """The numbers that a learner returned, or a sentence on what came in their place."""
    if got is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    try:
        values = tuple(float(value) for value in np.atleast_1d(np.asarray(got, float)).ravel())
    except (TypeError, ValueError):
        values = ()
    if len(values) != how_many:
        number = "one number" if how_many == 1 else f"{how_many} numbers"
        raise NotYet(f"{case} shall return {number} {what}. Received: {got!r}")
    return values
