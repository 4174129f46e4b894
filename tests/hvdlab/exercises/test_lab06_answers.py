"""Answers of lab 6 that are not of the form that an exercise asks for get a sentence of their own."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab06_batch_choice as lab


def squares_in_place(ranks):
    for part in ranks[0]:
        part *= part
    return lab.norms_before_and_after(ranks)


def in_place(weights, factor):
    for n, by in enumerate((1 / factor, 1 / factor, factor)):
        weights[n] *= by
    return weights


@pytest.mark.parametrize(
    ("check", "wrong", "says"),
    [
        (lab.check_norms_before_and_after, lambda ranks: (15, 9), "must return three things"),
        (lab.check_norms_before_and_after, lambda ranks: (15, 9, 1.0), "a list with one array"),
        (lab.check_norms_before_and_after, squares_in_place, "changes what it is given"),
        (lab.check_choose_batch, lambda *a: np.int64(32), "must return 3 numbers .* or None"),
        (lab.check_rescaled, lambda *a: lab.rescaled(*a)[:3], "a list of 4 arrays"),
        (lab.check_rescaled, lambda *a: [0.5, 0.25, 12, 5], r"their shape must be \(1, 1\)"),
        (lab.check_rescaled, in_place, "changes what it is given"),
    ],
)
def test_another_form_is_named(check, wrong, says):
    with pytest.raises(NotYet, match=says):
        check(wrong)
