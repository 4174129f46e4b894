"""An error in a learner's function becomes a sentence; a stub stays a stub."""

import pytest

from hvdlab.exercises import NotYet, call


def broken(x):
    return x / 0


def begun_not():
    raise NotImplementedError("Lab 1, exercise 1: ...")


def test_an_error_names_the_function_and_its_line():
    with pytest.raises(
        NotYet, match=r"^broken raises ZeroDivisionError: division by zero, in `return x / 0`\.$"
    ):
        call(broken, 1)


def test_another_name_can_be_given():
    with pytest.raises(NotYet, match="^your function raises"):
        call(broken, 1, name="your function")


def test_a_stub_goes_through():
    with pytest.raises(NotImplementedError, match="exercise 1"):
        call(begun_not)


def test_a_notebook_shows_the_sentence_alone():
    assert NotYet("the gradient is zero")._render_traceback_() == ["Not yet: the gradient is zero"]
