"""Exercises of lab 7: linear scaling with warmup, batch statistics over ranks, LAMB and NovoGrad."""

import numpy as np

from hvdlab import reference
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise, several


def array(*values: float) -> np.ndarray:
    return np.array(values, float)


def learning_rate(step, base_rate, ranks, warmup_steps, total_steps):
    scaled = base_rate * ranks
    if step < warmup_steps:
        return base_rate + (scaled - base_rate) * (step + 1) / warmup_steps
    return scaled * (1 - (step - warmup_steps) / (total_steps - warmup_steps))


# fmt: off
WARMUP = "base_rate + (scaled - base_rate) * (step + 1) / warmup_steps"
DECAY = "(1 - (step - warmup_steps) / (total_steps - warmup_steps))"
check_learning_rate = FunctionExercise(
    learning_rate,
    [
        *(Case((step, 0.1, 4, 3, 11), "The scaled rate is 4 x 0.1 = 0.4. The warmup has 3 steps: 0.2, 0.3, "
               "0.4. The decay has 8.", expected=rate)
          for step, rate in ((1, 0.3), (0, 0.2), (2, 0.4), (3, 0.4), (7, 0.2), (10, 0.05))),
        *(Case((step, 0.02, 12.5, 10, 40), "The warmup ends at 12.5 x 0.02 = 0.25, and the decay at 0.")
          for step in range(0, 40, 3)),
        Case((0, 0.1, 4, 0, 10), "Without warmup the first step has the full rate.", expected=0.4),
    ],
    {
        "The warmup is one step late: step 0 is the first of `warmup_steps` steps, so use step + 1.":
            ("(step + 1)", "step"),
        "Your warmup starts at 0: it starts at the base rate.":
            [(WARMUP, "scaled * (step + 1) / warmup_steps"), (WARMUP, "scaled * step / warmup_steps")],
        "There is no warmup: this is the full rate from the first step on.": (WARMUP, "scaled"),
        "The warmup stays at the base rate: it rises to ranks times the base rate.": (WARMUP, "base_rate"),
        "The rate is not scaled by the number of ranks.": ("base_rate * ranks", "base_rate"),
        "The decay begins at the base rate: it begins at ranks times the base rate.":
            ("return scaled *", "return base_rate *"),
        "That is the square root rule: multiply by ranks, not by its root.": ("* ranks", "* ranks**0.5"),
        "The difference is missing: the warmup adds (scaled - base) times the fraction of the warmup.":
            ("(scaled - base_rate)", "scaled"),
        "The decay counts from step 0 of the run: it begins at the end of the warmup.":
            [(DECAY, "(1 - step / total_steps)"), ("(1 - (step - warmup_steps)", "(1 - step")],
        "The decay is divided by all steps: it has total_steps - warmup_steps steps.":
            ("(total_steps - warmup_steps)", "total_steps"),
        "There is no decay after the warmup.": (DECAY, "1"),
        "The decay ends at the base rate: it ends at 0.":
            ("scaled * (1", "scaled + (base_rate - scaled) * (1 - 1", "- (step", "+ (step"),
        "The decay is one step early: the first step after the warmup has the full rate.":
            ("step - warmup_steps)", "step + 1 - warmup_steps)"),
    },
    passed="warmup, peak and decay by hand, and a whole run of 40 steps. The first step already has more "
    "than the base rate, and the last step of the warmup has the full one.",
)
# fmt: on


def global_statistics(means, variances):
    mean = means.mean(axis=0)
    variance = variances.mean(axis=0) + means.var(axis=0)
    return mean, variance


