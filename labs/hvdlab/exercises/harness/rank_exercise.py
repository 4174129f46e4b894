"""An exercise as data whose function runs on ranks, see `FunctionExercise`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cached_property
from typing import TYPE_CHECKING

from hvdlab.exercises import NotYet, call, record_solved, right
from hvdlab.exercises.harness.function_exercise import FunctionExercise

if TYPE_CHECKING:
    from mpi4py import MPI


def side_by_side(rows: list[dict]) -> dict[str, list]:
    """Return for each name the list of the ranks' values."""
    return {name: [row.get(name) for row in rows] for name in rows[0]}


class RankExercise(FunctionExercise):
    """The check of an exercise in which a learner writes a function that runs on ranks.

    One launch runs all cases, with the right function and the learner's. Only if an answer is wrong, a second
    one runs all mistakes. So no mistake may fail or wait: an answer that does gets a message of its own.
    The learner's function travels to the ranks as source, so all functions import inside what they need.

    Args:
        right: as for FunctionExercise, like all that is not listed here.
        observe: called on each rank with the communicator, a function and the arguments of a case; returns a
            dict of values that JSON supports, or None if the rank has no part in this case.
        start: starts the ranks: `gloo_ranks.on_ranks` or `mpi_ranks.on_ranks`.
        ranks: how many.
        gather: called with the list of the ranks' dicts; returns the dict that is compared. Default: for each
            name the list of the ranks' values.
        remedy: what to do if ranks wait for each other.
    """

    def __init__(
        self,
        right: Callable,
        *data: object,
        observe: Callable,
        start: Callable,
        ranks: int,
        gather: Callable = side_by_side,
        remedy: str = "All ranks must call the same collectives in the same order.",
        **options: object,
    ) -> None:
        super().__init__(right, *data, observe=observe, on_ranks=True, **options)
        self.start, self.ranks, self.gather, self.remedy = start, ranks, gather, remedy

    def __call__(self, answer: Callable, *_: object) -> None:
        """Check a learner's function, see `FunctionExercise.__call__`."""
        if not callable(answer):
            call(answer)
        self.judge(self.run(answer)[0])
        right(self.passed)
        record_solved(self.lab, self.__name__)

    def judge(self, given: list[dict]) -> None:
        """Raise NotYet at the first wrong value.

        Args:
            given: what a function gives in each case.
        """
        for case, found, expected in zip(self.cases, given, self.expected, strict=True):
            for name, value in found.items():
                if not self.same(value, expected.get(name)):
                    raise NotYet(self.message(case, name, given))

    def run(self, *answers: Callable, mistakes: bool = False) -> list[list[dict]]:
        """Return what learner's functions give in each case; set `expected`, and `wrong` with `mistakes`."""
        names = [getattr(answer, "__name__", "your function") for answer in answers]
        rows = self.start(
            answers_on_rank, self.right.__module__, self.__name__, names, mistakes,
            ranks=self.ranks, uses=answers, what=", ".join(names) or self.right.__name__,
            remedy=self.remedy,
        )  # fmt: skip
        self.expected, *found = [  # rows has, for each rank, a list per function of a row per case
            [
                self.gather([row for row in of_ranks if row is not None])
                for of_ranks in zip(*each, strict=True)
            ]
            for each in zip(*rows, strict=True)
        ]
        if mistakes:
            sentences = (sentence for sentence, _ in self.mistakes)
            self.wrong = list(zip(sentences, found[len(names) :], strict=True))
        return found[: len(names)]

    def on_rank(self, comm: "MPI.Comm", function: Callable) -> list[dict | None]:
        """Return, on a rank, what `observe` returns in each case."""
        return [self.observe(comm, function, *deepcopy(case.arguments)) for case in self.cases]

    @cached_property
    def wrong(self) -> list[tuple[str, list[dict]]]:
        """What every mistake gives in each case, with its sentence; empty if the ranks cannot run them."""
        try:
            self.run(mistakes=True)
        except NotYet:
            return []
        return self.__dict__["wrong"]


def answers_on_rank(
    comm: "MPI.Comm", module: str, check: str, names: list[str], mistakes: bool
) -> list[list]:
    """Return, on a rank, what the right function, those of these names, and the mistakes give."""
    import warnings
    from importlib import import_module

    exercise = getattr(import_module(module), check)
    answers, others = [globals()[name] for name in names], []
    if mistakes:
        others = [function for _, function in exercise.mistakes]
    comm.Barrier()  # a rank that is late is no deadlock
    with warnings.catch_warnings(action="ignore"):  # they may quote a line of the solution
        right = exercise.on_rank(comm, exercise.right)
    given = [exercise.on_rank(comm, answer) for answer in answers]
    with warnings.catch_warnings(action="ignore"):
        return [right, *given, *(exercise.on_rank(comm, function) for function in others)]


@contextmanager
def counted(module: object, *names: str) -> Iterator[list[str]]:
    """Yield the list of the names of these functions of a module that are called, in order."""
    calls, before = [], {name: getattr(module, name) for name in names}

    def counting(name: str) -> Callable:
        return lambda *a, **k: calls.append(name) or before[name](*a, **k)

    try:
        for name in names:
            setattr(module, name, counting(name))
        yield calls
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def kind(answer: object) -> str:
    """Return the type of a function's result, in words for a message."""
    if answer is None:
        return "None: is `return` missing?"
    if isinstance(answer, tuple | list):
        return f"({', '.join(type(each).__name__ for each in answer)})"
    return type(answer).__name__


def number_or_kind(answer: object) -> float | str:
    """Return a number or a tensor of one number as a float, and the kind of all else."""
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of many numbers
        return kind(answer)
