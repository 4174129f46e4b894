"""Exercises of lab 7: a schedule with a stable part, the orthogonalisation of Muon, and a review."""

import math

import numpy as np

from hvdlab.exercises import NotYet, call, numbers, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview


def wsd_rates(base_rate, ranks, warmup_steps, decay_steps, total_steps):
    peak, decay_begins = base_rate * ranks, total_steps - decay_steps
    rates = []
    for step in range(total_steps):
        rate = peak
        if step < warmup_steps:
            rate = peak * (step + 1) / warmup_steps
        elif step >= decay_begins:
            rate = peak * (1 - 0.9 * (step + 1 - decay_begins) / decay_steps)
        rates.append(rate)
    return rates


FLOAT32 = 1e-6  # relative tolerance of learning rates, which may be float32


def _plan(answer, base_rate, ranks, warmup_steps, decay_steps, total_steps) -> np.ndarray:
    """Return the learning rates of an answer, one per step."""
    name = getattr(answer, "__name__", "your function")
    given = call(answer, base_rate, ranks, warmup_steps, decay_steps, total_steps)
    try:
        length = len(given)
    except TypeError:  # a number, None, a function
        raise NotYet(
            f"{name} must return a list of learning rates. Received: {received(given)}"
        ) from None
    return numbers(given, name, (length,), "of learning rates")


def _properties(answer, base_rate, ranks, warmup_steps, decay_steps, total_steps) -> dict:
    """Return what the rubric measures, with the words of the rubric."""
    lengths = warmup_steps, decay_steps
    rates = _plan(answer, base_rate, ranks, *lengths, total_steps)
    longer = _plan(answer, base_rate, ranks, *lengths, 2 * total_steps)
    found = {"the number of learning rates of": len(rates)}
    if len(rates) != total_steps:
        return found
    peak, decay_begins = base_rate * ranks, total_steps - decay_steps
    before = rates[:warmup_steps]
    stable = rates[max(warmup_steps - 1, 0) : decay_begins]
    falls = -np.diff(rates[decay_begins - 1 :])
    differs = np.flatnonzero(~np.isclose(rates, longer[:total_steps], rtol=FLOAT32, atol=0))
    return found | {
        # without the decay, which falls, so that mistakes do not depend on its shape
        "the highest learning rate of": rates[:decay_begins].max(),
        "the number of warmup steps that do not rise in": int(
            (np.diff(before, prepend=0) <= 0).sum()
        ),
        "the number of steps from the end of the warmup to the decay that do not have the peak in": int(
            (~np.isclose(stable, peak, rtol=FLOAT32, atol=0)).sum()
        ),
        "the number of decay steps that do not fall in": int((falls <= 0).sum()),
        "last learning rate above 0:": bool(rates[-1] > 0),
        "last learning rate at most a tenth of the peak:": bool(
            rates[-1] <= 0.1 * peak * (1 + FLOAT32)
        ),
        "the first step in which a run of twice as many steps differs from": (
            int(differs[0]) if len(differs) else total_steps
        ),
    }


