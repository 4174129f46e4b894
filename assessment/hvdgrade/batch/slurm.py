"""Grade a class on a Slurm cluster: one job per submission, through submitit.

A job grades like a worker of a local batch and writes its result into OUT, which must lie on a file system
that all nodes share. The process that submitted the jobs only waits for the results to appear, so killing
it does not affect the jobs.

submitit sends the function `grade` and its arguments (names, paths, settings) to a node as a pickle. Data of
a submission is never pickled or unpickled: its script is a file that the job copies, its result is JSON, and
the pickle that submitit writes for the return value of a job is never read.
"""

import contextlib
import getpass
import hashlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch import layout, worker
from hvdgrade.batch.layout import Settings, Task
from hvdgrade.result_document import ResultDocument

POLL_SECONDS = 2.0
LOST_SECONDS = 120.0  # NFS may show a result this long after the end of the job
COMMAND_SECONDS = 60.0  # time limit of squeue and scancel
CANCEL_SECONDS = 120.0  # how long cancelled jobs may take to leave the queue
END_SECONDS = 60.0  # how long a job may take to end after it has written its result
# Reasons by squeue for a job to wait that pass without any action; "" for a job that does not wait.
PASSING = ("", *"None Priority Resources JobArrayTaskLimit Prolog BeginTime Cleaning".split())
# Options of sbatch that the user must not set: the batch finds its jobs by them, and the jobs their tasks.
RESERVED = ("job_name", "array", "output")


class Unavailable(HvdgradeError):
    """No job can be submitted. The message says why in one sentence."""


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
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    parameters = parsed_options(options)
    if not tasks:
        return results({}, settings, rules, tell)
    executor = submitit.SlurmExecutor(folder=settings.out / "slurm")
    # The time limit of the job leaves room for both attempts and for their cleanup.
    minutes = round(worker.ATTEMPTS * (settings.limit + 60) / 60) + 1
    executor.update_parameters(
        job_name=job_name(settings.out),
        time=minutes,
        cpus_per_task=settings.ranks,
        # Since Slurm 22.05, srun does not inherit this option from sbatch.
        srun_args=[f"--cpus-per-task={parameters.get('cpus_per_task', settings.ranks)}"],
        array_parallelism=workers or len(tasks),
        stderr_to_stdout=True,
        additional_parameters=parameters,
    )
    try:
        jobs = executor.map_array(grade, tasks, [settings] * len(tasks))
    except KeyboardInterrupt:  # sbatch may have submitted the jobs already, or still be at work
        psutil.wait_procs(psutil.Process().children(), timeout=COMMAND_SECONDS)
        cancel(settings.out)
        raise
    except (subprocess.CalledProcessError, FailedJobError, FailedSubmissionError) as error:
        cancel(settings.out)
        lines = str(error).strip().splitlines()
        raise Unavailable(f"sbatch refused the jobs: {lines[-1] if lines else error}") from None
    waiting = {job.job_id: task for job, task in zip(jobs, tasks, strict=True)}
    return results(waiting, settings, rules, tell)


def must_work(options: list[str]) -> None:
    """Check that jobs can be submitted.

    Args:
        options: options of sbatch, each "KEY" or "KEY=VALUE".

    Raises:
        Unavailable: submitit or Slurm is missing, or an option is wrong.
    """
    if not find_spec("submitit"):
        raise Unavailable("--slurm needs submitit: install it with 'pip install submitit'.")
    if not shutil.which("sbatch"):
        raise Unavailable(
            "--slurm needs Slurm's commands, but there is no sbatch on PATH: run this on a login node."
        )
    parsed_options(options)


def parsed_options(options: list[str]) -> dict[str, str | bool]:
    """Return the options of sbatch as submitit expects them: with underscores, and True for a flag.

    Args:
        options: each "KEY" or "KEY=VALUE".

    Raises:
        Unavailable: an option is wrong, or reserved for the batch.
    """
    parameters = {}
    for option in options:
        name, equals, value = option.lstrip("-").partition("=")
        # With underscores an option replaces submitit's own value instead of being added to it.
        name = name.replace("-", "_")
        if not name:
            raise Unavailable(f"--slurm-option must be KEY=VALUE or KEY. Received: {option}")
        if name in RESERVED:
            raise Unavailable(f"--slurm-option {option}: the batch sets this option itself.")
        parameters[name] = value if equals else True
    return parameters


