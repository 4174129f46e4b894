"""Checks of lab 7: linear scaling with warmup, batch statistics over ranks, LAMB and NovoGrad.

Each known mistake stands here as the wrong formula that a learner would write: an answer that equals its
result gets the sentence about this mistake.
"""

from collections.abc import Callable

import numpy as np

from hvdlab import reference
from hvdlab.exercises import NotYet, call_unchanged, compare, exercise, number, numbers, right
from hvdlab.schedules import gradual_warmup, linear_scaling, polynomial_decay


@exercise
def check_learning_rate(learning_rate: Callable) -> None:
    """Demand the rate of single steps: linear scaling, a warmup, and then a decay on a straight line.

    Args:
        learning_rate: The learner's `learning_rate(step, base_rate, ranks, warmup_steps, total_steps)`.
    """
    how = (
        "The scaled rate is 4 x 0.1 = 0.4. The warmup has 3 steps: 0.2, 0.3, 0.4. The decay has 8."
    )
    for step, expected in ((1, 0.3), (0, 0.2), (2, 0.4), (3, 0.4), (7, 0.2), (10, 0.05)):
        _rate(learning_rate, step, 0.1, 4, 3, 11, expected, how)
    for step in range(0, 40, 3):
        peak = linear_scaling(0.02, 12.5)
        fall = polynomial_decay(peak, 30, power=1)
        expected = gradual_warmup(lambda s, fall=fall: fall(max(s - 10, 0)), 10, 0.02)(step)
        _rate(learning_rate, step, 0.02, 12.5, 10, 40, expected, "")
    _rate(learning_rate, 0, 0.1, 4, 0, 10, 0.4, "Without warmup the first step has the full rate.")
    right(
        "warmup, peak and decay by hand, and a whole run as in hvdlab.schedules. The first step already has "
        "more than the base rate, and the last step of the warmup has the full one."
    )


def _rate(
    learning_rate: Callable,
    step: int,
    base: float,
    ranks: float,
    warmup: int,
    total: int,
    expected: float,
    how: str,
) -> None:
    case = f"learning_rate(step={step}, base_rate={base}, ranks={ranks}, warmup_steps={warmup}, "
    case += f"total_steps={total})"
    answer = number(call_unchanged(learning_rate, step, base, ranks, warmup, total), case)
    peak, done = base * ranks, step - warmup
    if step < warmup:
        mistakes = {
            "The warmup is one step late: step 0 is the first of `warmup_steps` steps, so use step + 1.":
                base + (peak - base) * step / warmup,
            "Your warmup starts at 0: it starts at the base rate.":
                [peak * (step + 1) / warmup, peak * step / warmup],
            "There is no warmup: this is the full rate from the first step on.": peak,
            "The rate is not scaled: the warmup ends at ranks times the base rate.": base,
            "The difference is missing: the warmup adds (scaled - base) times the fraction of the warmup.":
                base + peak * (step + 1) / warmup,
        }  # fmt: skip
    else:
        mistakes = {
            "The rate is not scaled by the number of ranks.": base * (1 - done / (total - warmup)),
            "The decay counts from step 0 of the run: it begins at the end of the warmup.":
                [peak * (1 - step / total), peak * (1 - step / (total - warmup))],
            "The decay is divided by all steps: it has total_steps - warmup_steps steps.":
                peak * (1 - done / total),
            "There is no decay after the warmup.": peak,
            "The decay ends at the base rate: it ends at 0.":
                peak + (base - peak) * done / (total - warmup),
            "That is the square root rule: multiply by ranks, not by its root.":
                base * ranks**0.5 * (1 - done / (total - warmup)),
            "The decay is one step early: the first step after the warmup has the full rate.":
                peak * (1 - (done + 1) / (total - warmup)),
        }  # fmt: skip
    compare(case, answer, expected, mistakes, how)


