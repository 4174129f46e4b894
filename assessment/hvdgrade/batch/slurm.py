"""Grades a class on a Slurm cluster: one job a submission, through submitit.

A job grades as a worker of a local batch does and writes its result into OUT, which must lie on a file
system that all nodes see. This side only waits for the results to appear, so it may be killed.

submitit hands our own function and its arguments (names, paths, settings) to our own process on a node
as a pickle. Nothing of a submission is ever pickled or unpickled: its script is a file that the job
copies, its result is JSON, and what submitit pickles as a job's return value is never read.
"""

import contextlib
import getpass
import hashlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from hvdgrade import profiles
from hvdgrade.batch import layout, worker
from hvdgrade.batch.layout import Settings, Task

POLL_SECONDS = 2.0
LOST_SECONDS = 120.0  # NFS may show a result this much later than the job ended
COMMAND_SECONDS = 60.0
CANCEL_SECONDS = 120.0
END_SECONDS = 60.0
# Why jobs wait that will run: squeue's words; "" of those that do.
PASSING = (
    "",
    "None",
    "Priority",
    "Resources",
    "JobArrayTaskLimit",
    "Prolog",
    "BeginTime",
    "Cleaning",
)
OURS = ("job_name", "array", "output")  # by these it finds its jobs, and they their task


class Unavailable(Exception):
    """Why nothing can be submitted: one sentence."""


def grade_all(
    tasks: list[Task],
    settings: Settings,
    rules: profiles.Profile,
    workers: int | None,
    options: list[str],
    tell: Callable[[str], None],
) -> Iterator[dict]:
    """Submit a job array and return an iterator over the results. Raises Unavailable.

    `tell` gets a line where Slurm lets jobs wait for something that may never come.
    """
    try:
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError
    except ImportError:
        raise Unavailable(
            "--slurm needs submitit: install it with 'pip install submitit'."
        ) from None
    if not shutil.which("sbatch"):
        raise Unavailable("--slurm needs Slurm's commands, and there is no sbatch on PATH.")
    parameters = {}
    for option in options:
        name, equals, value = option.lstrip("-").partition("=")
        name = name.replace("-", "_")  # as submitit has it, and so instead of its own value
        if not name:
            raise Unavailable(f"--slurm-option must be KEY=VALUE or KEY. Received: {option}")
        if name in OURS:
            raise Unavailable(f"--slurm-option {option}: that one the batch itself decides.")
        parameters[name] = value if equals else True
    if not tasks:
        return results({}, settings, rules, tell)
    executor = submitit.SlurmExecutor(folder=settings.out / "slurm")
    # Both attempts and their ends fit into the job's time.
    minutes = round(worker.ATTEMPTS * (settings.limit + 60) / 60) + 1
    executor.update_parameters(
        job_name=job_name(settings.out),
        time=minutes,
        cpus_per_task=settings.ranks,
        # srun does not take that over from sbatch since Slurm 22.05.
        srun_args=[f"--cpus-per-task={parameters.get('cpus_per_task', settings.ranks)}"],
        array_parallelism=workers or len(tasks),
        stderr_to_stdout=True,
        additional_parameters=parameters,
    )
    try:
        jobs = executor.map_array(grade, tasks, [settings] * len(tasks))
    except KeyboardInterrupt:  # sbatch may have taken them, or just be asking Slurm to
        psutil.wait_procs(psutil.Process().children(), timeout=COMMAND_SECONDS)
        cancel(settings.out)
        raise
    except (subprocess.CalledProcessError, FailedJobError, FailedSubmissionError) as error:
        cancel(settings.out)
        said = str(error).strip().splitlines()
        raise Unavailable(f"sbatch refused the jobs: {said[-1] if said else error}") from None
    waiting = {job.job_id: task for job, task in zip(jobs, tasks, strict=True)}
    return results(waiting, settings, rules, tell)


def grade(task: Task, settings: Settings) -> None:
    """Runs in the job: grade one submission and write its result into OUT."""
    # scancel ends the grading in order; submitit would let SIGTERM pass. And at the end of the job's time it
    # would queue it again, for ever where an option gave it less time than two attempts may take.
    for ending in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(ending, signal.default_int_handler)
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
) -> Iterator[dict]:
    """Yield each result when it is there; a fault for a job that ends without one."""
    gone: dict[str, float] = {}  # job -> when it was first missing
    told = set(PASSING)
    try:
        while waiting:
            queued = jobs_in_queue(settings.out)
            for reason in sorted(set((queued or {}).values()) - told):
                told.add(reason)
                tell(
                    f"Slurm lets jobs wait: {reason}. `squeue --name {job_name(settings.out)}` shows "
                    "them; if that does not pass, interrupt, and try --slurm-option time=... or partition=..."
                )
            for job, task in list(waiting.items()):
                document = made(task, settings)
                if not document and queued is not None and job not in queued:
                    gone.setdefault(job, time.monotonic())
                    if time.monotonic() - gone[job] > LOST_SECONDS:
                        document = lost(job, task, settings, rules)
                if document:
                    del waiting[job]
                    yield document
            if waiting:
                time.sleep(POLL_SECONDS)
        deadline = time.monotonic() + END_SECONDS  # a job has its result a moment before it ends
        while jobs_in_queue(settings.out) and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        if waiting:
            cancel(settings.out)


def made(task: Task, settings: Settings) -> dict | None:
    """The result that a job of this call has made, if it is there."""
    document = layout.read_result(settings.out, task.name)
    batch = document.get("batch", {})
    calls = batch.get("call"), batch.get("failed_again", {}).get("call")
    return document if settings.call in calls else None


def lost(job: str, task: Task, settings: Settings, rules: profiles.Profile) -> dict:
    """The fault of a job that ended without a result, or the result that came meanwhile."""
    # To make a file NFS asks its server; to look for one it may ask its memory.
    with contextlib.suppress(FileExistsError):
        (settings.out / "results" / f"{task.name}.json").touch(exist_ok=False)
    if document := made(task, settings):
        return document
    reason = f"Slurm job {job} ended without a result; see OUT/slurm"
    fault = worker.ungraded(task, settings, rules, "infrastructure_error", reason)
    return worker.keep(*fault, task, settings)


def job_name(out: Path) -> str:
    """The name of all jobs of a batch, by which a later call finds those of one that was killed."""
    return f"hvdgrade-{hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:16]}"


def jobs_in_queue(out: Path) -> dict[str, str] | None:
    """The jobs of this batch that wait, run or end; why they wait, or ""; None if Slurm does not answer."""
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
    """End all jobs of this batch and wait until they are gone. Returns whether Slurm said that they are."""
    if not shutil.which("scancel"):
        return True
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # it may be starting anew
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
