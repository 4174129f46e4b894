"""Checks for the exercises of the labs: one module per lab, one function `check_...` per exercise.

A check calls the learner's function on cases that are small enough to compute by hand. It prints
`Right: ...` when every answer is right. Otherwise it raises `NotYet`, whose message says what is wrong and
names the mistake where the answer shows which one it is. An exercise that is still a stub raises its own
NotImplementedError, which a notebook shows like NotYet (hvdlab/course/notebook.py). A check does not grade.

A check that a lab calls has the decorator `exercise`, so that `hvdlab progress` can count it:

    @exercise
    def check_gradient(gradient: Callable) -> None:

A check whose first parameter is called `case`, a number as in lab 16, counts as one exercise per case. The
labs call a check as an attribute of its module, `exercises.check_gradient(gradient)`.
`tests/hvdlab/exercises/test_exercise.py` names the checks that lack the decorator.
"""

import copy
import functools
import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec

import numpy as np

from hvdlab import HvdlabError
from hvdlab.course import check_box, experiment
from hvdlab.course.answers_file import SolvedExercise, learners_file, now
from hvdlab.course.lab_source import exercise_id

Parameters = ParamSpec("Parameters")

MAX_SHOWN_NUMBERS = 8  # a message shows smaller arrays, and not larger ones
MAX_SHOWN_LETTERS = 200
CHECKS = str(Path(__file__).parent)  # a line in this folder is not the learner's


class NotYet(HvdlabError, AssertionError):
    """An answer that is not right yet; the message says what is wrong and what to do."""

    def _render_traceback_(self) -> list[str]:  # IPython calls this, and its kernel a second time
        return [self._shown]

    @functools.cached_property
    def _shown(self) -> str:
        return check_box.show("Not yet", str(self))


class NotRun(HvdlabError):
    """The check does not run the answer, because LAB_QUICK or LAB_REFERENCE is set."""