def grade(task: Task, settings: Settings) -> None:
    """Grade one submission and write its result into OUT. This function runs in the job."""
    # With these handlers, scancel ends the grading in an orderly manner, whereas submitit ignores SIGTERM.
    # At the end of the job's time, submitit would put the job into the queue again. It would do so forever if
    # an option gave the job less time than two attempts take.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.default_int_handler)
    grader = worker.Grader(task, settings, profiles.load(settings.profile))
    try:
        grader.start()
        while grader.poll() is None:
            time.sleep(0.2)
    finally:
        grader.end()


def results(
    waiting: dict[str, Task],
    settings: Settings,
    rules: profiles.Profile,
    tell: Callable[[str], None],
) -> Iterator[ResultDocument]:
    """Yield each result when it is in OUT, and a grader fault for a job that ended without one.

    If the iteration ends early, all jobs of the batch are cancelled.

    Args:
        waiting: job -> its submission.
        tell: called with a line if jobs wait for a reason that may never pass.
    """
    missing_since: dict[str, float] = {}  # job -> when squeue did not list it for the first time
    known_reasons = set(PASSING)
    try:
        while waiting:
            queued = jobs_in_queue(settings.out)
            for reason in sorted(set((queued or {}).values()) - known_reasons):
                known_reasons.add(reason)
                tell(
                    f"Jobs wait in Slurm's queue: {reason}. `squeue --name {job_name(settings.out)}` lists "
                    "them. If they do not start, press Ctrl-C and try again with another --slurm-option, "
                    "for example time=... or partition=..."
                )
            for job, task in list(waiting.items()):
                document = made(task, settings)
                if not document and queued is not None and job not in queued:
                    missing_since.setdefault(job, time.monotonic())
                    if time.monotonic() - missing_since[job] > LOST_SECONDS:
                        document = lost(job, task, settings, rules)
                if document:
                    del waiting[job]
                    yield document
            if waiting:
                time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + END_SECONDS  # a job writes its result shortly before it ends
        while jobs_in_queue(settings.out) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        if waiting:
            cancel(settings.out)


def made(task: Task, settings: Settings) -> ResultDocument | None:
    """Return the result that a job of this call has written, or None."""
    document = layout.read_result(settings.out, task.name)
    batch = document.get("batch", {})
    calls = batch.get("call"), batch.get("failed_again", {}).get("call")
    return document if settings.call in calls else None


def lost(job: str, task: Task, settings: Settings, rules: profiles.Profile) -> ResultDocument:
    """Return the fault of a job that ended without a result, or the result if it has arrived meanwhile."""
    # To create a file, an NFS client must contact its server. To open one, it may use its own cache, which
    # may not show the result yet.
    with contextlib.suppress(FileExistsError):
        (settings.out / "results" / f"{task.name}.json").touch(exist_ok=False)
    if document := made(task, settings):
        return document
    reason = f"Slurm job {job} ended without a result; see OUT/slurm"
    fault = worker.ungraded(task, settings, rules, "infrastructure_error", reason)
    return worker.keep(*fault, task, settings)


def job_name(out: Path) -> str:
    """Return the name of all jobs of a batch, by which a later call finds the jobs of a killed batch."""
    return f"hvdgrade-{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]}"


def jobs_in_queue(out: Path) -> dict[str, str] | None:
    """Return the jobs of this batch that wait, run or end.

    Returns:
        A dict from job id to the reason why the job waits ("" if it does not wait); None if Slurm does not
        answer.
    """
    command = ["squeue", "--noheader", "--array", "--format=%i %T %r", "--name", job_name(out)]
    try:
        answer = subprocess.run(
            [*command, "--user", getpass.getuser()],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    jobs = (f"{line.strip()}  ".split(" ", 2) for line in answer.stdout.splitlines())
    return {job: reason.strip() if state == "PENDING" else "" for job, state, reason in jobs}


def cancel(out: Path) -> bool:
    """Cancel all jobs of this batch and wait until they have left the queue.

    Returns:
        Whether Slurm confirmed that no job is left.
    """
    if not shutil.which("scancel"):
        return True
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        # Slurm's controller may be restarting, so a failure is ignored and tried again.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                ["scancel", "--name", job_name(out), "--user", getpass.getuser()],
                capture_output=True,
                timeout=COMMAND_SECONDS,
            )
        if jobs_in_queue(out) == {}:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
