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


def ramp_by_boundaries(stages, tokens):
    steps, (at, batch) = 0, stages[0]
    for start, next_batch in [*stages[1:], (tokens, None)]:
        until = min(start, tokens)
        if until > at:
            steps += (until - at) / batch
            at = until
        batch = next_batch or batch
    return steps


def ramp_with_arrays(stages, tokens):
    starts, batches = np.transpose(np.asarray(stages, float))
    lengths = np.diff(np.append(starts, tokens).clip(max=tokens))
    return (lengths / batches).sum()


def reviews(a, b, d, c="correct"):
    return lambda: {"a": a, "b": b, "c": c, "d": d}


def review_case(gradients, images=1):
    return {"gradients": gradients, "images": images}


TWO_STEPS = review_case([[3.0, 1.0], [2.0, 2.0]])
NEGATIVE = review_case([[1.0, -1.0], [5.0, 5.0]])
EIGHT_IMAGES = review_case([[2.0, 1.0, 0.0]], 8)


def with_two_batches(steps):
    """The norms before and after the all-reduce, for ranks of any size."""
    sums, count = np.zeros(4), 0
    for ranks in steps:
        gradients, images = zip(*ranks, strict=True)
        average = sum(b * gradient for gradient, b in ranks) / sum(images)
        small = np.mean([each @ each for each in gradients])
        sums += small, np.mean(1 / np.array(images)), average @ average, 1 / sum(images)
        count += 1
    small, small_inverse, big, big_inverse = sums / count
    trace = (small - big) / (small_inverse - big_inverse)
    return trace / (big - trace * big_inverse)


def with_products(steps):
    """The mean product of two different ranks is |G|^2, and the rest of a squared norm is noise."""
    count, products, traces = 0, 0.0, 0.0
    for ranks in steps:
        pairs = [
            (g, b, h) for i, (g, b) in enumerate(ranks) for j, (h, _) in enumerate(ranks) if i != j
        ]
        products += sum(g @ h for g, _, h in pairs) / len(pairs)
        traces += sum(b * (g @ g - g @ h) for g, b, h in pairs) / len(pairs)
        count += 1
    return (traces / count) / (products / count)


class RunningLine:
    """A line through all squared norms over 1 / images: the intercept is |G|^2, the slope tr Sigma."""

    def __init__(self):
        self.matrix, self.vector = np.zeros((2, 2)), np.zeros(2)

    def add(self, norm2, images):
        row = np.array([1, 1 / images])
        self.matrix += images**2 * np.outer(row, row)
        self.vector += images**2 * row * norm2

    def result(self):
        intercept, slope = np.linalg.solve(self.matrix, self.vector)
        return slope / intercept


def with_a_class(steps):
    line = RunningLine()
    for ranks in steps:
        for gradient, images in ranks:
            line.add(np.sum(np.square(gradient)), images)
        total = sum(images for _, images in ranks)
        mean = sum(images * gradient for gradient, images in ranks) / total
        line.add(mean @ mean, total)
    return line.result()


def norms_of(ranks):
    """The mean squared norm of the ranks, and the squared norm of their mean, without the images."""
    small = np.mean([gradient @ gradient for gradient, _ in ranks])
    mean = np.mean([gradient for gradient, _ in ranks], axis=0)
    return np.array([small, mean @ mean])


def estimates_of(ranks):
    b = ranks[0][1]
    return np.array(estimate(*norms_of(ranks), b, b * len(ranks)))


def mean_of_ratios(steps):
    return np.mean([s / g for g, s in map(estimates_of, steps)])


def clipped(steps):
    G2, S = np.mean([np.maximum(with_images(ranks), 0) for ranks in steps], axis=0)
    return S / G2


def with_images(ranks):
    images = np.array([count for _, count in ranks])
    gradients = np.stack([gradient for gradient, _ in ranks])
    mean = images @ gradients / images.sum()
    scatter = images @ np.sum((gradients - mean) ** 2, axis=1) / (len(ranks) - 1)
    return np.array([mean @ mean - scatter / images.sum(), scatter])


