"""Right answers of lab 7 in other styles."""

import math

import numpy as np
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
