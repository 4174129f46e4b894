"""Where the gradings of a worker run: in slots of this machine, or in the jobs of a cluster."""

import time
from collections.abc import Callable, Iterator

from hvdgrade.batch import slurm
from hvdgrade.batch.layout import Settings
from hvdgrade.batch.worker import Grader, end_all
from hvdgrade.profiles import Profile
from hvdgrade.result_document import ResultDocument
from hvdgrade.worker.spool import Lease, Spool

NICE_PER_RANK = 100  # of a job's priority in Slurm
Ended = tuple[Lease, ResultDocument | None, str]  # without a result: why


class Slots:
    """Gradings on this machine, each on its own cores and GPUs.

    Args:
        slots: the cores and GPUs of each slot, see `batch.core_allocation.worker_slots`.
    """

    def __init__(self, slots: list[tuple[list[int], list[str] | None]]) -> None:
        self.unused = list(slots)
        self.running: dict[Lease, tuple[Grader, tuple]] = {}

    @property
    def free(self) -> int:
        """Number of gradings that can be started."""
        return len(self.unused)

    def start(self, lease: Lease, settings: Settings, rules: Profile) -> None:
        """Start a grading. Raises OSError if that fails."""
        slot = self.unused.pop()
        grader = Grader(lease.task, settings, rules, *slot)
        self.running[lease] = grader, slot
        try:
            grader.start()
        except BaseException:
            self.end(lease)
            raise

    def ended(self) -> Iterator[Ended]:
        """Yield each grading that has ended, and its result."""
        for lease, (grader, _) in list(self.running.items()):
            try:
                document, why = grader.poll(), ""
            except OSError as error:  # a full disk
                document, why = None, f"{error.filename}: {error.strerror}"
                grader.end()
            if document or why:
                self.unused.append(self.running.pop(lease)[1])
                yield lease, document, why

    def end(self, lease: Lease) -> None:
        """End a grading, and everything that it started."""
        grader, slot = self.running.pop(lease)
        grader.end()
        self.unused.append(slot)

    def end_all(self) -> None:
        """End all gradings."""
        end_all([grader for grader, _ in self.running.values()])
        self.running.clear()


class ClusterJobs:
    """Gradings in jobs of Slurm. The spool must be on a file system that all nodes share.

    Args:
        most: largest number of jobs.
        options: options of sbatch, each "KEY" or "KEY=VALUE".
        tell: called with a line if jobs wait for a reason that may never pass.
    """

    def __init__(
        self, spool: Spool, most: int, options: list[str], tell: Callable[[str], None]
    ) -> None:
        self.spool, self.most, self.polled = spool, most, 0.0
        self.jobs = slurm.Jobs(spool.path, options, tell)
        self.running: dict[Lease, Settings] = {}

    @property
    def free(self) -> int:
        """Number of jobs that can be submitted."""
        return self.most - len(self.running)

    def start(self, lease: Lease, settings: Settings, rules: Profile) -> None:
        """Submit a job. Raises slurm.Unavailable if Slurm refuses it."""
        self.jobs.submit([lease.task], settings, nice=NICE_PER_RANK * lease.rank)
        self.running[lease] = settings

    def ended(self) -> Iterator[Ended]:
        """Yield each grading whose job has ended, and its result. It looks every few seconds."""
        if not self.running or time.monotonic() - self.polled < slurm.POLL_SECONDS:
            return
        self.polled = time.monotonic()
        leases = {lease.task: lease for lease in self.running}
        for job, task, document in self.jobs.poll():
            lease = leases[task]
            settings = self.running.pop(lease)
            document = document or slurm.late_result(task, settings)
            yield lease, document, f"Slurm job {job} has left the queue without a result"

    def end(self, lease: Lease) -> None:
        """Cancel the job of a grading."""
        self.jobs.cancel(lease.task)
        del self.running[lease]

    def end_all(self) -> None:
        """Cancel all jobs, and wait until they have left the queue."""
        slurm.cancel(self.spool.path)
        self.running.clear()