@exercise
def check_global_statistics(global_statistics: Callable) -> None:
    """Demand mean and variance of the whole batch from those of equally large local batches.

    Args:
        global_statistics: The learner's `global_statistics(means, variances)` of arrays (ranks, features).
    """
    for means, variances in (([[2], [6]], [[1], [1]]), ([[0, 1], [0, 5]], [[1, 2], [3, 4]])):
        means, variances = np.array(means, float), np.array(variances, float)
        case = f"global_statistics({means.tolist()}, {variances.tolist()})"
        answer = call_unchanged(global_statistics, means, variances)
        answer = _pair(answer, case, means.shape[1])
        mean, within, between = means.mean(0), variances.mean(0), means.var(0)
        mistakes = {
            "You average the variances only. The means of the ranks differ, and that spread is part of the "
            "variance of the whole batch: add the variance of the means.": (mean, within),
            "The variances are added up: average them.": (mean, variances.sum(0) + between),
            "The variance of the means is the unbiased one, over ranks - 1: divide by the number of ranks.":
                (mean, within + means.var(0, ddof=1)),
            "You add the standard deviation of the means: add their variance.":
                (mean, within + means.std(0)),
            "That is only the variance of the means: add the average of the local variances.":
                (mean, between),
            "The means are added up: average them.": (means.sum(0), within + between),
            "The order is (mean, variance).": (within + between, mean),
        }  # fmt: skip
        mistakes = {text: np.array(wrong) for text, wrong in mistakes.items()}
        compare(case, answer, np.array([mean, within + between]), mistakes)
    x = np.random.default_rng(7).normal(3, 2, (4, 16, 5)) + np.arange(4)[:, None, None]
    answer = call_unchanged(global_statistics, x.mean(1), x.var(1))
    flat = x.reshape(64, 5)
    expected = np.array([flat.mean(0), flat.var(0)])
    compare("global_statistics of four ranks", _pair(answer, "global_statistics", 5), expected)
    right("two ranks by hand, and four ranks as for the 64 rows in a single process.")


def _pair(answer: object, case: str, features: int) -> np.ndarray:
    if not (isinstance(answer, tuple | list | np.ndarray) and len(answer) == 2):
        raise NotYet(f"{case} must return (mean, variance). Received: {answer!r}")
    return np.array([numbers(part, case, (features,)) for part in answer])


@exercise
def check_lamb_update(lamb_update: Callable) -> None:
    """Demand the weights after a step of LAMB, given Adam's update of the tensor.

    Args:
        lamb_update: The learner's `lamb_update(w, adam, learning_rate, weight_decay)`.
    """
    w, adam = np.array([3.0, 4]), np.array([4.5, -10])
    how = "Here u = adam + 0.5 w = [6, -8], ||w|| = 5 and ||u|| = 10, so the trust ratio is 0.5."
    _lamb(lamb_update, w, adam, 0.2, 0.5, how)
    zero = np.zeros(2)
    guard = "A norm is 0, so the trust ratio is 1."
    _lamb(lamb_update, zero, adam, 0.2, 0.5, guard)
    _lamb(lamb_update, w, zero, 0.2, 0.0, guard)
    w, signs = np.random.default_rng(7).normal(size=(2, 5, 4))
    signs = np.sign(signs)  # without old moments and eps, Adam's update is the sign of the gradient
    expected, *_ = reference.lamb(
        w, signs, 0 * w, 0 * w, 1, 0.01, betas=(0.0, 0.0), eps=0.0, weight_decay=0.1
    )
    answer = numbers(call_unchanged(lamb_update, w, signs, 0.01, 0.1), "lamb_update", (5, 4))
    compare("lamb_update of 5 x 4 random numbers", answer, expected)
    right(
        "by hand, where the step has the length learning_rate x ||w|| = 1; norms of 0; 5 x 4 weights."
    )


def _lamb(
    lamb_update: Callable, w: np.ndarray, adam: np.ndarray, rate: float, decay: float, how: str
) -> None:
    case = f"lamb_update({w.tolist()}, {adam.tolist()}, {rate}, {decay})"
    with np.errstate(all="ignore"):
        answer = numbers(call_unchanged(lamb_update, w, adam, rate, decay), case, w.shape)
        if np.isnan(answer).any():
            raise NotYet(f"{case} is nan, from 0 / 0. Use a trust ratio of 1 where a norm is 0.")
        u, norm = adam + decay * w, np.linalg.norm
        ratio = norm(w) / norm(u) if norm(w) > 0 and norm(u) > 0 else 1.0
        mistakes = {
            "A norm of 0 makes your trust ratio 0, so weights of zero never change: use 1 there.":
                w - rate * norm(w) / norm(u) * u,
            "The weight decay is left out: u = adam + weight_decay * w.":
                w - rate * norm(w) / norm(adam) * adam,
            "The denominator is the norm of Adam's update alone: the decay belongs into u before its norm.":
                w - rate * norm(w) / norm(adam) * u,
            "That is the denominator of LARS: LAMB divides by ||u||, the norm of the sum.":
                w - rate * norm(w) / (norm(adam) + decay * norm(w)) * u,
            "The weight decay is outside of the trust ratio: it belongs into u.":
                w - rate * norm(w) / norm(adam) * adam - rate * decay * w,
            "The ratio is upside down: ||w|| is above the line.": w - rate * norm(u) / norm(w) * u,
            "There is no trust ratio: this is a step of Adam.": w - rate * u,
            "The learning rate is left out.": w - ratio * u,
            "The step is added: go downhill.": w + rate * ratio * u,
            "The norms are squared: take the root of the sum of squares.":
                w - rate * (norm(w) / norm(u)) ** 2 * u,
        }  # fmt: skip
    compare(case, answer, w - rate * ratio * u, mistakes, how)