# fmt: off
RUBRIC = "The text of the exercise lists what the check measures."
check_wsd_rates = FunctionExercise(
    wsd_rates,
    [
        Case((0.1, 4, 3, 4, 12), f"The peak is 4 x 0.1 = 0.4. Steps 0 to 2 are the warmup, and steps 8 to 11 "
             f"the decay. {RUBRIC}",
             expected={"the number of learning rates of": 12, "the highest learning rate of": 0.4,
                       "the first step in which a run of twice as many steps differs from": 8}),
        Case((0.02, 1, 0, 5, 20), "There is no warmup, so the first step has the peak, 0.02. The decay "
             "has the steps 15 to 19.",
             expected={"the highest learning rate of": 0.02,
                       "the first step in which a run of twice as many steps differs from": 15}),
        Case((0.05, 8, 10, 20, 100), "The peak is 0.4. The warmup has 10 steps, and the decay the last 20.",
             expected={"the first step in which a run of twice as many steps differs from": 80}),
        Case((0.3, 2, 1, 1, 6), "Warmup and decay have one step each, so steps 0 to 4 have the peak."),
        Case((0.1, 2, 3, 5, 8), "The decay follows the warmup at once. Step 2 has the peak, 0.2."),
        Case((0.1, 1, 4, 4, 12), "With one rank the peak is the base learning rate, 0.1. So the warmup must "
             "begin below the base learning rate."),
        Case((0.002, 4, 5, 5, 20), "The peak is 4 x 0.002 = 0.008, so the warmup must begin below 0.008.",
             expected={"the highest learning rate of": 0.008}),
    ],
    {
        "The peak is not scaled: it is the base learning rate times the number of ranks.":
            ("base_rate * ranks", "base_rate"),
        "The peak follows the square-root rule: it is the base learning rate times the number of ranks.":
            ("base_rate * ranks", "base_rate * ranks**0.5"),
        "The warmup is one step late, so that step 0 does not train at all: it is the first that rises.":
            ("(step + 1) / warmup_steps", "step / warmup_steps"),
        "The warmup begins at the base learning rate, which is the peak if there is one rank: begin lower.":
            ("peak * (step + 1) / warmup_steps",
             "base_rate + (peak - base_rate) * (step + 1) / warmup_steps"),
        "The warmup begins at 0.01, which may be above the peak: begin at a fraction of the peak.":
            ("peak * (step + 1) / warmup_steps", "0.01 + (peak - 0.01) * (step + 1) / warmup_steps"),
        "The last warmup step is below the peak: step `warmup_steps - 1` has the peak.":
            ("(step + 1) / warmup_steps", "(step + 1) / (warmup_steps + 1)"),
        "There is no warmup.": ("if step < warmup_steps", "if False"),
        "The decay never begins: the last `decay_steps` steps fall.":
            ("elif step >= decay_begins", "elif False"),
        "The decay begins at the end of the warmup: it has only the last `decay_steps` steps. So a longer "
        "run differs from the first step after the warmup on.":
            ("total_steps - decay_steps", "warmup_steps", "/ decay_steps", "/ (total_steps - warmup_steps)"),
        "The decay begins one step early: it has `decay_steps` steps.":
            ("total_steps - decay_steps", "total_steps - decay_steps - 1",
             "/ decay_steps", "/ (decay_steps + 1)"),
        "The first decay step still has the peak, so only `decay_steps - 1` steps fall.":
            ("(step + 1 - decay_begins) / decay_steps", "(step - decay_begins) / max(decay_steps - 1, 1)"),
        "The last learning rate is 0, so the last step does not train: end above 0.": ("0.9 *", "1.0 *"),
        "The decay ends too high: the last step has at most a tenth of the peak.": ("0.9 *", "0.5 *"),
        "The decay jumps to a small learning rate and stays there: it falls in every step.":
            ("(1 - 0.9 * (step + 1 - decay_begins) / decay_steps)", "0.1"),
        "The plan has one learning rate too many: the steps are 0 to total_steps - 1.":
            ("range(total_steps)", "range(total_steps + 1)"),
    },
    passed="every point of the rubric holds, in seven runs with and without a warmup. The steps before the "
    "decay do not depend on the length of the run, so it can be continued from there.",
    observe=_properties,
)
# fmt: on


def orthogonalize(matrix, steps):
    x = matrix / max(np.linalg.norm(matrix), 1e-7)
    for _ in range(steps):
        x = 1.5 * x - 0.5 * x @ x.T @ x
    return x


DIAGONAL = np.diag([3.0, 4.0])
TURNED = np.array([[3.0, 4.0], [4.0, -3.0]])  # all singular values are 5
WIDE = np.random.default_rng(9).normal(size=(3, 5)) + np.eye(3, 5)


def u_vt(matrix: np.ndarray) -> np.ndarray:
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    return u @ vt


