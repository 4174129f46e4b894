"""Exercise of lab 3: the experiment that decides why a large batch has the higher loss."""

import math
from collections.abc import Callable
from random import Random

import numpy as np

from hvdlab.exercises import NotYet, call, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

CAUSES = ("learning rate", "batch")
IMAGES = 61_440  # of a whole training: 1,920 steps with the batch size 32, and 60 with 1,024
TRAININGS, ENOUGH = 20, 19  # hidden trainings of each cause, and how many verdicts must be right
MOST_RUNS = 120
FIRST_HIDDEN = 100  # number of the first hidden training; a learner sees those below


def training(cause: str, number: int = 0) -> Callable[[int, float, int], float]:
    """Return a training whose batch of 1,024 has a higher loss than its batch of 32, at the rate 0.1.

    It is SGD on a bowl with four parameters. The losses are drawn from their exact distribution, which
    follows from the variance of the noise ball. So a run takes no time.

    Args:
        cause: "learning rate": with a suitable one the large batch reaches less than the loss of the small
            batch. "batch": it stays above 1.5 times this loss with every learning rate.
        number: each number is another bowl.

    Returns:
        A function of the batch size, the learning rate and the seed. It returns the loss at the end; nan, if
        the training diverged. The same arguments give the same loss.
    """
    kind = CAUSES.index(cause)
    draw = np.random.default_rng([number, kind]).uniform
    limit = draw(0.5, 2.4)  # of the learning rate
    flat = (
        draw(*[(4, 6), (0.5, 0.7)][kind]) / 60 / limit
    )  # curvature: how far 60 steps get at the limit
    variance = draw(*[(0.05, 0.08), (0.06, 0.09)][kind])  # of the noise ball with 32 and 0.1
    noise = variance * 32 * flat * (2 - 0.1 * flat) / 0.1  # C of a single example
    curvatures, scale = [2 / limit, flat, flat, flat], 10 ** draw(-1, 1) / flat

    def train(batch_size: int, learning_rate: float, seed: int) -> float:
        if learning_rate >= limit:
            return math.nan
        normal, loss = Random(f"{number} {kind} {batch_size} {learning_rate:g} {seed}").gauss, 0.0
        for curvature in curvatures:
            factor = 1 - learning_rate * curvature
            left = factor ** (
                2 * (IMAGES // batch_size)
            )  # of the variance 1 of the initial weights
            ball = learning_rate**2 * noise / batch_size / (1 - factor**2)
            loss += curvature * normal(0, math.sqrt(left + ball * (1 - left))) ** 2 / 2
        return scale * loss

    return train


def decide(train):
    small = np.mean([train(32, 0.1, seed) for seed in range(20)])
    rates = (0.2, 0.4, 0.8, 1.6)
    large = [np.mean([train(1024, rate, seed) for seed in range(20)]) for rate in rates]
    return "learning rate" if np.nanmin(large) < small else "batch"


def right_verdicts(decide: Callable, cause: str) -> dict[str, object]:
    """Return how often a learner's function finds this cause, and whether it needs too many runs."""
    runs, right = [], 0
    for number in range(FIRST_HIDDEN, FIRST_HIDDEN + TRAININGS):
        train, count = training(cause, number), []

        def counted(batch_size, learning_rate, seed, train=train, count=count):
            count.append(seed)
            return train(batch_size, learning_rate, seed)

        verdict = call(decide, counted)
        if not isinstance(verdict, str) or verdict not in CAUSES:
            wanted = " or ".join(f'"{each}"' for each in CAUSES)
            raise NotYet(f"decide must return {wanted}. Received: {received(verdict)}")
        runs.append(len(count))
        right += verdict == cause
    return {
        f"The number of runs above {MOST_RUNS} for a verdict on": max(0, max(runs) - MOST_RUNS),
        f"The number of right verdicts ({ENOUGH} of {TRAININGS} are needed) on": min(right, ENOUGH),
    }


def always_batch(train):
    return "batch"


# fmt: off
check_decide = FunctionExercise(
    decide,
    [
        Case((cause,), "The rubric allows one wrong verdict of 20, and 120 runs for a verdict.",
             f"trainings in which the {cause} is the cause")
        for cause in CAUSES
    ],
    {
        "Too few runs per setting: a lucky run of the large batch decides.":
            [("range(20)", "range(1)"), ("range(20)", "range(3)")],
        "The same seed gives the same run again: repeat with other seeds.":
            ("rate, seed)", "rate, 7)", "0.1, seed)", "0.1, 7)"),
        "These are more runs than the budget allows.": ("range(20)", "range(30)"),
        "Every verdict is \"batch\": which learning rates does the function compare?":
            [always_batch, ("(0.2, 0.4, 0.8, 1.6)", "(3.2, 6.4)")],
        "The large batch gets a single other learning rate, which suits some trainings only.":
            ("(0.2, 0.4, 0.8, 1.6)", "(0.1 * 32**0.5,)"),
        "The smallest of numbers with nan is nan in NumPy: leave out the learning rates that diverge.":
            ("np.nanmin", "np.min"),
        "You compare the luckiest runs: the mean over the seeds is needed.": ("np.mean", "np.min"),
    },
    passed="your experiment changes one thing at a time, repeats each setting with other seeds, and finds "
    "the cause in at least 95 % of the trainings.",
    observe=right_verdicts, telling=False,
)
# fmt: on