@exercise
def check_novograd_update(novograd_update: Callable) -> None:
    """Demand (w, m, v) after a first step and a later step of NovoGrad.

    Args:
        novograd_update: The learner's `novograd_update(w, gradient, m, v, learning_rate, beta1, beta2,
            weight_decay)`.
    """
    w, zero, rates = np.array([1.0, 2]), np.zeros(2), (0.1, 0.5, 0.9, 0.5)
    first = "The first v is ||g||^2 = 25, so the normalised gradient is [0.6, 0.8]."
    _novograd(novograd_update, w, np.array([3.0, 4]), zero, 0.0, rates, first)
    later = "Here v = 0.9 x 25 + 0.1 x 400 = 62.5."
    _novograd(novograd_update, w, np.array([12.0, 16]), np.array([1.0, -1]), 25.0, rates, later)
    many = np.random.default_rng(7).normal(size=(3, 5, 4))
    _novograd(novograd_update, *many, 2.0, (0.01, 0.95, 0.98, 0.001), "")
    right("a first and a later step by hand, and 5 x 4 weights as in hvdlab.reference.")


def _novograd(
    novograd_update: Callable,
    w: np.ndarray,
    g: np.ndarray,
    m: np.ndarray,
    v: float,
    rates: tuple[float, float, float, float],
    how: str,
) -> None:
    rate, beta1, beta2, decay = rates
    case = "novograd_update of 5 x 4 random numbers"
    if w.size == 2:
        case = f"novograd_update({w.tolist()}, {g.tolist()}, {m.tolist()}, {v:g}, {rate}, {beta1}, {beta2}, "
        case += f"{decay})"
    answer = call_unchanged(novograd_update, w, g, m, v, rate, beta1, beta2, decay)
    if not (isinstance(answer, tuple | list) and len(answer) == 3):
        raise NotYet(f"{case} must return (w, m, v). Received: {answer!r}")
    square = np.sum(g**2)
    new_v = square if v == 0 else beta2 * v + (1 - beta2) * square
    u = g / np.sqrt(new_v)
    compare(f"v of {case}", number(answer[2], case), new_v, {
        "At the first step, where v is 0, v becomes ||g||^2 itself.": beta2 * v + (1 - beta2) * square,
        "v is the average of the norm: it is the average of the squared norm.":
            np.sqrt(square) if v == 0 else beta2 * v + (1 - beta2) * np.sqrt(square),
        "The old v is not used after the first step.": square,
        "beta2 belongs to the old v, and 1 - beta2 to the new squared norm.":
            (1 - beta2) * v + beta2 * square,
    }, how)  # fmt: skip
    compare(f"m of {case}", numbers(answer[1], case, w.shape), beta1 * m + u + decay * w, {
        "The gradient is divided by v: divide it by the root of v.": beta1 * m + g / new_v + decay * w,
        "The weight decay is left out.": beta1 * m + u,
        "The decay is divided by the norm, too: add it after the division.":
            beta1 * m + (g + decay * w) / np.sqrt(new_v),
        "The bracket is multiplied by 1 - beta1: here it is added whole.":
            beta1 * m + (1 - beta1) * (u + decay * w),
        "The old momentum is not used.": u + decay * w,
        "The gradient is not normalised.": beta1 * m + g + decay * w,
    }, how, rtol=1e-5)  # fmt: skip
    moved = w - rate * (beta1 * m + u + decay * w)
    compare(f"w of {case}", numbers(answer[0], case, w.shape), moved, {
        "The step is added: go downhill.": 2 * w - moved,
        "The learning rate is left out.": w - (w - moved) / rate,
        "The step is taken with the old momentum.": w - rate * m,
    }, how, rtol=1e-5)  # fmt: skip