# fmt: off
check_orthogonalize = FunctionExercise(
    orthogonalize,
    [
        Case((DIAGONAL, 0), "Without a step the matrix is only divided by its norm, 5.",
             "orthogonalize of diag(3, 4) with 0 steps", np.diag([0.6, 0.8])),
        Case((DIAGONAL, 1), "The singular values 0.6 and 0.8 become 1.5 s - 0.5 s^3.",
             "orthogonalize of diag(3, 4) with 1 step", np.diag([0.792, 0.944])),
        Case((TURNED, 20), "The matrix becomes U V^T, here the matrix divided by 5.",
             "orthogonalize of [[3, 4], [4, -3]] with 20 steps", TURNED / 5),
        Case((np.zeros((2, 3)), 5), "A gradient of zeros must stay zeros: dividing by its norm gives nan.",
             "orthogonalize of 2 x 3 zeros with 5 steps", np.zeros((2, 3))),
        Case((WIDE, 3), "A step is 1.5 X - 0.5 X X^T X, with matrix products.",
             "orthogonalize of 3 x 5 random numbers with 3 steps"),
        Case((WIDE, 40), "With many steps the result is U V^T of NumPy's SVD.",
             "orthogonalize of 3 x 5 random numbers with 40 steps", u_vt(WIDE)),
        Case((WIDE.T.copy(), 40), "With many steps the result is U V^T of NumPy's SVD.",
             "orthogonalize of 5 x 3 random numbers with 40 steps", u_vt(WIDE.T)),
    ],
    {
        "The matrix is not divided by its norm, so the steps need not converge: divide once, before them.":
            (" / max(np.linalg.norm(matrix), 1e-7)", ""),
        "A norm of 0 gives nan: divide by max(norm, a small number).":
            ("max(np.linalg.norm(matrix), 1e-7)", "np.linalg.norm(matrix)"),
        "The result is multiplied by the norm again: the singular values stay near 1.":
            ("return x", "return x * np.linalg.norm(matrix)"),
        "You divide by the largest singular value: divide by the root of the sum of all squares.":
            ("max(np.linalg.norm(matrix), 1e-7)", "max(np.linalg.norm(matrix, 2), 1e-7)"),
        "You divide by the largest entry: divide by the root of the sum of all squares.":
            ("max(np.linalg.norm(matrix), 1e-7)", "max(np.abs(matrix).max(), 1e-7)"),
        "You divide by the squared norm: take the root.": ("max(np.linalg.norm(matrix), 1e-7)",
                                                           "max(np.linalg.norm(matrix) ** 2, 1e-7)"),
        "The powers are those of the entries, as in x ** 3: use matrix products, x @ x.T @ x.":
            ("x @ x.T @ x", "x**3"),
        "The factors 1.5 and 0.5 are interchanged.": ("1.5 * x - 0.5", "0.5 * x - 1.5"),
        "The cubic term is added: subtract it.": ("x - 0.5", "x + 0.5"),
        "The factor 0.5 is missing.": ("- 0.5 * x @", "- x @"),
        "There is one step too many.": ("range(steps)", "range(steps + 1)"),
        "There is only one step: repeat it `steps` times.": ("range(steps)", "range(min(steps, 1))"),
        "Each step divides by the norm again: divide only once, before the steps.":
            [("1.5 * x - 0.5 * x @ x.T @ x", "(1.5 * x - 0.5 * x @ x.T @ x) / max(np.linalg.norm("
              "1.5 * x - 0.5 * x @ x.T @ x), 1e-7)"),
             ("        x = 1.5", "        x = x / max(np.linalg.norm(x), 1e-7)\n        x = 1.5"),
             ("x = matrix / max(np.linalg.norm(matrix), 1e-7)", "x = matrix",
              "        x = 1.5", "        x = x / max(np.linalg.norm(x), 1e-7)\n        x = 1.5")],
    },
    passed="one step by hand, a matrix of zeros, and U V^T of NumPy's SVD for a wide and a tall matrix.",
    shape=None, rtol=1e-5, atol=1e-7,
)
# fmt: on

BASE_RATE = 0.1


def rates_of_run(images, batch, ranks, epochs, warmup_epochs, first_epoch):
    """Return the learning rates of a run that starts with first_epoch; batch is that of one rank."""
    steps = math.ceil(images / (batch * ranks))  # per epoch
    warmup, total, peak = warmup_epochs * steps, epochs * steps, 0.1 * ranks
    rates = []
    for step in range(first_epoch * steps, total):
        if step < warmup:
            rates.append(0.1 + (peak - 0.1) * (step + 1) / warmup)
        else:
            rates.append(peak * (total - step) / (total - warmup))
    return rates


