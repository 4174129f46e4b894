"""Exercises of lab 18: a link, ring and tree, efficiency of a step, its limit, and hours to a goal."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise


def fit_link(nbytes, seconds):
    weights = 1 / np.asarray(seconds)
    slope, alpha = np.polyfit(nbytes, seconds, 1, w=weights)
    return alpha, 1 / slope


# fmt: off
SIZES = 4.0 ** np.arange(5, 13)
check_fit_link = FunctionExercise(
    fit_link,
    [
        Case((np.array([1000.0, 2000, 4000]), np.array([3e-6, 4e-6, 6e-6])), expected=(2e-6, 1e9),
             reason="The three points lie exactly on 2e-6 s + S / (1e9 bytes/s)."),
        Case((SIZES, (5e-6 + SIZES / 2e9) * [1.2, 1, 1, 1, 1, 1, 1, 1.2]), expected=(5.46e-6, 1.96e9),
             call="fit_link of eight sizes from 1 KB to 16 MB, made with alpha = 5e-6, beta = 2e9 and 20 % "
             "more time at both ends,", reason="The relative error of each point must count the same. The "
             "error of a point grows with its time, so give np.polyfit the weights w = 1 / seconds, and "
             "leave out no point."),
    ],
    {
        "The slope is in seconds per byte, but beta is bytes a second: 1 / slope.": ("1 / slope", "slope"),
        "That is (slope, intercept), as np.polyfit returns them.": ("alpha, 1 / slope", "slope, alpha"),
        "That is (beta, alpha): return alpha first.": ("alpha, 1 / slope", "1 / slope, alpha"),
        "The weights are missing, so the absolute error of each point counts, which is large only for large "
        "sizes: give np.polyfit the weights w = 1 / seconds.": (", w=weights", ""),
        "Your weights are the root of 1 / seconds: np.polyfit multiplies the errors by w and then squares "
        "them, so use w = 1 / seconds.": ("1 / np.asarray(seconds)", "np.asarray(seconds) ** -0.5"),
        "Your weights are the square of 1 / seconds: np.polyfit squares them itself, so use w = 1 / seconds.":
            ("1 / np.asarray(seconds)", "np.asarray(seconds) ** -2.0"),
        "That is the line through the first and the last point: leave out no point.":
            ("nbytes, seconds, 1, w=weights", "nbytes[[0, -1]], seconds[[0, -1]], 1"),
    },
    passed="your fit recovers both constants of an exact line. With two sizes 20 % off it still finds "
    "5.5e-06 s and 2e+09 bytes/s, because every size has the same weight in percent.",
    shape=2, meaning="(alpha, beta)", rtol=0.06, atol=0,  # a fit of logarithms is right too
)
# fmt: on


def ring_time(nbytes, ranks, alpha, beta, gamma):
    chunk = nbytes / ranks
    sending = 2 * (ranks - 1) * (alpha + chunk / beta)
    adding = (ranks - 1) * chunk * gamma
    return sending + adding


# fmt: off
check_ring_time = FunctionExercise(
    ring_time,
    [
        Case((8000, 4, 0.5, 1000, 0.001), "By hand it is 6 messages of 0.5 + 2 seconds and 3 additions of 2 "
             "seconds.", expected=21),
        Case((7000, 3, 0.25, 2000, 0.003), "4 ranks are right, 3 are not: by hand it is 4 messages of 0.25 + "
             "7000 / 3 / 2000 seconds and 2 additions of 7 seconds.", expected=1 + 14 / 3 + 14),
        Case((8000, 1, 0.5, 1000, 0.001), "A single rank sends nothing and adds nothing.", expected=0),
    ],
    {
        "The additions are missing: a rank adds N-1 chunks of S / N bytes, gamma seconds per byte.":
            (" + adding", ""),
        "The additions count in one phase only: in the all-gather nothing is added.":
            ("adding = ", "adding = 2 * "),
        "A rank adds N-1 chunks of S / N bytes, not the whole array.":
            [("chunk * gamma", "nbytes * gamma"), ("(ranks - 1) * chunk * gamma", "nbytes * gamma")],
        "That is one of the two phases: reduce-scatter takes N-1 messages, all-gather N-1 more.":
            ("2 * (ranks", "(ranks"),
        "These are 2N messages. No rank sends its own chunk to itself, so there are 2(N-1).":
            [("2 * (ranks - 1)", "2 * ranks"), ("(ranks - 1)", "ranks")],
        "Each of the 2(N-1) messages has a latency: alpha counts each time.":
            ("(alpha + chunk / beta)", "chunk / beta + alpha"),
        "Each message carries one chunk, S / N bytes, not the whole array.":
            [("chunk / beta", "nbytes / beta"), ("nbytes / ranks", "nbytes")],
        "That is one array and one start, the time of a plain message.":
            ("sending + adding", "alpha + nbytes / beta"),
        "beta is bytes a second: divide by it.": ("/ beta", "* beta"),
        "Do not round: a chunk need not be a whole number of bytes.": ("nbytes / ranks", "nbytes // ranks"),
    },
    passed="latency, bytes and additions each have their own factor, and only the latency term grows without "
    "limit when ranks are added.",
    meaning="of seconds",
)
# fmt: on


def tree_time(nbytes, ranks, alpha, beta, gamma):
    latency = 2 * np.ceil(np.log2(ranks)) * alpha
    moved = (ranks - 1) / ranks * nbytes
    return latency + moved * (2 / beta + gamma)


# fmt: off
PER_LEVEL = "np.ceil(np.log2(ranks)) * (alpha + nbytes / beta)"
check_tree_time = FunctionExercise(
    tree_time,
    [
        Case((8000, 4, 0.5, 1000, 0.001), "By hand it is 4 latencies of 0.5 s, 12 s for 2 x 6000 bytes that "
             "are sent, and 6 s for 6000 bytes that are added.", expected=20),
        Case((7000, 5, 0.25, 2000, 0.003), "4 ranks are right, 5 are not: by hand it is 6 latencies, 2 x "
             "5600 bytes sent and 5600 bytes added.", expected=1.5 + 5.6 + 16.8),
        Case((16000, 16, 0.5, 1000, 0.001), "By hand it is 8 latencies, 2 x 15000 bytes sent and 15000 bytes "
             "added.", expected=49),
        Case((8000, 1, 0.5, 1000, 0.001), "A single rank sends nothing and adds nothing.", expected=0),
    ],
    {
        "That is the way up only: the sum must come down again, so the latency counts twice.":
            ("2 * np", "np"),
        "That is the latency of a ring, 2(N-1). A tree has 2 log2(N) levels on the way up and down.":
            ("np.ceil(np.log2(ranks))", "(ranks - 1)"),
        "That is the natural logarithm. A binary tree doubles in each level: use log2.":
            [("np.ceil(np.log2(ranks))", "np.log(ranks)"), ("log2", "log")],
        "A tree of 5 ranks has 3 levels: round log2(5) = 2.3 up.":
            [("np.ceil(np.log2(ranks))", "np.log2(ranks)"), ("ceil", "floor")],
        "The additions are missing: (N-1)/N S bytes, gamma seconds each.": (" + gamma", ""),
        "Only (N-1)/N of the additions fall on a rank: there are N-1 sums of S bytes on N ranks.":
            ("moved * (2 / beta + gamma)", "moved * 2 / beta + nbytes * gamma"),
        "A rank sends (N-1)/N S bytes up and as many down, on average, not S.":
            [("(ranks - 1) / ranks * nbytes", "nbytes"),
             ("moved * (2 / beta + gamma)", "2 * nbytes / beta + moved * gamma")],
        "A rank sends its bytes twice: up the tree and down again.":
            [("2 / beta", "1 / beta"), ("2 / beta + gamma", "1 / beta")],
        "The pieces follow each other without a pause, so the bytes do not count once per level.":
            [("np.ceil(np.log2(ranks)) * alpha", PER_LEVEL, "2 / beta + gamma", "gamma"),
             ("np.ceil(np.log2(ranks)) * alpha", PER_LEVEL, "2 / beta + gamma", "0"),
             ("np.ceil(np.log2(ranks)) * alpha", PER_LEVEL.replace("nbytes", "(1 - 1 / ranks) * nbytes"),
              "2 / beta + gamma", "gamma")],
    },
    passed="a tree sends and adds as many bytes as a ring. Only its latency differs: it grows by two "
    "messages when the ranks double, while that of a ring doubles.",
    meaning="of seconds",
)
# fmt: on


def step_efficiency(compute, communication, overlap):
    hidden = overlap * compute
    exposed = max(0, communication - hidden)
    return compute / (compute + exposed)


# fmt: off
check_step_efficiency = FunctionExercise(
    step_efficiency,
    [
        Case((0.3, 0.25, 0.5), "0.15 s are hidden, 0.1 s remain, and the step takes 0.4 s.", expected=0.75),
        Case((0.3, 0.1, 0.5), "All of the 0.1 s are hidden behind 0.15 s of computing.", expected=1),
        Case((0.2, 0.2, 0.0), "Without overlap the step takes 0.4 s.", expected=0.5),
    ],
    {
        "More is hidden than there is: the communication that remains visible is at least 0.":
            ("max(0, communication - hidden)", "communication - hidden"),
        "Nothing is hidden: the fraction `overlap` of the compute time can hide communication.":
            ("overlap * compute", "0"),
        "`overlap` is a fraction of the compute time, not of the communication.":
            ("overlap * compute", "overlap * communication"),
        "That is the time of the step. The efficiency is compute / step.": ("compute / (", "("),
        "That is upside down: the step with communication is the longer one.":
            ("compute / (compute + exposed)", "(compute + exposed) / compute"),
        "That is the visible communication. The efficiency is compute / (compute + visible).":
            ("compute / (compute + exposed)", "exposed"),
    },
    passed="communication costs nothing until the computing that hides it is used up. After that every "
    "millisecond of it makes the step longer.",
    meaning="between 0 and 1",
)
# fmt: on


def limit(step, without):
    saved = {name: step - seconds for name, seconds in without.items()}
    worst = max(saved, key=saved.get)
    if saved[worst] < 0.05 * step:
        return "compute"
    return worst


def name_of_cost(limit: Callable, step: float, without: dict[str, float]) -> dict[str, str]:
    """Return the answer, if it is one of the names."""
    answer, names = call_unchanged(limit, step, without), (*without, "compute")
    if not (isinstance(answer, str) and answer in names):
        raise NotYet(f"limit must return one of the names {names}. Received: {received(answer)}")
    return {"": answer}


# fmt: off
def case(step: float, stragglers: float, latency: float, bandwidth: float, reason: str) -> Case:
    return Case((step, {"stragglers": stragglers, "latency": latency, "bandwidth": bandwidth}), reason)


check_limit = FunctionExercise(
    limit,
    [
        case(1.0, 0.95, 0.9, 0.7, "Without the bandwidth term the step is 0.3 s shorter."),
        case(2.0, 1.95, 1.2, 1.99, "Without the latency the step is 0.8 s shorter."),
        case(0.5, 0.4, 0.5, 0.5, "Without stragglers the step is 0.1 s shorter."),
        case(1.0, 0.97, 0.96, 0.98, "No cost takes 5 % of the step, so computing is the limit."),
        case(2.0, 1.98, 1.93, 1.94, "0.07 s are less than 5 % of a step of 2 s, so computing is the limit."),
        case(1.0, 0.99, 0.94, 0.97, "0.06 s are more than 5 % of a step of 1 s."),
    ],
    {
        "A small value in `without` means a large loss: take the cost whose removal saves most.":
            [("saved.get", "without.get"), ("saved.get", "without.get", "0.05 * step", "-step")],
        "No cost takes 5 % of the step, so computing is the limit: compare with 5 % of the step.":
            ("0.05 * step", "0"),
        "You compare with 0.05 s: 0.07 s are less than 5 % of a step of 2 s.": ("0.05 * step", "0.05"),
        "You compare with more than 5 % of the step: 5 % is 0.05.":
            [("0.05", "0.1"), ("0.05", "0.5"), ("0.05", "5")],
    },
    passed="you name a cost by removing it and looking how much shorter the step becomes. This also works if "
    "two costs overlap, where adding them up would count the same seconds twice.",
    observe=name_of_cost,
)
# fmt: on


def hours_to_goal(images_per_second, global_batch, s_min, b_crit):
    steps = s_min * (1 + b_crit / global_batch)
    images = steps * global_batch
    return images / images_per_second / 3600


# fmt: off
check_hours_to_goal = FunctionExercise(
    hours_to_goal,
    [
        Case((1000, 3000, 2400, 6000), "By hand: 7200 steps of 3000 images are 21.6 million.", expected=6),
        Case((500, 1000, 100, 9500), "One case is right, another is not. By hand: 1050 steps of 1000 images "
             "are 1.05 million, which take 2100 seconds.", expected=2100 / 3600),
    ],
    {
        "That is in seconds: an hour has 3600 of them.": (" / 3600", ""),
        "That is in minutes: an hour has 3600 seconds.": (" / 3600", " / 60"),
        "These are the steps of an endless batch, s_min: a batch of B needs s_min (1 + b_crit / B).":
            (" * (1 + b_crit / global_batch)", ""),
        "b_crit / B is upside down.": ("b_crit / global_batch", "global_batch / b_crit"),
        "Do not round b_crit / B.": ("b_crit / global_batch", "b_crit // global_batch"),
        "s_min counts too: there are s_min (1 + b_crit / B) steps.": ("1 + ", ""),
        "That many images, not steps: each step has global_batch of them.": ("steps * global_batch", "steps"),
    },
    passed="a larger batch needs fewer steps but more images, and the time is the number of images divided "
    "by the images per second.",
    meaning="of hours",
)
# fmt: on