def exercise(check: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Keep in a learner's notebook that the exercise is solved, if its check raises nothing.

    A check that raises NotRun prints that the answer was not checked, and nothing is kept.

    An answer that the check did not expect, such as None, may raise any error in it. It becomes NotYet.
    """
    lab = int(re.search(r"lab(\d\d)_", check.__module__)[1])
    by_case = next(iter(inspect.signature(check).parameters)) == "case"

    @functools.wraps(check)
    def checked(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            with unusable_answers():
                check(*arguments, **options)
        except NotRun:
            print(
                "Not checked: a quick run does not run your answer, so it does not count as right."
            )
            return
        record_solved(lab, check.__name__, arguments[0] if by_case else None)

    return checked


@contextmanager
def unusable_answers() -> Iterator[None]:
    """Raise NotYet where a check stumbles over an answer that it did not expect, such as None."""
    try:
        yield
    except (HvdlabError, NotImplementedError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise NotYet(f"the check cannot use this answer. It raises {what}.") from error


def record_solved(lab: int, check: str, case: int | None = None) -> None:
    """Keep in a learner's notebook that an exercise is solved.

    Args:
        check: name of the check.
        case: number of the case, if the exercise has several.
    """
    if file := learners_file():
        file.add(SolvedExercise(lab, exercise_id(lab, check, case), now()))


def right(text: str) -> None:
    """Say that the answer is right."""
    line = check_box.show("Right", text)
    if not experiment.NOTEBOOK:
        print(line)


def call(function: Callable, *arguments: object, name: str | None = None) -> object:
    """Return `function(*arguments)`; turn an error in the function into a sentence.

    Args:
        name: What the sentence calls the function. Default: its own name.

    Returns:
        What the function returns.

    Raises:
        NotYet: `function` is not callable, or it raises an error; the message quotes the failing line.
        NotImplementedError: The exercise is still a stub.
    """
    name = name or getattr(function, "__name__", "your function")
    if not callable(function):
        raise NotYet(
            f"The check needs a function and got {function!r}. Run the cell that defines the function again, "
            "and store its result under another name."
        )
    try:
        return function(*arguments)
    except (NotImplementedError, NotYet):
        raise
    except Exception as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.line and not frame.filename.startswith(CHECKS)
        ]
        where = f", in `{frames[0].line}`" if frames else ""
        raise NotYet(f"{name} raises {type(error).__name__}: {error}{where}.") from error


def call_unchanged(function: Callable, *arguments: object, name: str | None = None) -> object:
    """Return `call(function, *arguments)` if the function leaves its arguments unchanged.

    Args:
        name: What the message calls the function. Default: its own name.

    Returns:
        What the function returns.

    Raises:
        NotYet: The function raises an error, or changes a list or an array that it was given.
        NotImplementedError: The exercise is still a stub.
    """
    name = name or getattr(function, "__name__", "your function")
    before = copy.deepcopy(arguments)
    answer = call(function, *arguments, name=name)
    for old, new in zip(before, arguments, strict=True):
        if not unchanged(old, new):
            raise NotYet(
                f"{name} changes what it is given: {received(old)} is {received(new)} afterwards. The caller "
                "still needs it, so work on a copy."
            )
    return answer


def unchanged(old: object, new: object) -> bool:
    """Return whether two values are equal: numbers, arrays, text, or lists, tuples and dicts."""
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(unchanged(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(unchanged, old, new))
    try:
        return np.array_equal(old, new, equal_nan=True)
    except TypeError:  # text and None cannot be nan
        return np.array_equal(old, new)
    except RuntimeError:  # a tensor that requires a gradient
        return bool((old == new).all())


def numbers(
    answer: object, case: str, shape: int | tuple[int, ...] | None, meaning: str = ""
) -> np.ndarray:
    """Return an answer as an array of floats of the required shape.

    Args:
        case: The call, for the message, for example "ring_time(8000, 4)".
        shape: The exact shape; or how many numbers, in any shape; None accepts every shape.

    Raises:
        NotYet: The answer is None, is not numeric, or has another shape.
    """
    if answer is None:
        raise NotYet(f"{case} returned None: is `return` missing?")
    try:
        array = None if isinstance(answer, str) else np.asarray(answer, float)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor that requires a gradient
        array = None
    if isinstance(shape, int):
        expected = {1: "one number", 2: "two numbers"}.get(shape, f"{shape} numbers")
        if array is not None and array.size == shape:
            return array.reshape(shape)
    else:
        expected = "an array of numbers" + (f" of shape {shape}" if shape is not None else "")
        if array is not None and shape in (None, array.shape):
            return array
    raise NotYet(
        f"{case} must return {f'{expected} {meaning}'.strip()}. Received: {received(answer)}"
    )


def received(answer: object) -> str:
    """Return an answer that cannot be used, as one short line."""
    if isinstance(answer, np.ndarray) and answer.size > MAX_SHOWN_NUMBERS:
        return f"an array of shape {answer.shape}"
    line = " ".join(repr(answer).split())
    return line if len(line) <= MAX_SHOWN_LETTERS else f"{line[:MAX_SHOWN_LETTERS]} ..."


def number(answer: object, case: str, meaning: str = "") -> float:
    """Return an answer as one float.

    Args:
        meaning: What the number is, for the message, for example "of seconds".

    Raises:
        NotYet: The answer is not one number.
    """
    return float(numbers(answer, case, 1, meaning)[0])


def compare(
    case: str,
    answer: object,
    expected: object,
    mistakes: Mapping[str, object] | None = None,
    otherwise: str = "",
    rtol: float = 1e-6,
    atol: float = 1e-9,
) -> None:
    """Raise NotYet unless an answer is the expected one, and name the mistake that gives this answer.

    Args:
        case: What was computed, for example "ring_time(8000, 4)".
        expected: The right answer, in the same shape.
        mistakes: From a sentence about a mistake to the answer that it gives, or to a list of such answers.
            The first match is named. None in a tuple stands for any number.
        rtol: Relative tolerance of all comparisons.
        atol: Absolute tolerance of all comparisons.

    Raises:
        NotYet: The answer is not the expected one.
    """
    if equal(answer, expected, rtol, atol):
        return
    named = otherwise
    for sentence, wrong in (mistakes or {}).items():
        answers = wrong if isinstance(wrong, list) else [wrong]
        if any(equal(answer, each, rtol, atol) for each in answers):
            named = sentence
            break
    if np.asarray(answer).size > MAX_SHOWN_NUMBERS:
        raise NotYet(f"{case} is wrong. {named}".strip())
    raise NotYet(f"{case} is {shown(answer)}, expected {shown(expected)}. {named}".strip())


def equal(answer: object, other: object, rtol: float, atol: float) -> bool:
    """Return whether two numbers or arrays are equal; None in a tuple stands for any number."""
    if isinstance(other, tuple) and None in other:
        pairs = zip(np.ravel(answer), other, strict=True)
        return all(b is None or math.isclose(a, b, rel_tol=rtol, abs_tol=atol) for a, b in pairs)
    return np.shape(answer) == np.shape(other) and np.allclose(
        answer, other, rtol=rtol, atol=atol, equal_nan=True
    )


def shown(values: object) -> str:
    """Return numbers as text for a message: four significant digits, or more for large whole numbers.

    Args:
        values: A number, an array or a tuple of numbers, a text, or None.
    """
    if values is None or isinstance(values, bool | str):
        return repr(values)
    if isinstance(values, tuple):
        return f"({', '.join(map(shown, values))})"
    if np.ndim(values):
        return f"[{', '.join(map(shown, values))}]"
    value = float(values)
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.4g}"
