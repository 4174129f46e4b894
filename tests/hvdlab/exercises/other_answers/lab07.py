"""Right answers of lab 7 in other styles, and wrong answers."""

import collections
import math

import numpy as np
import pandas as pd
import torch

from hvdlab import reference, schedules


def ghost_in_place(x, ghost_size, eps):
    y = np.zeros_like(x)
    for start in range(0, len(x), ghost_size):
        part = x[start : start + ghost_size]
        mean, var = part.mean(axis=0, keepdims=True), part.var(axis=0, keepdims=True)
        y[start : start + ghost_size] = (part - mean) / np.sqrt(var + eps)
    return y


def ghost_of_reference(x, ghost_size, eps):
    one, zero = np.ones(x.shape[1]), np.zeros(x.shape[1])
    return reference.ghost_batch_norm(x, one, zero, zero, one, ghost_size, 0.1, eps)[0]


def ghost_of_torch(x, ghost_size, eps):
    parts = torch.tensor(x).split(ghost_size)
    return torch.cat(
        [(p - p.mean(0)) / (p.var(0, unbiased=False) + eps).sqrt() for p in parts]
    ).tolist()


def updates_with_a_growing_variable(n, batch, milestones, factor, epochs):
    total = 0
    for epoch in range(epochs):
        if epoch in milestones:
            batch *= factor
        total += math.ceil(n / batch)
    return float(total)


def updates_between_milestones(n, batch, milestones, factor, epochs):
    edges = [0, *milestones, epochs]
    counts = np.diff(edges) * np.ceil(n / (batch * float(factor) ** np.arange(len(edges) - 1)))
    return np.array(counts.sum())


def updates_of_schedules(n, batch, milestones, factor, epochs):
    largest = batch * factor ** len(milestones)
    plan = schedules.batch_growth(epochs, milestones, factor, batch, largest, learning_rate=1.0)
    return schedules.updates(n, [size for size, _ in plan])


def lars_of_reference(w, gradient, v, rate, momentum, decay, trust):
    return reference.lars(
        w, gradient, v, rate, momentum=momentum, weight_decay=decay, trust_coefficient=trust
    )


def lars_by_loops(w, gradient, v, rate, momentum, decay, trust):
    w_norm, g_norm = (math.sqrt(sum(x * x for x in each.flat)) for each in (w, gradient))
    local = 1 if min(w_norm, g_norm) == 0 else trust * w_norm / (g_norm + decay * w_norm)
    v = momentum * v + local * gradient + local * decay * w
    return np.array([w - rate * v, v])


def rate_of_schedules(step, base_rate, ranks, warmup_steps, total_steps):
    peak = schedules.linear_scaling(base_rate, ranks)
    fall = schedules.polynomial_decay(peak, total_steps - warmup_steps, power=1)
    if not warmup_steps:
        return fall(step)
    return schedules.gradual_warmup(
        lambda s: fall(max(s - warmup_steps, 0)), warmup_steps, base_rate
    )(step)


def rate_by_interpolation(step, base_rate, ranks, warmup_steps, total_steps):
    times = [-1, warmup_steps - 1, warmup_steps, total_steps]
    values = [base_rate, base_rate * ranks, base_rate * ranks, 0]
    return np.interp(step, times, values) if warmup_steps else ranks * base_rate


def statistics_by_squares(means, variances):
    mean = sum(means) / len(means)
    squares = sum(variances + means**2) / len(means)
    return [list(mean), list(squares - mean**2)]


def lamb_of_torch(w, adam, learning_rate, weight_decay):
    w, u = torch.tensor(w), torch.tensor(adam + weight_decay * w)
    ratio = w.norm() / u.norm() if w.any() and u.any() else 1
    return (w - learning_rate * ratio * u).numpy()


def lamb_with_one_expression(w, adam, rate, decay):
    u = adam + decay * w
    norms = np.sqrt((w**2).sum()), np.sqrt((u**2).sum())
    return w - rate * u * (norms[0] / norms[1] if all(norms) else 1)


def novograd_of_reference(w, gradient, m, v, rate, beta1, beta2, decay):
    return reference.novograd(w, gradient, m, v, rate, betas=(beta1, beta2), weight_decay=decay)


def novograd_with_early_case(w, g, m, v, rate, beta1, beta2, decay):
    square = np.linalg.norm(g) ** 2
    if not v:
        v = square
    else:
        v += (1 - beta2) * (square - v)
    m = beta1 * m + (g / np.sqrt(v) + decay * w)
    return [w - rate * m, m, np.array([v])]


