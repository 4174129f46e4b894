"""Exercises of lab 7: ghost batch norm, the updates of a growing batch, and LARS."""

import math

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise, several

RANDOM = np.random.default_rng(6).normal(3, 2, (22, 4))


def column(*values: float) -> np.ndarray:
    return np.array(values, float)[:, None]


def ghost_batch_norm(x, ghost_size, eps):
    ghosts = [x[start : start + ghost_size] for start in range(0, len(x), ghost_size)]
    return np.concatenate(
        [(ghost - ghost.mean(axis=0)) / np.sqrt(ghost.var(axis=0) + eps) for ghost in ghosts]
    )


def strided(x, ghost_size, eps):
    y, ghosts = np.empty_like(x), -(-len(x) // ghost_size)
    for first in range(ghosts):
        y[first::ghosts] = ghost_batch_norm(x[first::ghosts], len(x), eps)
    return y


# fmt: off
def of_column(values: str, size: int, eps: float = 0) -> str:
    return f"ghost_batch_norm of the column {values} in ghosts of {size} with eps = {eps}"


GHOSTS = "[x[start : start + ghost_size] for start in range(0, len(x), ghost_size)]"
check_ghost_batch_norm = FunctionExercise(
    ghost_batch_norm,
    [
        Case((column(0, 2, 4, 8), 2, 0.0), "The ghosts (0, 2) and (4, 8) have the means 1 and 6, and the "
             "variances 1 and 4.", of_column("0, 2, 4, 8", 2), column(-1, 1, -1, 1)),
        Case((np.array([[0.0, 10], [2, 30]]), 2, 0.0), "The columns have the means 1 and 20, and the "
             "variances 1 and 100.", "ghost_batch_norm of the rows (0, 10) and (2, 30) in one ghost",
             [[-1, -1], [1, 1]]),
        Case((column(0, 4), 2, 12.0), "The variance is 4, and the root of 4 + 12 is 4.",
             of_column("0, 4", 2, 12), column(-0.5, 0.5)),
        Case((column(0, 3, 6, 6, 10), 3, 0.0), "The ghosts are (0, 3, 6) and (6, 10).",
             of_column("0, 3, 6, 6, 10", 3), column(-math.sqrt(1.5), 0, math.sqrt(1.5), -1, 1)),
        Case((column(1, 5), 1, 0.001), "A ghost of one example is its own mean, so it becomes 0.",
             of_column("1, 5", 1, 0.001), column(0, 0)),
        *(Case((RANDOM, size, 1e-5), "Each ghost has its own mean and variance.",
               f"ghost_batch_norm of 22 x 4 random numbers in ghosts of {size}") for size in (8, 22, 100)),
    ],
    {
        "The variance is the unbiased one, over n - 1: batch norm divides by n (ddof=0).":
            ("var(axis=0)", "var(axis=0, ddof=1)"),
        "Features are mixed: each column has its own mean and variance (axis=0).": ("(axis=0)", "()"),
        "Each example is normalised over its features, which is layer norm: go down the rows, axis=0.":
            ("(axis=0)", "(axis=1, keepdims=True)"),
        "You divide by the variance: divide by its root.": ("np.sqrt(", "("),
        "The mean is not subtracted.": ("(ghost - ghost.mean(axis=0))", "ghost"),
        "eps is not used.": (" + eps", ""),
        "eps is added to the standard deviation: add it to the variance, under the root.":
            ("np.sqrt(ghost.var(axis=0) + eps)", "(ghost.std(axis=0) + eps)"),
        "Your ghosts are nearly equal parts: each has ghost_size rows, and the last has the remainder.":
            (GHOSTS, "np.array_split(x, -(-len(x) // ghost_size))"),
        "The remainder went into the ghost before it: it is a smaller ghost of its own.":
            (GHOSTS, "np.split(x, range(ghost_size, len(x) // ghost_size * ghost_size, ghost_size))"),
        "These are statistics of the whole batch: take those of the rows of one ghost.": (GHOSTS, "[x]"),
        "Your ghosts are strided, x[0::2] and x[1::2]: a ghost is a run of consecutive rows.": strided,
        "The last ghost, the remainder, is dropped: it is a smaller ghost of its own.":
            ("len(x), ghost_size)", "len(x) // ghost_size * ghost_size, ghost_size)"),
        "The last ghost, the remainder, is left as it came: normalise it like the others.":
            ("for ghost in ghosts", "if len(ghost) == ghost_size else ghost for ghost in ghosts"),
        "The last ghost, the remainder, becomes zeros: normalise it like the others.":
            ("for ghost in ghosts", "if len(ghost) == ghost_size else 0 * ghost for ghost in ghosts"),
    },
    passed="each ghost has its own mean and variance, also the short last one. A ghost of one example "
    "becomes 0, and a single ghost of all examples is batch norm.",
    shape=None,
)
# fmt: on


def updates_with_growth(n, batch, milestones, factor, epochs):
    total = 0
    for epoch in range(epochs):
        passed = sum(milestone <= epoch for milestone in milestones)
        total += -(-n // (batch * factor**passed))
    return total


# fmt: off
check_updates_with_growth = FunctionExercise(
    updates_with_growth,
    [
        Case((100, 10, [2, 3], 4, 6), "The epochs have 10, 10, 3, 1, 1 and 1 updates.", expected=26),
        Case((105, 10, [], 5, 3), "Each epoch has 11 updates.", expected=33),
        Case((60_000, 256, [30, 60, 80], 5, 90), "The epochs have 235, 47, 10 and 2 updates: from each "
             "milestone on the batch is 5 times larger than before.", expected=8680),
    ],
    {
        "The batch does not grow: from each milestone on it is `factor` times larger.":
            ("factor**passed", "1"),
        "The short last batch of an epoch is dropped: 100 examples in batches of 40 are 3 updates. Round up.":
            ("-(-n //", "(n //"),
        "An epoch has one update too many where the batch divides the examples: 100 examples in batches of "
        "10 are 10 updates, not 100 // 10 + 1.": ("-(-n //", "1 + (n //"),
        "Your batch grows an epoch late: milestone 2 is the first epoch with the new batch, and epochs count "
        "from 0.": ("milestone <= epoch", "milestone < epoch"),
        "Your batch grows an epoch early: epochs count from 0, milestone 2 is the third epoch.":
            ("milestone <= epoch", "milestone <= epoch + 1"),
        "Your batch grows once only: each milestone multiplies it, two of them by factor * factor.":
            ("passed))", "min(passed, 1)))"),
        "The batch is multiplied by factor times the number of milestones: two milestones multiply it by "
        "factor * factor.": ("factor**passed", "(factor * passed or 1)"),
        "The factor is added to the batch: multiply.": ("batch * factor**passed", "batch + factor * passed"),
        "These are the updates of the last epoch only: add up all epochs.": ("total +=", "total ="),
        "You round once for the whole run: every epoch ends with a short batch.":
            ("-(-n // (batch * factor**passed))", "n / (batch * factor**passed)",
             "return total", "return -(-total // 1)"),
        "You do not round: a short last batch is an update like any other.": ("-(-n //", "(n /"),
        "Your batch grows again in every epoch after a milestone: it grows once at each.":
            ("sum(milestone <= epoch for milestone in milestones)",
             "max(0, epoch + 1 - min(milestones, default=epochs))"),
    },
    passed="26 updates by hand, and 8,680 for 90 epochs of 60,000 images, where a constant batch of 256 "
    "would need 21,150.",
    meaning="of updates",
)
# fmt: on


def lars_update(w, gradient, velocity, learning_rate, momentum, weight_decay, trust_coefficient):
    w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(gradient)
    local = 1.0
    if w_norm > 0 and g_norm > 0:
        local = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm)
    velocity = momentum * velocity + local * (gradient + weight_decay * w)
    return w - learning_rate * velocity, velocity


# fmt: off
W, G, ZERO, MANY = np.array([3.0, 4]), np.array([8.0, -6]), np.zeros(2), RANDOM[:15].reshape(3, 5, 4) - 3
BY_HAND = "||w|| = 5, ||g|| = 10 and the local rate is 0.25 * 5 / (10 + 0.5 * 5) = 0.1."
GUARD = "if w_norm > 0 and g_norm > 0"
U = "(gradient + weight_decay * w)"
check_lars_update = FunctionExercise(
    lars_update,
    [
        Case((W, G, ZERO, 2.0, 0.9, 0.5, 0.25), BY_HAND,
             expected={"w of": (1.1, 4.8), "velocity of": (0.95, -0.4)}),
        Case((W, G, np.array([1.0, -2]), 2.0, 0.9, 0.5, 0.25), BY_HAND,
             expected={"w of": (-0.7, 8.4), "velocity of": (1.85, -2.2)}),
        *(Case((weights, gradient, ZERO, 2.0, 0.9, decay, 0.25),
               "A norm is 0, so the local rate is 1, and weights of 0 can change.")
          for weights, gradient, decay in ((ZERO, G, 0.5), (ZERO, ZERO, 0.5), (W, ZERO, 0.5), (W, ZERO, 0))),
        *(Case((*MANY, 0.3, 0.9, decay, 0.001), "The norm of a matrix is the root of the sum of all squares.")
          for decay in (0.0, 0.01)),
    ],
    {
        "Without a guard for ||w|| = 0 the local rate is 0, so weights of zero never leave zero: use 1.":
            [(GUARD, "if True"), (GUARD, "if g_norm > 0")],
        "The guard for ||g|| = 0 is missing: the local rate is 1 there.": (GUARD, "if w_norm > 0"),
        "That is nan, from 0 / 0. Use a local rate of 1 where a norm is 0, also if both are.":
            (GUARD, "if (w_norm > 0) == (g_norm > 0)"),
        "Your denominator is the joint norm ||g + decay w||: LARS adds two norms, ||g|| + decay ||w||.":
            ("(g_norm + weight_decay * w_norm)", f"np.linalg.norm{U}"),
        "The decay is missing in the denominator: ||g|| + decay ||w||.":
            ("(g_norm + weight_decay * w_norm)", "g_norm"),
        "The denominator has ||w|| without the decay: ||g|| + decay ||w||.": ("weight_decay * w_n", "w_n"),
        "The trust coefficient is left out.": ("trust_coefficient * w_norm", "w_norm"),
        "The ratio is upside down: ||w|| is above the line.":
            ("w_norm / (g_norm + weight_decay * w_norm)", "(g_norm + weight_decay * w_norm) / w_norm"),
        "Your norms are squared: take the root of the sum of squares.":
            ("norm(w)", "norm(w) ** 2", "norm(gradient)", "norm(gradient) ** 2"),
        "The local rate is not used: this is plain SGD with momentum.": (GUARD, "if False"),
        "The learning rate is left out.": ("learning_rate * velocity", "velocity"),
        "The learning rate is inside of the velocity, as in the paper: put it outside, w - rate * velocity.":
            ("learning_rate * velocity", "velocity", "+ local", "+ learning_rate * local"),
        "The decay is outside: it belongs into u = g + decay w, which the local rate multiplies.":
            (U, "gradient + weight_decay * w"),
        "The decay is outside of the step: it belongs into u = g + decay w.":
            (U, "gradient", "learning_rate * velocity", "learning_rate * (velocity + weight_decay * w)"),
        "The decay is left out of the step: u = g + decay w.": (U, "gradient"),
        "The velocity takes 1 - momentum of the step: here it takes all of it.":
            ("+ local", "+ (1 - momentum) * local"),
        "The old velocity is not used: momentum * velocity + local * u.": ("momentum * velocity + ", ""),
        "The momentum is left out: momentum * velocity + local * u.": ("momentum * velocity", "velocity"),
        "The step is added: go downhill, w - learning_rate * velocity.": ("w - learn", "w + learn"),
        "That is w alone: return (w, velocity).":
            ("learning_rate * velocity, velocity", "learning_rate * velocity"),
        "The order is (w, velocity).": ("w - learning_rate * velocity, velocity",
                                        "velocity, w - learning_rate * velocity"),
    },
    passed="two weights by hand, 5 x 4 weights, and norms of 0. There the rate is 1, so that weights of 0 "
    "can change.",
    observe=several("w", "velocity"),
)
# fmt: on
