"""The checks of lab 7 on schedules, statistics over ranks and LAMB name the mistake in wrong answers."""

import numpy as np
import pytest
from changed import changed

from hvdlab import reference
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab07_schedule_and_statistics as exercises

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def rate(step, base_rate, ranks, warmup_steps, total_steps):
    scaled = base_rate * ranks
    if step < warmup_steps:
        return base_rate + (scaled - base_rate) * (step + 1) / warmup_steps
    return scaled * (1 - (step - warmup_steps) / (total_steps - warmup_steps))


def statistics(means, variances):
    return means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)


def lamb(w, adam, learning_rate, weight_decay):
    u = adam + weight_decay * w
    w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(u)
    ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
    return w - learning_rate * ratio * u


def novograd(w, gradient, m, v, learning_rate, beta1, beta2, weight_decay):
    square = np.sum(gradient**2)
    v = square if v == 0 else beta2 * v + (1 - beta2) * square
    m = beta1 * m + gradient / (np.sqrt(v) + 1e-8) + weight_decay * w
    return w - learning_rate * m, m, v


def reference_novograd(w, gradient, m, v, learning_rate, beta1, beta2, weight_decay):
    betas = beta1, beta2
    return reference.novograd(
        w, gradient, m, v, learning_rate, betas=betas, weight_decay=weight_decay
    )


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (exercises.check_learning_rate, rate),
        (exercises.check_global_statistics, statistics),
        (exercises.check_lamb_update, lamb),
        (exercises.check_novograd_update, novograd),
        (exercises.check_novograd_update, reference_novograd),
    ],
)
def test_right_answers_pass(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


MISTAKES[exercises.check_learning_rate] = [
    (changed(rate, "(step + 1)", "step"), "one step late"),
    (changed(rate, "base_rate + (scaled - base_rate) *", "scaled *"), "starts at 0"),
    (lambda *a: rate(*a) if a[0] >= a[3] else a[1] * a[2], "no warmup"),
    (changed(rate, "base_rate * ranks", "base_rate"), "not scaled"),
    (changed(rate, "(scaled - base_rate) *", "scaled *"), "difference is missing"),
    (changed(rate, "(1 - (step - warmup_steps)", "(1 - step"), "counts from step 0"),
    (changed(rate, "/ (total_steps - warmup_steps)", "/ total_steps"), "divided by all steps"),
    (changed(rate, "scaled * (1 - (step - warmup_steps) / (total_steps - warmup_steps))", "scaled"),
     "no decay"),
    (changed(rate, "(1 - (step - warmup_steps)", "(1 - (step + 1 - warmup_steps)"), "one step early"),
    (lambda *a: None, "is `return` missing"),
    (lambda *a: [1.0, 2.0], "must return one number"),
]  # fmt: skip

MISTAKES[exercises.check_global_statistics] = [
    (changed(statistics, " + means.var(axis=0)", ""), "average the variances only"),
    (changed(statistics, "variances.mean(axis=0)", "variances.sum(axis=0)"), "variances are added up"),
    (changed(statistics, "means.var(axis=0)", "means.var(axis=0, ddof=1)"), "unbiased"),
    (changed(statistics, "means.var(axis=0)", "means.std(axis=0)"), "standard deviation"),
    (changed(statistics, "variances.mean(axis=0) + ", ""), "only the variance of the means"),
    (changed(statistics, "means.mean(axis=0)", "means.sum(axis=0)"), "means are added up"),
    (lambda *a: statistics(*a)[::-1], r"\(mean, variance\)"),
    (lambda *a: statistics(*a)[0], r"must return \(mean, variance\)"),
    (lambda *a: (1.0, 2.0), "shape"),
    (lambda *a: None, "must return"),
]  # fmt: skip

MISTAKES[exercises.check_lamb_update] = [
    (changed(lamb, "w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0", "w_norm / u_norm"),
     "trust ratio 0|nan"),
    (changed(lamb, "u = adam + weight_decay * w", "u = adam"), "decay is left out"),
    (changed(lamb, "np.linalg.norm(u)", "np.linalg.norm(adam)"), "update alone"),
    (changed(lamb, "np.linalg.norm(u)", "np.linalg.norm(adam) + weight_decay * np.linalg.norm(w)"),
     "denominator of LARS"),
    (changed(lamb, "adam + weight_decay * w", "adam", "* u", "* u - learning_rate * weight_decay * w"),
     "outside of the trust ratio"),
    (changed(lamb, "w_norm / u_norm if", "u_norm / w_norm if"), "upside down"),
    (changed(lamb, "ratio * u", "u"), "step of Adam"),
    (changed(lamb, "learning_rate * ratio", "ratio"), "learning rate is left out"),
    (changed(lamb, "w - learning_rate", "w + learning_rate"), "go downhill"),
    (changed(lamb, "w_norm / u_norm if", "(w_norm / u_norm) ** 2 if"), "norms are squared"),
    (lambda *a: None, "is `return` missing"),
]  # fmt: skip


MISTAKES[exercises.check_novograd_update] = [
    (changed(novograd, "square if v == 0 else ", ""), "becomes .* itself"),
    (changed(novograd, "np.sum(gradient**2)", "np.sqrt(np.sum(gradient**2))"), "average of the norm"),
    (changed(novograd, "square if v == 0 else beta2 * v + (1 - beta2) * square", "square"), "old v"),
    (changed(novograd, "else beta2 * v + (1 - beta2) *", "else (1 - beta2) * v + beta2 *"), "belongs to"),
    (changed(novograd, "(np.sqrt(v) + 1e-8)", "v"), "divide it by the root"),
    (changed(novograd, " + weight_decay * w\n", "\n"), "decay is left out"),
    (changed(novograd, "gradient / (np.sqrt(v) + 1e-8) + weight_decay * w",
             "(gradient + weight_decay * w) / np.sqrt(v)"), "add it after the division"),
    (changed(novograd, "+ gradient / (np.sqrt(v) + 1e-8) + weight_decay * w",
             "+ (1 - beta1) * (gradient / np.sqrt(v) + weight_decay * w)"), "added whole"),
    (changed(novograd, "beta1 * m + gradient", "gradient"), "old momentum is not used"),
    (changed(novograd, "gradient / (np.sqrt(v) + 1e-8)", "gradient"), "not normalised"),
    (changed(novograd, "w - learning_rate", "w + learning_rate"), "go downhill"),
    (changed(novograd, "w - learning_rate * m", "w - m"), "learning rate is left out"),
    (lambda w, *a: (w - a[3] * a[1], *novograd(w, *a)[1:]), "old momentum"),
    (lambda *a: novograd(*a)[0], "must return"),
    (lambda *a: None, "must return"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
