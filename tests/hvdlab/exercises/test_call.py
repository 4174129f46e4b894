"""An error in a learner's function becomes a sentence; a stub stays a stub."""

from functools import partial

import pytest

from hvdlab.exercises import NotYet, call, call_unchanged


def broken(x):
    return x / 0


def begun_not():
    raise NotImplementedError("Lab 2, exercise 1: ...")


def test_an_error_names_the_function_and_its_line():
    with pytest.raises(
        NotYet, match=r"^broken raises ZeroDivisionError: division by zero, in `return x / 0`\.$"
    ):
        call(broken, 1)


def test_another_name_can_be_given():
    with pytest.raises(NotYet, match="^your function raises"):
        call(broken, 1, name="your function")


def test_what_is_no_function_any_more_is_said_to_be_that():
    """`gradient = gradient(w, b, x, y)` is soon written."""
    with pytest.raises(
        NotYet, match=r"needs a function and got \(1, 2\)\. Run the cell that defines the function"
    ):
        call((1, 2), 3)
    with pytest.raises(NotYet, match="needs a function and got None"):
        call_unchanged(None, 3)
    with pytest.raises(NotYet, match="^your function raises ZeroDivisionError"):
        call_unchanged(partial(broken), 1)


def test_a_stub_goes_through():
    with pytest.raises(NotImplementedError, match="exercise 1"):
        call(begun_not)


def test_a_notebook_shows_the_sentence_alone():
    assert NotYet("the gradient is zero")._render_traceback_() == ["Not yet: the gradient is zero"]
