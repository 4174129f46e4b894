"""Decide which submissions of a class must be graded, and which results are kept."""

from rich.console import Console

from hvdgrade.batch.layout import Settings, Task, key, read_result, write
from hvdgrade.batch.progress import outcome
from hvdgrade.batch.submissions import Submission
from hvdgrade.batch.worker import is_kept, keep, ungraded
from hvdgrade.output.text import printable
from hvdgrade.profiles import Profile

# This file is in OUT while a regrade is unfinished. It lists the calls of the regrade so far, one per line.
REGRADE = ".regrade"


def calls_of_regrade(settings: Settings, console: Console) -> set[str]:
    """Return the calls whose results a regrade keeps: this call and the regrade's interrupted calls.

    Args:
        settings: the settings of the batch.
        console: the console to print to.
    """
    file = settings.out / REGRADE
    calls = file.read_text(encoding="utf-8").split() if file.exists() else []
    if calls:
        console.print(f"continuing an interrupted regrade (to restart it, remove {file})")
    write(file, "\n".join([*calls, settings.call]).encode())
    return {*calls, settings.call}


def is_done(task: Task, settings: Settings, calls: set[str]) -> bool:
    """Return whether OUT has a valid result of a submission.

    Args:
        task: the submission.
        settings: the settings of the batch.
        calls: in a regrade, the calls whose results count; otherwise empty.
    """
    made_by = read_result(settings.out, task.name).get("batch", {}).get("call")
    return is_kept(task, settings) and (not calls or made_by in calls)


def prepare(
    handed_in: list[Submission],
    settings: Settings,
    rules: Profile,
    calls: set[str],
    console: Console,
) -> tuple[list[Task], int]:
    """Write the scripts to OUT/submissions, so that exactly the bytes that were hashed are graded.

    For a submission that cannot be started, the result is written at once. If a submission cannot be read
    now, the result that it already has stays.

    Args:
        handed_in: the submissions.
        settings: the settings of the batch.
        rules: the profile.
        calls: in a regrade, the calls whose results count; otherwise empty.
        console: the console to print to.

    Returns:
        The tasks to grade, and the number of results that are kept.
    """
    tasks, kept = [], 0
    for submission in handed_in:
        content = submission.source + submission.problem.encode()
        task = Task(submission.id, submission.name, key(content, settings))
        if submission.unreadable:
            made = ungraded(task, settings, rules, "infrastructure_error", submission.problem)
            document = keep(*made, task, settings, unread=True)
            console.print(f"{printable(submission.id)}: {outcome(document)}")
            continue
        script = settings.out / "submissions" / f"{submission.name}.py"
        if submission.problem:
            script.unlink(missing_ok=True)
        elif not script.exists() or script.read_bytes() != submission.source:
            write(script, submission.source)
        if is_done(task, settings, calls):
            kept += 1
        elif submission.problem:
            made = ungraded(task, settings, rules, "not_gradable", submission.problem)
            document = keep(*made, task, settings)
            console.print(f"{printable(submission.id)}: {outcome(document)}")
        else:
            tasks.append(task)
    return tasks, kept