ROWS = np.random.default_rng(7).normal(3, 2, (4, 16, 5)) + np.arange(4)[:, None, None]
# fmt: off
check_global_statistics = FunctionExercise(
    global_statistics,
    [
        Case((array([2], [6]), array([1], [1])), "The means have the mean 4 and the variance 4, and the "
             "variances have the mean 1.", "global_statistics([[2], [6]], [[1], [1]])",
             {"mean of": 4, "variance of": 5}),
        Case((array([0, 1], [0, 5]), array([1, 2], [3, 4])), "The variances of the means are 0 and 4, and "
             "the means of the variances are 2 and 3.",
             "global_statistics([[0, 1], [0, 5]], [[1, 2], [3, 4]])",
             {"mean of": (0, 3), "variance of": (2, 7)}),
        Case((ROWS.mean(1), ROWS.var(1)), "The results must be those of all 64 rows in a single process.",
             "global_statistics of four ranks with 16 rows each",
             {"mean of": ROWS.mean((0, 1)), "variance of": ROWS.var((0, 1))}),
    ],
    {
        "You average the variances only. The means of the ranks differ, and that spread is part of the "
        "variance of the whole batch: add the variance of the means.": (" + means.var(axis=0)", ""),
        "These are the statistics of the first rank only: combine those of all ranks.":
            ("means.mean(axis=0)", "means[0]",
             "variances.mean(axis=0) + means.var(axis=0)", "variances[0]"),
        "The variances are added up: average them.": ("variances.mean", "variances.sum"),
        "The variance of the means is the unbiased one, over ranks - 1: divide by the number of ranks.":
            ("var(axis=0)", "var(axis=0, ddof=1)"),
        "You add the standard deviation of the means: add their variance.": (".var(", ".std("),
        "That is only the variance of the means: add the average of the local variances.":
            ("variances.mean(axis=0) + ", ""),
        "The means are added up: average them.": ("means.mean", "means.sum"),
        "The order is (mean, variance).": ("mean, variance\n", "variance, mean\n"),
        "The features are mixed: each column has its own mean and variance (axis=0).": ("axis=0", ""),
    },
    passed="two ranks by hand, and four ranks as for the 64 rows in a single process.",
    observe=several("mean", "variance"),
)
# fmt: on


def lamb_update(w, adam, learning_rate, weight_decay):
    u = adam + weight_decay * w
    w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
    ratio = 1.0
    if w_norm > 0 and u_norm > 0:
        ratio = w_norm / u_norm
    return w - learning_rate * ratio * u


W, ZERO, (MANY, ADAM) = array(3, 4), np.zeros(2), np.random.default_rng(7).normal(size=(2, 5, 4))
ADAM = np.sign(ADAM)  # without old moments and eps, Adam's update is the sign of the gradient
# fmt: off
LAMB, *_ = reference.lamb(MANY, ADAM, 0, 0, 1, 0.01, betas=(0.0, 0.0), eps=0.0, weight_decay=0.1)
GUARD = "if w_norm > 0 and u_norm > 0"
check_lamb_update = FunctionExercise(
    lamb_update,
    [
        Case((W, array(4.5, -10), 0.2, 0.5), "Here u = adam + 0.5 w = [6, -8], ||w|| = 5 and ||u|| = 10, so "
             "the trust ratio is 0.5.", expected=(2.4, 4.8)),
        Case((ZERO, array(4.5, -10), 0.2, 0.5), "A norm is 0, so the trust ratio is 1.", expected=(-0.9, 2)),
        Case((W, ZERO, 0.2, 0.0), "A norm is 0, so the trust ratio is 1.", expected=(3, 4)),
        Case((MANY, ADAM, 0.01, 0.1), "The norm of a matrix is the root of the sum of all squares.",
             expected=LAMB),
    ],
    {
        "A norm of 0 makes your trust ratio 0, so weights of zero never change: use 1 there.":
            [(GUARD, "if True"), (GUARD, "if u_norm > 0")],
        "That is nan, from a division by ||u|| = 0. Use a trust ratio of 1 where a norm is 0.":
            (GUARD, "if w_norm > 0"),
        "The weight decay is left out: u = adam + weight_decay * w.": (" + weight_decay * w", ""),
        "The denominator is the norm of Adam's update alone: the decay belongs into u before its norm.":
            ("norm(u)", "norm(adam)"),
        "That is the denominator of LARS: LAMB divides by ||u||, the norm of the sum.":
            ("np.linalg.norm(u)", "np.linalg.norm(adam) + weight_decay * np.linalg.norm(w)"),
        "The weight decay is outside of the trust ratio: it belongs into u.":
            ("adam + weight_decay * w", "adam", "ratio * u", "(ratio * u + weight_decay * w)"),
        "The ratio is upside down: ||w|| is above the line.": ("w_norm / u_norm", "u_norm / w_norm"),
        "There is no trust ratio: this is a step of Adam.": ("ratio * u", "u"),
        "The learning rate is left out.": ("learning_rate * ratio", "ratio"),
        "The step is added: go downhill.": ("w - learning_rate", "w + learning_rate"),
        "The norms are squared: take the root of the sum of squares.":
            ("w_norm / u_norm", "(w_norm / u_norm) ** 2"),
    },
    passed="by hand, where the step has the length learning_rate x ||w|| = 1; norms of 0; 5 x 4 weights.",
    shape=None,
)
# fmt: on


