"""Grade a class on a Slurm cluster: submit a job array, and wait for its results (see slurm.py)."""

import time
from collections.abc import Callable, Iterator

import psutil

from hvdgrade import profiles
from hvdgrade.batch import slurm, worker
from hvdgrade.batch.layout import Settings, Task
from hvdgrade.result_document import ResultDocument

END_SECONDS = 60.0  # how long a job may take to end after it has written its result


def grade_all(
    tasks: list[Task],
    settings: Settings,
    rules: profiles.Profile,
    workers: int | None,
    options: list[str],
    tell: Callable[[str], None],
) -> Iterator[ResultDocument]:
    """Submit a job array.

    Args:
        workers: largest number of jobs at the same time; None for no limit.
        options: options of sbatch, each "KEY" or "KEY=VALUE".
        tell: called with a line if jobs wait for a reason that may never pass.

    Returns:
        An iterator that yields each result once it is in OUT.

    Raises:
        Unavailable: an option is wrong, or sbatch refused the jobs.
    """
    jobs = slurm.Jobs(settings.out, options, tell)
    try:
        if tasks:
            jobs.submit(tasks, settings, workers)
    except KeyboardInterrupt:  # sbatch may have submitted the jobs already, or still be at work
        psutil.wait_procs(psutil.Process().children(), timeout=slurm.COMMAND_SECONDS)
        slurm.cancel(settings.out)
        raise
    except slurm.Unavailable:
        slurm.cancel(settings.out)
        raise
    return results(jobs, settings, rules)


def results(
    jobs: slurm.Jobs, settings: Settings, rules: profiles.Profile
) -> Iterator[ResultDocument]:
    """Yield each result when it is in OUT, and a grader fault for a job that ended without one.

    If the iteration ends early, all jobs of the batch are cancelled.
    """
    try:
        while jobs.waiting:
            for job, task, document in jobs.poll():
                yield document or lost(job, task, settings, rules)
            if jobs.waiting:
                time.sleep(slurm.POLL_SECONDS)
        deadline = time.monotonic() + END_SECONDS  # a job writes its result shortly before it ends
        while slurm.jobs_in_queue(settings.out) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        if jobs.waiting:
            slurm.cancel(settings.out)


def lost(job: str, task: Task, settings: Settings, rules: profiles.Profile) -> ResultDocument:
    """Return the fault of a job that ended without a result, or the result if it has arrived meanwhile."""
    if document := slurm.late_result(task, settings):
        return document
    reason = f"Slurm job {job} ended without a result; see OUT/slurm"
    fault = worker.ungraded(task, settings, rules, "infrastructure_error", reason)
    return worker.keep(*fault, task, settings)