def without_images(steps):
    G2, S = np.mean([estimates_of(ranks) for ranks in steps], axis=0)
    return S / G2


def biased(steps):
    """|G|^2 from the squared norm of the averaged gradient, which still contains noise."""
    sums = np.zeros(2)
    for ranks in steps:
        images = np.array([count for _, count in ranks])
        mean = images @ np.stack([gradient for gradient, _ in ranks]) / images.sum()
        sums += mean @ mean, with_images(ranks)[1]
    return sums[1] / sums[0]


def mean_gradient_of_the_run(steps):
    """The true gradient as the mean over all steps. It turns, so its mean is short."""
    total, count, trace = 0.0, 0, 0.0
    for ranks in steps:
        total, count = total + np.mean([gradient for gradient, _ in ranks], axis=0), count + 1
        trace += with_images(ranks)[1]
    mean = total / count
    return trace / count / (mean @ mean)


def all_in_memory(steps):
    G2, S = np.mean([with_images(ranks) for ranks in list(steps)], axis=0)
    return S / G2


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
ramp_steps = [ramp_by_boundaries, ramp_with_arrays]
review_noise_scale = [
    reviews(TWO_STEPS, NEGATIVE, EIGHT_IMAGES),
    reviews(
        review_case([[1.0, 2.0, 3.0], [2.0, 0.0, 1.0]], 4),
        review_case([[1.0, -1.0, 0.5], [2.0, 3.0, 1.0]]),
        review_case([[0.0, 2.0], [1.0, 4.0]], 2),
    ),
    reviews(*[review_case([[1.0, -1.0], [2.0, 3.0], [4.0, 3.5]], 32)] * 3),
]
estimate_noise_scale = [with_two_batches, with_products, with_a_class]
EXAMPLE = review_case([[3.0, 1.0]])
REFUSED = {
    "review_noise_scale": [
        (reviews("correct", NEGATIVE, EIGHT_IMAGES), "Patch a is not correct"),
        (reviews(TWO_STEPS, TWO_STEPS, EIGHT_IMAGES), "Patch b holds in your case"),
        (reviews(TWO_STEPS, NEGATIVE, EIGHT_IMAGES, TWO_STEPS), "Patch c holds in your case"),
        (
            reviews(TWO_STEPS, NEGATIVE, review_case([[2.0, 1.0, 0.0]])),
            "Patch d holds in your case",
        ),
        (reviews(EXAMPLE, EXAMPLE, EXAMPLE), "Patch a holds in your case"),
        (
            reviews(review_case([[1.0], [2.0]]), NEGATIVE, EIGHT_IMAGES),
            "list of two or more numbers",
        ),
        (reviews(review_case([[1.0, -1.0, 1.0, -1.0]], 0), NEGATIVE, EIGHT_IMAGES), "at least 1"),
        (reviews(review_case([[1.0, 0.0]]), NEGATIVE, EIGHT_IMAGES), "the mean of G2 is 0"),
        (reviews("wrong", NEGATIVE, EIGHT_IMAGES), "a dict with the keys gradients, images"),
    ],
    "estimate_noise_scale": [
        (lambda steps: 260, "8 ranks: with 32, 32, 32, 32, 32, 32, 32, 32 images"),
        (mean_of_ratios, "2 ranks: with 32, 32 images on the ranks your estimate is"),
        (biased, "2 ranks: with 32, 32 images on the ranks your estimate is"),
        (mean_gradient_of_the_run, "2 ranks: with 32, 32 images on the ranks your estimate is"),
        (without_images, "uneven ranks: with 8, 32, 64 images on the ranks your estimate is"),
        (clipped, "much noise: with 32, 32 images on the ranks your estimate is"),
        (all_in_memory, "memory: your function held as many bytes as the gradients of 10"),
    ],
}