def novograd_update(w, gradient, m, v, learning_rate, beta1, beta2, weight_decay):
    square = np.sum(gradient**2)
    v = square if v == 0 else beta2 * v + (1 - beta2) * square
    m = beta1 * m + gradient / (np.sqrt(v) + 1e-8) + weight_decay * w
    return w - learning_rate * m, m, v


# fmt: off
NORMALISED = "gradient / (np.sqrt(v) + 1e-8)"
check_novograd_update = FunctionExercise(
    novograd_update,
    [
        Case((array(1, 2), array(3, 4), ZERO, 0.0, 0.1, 0.5, 0.9, 0.5), "The first v is ||g||^2 = 25, so the "
             "normalised gradient is [0.6, 0.8].",
             expected={"w of": (0.89, 1.82), "m of": (1.1, 1.8), "v of": 25}),
        Case((array(1, 2), array(12, 16), array(1, -1), 25.0, 0.1, 0.5, 0.9, 0.5),
             "Here v = 0.9 x 25 + 0.1 x 400 = 62.5.", expected={"v of": 62.5}),
        Case((MANY, ADAM * MANY[::-1], 2 * ADAM, 2.0, 0.01, 0.95, 0.98, 0.001),
             "The squared norm is the sum of all squares of the gradient."),
    ],
    {
        "At the first step, where v is 0, v becomes ||g||^2 itself.": ("square if v == 0 else ", ""),
        "v is the average of the norm: it is the average of the squared norm.":
            ("np.sum(gradient**2)", "np.linalg.norm(gradient)"),
        "The old v is not used after the first step.":
            (" if v == 0 else beta2 * v + (1 - beta2) * square", ""),
        "beta2 belongs to the old v, and 1 - beta2 to the new squared norm.":
            ("beta2 * v + (1 - beta2)", "(1 - beta2) * v + beta2"),
        "The gradient is divided by v: divide it by the root of v.": ("(np.sqrt(v) + 1e-8)", "v"),
        "The weight decay is left out.": (" + weight_decay * w", ""),
        "The decay is divided by the norm, too: add it after the division.":
            (f"{NORMALISED} + weight_decay * w", "(gradient + weight_decay * w) / np.sqrt(v)"),
        "The bracket is multiplied by 1 - beta1: here it is added whole.":
            (f"{NORMALISED} + weight_decay * w", f"(1 - beta1) * ({NORMALISED} + weight_decay * w)"),
        "The old momentum is not used.": ("beta1 * m + ", ""),
        "The gradient is not normalised.": (" / (np.sqrt(v) + 1e-8)", ""),
        "The step is added: go downhill.": ("w - learning_rate", "w + learning_rate"),
        "The learning rate is left out.": ("w - learning_rate * m", "w - m"),
        "The step is taken with the old momentum.":
            ("square =", "old, square = m,", "rate * m", "rate * old"),
        "The order is (w, m, v).": ("m, m, v", "m, v, m"),
    },
    passed="a first and a later step by hand, and 5 x 4 weights.",
    observe=several("w", "m", "v"), rtol=1e-5,
)
# fmt: on
