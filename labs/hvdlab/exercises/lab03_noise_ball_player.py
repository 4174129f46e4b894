"""Show the path of a learner's SGD of lab 3 around the minimum, and the noise ball of the formula.

show_noise_ball(descend, noise_variance, x, y)
"""

from collections.abc import Callable

import numpy as np

from hvdlab.course.player import Chart, Mark, Player, Series, Step, axis
from hvdlab.exercises import lab03_stochastic_gradient_descent as solution

TITLE = "The noise ball of SGD"
SETTINGS = ((1, 0.01), (1, 0.0025), (4, 0.01))  # batch size, learning rate
BEFORE = 1000  # updates that are not shown, because b arrives during them
FRAMES = 5  # steps of the player for each setting
UPDATES = 100  # that each of these steps adds
NOTE = (
    "The points are the rows (w, b) that descend returned after its first 1,000 updates. The dashed ball "
    "reaches two standard deviations from the minimum: along w by noise_variance, and along b by the same "
    "formula with the gradients 2e and the curvature 2."
)


def show_noise_ball(
    descend: Callable, noise_variance: Callable, x: np.ndarray, y: np.ndarray
) -> Player:
    """Return a player with the path of SGD for three settings, 100 updates in each step.

    Args:
        descend: of exercise 2.
        noise_variance: of exercise 3.
        x, y: the examples. The mean of x is 0.
    """
    paths, radii = [], []
    for batch_size, rate in SETTINGS:
        path = _recorded(descend, x, y, batch_size, rate)
        variance = noise_variance(x, y, rate, batch_size)
        wrong = _wrong(path, variance, f"batch size {batch_size} and learning rate {rate}")
        if wrong:
            return Player(TITLE, (Step("Nothing to show", (wrong,)),))
        paths.append(path[BEFORE : BEFORE + FRAMES * UPDATES + 1])
        radii.append(2 * np.sqrt([variance, _variance_of_b(x, y, rate, batch_size)]))
    best = np.polyfit(x, y, 1)
    marks = [
        _ellipse(2, best, level * np.array([np.mean(x**2) ** -0.5, 1]), 0) for level in (1, 2, 3, 4)
    ]
    marks += [Mark(3, (_point(best),), 0)]
    steps = []
    for number, (path, radius) in enumerate(zip(paths, radii, strict=True)):
        first = number * FRAMES
        marks.append(_ellipse(1, best, radius, first, None if number == 0 else first + FRAMES - 1))
        for frame in range(FRAMES):
            start = frame * UPDATES
            points = tuple(map(_point, path[start : start + UPDATES + 1]))
            marks.append(Mark(0, points, first + frame, first + FRAMES - 1))
            measured = np.sqrt(np.mean((path[1 : start + UPDATES + 1, 0] - best[0]) ** 2))
            steps.append(_step(number, frame, measured, radii))
    (w, b), (wide, high) = best, 1.6 * 2 * np.sqrt(_variances(x, y))
    series = (
        Series("updates of SGD", "path", "blue"),
        Series("predicted ball", "dashed", "orange"),
        Series("equal loss", "line", "grey"),
        Series("minimum", "cross", "ink"),
    )
    chart = Chart(
        axis("w, the weight", w - wide, w + wide),
        axis("b, the bias", b - high, b + high),
        series,
        tuple(marks),
    )
    return Player(TITLE, tuple(steps), note=NOTE, chart=chart)


def _recorded(descend, x, y, batch_size, rate):
    """Return what a learner's function returns for a run that is long enough."""
    steps_per_epoch = -(-len(x) // batch_size)
    return descend(x, y, batch_size, rate, -(-(BEFORE + FRAMES * UPDATES) // steps_per_epoch))


def _wrong(path: object, variance: object, setting: str) -> str:
    """Return a sentence about what cannot be drawn; "" if nothing."""
    rows = BEFORE + FRAMES * UPDATES + 1
    if not isinstance(path, np.ndarray) or path.ndim != 2 or path.shape[1] != 2 or len(path) < rows:
        found = (
            f"an array of the shape {path.shape}"
            if isinstance(path, np.ndarray)
            else f"{path!r:.40}"
        )
        return (
            f"For {setting} descend must return {rows:,} rows (w, b) or more. It returned {found}."
        )
    finite = np.isfinite(path).all(axis=1)
    if not finite.all():
        return f"With {setting} the path of descend is not finite after update {finite.argmin():,}."
    if not isinstance(variance, float | np.floating) or not 0 < variance < np.inf:
        return f"noise_variance must return a number above 0 for {setting}. It returned {variance!r:.40}."
    return ""


def _variances(x, y):
    """Return the variances of w and b for the first setting, which decide what the plot shows."""
    batch_size, rate = SETTINGS[0]
    return np.array(
        [solution.noise_variance(x, y, rate, batch_size), _variance_of_b(x, y, rate, batch_size)]
    )


def _variance_of_b(x, y, rate, batch_size):
    """Return the variance of b by the formula of exercise 3, with the gradients 2e and the curvature 2."""
    w, b = np.polyfit(x, y, 1)
    return rate * np.mean((2 * (w * x + b - y)) ** 2) / (2 * (2 - rate * 2) * batch_size)


def _step(number: int, frame: int, measured: float, radii: list) -> Step:
    """Return the words of a step.

    Args:
        measured: the root mean square of the distance of w from the minimum so far.
        radii: two standard deviations of w and b, for each setting.
    """
    (batch_size, rate), start = SETTINGS[number], BEFORE + frame * UPDATES
    predicted = radii[number][0] / 2
    sentences = [
        f"Updates {start + 1:,} to {start + UPDATES:,}. Since update {BEFORE + 1:,} the root mean square of "
        f"the distance of w from the minimum is {measured:.2f}. The formula predicts {predicted:.2f}."
    ]
    if number:
        ratio = radii[number][0] / radii[0][0]
        (first_size, first_rate), change = SETTINGS[0], []
        if rate != first_rate:
            change.append(f"{rate / first_rate:g} times the learning rate")
        if batch_size != first_size:
            change.append(f"{batch_size / first_size:g} times the batch")
        sentences.append(
            f"With {' and '.join(change)} the predicted ball has {ratio:.2f} times its first width. The "
            "outer dashed ball is the first one."
        )
    title = f"Step {number * FRAMES + frame + 1} of {len(SETTINGS) * FRAMES}"
    return Step(f"{title}: batch {batch_size}, learning rate {rate}", tuple(sentences))


def _ellipse(
    series: int, centre: np.ndarray, radii: np.ndarray, first: int, last: int | None = None
) -> Mark:
    angles = np.linspace(0, 2 * np.pi, 61)
    around = centre + radii * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return Mark(series, tuple(map(_point, around)), first, last)


def _point(row: np.ndarray) -> tuple[float, float]:
    """Return w and b with three decimal places, which is less than the width of a line."""
    return round(float(row[0]), 3), round(float(row[1]), 3)


def examples() -> tuple[np.ndarray, np.ndarray]:
    """Return the examples of the lab, `make_data(seed=1)`."""
    rng = np.random.default_rng(1)
    x = rng.uniform(0, 10, 100)
    y = 10 * (x + rng.normal(size=100)) + 2
    return x - x.mean(), y
