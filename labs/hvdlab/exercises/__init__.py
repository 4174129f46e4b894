"""The checks behind the exercises: one module a lab, one function an exercise.

A check takes what the learner wrote, tries it on cases small enough to do by hand, and says either
`right(...)` or raises `NotYet` with what is wrong in words of the exercise. Nothing is graded here.
"""

import copy
import traceback

import numpy as np


class NotYet(AssertionError):
    """An answer that is not right yet: one or two sentences that say what is wrong, and a way on.

    A notebook shows the sentence alone, without a traceback.
    """

    def _render_traceback_(self):  # IPython asks for this
        return [f"Not yet: {self}"]


def right(text: str) -> None:
    """Tell the learner that the answer holds, and what it was checked on."""
    print(f"Right: {text}")


def call(function, *arguments, name: str | None = None):
    """Return `function(*arguments)`; an error in it becomes a sentence with the line it is in.

    `NotImplementedError` goes through: the exercise has not been begun. `name` is what the sentence
    calls the function, by default its own name.
    """
    name = name or getattr(function, "__name__", "your function")
    if not callable(function):
        raise NotYet(
            f"The check needs a function and got {function!r}: run the cell that defines it again, and give "
            "its results another name."
        )
    try:
        return function(*arguments)
    except (NotImplementedError, NotYet):
        raise
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__)[1:] if frame.line]
        where = f", in `{own[0].line}`" if own else ""
        raise NotYet(f"{name} raises {type(error).__name__}: {error}{where}.") from error


def call_unchanged(function, *arguments, name: str | None = None):
    """`call`, and NotYet if the function changes a list or an array that it is given."""
    name = name or getattr(function, "__name__", "your function")
    before = copy.deepcopy(arguments)
    answer = call(function, *arguments, name=name)
    for was, now in zip(before, arguments, strict=True):
        if not np.array_equal(was, now, equal_nan=True):
            raise NotYet(
                f"{name} changes what it is given: {was} is {now} afterwards. "
                "Others still need it, so work on a copy."
            )
    return answer
