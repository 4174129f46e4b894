"""An exercise in which a learner reviews patches of a function: which are correct, and when do others fail?

    REVIEW = PatchReview(
        partition,                                      # the function that the patches change
        {"a": ("[rank::size]", "[: n // size]"), ...},  # letter -> edits: old text, new text, old, new, ...
        shares_images,                                  # function, case -> what fails in it; "" if nothing
        example={"n": 12, "size": 4},                   # a case: names and numbers
        tried=[{"n": 12, "size": 4}, ...],              # cases in which a correct patch must hold
    )

    def review_partition():                                # what the learner writes
        return {"a": {"n": 12, "size": 4}, "b": "correct"}

    check_review_partition = FunctionExercise(review_partition, [Case(())], observe=REVIEW.verdicts, ...)

The check runs the patches. So every case that shows the fault of a patch is a right answer.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvdlab.exercises import NotYet, call, received
from hvdlab.exercises.harness.function_exercise import edited, edited_source

CORRECT = "correct"
Case = Mapping[str, object]


@dataclass(frozen=True)
class PatchReview:
    """Patches of a function, which a learner reviews.

    Args:
        base: the function that the patches change. It need not be right itself.
        patches: letter -> the edits of the patch: old text, new text, old, new, ...
        fails: called with a patched function and a case as keyword arguments. It returns what fails in this
            case as a sentence, or "" if nothing does. An error of the patched function is a fault, too.
        example: a case, which names its parameters. A learner's case must have the same names.
        tried: the cases in which a patch must hold to be correct. Each faulty patch fails in one of them.
        check_case: returns what is wrong with a learner's case as a sentence, or "". Default: nothing is.
    """

    base: Callable
    patches: Mapping[str, tuple[str, ...]]
    fails: Callable[..., str]
    example: Case
    tried: Sequence[Case]
    check_case: Callable[..., str] = lambda **case: ""

    def __str__(self) -> str:
        """Return the whole function, and each patch as a diff, as a learner reads them."""
        old = inspect.getsource(self.base)
        texts = [old.rstrip()]
        for letter, edits in self.patches.items():
            lines = difflib.unified_diff(
                old.splitlines(), edited_source(self.base, edits).splitlines(), lineterm="", n=1
            )
            shown = [line for line in lines if not line.startswith(("---", "+++"))]
            texts.append("\n".join([f"Patch {letter}", *shown]))
        return "\n\n".join(texts)

    def fault(self, letter: str, case: Case) -> str:
        """Return what fails in a case with a patch, or "" if nothing does."""
        try:
            return self.fails(edited(self.base, self.patches[letter]), **case)
        except Exception as error:
            return f"It raises {type(error).__name__}: {error}."

    def verdicts(self, review: Callable) -> dict[str, object]:
        """Run the patches in the cases of a learner's review, and return the learner's verdicts.

        Raises:
            NotYet: the review has another form, or a verdict is wrong.
        """
        name = getattr(review, "__name__", "your function")
        verdicts = call(review)
        letters = ", ".join(self.patches)
        if not isinstance(verdicts, dict) or set(verdicts) != set(self.patches):
            raise NotYet(
                f"{name} must return a dict with the keys {letters}. Received: {received(verdicts)}"
            )
        correct = {
            letter: isinstance(verdict, str) and verdict.strip().lower() == CORRECT
            for letter, verdict in verdicts.items()
        }
        for letter, verdict in verdicts.items():
            if correct[letter]:
                self._must_hold(letter)
            else:
                self._must_fail(letter, self._usable(letter, verdict))
        return {f"patch {letter}": correct[letter] for letter in self.patches}

    def _usable(self, letter: str, case: object) -> Case:
        names = ", ".join(self.example)
        if not isinstance(case, dict) or set(case) != set(self.example):
            raise NotYet(
                f'Patch {letter} needs "{CORRECT}", or a case in which it fails: a dict with the keys '
                f"{names}, for example {dict(self.example)}. Received: {received(case)}"
            )
        case = {key: alike(value, self.example[key]) for key, value in case.items()}
        for key, value in case.items():
            if type(value) is not type(self.example[key]):
                raise NotYet(
                    f"Patch {letter}: {key} must be like {self.example[key]!r}. Received: {received(value)}"
                )
        if unusable := self.check_case(**case):
            raise NotYet(f"Patch {letter}: {unusable}")
        return case

    def _must_hold(self, letter: str) -> None:
        if any(self.fault(letter, case) for case in self.tried):
            raise NotYet(f"Patch {letter} is not correct: there is a case in which it fails.")

    def _must_fail(self, letter: str, case: Case) -> None:
        if self.fault(letter, case):
            return
        if any(self.fault(letter, other) for other in self.tried):
            hint = "There is another case in which it fails."
        else:
            hint = "It holds in every case that the check tried, too."
        raise NotYet(f"Patch {letter} holds in your case {dict(case)}. {hint}")


def alike(value: object, example: object) -> object:
    """Return a value in the type of an example, where it is the same number or sequence in another type."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, tuple) and isinstance(example, list):
        return list(value)
    if type(value) is int and isinstance(example, float):
        return float(value)
    return value
