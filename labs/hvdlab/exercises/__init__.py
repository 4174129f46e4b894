"""The checks behind the exercises: one module a lab, one function an exercise.

A check takes what the learner wrote, tries it on cases small enough to do by hand, and says either
`right(...)` or raises `NotYet` with what is wrong in words of the exercise. Nothing is graded here.
"""


class NotYet(AssertionError):
    """An answer that is not right yet: one or two sentences that say what is wrong, and a way on.

    A notebook shows the sentence alone, without a traceback.
    """

    def _render_traceback_(self):  # IPython asks for this
        return [f"Not yet: {self}"]


def right(text: str) -> None:
    """Tell the learner that the answer holds, and what it was checked on."""
    print(f"Right: {text}")


def call(function, name: str, *arguments):
    """Return `function(*arguments)`; an error of the learner's function becomes a sentence.

    `NotImplementedError` goes through: the exercise has not been begun.
    """
    try:
        return function(*arguments)
    except NotImplementedError:
        raise
    except Exception as error:
        raise NotYet(f"{name} raises {type(error).__name__}: {error}.") from error
