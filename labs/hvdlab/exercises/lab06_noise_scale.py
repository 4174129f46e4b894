"""Exercises of lab 6 with little help: review patches of a noise monitor, and write an estimator."""

import math
import tracemalloc
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hvdlab.exercises import NotYet, call, number
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview


def noise_scale(gradients, images):
    # gradients[step][rank] is a number: the network has one weight. images: of each rank, in a step.
    gradients = np.asarray(gradients, float)
    ranks = gradients.shape[1]
    small = np.mean(gradients**2, axis=1)
    big = np.mean(gradients, axis=1) ** 2
    G2 = (ranks * big - small) / (ranks - 1)
    S = (small - big) / (1 / images - 1 / (ranks * images))
    return np.mean(S) / np.mean(G2)


def wrong_estimate(patched: Callable, gradients: list, images: int) -> str:
    """Return how the result of a patched function differs from the right one; "" if it does not."""
    found, expected = patched(gradients, images), noise_scale(gradients, images)
    if math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9):
        return ""
    return f"It returns {found:.4g}, and the estimate is {expected:.4g}."


def unusable(gradients: list, images: int) -> str:
    """Return what is wrong with the case of a learner; "" if nothing is."""
    try:
        array = np.asarray(gradients, float)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.ndim != 2 or array.shape[1] < 2 or not np.isfinite(array).all():
        return "gradients must be a list of steps, and each step a list of two or more numbers, one per rank."
    if images < 1:
        return "images must be at least 1."
    if not math.isfinite(noise_scale(gradients, images)):
        return "the mean of G2 is 0 in this case, so there is no estimate. Choose other gradients."
    return ""


# fmt: off
NOISE_SCALE_REVIEW = PatchReview(
    noise_scale,
    {
        "a": ("np.mean(S) / np.mean(G2)", "np.mean(S / G2)  # the noise scale of each step, then the mean"),
        "b": ("(ranks * big - small) / (ranks - 1)",
              "np.maximum((ranks * big - small) / (ranks - 1), 0)  # a squared norm is not negative"),
        "c": ("(small - big) / (1 / images - 1 / (ranks * images))",
              "images * np.var(gradients, axis=1, ddof=1)  # the variance between the ranks"),
        "d": ("(1 / images - 1 / (ranks * images))", "(1 / images - 1 / ranks)  # small and big batch"),
    },
    wrong_estimate,
    example={"gradients": [[3.0, 1.0]], "images": 1},
    tried=[
        {"gradients": [[3.0, 1.0]], "images": 1},
        {"gradients": [[3.0, 1.0], [2.0, 2.0]], "images": 1},
        {"gradients": [[3.0, 1.0], [1.0, -1.0]], "images": 1},
        {"gradients": [[3.0, 1.0]], "images": 16},
        {"gradients": [[3.0, 1.0, 5.0, 2.0], [2.0, 0.0, 1.0, 4.0]], "images": 32},
    ],
    check_case=unusable,
)
# fmt: on


def review_noise_scale():
    return {
        "a": {"gradients": [[3.0, 1.0], [2.0, 2.0]], "images": 1},
        "b": {"gradients": [[3.0, 1.0], [1.0, -1.0]], "images": 1},
        "c": "correct",
        "d": {"gradients": [[3.0, 1.0]], "images": 16},
    }


check_review_noise_scale = FunctionExercise(
    review_noise_scale,
    [Case(())],
    observe=NOISE_SCALE_REVIEW.verdicts,
    passed="patch c is correct, and each of the others fails in your case. None of them fails in the "
    "example, so a test with one step, two ranks and one image would have accepted all four.",
)


def draw_steps(
    noise_scale: float, images: Sequence[int], steps: int, weights: int = 200, seed: int = 0
) -> Iterator[list[tuple[np.ndarray, int]]]:
    """Yield synthetic gradients with a known noise scale, one list per step.

    The true gradient has another direction in each step, as in a training. The variances of the weights
    differ by up to a factor of three.

    Args:
        noise_scale: tr(Sigma) / |G|^2, in images.
        images: the number of images of each rank, in every step.
        steps: number of lists.
        weights: number of weights of the network. Default 200.
        seed: of the random numbers. Default 0.

    Returns:
        An iterator of lists with a pair for each rank: its gradient, of shape (weights,), and its images.
    """
    rng = np.random.default_rng([6, seed])
    variances = np.linspace(0.5, 1.5, weights)
    norm = math.sqrt(variances.sum() / noise_scale)
    for _ in range(steps):
        direction = rng.normal(size=weights)
        true = direction * norm / np.linalg.norm(direction)
        noise = rng.normal(size=(len(images), weights)) * np.sqrt(variances)
        yield [
            (true + of_rank / math.sqrt(count), count)
            for of_rank, count in zip(noise, images, strict=True)
        ]


def estimate_noise_scale(steps):
    G2 = S = 0.0
    for ranks in steps:
        images = np.array([count for _, count in ranks])
        gradients = np.stack([gradient for gradient, _ in ranks])
        mean = images @ gradients / images.sum()
        scatter = images @ np.sum((gradients - mean) ** 2, axis=1) / (len(ranks) - 1)
        S += scatter
        G2 += mean @ mean - scatter / images.sum()
    return S / G2


WITHIN = 0.10
HELD_STEPS = 20  # as many steps may be in memory
RUBRIC = {  # point of the rubric -> arguments of draw_steps
    "2 ranks": {"noise_scale": 260, "images": (32, 32), "steps": 400, "seed": 8},
    "8 ranks": {"noise_scale": 640, "images": (32,) * 8, "steps": 300, "seed": 10},
    "uneven ranks": {"noise_scale": 260, "images": (8, 32, 64), "steps": 400, "seed": 9},
    "much noise": {"noise_scale": 900, "images": (32, 32), "steps": 2000, "seed": 8},
}
LARGE = {"noise_scale": 260, "images": (32,) * 4, "steps": 100, "weights": 2000, "seed": 5}


def rubric(estimate_noise_scale: Callable) -> dict[str, bool]:
    """Measure the points of the rubric, and return them.

    Raises:
        NotYet: a point does not hold. The message has what was measured.
    """
    for point, drawn in RUBRIC.items():
        estimate = number(call(estimate_noise_scale, draw_steps(**drawn)), "estimate_noise_scale")
        off = estimate / drawn["noise_scale"] - 1
        if not abs(off) <= WITHIN:
            raise NotYet(
                f"{point}: with {', '.join(map(str, drawn['images']))} images on the ranks your estimate "
                f"is {estimate:.4g} images, and the true noise scale is {drawn['noise_scale']}. At most "
                f"{WITHIN:.0%} off are allowed."
            )
    held = held_steps(estimate_noise_scale)
    if held > HELD_STEPS:
        raise NotYet(
            f"memory: your function held as many bytes as the gradients of {held:.0f} steps at once, and at "
            f"most {HELD_STEPS} are allowed. Keep sums, and not the gradients."
        )
    return dict.fromkeys([*RUBRIC, "memory"], True)


def held_steps(estimate_noise_scale: Callable) -> float:
    """Return the largest memory that an estimate needs, as a multiple of the gradients of one step."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        call(estimate_noise_scale, draw_steps(**LARGE))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if started:
            tracemalloc.stop()
    return (peak - before) / (8 * LARGE["weights"] * len(LARGE["images"]))


check_estimate_noise_scale = FunctionExercise(
    estimate_noise_scale,
    [Case(())],
    observe=rubric,
    passed="within 10 % for 2 and 8 ranks, for ranks with different numbers of images and for noisy "
    "gradients, without keeping the gradients in memory.",
    shape=bool,
)
