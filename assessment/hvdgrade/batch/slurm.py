"""Grade submissions in Slurm jobs, one job per submission, through submitit.

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

from hvdgrade import HvdgradeError, profiles
from hvdgrade.batch import layout, worker
from hvdgrade.batch.layout import Settings, Task
from hvdgrade.result_document import ResultDocument

POLL_SECONDS = 2.0
LOST_SECONDS = 120.0  # NFS may show a result this long after the end of the job
COMMAND_SECONDS = 30.0  # time limit of squeue and scancel; a worker sends no beats meanwhile
CANCEL_SECONDS = 120.0  # how long cancelled jobs may take to leave the queue
# Reasons by squeue for a job to wait that pass without any action; "" for a job that does not wait.
PASSING = ("", *"None Priority Resources JobArrayTaskLimit Prolog BeginTime Cleaning".split())
# Options of sbatch that the user must not set: the batch finds its jobs by them, and the jobs their tasks.
RESERVED = ("job_name", "array", "output")


class Unavailable(HvdgradeError):
    """No job can be submitted. The message says why in one sentence."""


class Jobs:
    """The jobs that this process has submitted for one folder OUT, and what their names in the queue are.

    Args:
        out: the folder that receives the results.
        options: options of sbatch, each "KEY" or "KEY=VALUE".
        tell: called with a line if jobs wait for a reason that may never pass.

    Attributes:
        waiting: job -> its submission and settings, as long as its end has not been seen.

    Raises:
        Unavailable: an option is wrong.
    """

    def __init__(self, out: Path, options: list[str], tell: Callable[[str], None]) -> None:
        self.out, self.tell, self.parameters = out, tell, parsed_options(options)
        self.waiting: dict[str, tuple[Task, Settings]] = {}
        self.missing_since: dict[str, float] = {}  # job -> when squeue first did not list it
        self.known_reasons = set(PASSING)

    def submit(
        self, tasks: list[Task], settings: Settings, at_once: int | None = None, nice: int = 0
    ) -> None:
        """Submit a job for each submission: one array, or a single job.

        Args:
            at_once: largest number of them at the same time; None for no limit.
            nice: by how much Slurm lowers their priority. Default: 0.

        Raises:
            Unavailable: sbatch refused the jobs.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = submitit.SlurmExecutor(folder=self.out / "slurm")
        # The time limit of the job leaves room for both attempts and for their cleanup.
        minutes = round(worker.ATTEMPTS * (settings.limit + 60) / 60) + 1
        cpus = self.parameters.get("cpus_per_task", settings.ranks)
        executor.update_parameters(
            job_name=job_name(self.out),
            time=minutes,
            cpus_per_task=settings.ranks,
            # On a whole node ("exclusive"), srun would start as many copies of a grading as have room there.
            # Since Slurm 22.05, it does not inherit the other option from sbatch.
            srun_args=["--ntasks=1", f"--cpus-per-task={cpus}"],
            array_parallelism=at_once or len(tasks),
            stderr_to_stdout=True,
            additional_parameters=({"nice": nice} if nice else {}) | self.parameters,
        )
        try:
            jobs = executor.map_array(grade, tasks, [settings] * len(tasks))
        except (subprocess.CalledProcessError, FailedJobError, FailedSubmissionError) as error:
            lines = str(error).strip().splitlines()
            raise Unavailable(f"sbatch refused the jobs: {lines[-1] if lines else error}") from None
        self.waiting |= {
            job.job_id: (task, settings) for job, task in zip(jobs, tasks, strict=True)
        }

    def poll(self) -> Iterator[tuple[str, Task, ResultDocument | None]]:
        """Yield each job that has ended since the last call, its submission, and its result or None."""
        queued = jobs_in_queue(self.out)
        for reason in sorted(set((queued or {}).values()) - self.known_reasons):
            self.known_reasons.add(reason)
            self.tell(
                f"Jobs wait in Slurm's queue: {reason}. `squeue --name {job_name(self.out)}` lists "
                "them. If they do not start, press Ctrl-C and try again with another --slurm-option, "
                "for example time=... or partition=..."
            )
        for job, (task, settings) in list(self.waiting.items()):
            document = made(task, settings)
            if document or self.is_missing(job, queued):
                del self.waiting[job]
                yield job, task, document

    def is_missing(self, job: str, queued: dict[str, str] | None) -> bool:
        """Return whether Slurm has not listed a job for so long that its result would be visible by now."""
        if queued is None or job in queued:
            return False
        since = self.missing_since.setdefault(job, time.monotonic())
        return time.monotonic() - since > LOST_SECONDS

    def cancel(self, task: Task) -> None:
        """Cancel the job of one submission, and forget it. Slurm then ends it within its KillWait."""
        for job in [job for job, (waits, _) in self.waiting.items() if waits == task]:
            del self.waiting[job]
            scancel(job)


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


def made(task: Task, settings: Settings) -> ResultDocument | None:
    """Return the result that a job of this call has written, or None."""
    document = layout.read_result(settings.out, task.name)
    batch = document.get("batch", {})
    calls = batch.get("call"), batch.get("failed_again", {}).get("call")
    return document if settings.call in calls else None


def late_result(task: Task, settings: Settings) -> ResultDocument | None:
    """Return the result of a job that has ended, also if this machine's NFS client did not show it yet."""
    # To create a file, an NFS client must contact its server. To open one, it may use its own cache, which
    # may not show the result yet.
    with contextlib.suppress(FileExistsError):
        (settings.out / "results" / f"{task.name}.json").touch(exist_ok=False)
    return made(task, settings)


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
        scancel("--name", job_name(out), "--user", getpass.getuser())
        if jobs_in_queue(out) == {}:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)


def scancel(*which: str) -> None:
    # Slurm's controller may be restarting, so a failure is ignored.
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(["scancel", *which], capture_output=True, timeout=COMMAND_SECONDS)
