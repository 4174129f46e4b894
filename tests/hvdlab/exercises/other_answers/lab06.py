"""Right answers of lab 6 in other styles."""

import numpy as np

from hvdlab.noise_scale import estimate


def by_a_line(small_norm2, big_norm2, small_batch, big_batch):
    slope = (small_norm2 - big_norm2) * small_batch * big_batch / (big_batch - small_batch)
    return big_norm2 - slope / big_batch, slope


def best_b_crit(batches, steps):
    """A search over b_crit, with s_min from the mean of the logarithms."""
    candidates = np.geomspace(1, 1e5, 200_001)[:, None]
    logs = np.log(steps) - np.log1p(candidates / batches)
    best = logs.std(1).argmin()
    return np.exp(logs[best].mean()), candidates[best, 0]


def least_squares(batches, steps):
    """Relative errors: each equation is divided by its steps."""
    rows = np.stack([np.ones(len(steps)), 1 / batches], axis=1) / steps[:, None]
    (s_min, slope), *_ = np.linalg.lstsq(rows, np.ones(len(steps)), rcond=None)
    return [s_min, slope / s_min]


def number_by_number(weights, gradient, minimum, eps):
    moved = []
    for w, g, m in zip(weights.flat, gradient.flat, minimum.flat, strict=True):
        half = eps * (abs(m) + 1)
        moved.append(min(max(w + half / 2 * (int(g > 0) - int(g < 0)), m - half), m + half))
    return np.array(moved).reshape(weights.shape)


def with_where(weights, gradient, minimum, eps):
    half = eps + eps * np.abs(minimum)
    goal = weights + np.where(gradient > 0, half / 2, np.where(gradient < 0, -half / 2, 0))
    return np.maximum(np.minimum(goal, minimum + half), minimum - half)


def flattened(ranks):
    flat = np.array([np.concatenate([part.ravel() for part in rank]) for rank in ranks])
    average, ends = flat.mean(axis=0), np.cumsum([part.size for part in ranks[0]])
    parts = np.split(average, ends[:-1])
    shaped = [part.reshape(like.shape) for part, like in zip(parts, ranks[0], strict=True)]
    return [np.square(flat).sum(1).mean(), average @ average, shaped]


def array_by_array(ranks):
    small = big = 0.0
    average = ()
    for n in range(len(ranks[0])):
        stacked = np.stack([rank[n] for rank in ranks])
        small += np.linalg.norm(stacked) ** 2 / len(ranks)
        average += (sum(stacked) / len(ranks),)
        big += np.vdot(average[n], average[n])
    return small, big, average


def law_of_steps(batch, s_min, b_crit):
    steps, doubled = (s_min + s_min * b_crit / size for size in (batch, 2 * batch))
    return steps, s_min * (batch + b_crit), 1 - doubled / steps


def all_at_once(batches, steps, step_seconds, images_per_rank, price, deadline):
    seconds = np.multiply(steps, step_seconds)
    costs = np.divide(batches, images_per_rank) * seconds * price / 3600
    costs[seconds > deadline] = np.inf
    best = np.argmin(costs)
    return [batches[best], seconds[best], costs[best]] if np.isfinite(costs[best]) else None


def sorted_runs(batches, steps, step_seconds, images_per_rank, price, deadline):
    runs = []
    for i in range(len(batches)):
        time = float(steps[i] * step_seconds[i])
        if not time > deadline:
            runs.append(
                (int(batches[i]), time, batches[i] // images_per_rank * time / 3600 * price)
            )
    return sorted(runs, key=lambda run: run[2])[0] if runs else None


def copied(weights, factor):
    new = [np.array(array) for array in weights]
    for n, by in enumerate((1 / factor, 1 / factor, factor)):
        new[n] *= by
    return new


def line_by_sums(batches, epochs):
    """Weighted least squares with the normal equations."""
    weights = 1 / epochs**2
    mean_b, mean_e = (np.average(values, weights=weights) for values in (batches, epochs))
    deviations = batches - mean_b
    slope = (weights * deviations * (epochs - mean_e)).sum() / (weights * deviations**2).sum()
    e0 = mean_e - slope * mean_b
    return np.array([e0, e0 / slope])


def line_of_logarithms(batches, epochs):
    """A search over b_crit, with e0 from the mean of the logarithms."""
    candidates = np.geomspace(1, 1e6, 200_001)[:, None]
    logs = np.log(epochs) - np.log1p(batches / candidates)
    best = logs.std(1).argmin()
    return [np.exp(logs[best].mean()), candidates[best, 0]]


two_batch_estimate = [estimate, lambda *arguments: list(estimate(*arguments)), by_a_line]
fit_steps = [best_b_crit, least_squares]
box_step = [number_by_number, with_where]
norms_before_and_after = [flattened, array_by_array]
scaling_law = [
    law_of_steps,
    lambda b, s, c: np.array([s * (1 + c / b), s * (b + c), c / (b + c) / 2]),
]
choose_batch = [all_at_once, sorted_runs]
rescaled = [
    copied,
    lambda weights, factor: (*(w / factor for w in weights[:2]), weights[2] * factor, *weights[3:]),
]
fit_law = [line_by_sums, line_of_logarithms]
