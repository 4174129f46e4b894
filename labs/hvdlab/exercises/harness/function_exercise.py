"""An exercise as data: the right function, cases, and the usual mistakes as edits of the right function.

    check_double = FunctionExercise(
        double,                                     # the right function
        [Case((3,), "Twice 3 is 6."), Case((0,))],
        {"That is the square: add x to itself.": ("2 * x", "x * x")},
        passed="your function doubles.",
    )

One runner serves all of them, so that what must hold for every exercise is written and tested once:
`tests/hvdlab/exercises/test_every_exercise.py`.
"""

import copy
import inspect
import linecache
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hvdlab.course.lab_source import exercise_id
from hvdlab.exercises import (
    MAX_SHOWN_NUMBERS,
    NotYet,
    call_unchanged,
    equal,
    numbers,
    received,
    record_solved,
    right,
    shown,
    unusable_answers,
)

SECONDS = 20  # for all cases of one function; the right ones need less than one


@dataclass(frozen=True, eq=False)
class Case:
    """Arguments of a learner's function.

    Attributes:
        arguments: what it is called with.
        reason: said about a wrong answer that no mistake explains: whole sentences. Default "": nothing.
        call: what the message calls this case. Default "": the call, with the names of the parameters.
        expected: the right answer, where it was computed by hand or by other code; a dict, if the values
            have names. The tests compare the right function with it. Default None.
    """

    arguments: tuple
    reason: str = ""
    call: str = ""
    expected: object = None


# A mistake is an edit of the source of the right function (old text, new text, old, new, ...), or a function.
Mistake = tuple[str, ...] | Callable