ghost_batch_norm = [ghost_in_place, ghost_of_reference, ghost_of_torch]
updates_with_growth = [
    updates_with_a_growing_variable,
    updates_between_milestones,
    updates_of_schedules,
]
lars_update = [lars_of_reference, lars_by_loops]
learning_rate = [rate_of_schedules, rate_by_interpolation]
global_statistics = [
    statistics_by_squares,
    lambda means, variances: np.array(
        [np.average(means, 0), np.mean(variances + means**2, 0) - np.mean(means, 0) ** 2]
    ),
]
lamb_update = [lamb_of_torch, lamb_with_one_expression]
novograd_update = [novograd_of_reference, novograd_with_early_case]


def wsd_with_numpy(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    """Rise linearly, and fall on a cosine wave to a twentieth."""
    warmup = np.arange(1, warmup_steps + 1) / max(warmup_steps, 1)
    wave = (1 + np.cos(np.pi * np.arange(1, decay_steps + 1) / decay_steps)) / 2
    stable = np.ones(total_steps - warmup_steps - decay_steps)
    return base_rate * ranks * np.concatenate([warmup, stable, 0.05 + 0.95 * wave])


class Plan:
    """A schedule as an object that is called with a step: quadratic warmup, exponential decay."""

    def __init__(self, peak, warmup, begin, decay):
        self.peak, self.warmup, self.begin, self.decay = peak, warmup, begin, decay

    def __call__(self, step):
        if step >= self.begin:
            return self.peak * 0.08 ** ((step - self.begin + 1) / self.decay)
        return self.peak * min((step + 1) / self.warmup, 1) ** 2 if self.warmup else self.peak


def wsd_with_a_class(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    plan = Plan(base_rate * ranks, warmup_steps, total_steps - decay_steps, decay_steps)
    return tuple(plan(step) for step in range(total_steps))


def wsd_of_schedules(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    """Rise from the base rate, as in exercise 1, and fall by 1 - sqrt."""
    begin = total_steps - decay_steps
    stable = schedules.constant(base_rate * ranks)
    if warmup_steps:
        stable = schedules.gradual_warmup(stable, warmup_steps, start=base_rate / 2)
    falls = [1 - math.sqrt(k / (decay_steps + 0.01)) for k in range(1, decay_steps + 1)]
    return [stable(step) for step in range(begin)] + [base_rate * ranks * f for f in falls]


def wsd_of_torch(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    peak = base_rate * ranks
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=peak)
    begin = total_steps - decay_steps

    def factor(step):
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return 1 if step < begin else (total_steps - step) / (decay_steps + 1) * 0.19

    plan, rates = torch.optim.lr_scheduler.LambdaLR(optimizer, factor), []
    for _ in range(total_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        plan.step()
    return rates


def wsd_as_float32(*run):
    return np.array(wsd_with_numpy(*run), "float32")


def wsd_as_tensor(*run):
    return torch.tensor(wsd_with_a_class(*run))


def wsd_as_series(*run):
    return pd.Series(wsd_of_torch(*run))


def wsd_in_a_deque(*run):
    return collections.deque(wsd_with_numpy(*run))


def polar_factor(matrix, steps):
    """The same steps on the singular values."""
    u, s, vt = np.linalg.svd(matrix, full_matrices=False)
    s = s / (math.sqrt((s**2).sum()) + 1e-12)
    for _ in range(steps):
        s = 1.5 * s - 0.5 * s**3
    return u @ np.diag(s) @ vt


def orthogonalize_with_torch(matrix, steps):
    x = torch.nn.functional.normalize(torch.tensor(matrix).flatten(), dim=0).view(*matrix.shape)
    eye = torch.eye(len(x), dtype=x.dtype)
    for _ in range(steps):
        x = 0.5 * (3 * eye - x @ x.T) @ x
    return x.tolist()


RUN = {
    "images": 1000,
    "batch": 64,
    "ranks": 3,
    "epochs": 6,
    "warmup_epochs": 2,
    "first_epoch": 0,
}
REVIEW = {
    "a": RUN,
    "b": "correct",
    "c": {**RUN, "first_epoch": 1},
    "d": {**RUN, "images": 100, "warmup_epochs": 1},
}


def large_run(**changes):
    return {
        **dict(images=50_000, batch=48, ranks=8, epochs=90, warmup_epochs=5, first_epoch=0),
        **changes,
    }


wsd_rates = [
    wsd_with_numpy,
    wsd_with_a_class,
    wsd_of_schedules,
    wsd_of_torch,
    wsd_as_float32,
    wsd_as_tensor,
    wsd_as_series,
    wsd_in_a_deque,
]
orthogonalize = [polar_factor, orthogonalize_with_torch]
review_schedule = [
    lambda: REVIEW,
    lambda: {
        "b": "correct",
        "d": large_run(ranks=2000, warmup_epochs=1),
        "a": large_run(),
        "c": large_run(first_epoch=89),
    },
    lambda: dict(
        a={**RUN, "ranks": 1, "batch": 300},
        b="correct",
        c=dict(images=10, batch=10, ranks=1, epochs=2, warmup_epochs=0, first_epoch=1),
        d=dict(images=10, batch=10, ranks=1, epochs=2, warmup_epochs=1, first_epoch=0),
    ),
]


def hard_coded(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    return [0.4 / 3, 0.8 / 3, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.31, 0.22, 0.13, 0.04]


def warmup_of_exercise_1(base, ranks, warmup, *lengths):
    rates = wsd_with_numpy(base, ranks, warmup, *lengths)
    rates[:warmup] = [base + (i + 1) * (base * ranks - base) / warmup for i in range(warmup)]
    return rates


def warmup_from_a_hundredth(base, ranks, warmup, *lengths):
    rates = wsd_with_numpy(base, ranks, warmup, *lengths)
    rates[:warmup] = np.linspace(0.01, base * ranks, max(warmup, 2))[-warmup or warmup :][:warmup]
    return rates


def warmup_below_the_peak(base, ranks, warmup, *lengths):
    rates = wsd_with_numpy(base, ranks, warmup, *lengths)
    rates[:warmup] *= warmup / (warmup + 1)
    return rates


def normalised_in_every_step(matrix, steps):
    x = matrix
    for _ in range(steps):
        x = 0.5 * (3 * x - x @ x.T @ x) / np.linalg.norm(x)
    return x


REFUSED = {
    "global_statistics": [
        (lambda m, v: (m[0], v[0]), "the statistics of the first rank only"),
        (lambda m, v: (m[0], v[1] + 4), "is 2, expected 4. The means have the mean 4"),
    ],
    "orthogonalize": [
        (normalised_in_every_step, "Without a step the matrix is only divided by its norm, 5."),
        (lambda m, k: polar_factor(m, k) * np.linalg.norm(m), "multiplied by the norm again"),
    ],
    "wsd_rates": [
        (warmup_of_exercise_1, "begins at the base learning rate, which is the peak if"),
        (warmup_from_a_hundredth, "the warmup must begin below 0.008"),
        (warmup_below_the_peak, "The last warmup step is below the peak"),
        (lambda *run: iter(wsd_with_numpy(*run)), "must return a list of learning rates"),
        (lambda *run: "0.1" * run[4], "an array of numbers"),
        (lambda *run: {0: 0.1}, "an array of numbers"),
        (lambda *run: np.array([wsd_with_numpy(*run)]), "an array of numbers"),
        (hard_coded, "first step in which a run of twice as many steps differs"),
        (lambda *run: np.linspace(run[0], 0.01, run[4]), "highest learning rate"),
        (lambda *run: lambda step: 0.1, "must return a list of learning rates"),
        (lambda *run: [run[0] * run[1]] * run[4], "warmup steps that do not rise"),
        (
            lambda base, ranks, *run: wsd_with_numpy(base * ranks, ranks, *run),
            "highest learning rate",
        ),
    ],
    "review_schedule": [
        (
            lambda: {**REVIEW, "a": "correct"},
            "Patch a is not correct: there is a case in which it fails",
        ),
        (lambda: {**REVIEW, "d": "correct"}, "Patch d is not correct"),
        (lambda: {**REVIEW, "b": RUN}, "Patch b holds in your case"),
        (
            lambda: {**REVIEW, "a": large_run(images=48 * 800)},
            "There is another case in which it fails",
        ),
        (lambda: {**REVIEW, "c": RUN}, "Patch c holds in your case"),
        (lambda: {**REVIEW, "d": {**RUN, "warmup_epochs": 6}}, "less than epochs"),
        (lambda: {**REVIEW, "c": {"first_epoch": 1}}, "a dict with the keys images, batch"),
        (lambda: {"a": RUN}, "with the keys a, b, c, d"),
    ],
}