def _fault(rates_of_run, images, batch, ranks, epochs, warmup_epochs, first_epoch) -> str:
    """Return the first property of the schedule that does not hold."""
    run = images, batch, ranks, epochs, warmup_epochs
    rates, whole = np.array(rates_of_run(*run, first_epoch)), np.array(rates_of_run(*run, 0))
    steps = -(-images // (batch * ranks))
    warmup, total, peak = warmup_epochs * steps, epochs * steps, BASE_RATE * ranks
    if len(whole) != total or len(rates) != total - first_epoch * steps:
        return f"An epoch has {steps} steps, and the run does not have so many learning rates."
    if warmup and not np.isclose(whole[warmup - 1], peak):
        return (
            f"The warmup ends with step {warmup - 1}, which has {whole[warmup - 1]:.3g} "
            f"instead of {peak:.3g}."
        )
    if not np.isclose(whole[warmup], peak):
        return f"After the warmup, step {warmup} has {whole[warmup]:.3g} instead of the full {peak:.3g}."
    if (np.diff(whole[:warmup]) < -1e-12).any() or (np.diff(whole[warmup:]) > 1e-12).any():
        return "The learning rate falls in the warmup or rises after it."
    if not np.allclose(rates, whole[first_epoch * steps :]):
        return (
            f"After a restart in epoch {first_epoch} the learning rate begins with {rates[0]:.3g}, and the "
            f"uninterrupted run has {whole[first_epoch * steps]:.3g} there."
        )
    return ""


def _unusable(images, batch, ranks, epochs, warmup_epochs, first_epoch) -> str:
    """Return why a case is no run, or ""."""
    if min(images, batch, ranks) < 1 or max(images, batch, ranks) > 1_000_000:
        return "images, batch and ranks must be 1 to 1,000,000."
    if -(-images // (batch * ranks)) * epochs > 100_000:
        return "the run must have at most 100,000 steps."
    if not 0 <= warmup_epochs < epochs:
        return "warmup_epochs must be at least 0 and less than epochs."
    if not 0 <= first_epoch < epochs:
        return "first_epoch must be at least 0 and less than epochs."
    return ""


NAMES = "images", "batch", "ranks", "epochs", "warmup_epochs", "first_epoch"
TRIED = [
    (1280, 32, 4, 5, 1, 0), (1000, 32, 4, 5, 1, 0), (1000, 64, 3, 6, 2, 0), (1280, 32, 4, 5, 0, 0),
    (1280, 32, 4, 5, 1, 3), (1000, 64, 3, 6, 2, 1), (100, 64, 3, 6, 1, 0), (100, 64, 1, 6, 3, 2),
    (7, 1, 1, 2, 1, 1), (1, 1, 1, 3, 0, 0), (999, 10, 7, 4, 3, 0), (130, 64, 2, 4, 1, 0),
]  # fmt: skip
# fmt: off
SCHEDULE_REVIEW = PatchReview(
    rates_of_run,
    {
        # Rounds the warmup to the nearest step, although an uneven number of images makes its epochs longer.
        "a": ("warmup, total, peak = warmup_epochs * steps,",
              "warmup, total, peak = round(warmup_epochs * images / (batch * ranks)),"),
        # Correct: before the end of the warmup the decay line is higher, and after it the warmup line is.
        "b": ("""        if step < warmup:
            rates.append(0.1 + (peak - 0.1) * (step + 1) / warmup)
        else:
            rates.append(peak * (total - step) / (total - warmup))
""", """        rising = 0.1 + (peak - 0.1) * (step + 1) / max(warmup, 1)
        falling = peak * (total - step) / (total - warmup)
        rates.append(min(rising, falling))
"""),
        # Counts from 0 after a restart.
        "c": ("range(first_epoch * steps, total)", "range(total - first_epoch * steps)"),
        # Divides by 0 if the warmup has a single step.
        "d": ("(step + 1) / warmup", "step / (warmup - 1)"),
    },
    _fault,
    example=dict(zip(NAMES, TRIED[0], strict=True)),
    tried=[dict(zip(NAMES, each, strict=True)) for each in TRIED],
    check_case=_unusable,
)


def review_schedule():
    run = {"images": 1000, "batch": 64, "ranks": 3, "epochs": 6, "warmup_epochs": 2, "first_epoch": 0}
    return {"a": run, "b": "correct", "c": {**run, "first_epoch": 1},
            "d": {**run, "images": 100, "warmup_epochs": 1}}


check_review_schedule = FunctionExercise(
    review_schedule,
    [Case((), "A correct patch holds in every run, and each of the others fails in your case.")],
    passed="patch b is the same schedule in other words. Patch a needs an uneven number of images to fail, "
    "patch c a restart, and patch d a warmup of a single step.",
    observe=SCHEDULE_REVIEW.verdicts, name="review_schedule",
)
# fmt: on