class FunctionExercise:
    """The check of an exercise in which a learner writes a function.

    The check calls the learner's function on the cases in order. At the first wrong answer it shows the case,
    the answer, the right answer, and the mistake that gives the learner's answers in all cases. If there is
    none, it shows the reason of the case and names no mistake, because that would be a guess.

    Args:
        right: the right function, or class.
        cases: the cases.
        mistakes: sentence -> the mistake that it describes, or a list of such mistakes.
        name: of the exercise. Default: the name of the right function.
        passed: said after "Right: " if every answer is right.
        shape: what the function returns: the shape of an array; or how many numbers, in any shape; None: an
            array of any shape; bool: True or False. Default: one number.
        meaning: what the numbers are, for the message about another shape, for example "of seconds".
        observe: called with a function and the arguments of a case; returns what is compared: one value as
            above, or a dict of values with a name each, which are compared in order. None is a value, too.
            Default: the result of the function, which must leave its arguments unchanged.
        telling: whether equal answers in all cases show the mistake. False, where the answers are few, as of
            a choice: then the message says only that a mistake gives the same answers.
        on_ranks: `observe` runs the function on several ranks, in processes of their own. Default: here.
        rtol: relative tolerance.
        atol: absolute tolerance.
    """

    def __init__(
        self,
        right: Callable,
        cases: Sequence[Case],
        mistakes: Mapping[str, Mistake | list[Mistake]] | None = None,
        *,
        passed: str,
        name: str = "",
        shape: int | tuple[int, ...] | type | None = 1,
        meaning: str = "",
        observe: Callable | None = None,
        telling: bool = True,
        on_ranks: bool = False,
        rtol: float = 1e-6,
        atol: float = 1e-9,
    ) -> None:
        self.right, self.cases, self.sentences = right, list(cases), dict(mistakes or {})
        self.passed, self.shape, self.meaning = passed, shape, meaning
        self.observe, self.on_ranks = observe or call_unchanged, on_ranks
        self.telling = telling
        self.rtol, self.atol = rtol, atol
        self.__name__ = f"check_{name or right.__name__}"
        self.__module__ = right.__module__
        self.__doc__ = f"Check a learner's `{right.__name__}{inspect.signature(right)}`."
        self.lab = int(re.search(r"lab(\d\d)_", right.__module__)[1])

    @property
    def id(self) -> str:
        """The name of the exercise in all labs, for example "lab02.gradient"."""
        return exercise_id(self.lab, self.__name__)

    def __call__(self, answer: Callable, *unused: object) -> None:
        """Check a learner's function.

        Args:
            *unused: what a lab gives the check besides the function.

        Raises:
            NotYet: an answer is wrong. The message says what is wrong, and which mistake gives this answer.
            NotImplementedError: the exercise is still a stub.
        """
        limit = nullcontext() if self.on_ranks else time_limit(SECONDS, self.right.__name__)
        with unusable_answers(), np.errstate(all="ignore"):
            wanted, given = self.expected, []
            with limit:
                for case, expected in zip(self.cases, wanted, strict=True):
                    given.append(self.observed(answer, case))
                    wrong = self.first_wrong(given[-1], expected)
                    if wrong is not None:
                        others = self.cases[len(given) :]
                        given += [self.observed_or_none(answer, each) for each in others]
                        break
            if wrong is not None:
                raise NotYet(self.message(case, wrong, given))
        right(self.passed)
        record_solved(self.lab, self.__name__)

    def first_wrong(self, given: dict, expected: dict) -> str | None:
        """Return the name of the first wrong value; None if there is none."""
        return next(
            (name for name, value in given.items() if not self.same(value, expected.get(name))),
            None,
        )

    def observed(self, function: Callable, case: Case) -> dict[str, object]:
        """Return the values that a function gives in a case. A single value has the name ""."""
        found = self.observe(function, *copy.deepcopy(case.arguments))
        if isinstance(found, dict):
            return found
        name = self.call(case)
        if self.shape is not bool:
            found = numbers(found, name, self.shape, self.meaning)
            return {"": float(found[0]) if self.shape == 1 else found}
        if not isinstance(found, bool | np.bool_):
            raise NotYet(f"{name} must return True or False. Received: {received(found)}")
        return {"": bool(found)}

    def observed_or_none(self, function: Callable, case: Case) -> dict[str, object] | None:
        """Return what a function gives in a case; None if it fails."""
        try:
            with warnings.catch_warnings():  # they may quote a line of the solution
                warnings.simplefilter("ignore")
                return self.observed(function, case)
        except Exception:
            return None

    @cached_property
    def expected(self) -> list[dict[str, object]]:
        """What the right function gives in each case."""
        return [self.observed(self.right, case) for case in self.cases]

    @cached_property
    def mistakes(self) -> list[tuple[str, Callable]]:
        """Every mistake as a function, with its sentence."""
        return [
            (sentence, self.function(one))
            for sentence, given in self.sentences.items()
            for one in (given if isinstance(given, list) else [given])
        ]

    @cached_property
    def wrong(self) -> list[tuple[str, list[dict[str, object] | None]]]:
        """What every mistake gives in each case, with its sentence."""
        return [
            (sentence, [self.observed_or_none(function, case) for case in self.cases])
            for sentence, function in self.mistakes
        ]

    def function(self, mistake: Mistake) -> Callable:
        """Return a mistake as a function."""
        if callable(mistake):
            return mistake
        return edited(self.right, mistake)

    def sentence(self, given: list[dict | None]) -> str:
        """Return the sentence of the mistake that gives the answers of all cases; empty if there is none.

        Args:
            given: what the learner's function gives in each case.
        """
        for sentence, found in self.wrong:
            if all(map(self.equal, given, found)):
                same = "All answers are those of a function with this mistake: "
                return sentence if self.telling else same + sentence
        return ""

    def equal(self, answer: dict | None, other: dict | None) -> bool:
        """Return whether the values of an answer are those of another one, which may have more."""
        if answer is None or other is None:
            return answer is other
        return all(
            name in other and self.same(value, other[name]) for name, value in answer.items()
        )

    def same(self, answer: object, other: object) -> bool:
        """Return whether two values are equal, within the tolerances."""
        if answer is None or other is None:
            return answer is other
        if isinstance(answer, bool | str) or isinstance(other, bool | str):
            return answer == other
        try:
            return equal(answer, other, self.rtol, self.atol)
        except (TypeError, ValueError):  # texts, None, or lists of unequal lengths
            return answer == other

    def message(self, case: Case, name: str, given: list[dict | None]) -> str:
        """Return what is wrong with a value in a case.

        Args:
            given: what the learner's function gives in each case.
        """
        number = self.cases.index(case)
        value, expected = given[number][name], self.expected[number].get(name)
        called = f"{name} {self.call(case)}".strip()
        named = self.sentence(given) or case.reason
        if isinstance(expected, bool):
            text = f"{called} must be {expected}, yours is {value}"
            return f"{text}: {named}" if named else f"{text}."
        arrays = isinstance(value, np.ndarray) and isinstance(expected, np.ndarray)
        if arrays and value.shape != expected.shape and self.same(value.ravel(), expected.ravel()):
            named = f"The numbers are right, and their shape must be {expected.shape}."
        if isinstance(value, np.ndarray | list) and count(value) > MAX_SHOWN_NUMBERS:
            return f"{called} is wrong. {named}".strip()
        return f"{called} is {told(value)}, expected {told(expected)}. {named}".strip()

    def call(self, case: Case) -> str:
        """Return a case as a call, with the names of the parameters."""
        if case.call:
            return case.call
        names = inspect.signature(self.right).parameters
        pairs = zip(names, case.arguments, strict=False)
        given = ", ".join(f"{name}={argument(value)}" for name, value in pairs)
        return f"{self.right.__name__}({given})"


