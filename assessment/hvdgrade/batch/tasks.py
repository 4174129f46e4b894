"""Decide which submissions of a class must be graded, and which results are kept."""

from dataclasses import dataclass, replace

from rich.console import Console

from hvdgrade.batch.layout import Settings, Task, key, read_result, write
from hvdgrade.batch.progress import outcome
from hvdgrade.batch.submissions import Submission
from hvdgrade.batch.worker import is_kept, keep, ungraded
from hvdgrade.output.text import printable
from hvdgrade.profiles import Profile
from hvdgrade.submission.script import NotGradable, require_gradable

# This file is in OUT while a regrade is unfinished. It lists the calls of the regrade so far, one per line.
REGRADE = ".regrade"


def calls_of_regrade(settings: Settings, console: Console) -> set[str]:
    """Return the calls whose results a regrade keeps: this call and the regrade's interrupted calls."""
    file = settings.out / REGRADE
    calls = file.read_text(encoding="utf-8").split() if file.exists() else []
    if calls:
        console.print(f"continuing an interrupted regrade (to restart it, remove {file})")
    write(file, "\n".join([*calls, settings.call]).encode())
    return {*calls, settings.call}


def is_done(task: Task, settings: Settings, calls: set[str]) -> bool:
    """Return whether OUT has a valid result of a submission.

    Args:
        calls: in a regrade, the calls whose results count; otherwise empty.
    """
    made_by = read_result(settings.out, task.name).get("batch", {}).get("call")
    return is_kept(task, settings) and (not calls or made_by in calls)


@dataclass(frozen=True)
class Prepared:
    """What a batch still has to do.

    Attributes:
        tasks: the submissions to grade.
        kept: the number of results that are kept.
        unreadable: the number of submissions that could not be read or checked now.
    """

    tasks: list[Task]
    kept: int
    unreadable: int


def prepare(
    handed_in: list[Submission],
    settings: Settings,
    rules: Profile,
    calls: set[str],
    console: Console,
) -> Prepared:
    """Write the scripts to OUT/submissions, so that exactly the bytes that were hashed are graded.

    For a submission that cannot be graded, the result is written at once. If a submission cannot be read
    now, the result that it already has stays.

    Args:
        calls: in a regrade, the calls whose results count; otherwise empty.

    Returns:
        What is left to grade.
    """
    tasks, kept, unreadable = [], 0, 0
    for submission in handed_in:
        task = Task(submission.id, submission.name, key(content_of(submission), settings))
        script = settings.out / "submissions" / f"{submission.name}.py"
        if not submission.unreadable:
            if submission.problem:
                script.unlink(missing_ok=True)
            elif not script.exists() or script.read_bytes() != submission.source:
                write(script, submission.source)
            if is_done(task, settings, calls):
                kept += 1
                continue
        checked = with_problem(submission)
        if not checked.problem:
            tasks.append(task)
            continue
        unreadable += checked.unreadable
        status = "infrastructure_error" if checked.unreadable else "not_gradable"
        made = ungraded(task, settings, rules, status, checked.problem)
        document = keep(*made, task, settings, unread=checked.unreadable)
        console.print(f"{printable(submission.student.shown)}: {outcome(document)}")
    return Prepared(tasks, kept, unreadable)


def content_of(submission: Submission) -> bytes:
    """Return all of a submission on which its result depends."""
    # A script that imports a module that was handed in next to it is not graded.
    modules = sorted(submission.script.modules) if submission.script else []
    return b"\0".join(
        [submission.source + submission.problem.encode(), *(name.encode() for name in modules)]
    )


def with_problem(submission: Submission) -> Submission:
    """Return the submission with a sentence that says why it cannot be graded, if there is a reason."""
    if submission.problem or not submission.script:
        return submission
    try:
        require_gradable(submission.script)
    except NotGradable as error:
        return replace(submission, problem=str(error))
    except OSError as error:  # this machine is too busy, or has no memory left
        return replace(submission, problem=str(error), unreadable=True)
    return submission
