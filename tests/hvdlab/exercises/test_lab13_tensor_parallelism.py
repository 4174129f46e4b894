"""Unusual answers of lab 13, and its diagnosis; see also test_every_exercise.py."""

import re

import forked_ranks
import pytest
import split_blocks
import torch
from lab_functions import lab_functions
from split_blocks import f_and_g, part_of

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab13_tensor_parallelism as exercises
from hvdlab.exercises.harness import gloo_ranks


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (lambda *a: sum(exercises.parts(*a), []), "must return (columns, rows). Received: (Tensor, Tensor"),
        (lambda *a: (None, []), "columns must be a list of tensors. Received: None"),
    ],
)  # fmt: skip
def test_parts_that_are_no_two_lists(parts, says):
    with pytest.raises(NotYet, match=re.escape(says)):
        exercises.check_parts(parts)


def test_the_checks_leave_the_seed_of_the_learner_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    exercises.check_part_of(part_of)
    assert torch.equal(torch.rand(1), expected)


DIAGNOSIS = {
    "case_a": "bias on every rank",
    "case_b": "no f",
    "case_c": "all-reduce in g's backward pass",
}


@pytest.mark.slow
def test_a_diagnosis_is_held_against_what_the_case_does(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gloo_ranks, "call", forked_ranks.call)
    lab = lab_functions("13_splitting_layers.py", tmp_path, *DIAGNOSIS)
    cases = [getattr(lab, name) for name in DIAGNOSIS]
    exercises.check_diagnosis(DIAGNOSIS, cases, part_of, f_and_g)
    assert "each case was run on 2 ranks" in capsys.readouterr().out
    with pytest.raises(NotYet, match="case_b: with 'partial sums'.* each rank's part"):
        exercises.check_diagnosis(DIAGNOSIS | {"case_b": "partial sums"}, cases, part_of, f_and_g)


@pytest.mark.parametrize("none", [["no f"], None, 3, "no idea"])
def test_a_diagnosis_is_a_name(none):
    with pytest.raises(NotYet, match="no_f: .* is none of the mistakes: bias on every rank, part"):
        exercises.check_diagnosis({"no_f": none}, [split_blocks.no_f], part_of, f_and_g)
    with pytest.raises(NotYet, match="set diagnosis to a dict"):
        exercises.check_diagnosis(none, [split_blocks.no_f], part_of, f_and_g)