def edited(function: Callable, edits: Sequence[str]) -> Callable:
    """Return a function after edits of its source.

    Args:
        edits: old text, new text, old, new, ...

    Raises:
        ValueError: the source does not contain an old text.
    """
    source = edited_source(function, edits)
    # A decorator such as torch.no_grad has globals of another module.
    namespace, name = dict(vars(inspect.getmodule(function))), f"<{function.__name__} with {edits}>"
    # For inspect.getsource:
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), namespace)
    return namespace[function.__name__]


def edited_source(function: Callable, edits: Sequence[str]) -> str:
    """Return the source of a function after edits, see `edited`."""
    source = inspect.getsource(function)
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        if old not in source:
            raise ValueError(f"{function.__name__} has no {old!r}")
        source = source.replace(old, new)
    return source


def several(*names: str) -> Callable:
    """Return `observe` for a function that returns several values: numbers or arrays of any shape.

    The last one is compared first, because the others often follow from it, as weights from a momentum.
    """

    def observe(function: Callable, *arguments: object) -> dict[str, object]:
        name = getattr(function, "__name__", "your function")
        answer = call_unchanged(function, *arguments)
        if not (isinstance(answer, tuple | list | np.ndarray) and len(answer) == len(names)):
            raise NotYet(f"{name} must return ({', '.join(names)}). Received: {received(answer)}")
        found = {
            f"{each} of": numbers(value, f"{each} of {name}", None)
            for each, value in zip(names, answer, strict=True)
        }
        return {
            each: value.reshape(()) if value.size == 1 else value
            for each, value in reversed(found.items())
        }

    return observe


def count(values: object) -> int:
    """Return how many numbers or texts are in an array or in lists of lists."""
    return sum(map(count, values)) if isinstance(values, list) else np.size(values)


def told(value: object) -> str:
    """Return a value as a learner reads it: numbers rounded, texts without quotes."""
    if isinstance(value, list):
        return f"[{', '.join(map(told, value))}]"
    return value if isinstance(value, str) else shown(value)


def argument(value: object) -> str:
    """Return an argument as a learner reads it: a short array as a tuple, a large number as 1e+09."""
    if isinstance(value, float):
        return f"{value:g}" if abs(value) >= 1e6 else repr(float(value))
    if isinstance(value, list):
        return f"[{', '.join(map(argument, value))}]"
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.size <= MAX_SHOWN_NUMBERS:
        return f"({', '.join(map(shown, value))}{',' * (value.size == 1)})"
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    return getattr(value, "__name__", None) or repr(value)


class TimeOver(BaseException):
    """Ends a learner's function, also one that handles every Exception."""


@contextmanager
def time_limit(seconds: float, name: str) -> Iterator[None]:
    """Raise NotYet in the code that runs here if it needs more than so many seconds.

    Only the main thread can be interrupted, as in a notebook; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise TimeOver

    before = signal.signal(signal.SIGALRM, end)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)  # of another timer, such as a test's
    try:
        yield
    except TimeOver:
        raise NotYet(
            f"{name} does not end within {seconds:g} seconds on a small case: does its loop end?"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)
