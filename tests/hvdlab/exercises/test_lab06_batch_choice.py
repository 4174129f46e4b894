"""The checks of lab 6 on norms, the law of steps and the choice of a batch name mistakes."""

import numpy as np
import pytest
from changed import changed

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab06_batch_choice as exercises

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


def norms(ranks):
    small = np.mean([sum(np.sum(part**2) for part in rank) for rank in ranks])
    average = [np.mean(parts, axis=0) for parts in zip(*ranks, strict=True)]
    big = sum(np.sum(part**2) for part in average)
    return small, big, average


def roots(ranks):
    small = np.mean([np.sqrt(sum(np.sum(part**2) for part in rank)) for rank in ranks])
    return small, np.sqrt(norms(ranks)[1]), norms(ranks)[2]


def in_place(ranks):
    for rank in ranks:
        for part in rank:
            part *= part
    return norms(ranks)


def law(batch, s_min, b_crit):
    steps = s_min * (1 + b_crit / batch)
    saved = 1 - (1 + b_crit / (2 * batch)) / (1 + b_crit / batch)
    return steps, steps * batch, saved


def choose(batches, steps, step_seconds, images_per_rank, price, deadline):
    best = None
    for batch, count, each in zip(batches, steps, step_seconds, strict=True):
        seconds = count * each
        cost = batch / images_per_rank * seconds / 3600 * price
        if seconds <= deadline and (best is None or cost < best[2]):
            best = batch, seconds, cost
    return best


def rescaled(weights, factor):
    first, bias, second, *rest = weights
    return [first / factor, bias / factor, second * factor, *rest]


def rescaled_in_place(weights, factor):
    weights[0] /= factor
    weights[1] /= factor
    weights[2] *= factor
    return weights


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        (exercises.check_norms_before_and_after, norms),
        (exercises.check_scaling_law, law),
        (exercises.check_choose_batch, choose),
        (exercises.check_rescaled, rescaled),
    ],
)
def test_right_answers_pass(check, answer, capsys):
    check(answer)
    assert capsys.readouterr().out.startswith("Right: ")


MISTAKES[exercises.check_norms_before_and_after] = [
    (roots, "norms without the square"),
    (changed(norms, "np.mean([sum", "np.sum([sum"), "sum over the ranks: divide it"),
    (changed(norms, "np.mean(parts", "np.sum(parts"), "divide by their number"),
    (lambda ranks: (norms(ranks)[0], 4 * norms(ranks)[1], norms(ranks)[2]), "sum of the gradients"),
    (lambda ranks: (norms([r[:1] for r in ranks])[0], *norms(ranks)[1:]), "first array of each rank only"),
    (lambda ranks: (norms(ranks)[0], norms(ranks)[0], norms(ranks)[2]), "average first"),
    (lambda ranks: (*norms(ranks)[1::-1], norms(ranks)[2]), "swapped"),
    (changed(norms, "axis=0", "axis=None"), "Average over the ranks only"),
    (lambda ranks: norms(ranks)[:2], "must return three things"),
    (lambda ranks: (*norms(ranks)[:2], 1.0), "must be a list with one array"),
    (lambda ranks: None, "is `return` missing"),
    (in_place, "changes the gradients"),
]  # fmt: skip

MISTAKES[exercises.check_scaling_law] = [
    (changed(law, "steps = s_min * (1 + b_crit / batch)", "steps = s_min * (1 + batch / b_crit)"),
     "upside down"),
    (changed(law, "steps * batch", "steps"), "every step reads `batch` images"),
    (changed(law, "steps * batch", "steps * s_min / 10"), "every step reads `batch` images"),
    (lambda *a: (*law(*a)[:2], 1 - law(*a)[2]), "fraction of the steps that remains"),
    (lambda *a: (*law(*a)[:2], law(*a)[0] * law(*a)[2]), "number of steps saved"),
    (lambda *a: (*law(*a)[:2], 1 / (1 - law(*a)[2])), "divide the steps of the doubled batch"),
    (lambda *a: (*law(*a)[:2], 100 * law(*a)[2]), "not a percentage"),
    (lambda *a: law(*a)[:2], "must return 3 numbers"),
    (lambda *a: tuple(map(float, np.mean(np.broadcast_arrays(*law(*a)), axis=1)))
     if np.ndim(a[0]) else law(*a), "shape"),
]  # fmt: skip

MISTAKES[exercises.check_choose_batch] = [
    (changed(choose, " / 3600", ""), "per hour"),
    (changed(choose, "batch / images_per_rank * ", ""), "one rank only"),
    (changed(choose, "batch / images_per_rank * ", "batch * "), "images instead of ranks"),
    (changed(choose, "cost < best[2]", "seconds < best[1]"), "fastest run"),
    (changed(choose, "seconds <= deadline and ", ""), "too late"),
    (changed(choose, "seconds = count * each", "seconds = count"), "steps, not seconds"),
    (changed(choose, "seconds <= deadline", "seconds < deadline"), "meets it"),
    (changed(choose, " and (best is None or cost < best[2])", ""), "costs more than another"),
    (changed(choose, " and (best is None or cost < best[2])", " and best is None"), "fastest|costs more"),
    (lambda *a: choose(*a) or (0, 0, 0), "expected None"),
    (lambda *a: None, "returned None"),
    (lambda *a: choose(*a) and choose(*a)[0], "must return 3 numbers"),
]  # fmt: skip

MISTAKES[exercises.check_rescaled] = [
    (lambda weights, factor: weights, "Nothing was changed"),
    (changed(rescaled, "bias / factor", "bias"), "bias of the first layer"),
    (changed(rescaled, "second * factor", "second"), "does not compensate"),
    (changed(rescaled, "*rest]", "rest[0] * factor, *rest[1:]]"), "bias of the second layer"),
    (lambda weights, factor: rescaled(weights, 1 / factor), "other way round"),
    (lambda weights, factor: rescaled(weights, factor)[:3], "list of four arrays"),
    (rescaled_in_place, "changes the weights"),
    (lambda weights, factor: None, "list of four arrays"),
]


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
