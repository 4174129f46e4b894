"""Read from the kernel whether a submission's processes work, on which cores and in how much memory."""

import contextlib
import os
from pathlib import Path

import psutil

from hvdgrade.run.owner_rights import as_owner, variables

# A rank that works computes: it uses processor time, and nearly all of it outside the kernel (training: 85
# to 96 % in a median second). One that waits sleeps, or polls: at most 61 % of a second outside the kernel in
# MPI_Recv and MPI_Barrier, 49 % in Horovod (both on an Intel Xeon; system calls are slower elsewhere).
IDLE_SHARE = 0.05  # of one core
WORKING_USER_PART = 0.7  # of its processor time
WORK_BYTES = 1 << 20  # taken, printed or written within a second


class Activity:
    """Detect whether any rank works, from the processor time that the kernel counts for it."""

    def __init__(self, now: float) -> None:
        self.last = now  # when work was last seen
        self.previous: dict[int, tuple[float, float]] = {}
        self.at = now
        self.rss_bytes = self.written = self.sent = 0
        self.computed: dict[int, float] = {}  # rank -> processor seconds outside the kernel

    def note(self, now: float) -> None:
        self.last = now

    def sample(
        self, now: float, ranks: dict[int, psutil.Process], written: int, sent: int = 0
    ) -> None:
        """Compare each rank's processor time with the last sample's, and what all have written and sent.

        Who takes memory, prints or writes to the disk works in the kernel most of the time, and so do
        ranks that exchange gradients on a busy machine. (Two ranks of Horovod that wait for each other send
        0.2 MB/s, to ask whether all are ready; the gradients of one step are 3 MB.)
        """
        times, before, self.rss_bytes = {}, (self.rss_bytes, self.written, self.sent), 0
        for rank, process in ranks.items():
            try:
                cpu = process.cpu_times()
                times[process.pid] = cpu.user, cpu.system
                self.computed[rank] = max(cpu.user, self.computed.get(rank, 0.0))
                self.rss_bytes += process.memory_info().rss
            except psutil.Error:
                continue
        for pid, (user, system) in times.items():
            user_before, system_before = self.previous.get(pid, (0.0, 0.0))
            user, system = user - user_before, system - system_before
            busy = user + system > IDLE_SHARE * (now - self.at)
            if busy and user > WORKING_USER_PART * (user + system):
                self.last = now
        self.written, self.sent = written, sent
        local = max(self.rss_bytes - before[0], written - before[1])
        if local > WORK_BYTES or sent - before[2] > WORK_BYTES * max(1, len(ranks)):
            self.last = now
        self.previous, self.at = times, now


def launchers(ranks: dict[int, psutil.Process]) -> list[psutil.Process]:
    """What started the ranks: mpirun, or one on each host."""
    found: dict[int, psutil.Process] = {}
    for process in ranks.values():
        try:
            # What has worked most for a rank may be a child of it, such as a worker that loads data.
            while process and "OMPI_COMM_WORLD_RANK" in variables(process):
                process = process.parent()
            # Without a world of its own a worker that outlives its rank becomes the grader's child.
            if process and process.pid != os.getpid():
                found[process.pid] = process
        except psutil.Error:
            continue
    return list(found.values())


def memory_of_launcher(ranks: dict[int, psutil.Process]) -> int:
    """Bytes that what started the ranks has in memory.

    On a busy machine mpirun may read what they print and pass nothing on, for minutes: 200 MB/s were seen.
    """
    taken = 0
    for process in launchers(ranks):
        with contextlib.suppress(psutil.Error):
            taken += process.memory_info().rss
    return taken


def has_torch(process: psutil.Process) -> bool:
    """Whether a library of PyTorch's is mapped into `process`, as the kernel says.

    The result is True, too, if the process hides its memory from its own user, because a submission
    that does so may have loaded PyTorch.
    """
    try:
        path = Path(f"/proc/{process.pid}/maps")
        mapped = as_owner(process.pid, path.read_bytes).decode(errors="replace")
    except PermissionError:
        return os.geteuid() in (0, process.uids().real)
    except OSError:
        return False
    return any(name in mapped for name in ("libtorch", "libc10.so"))


def left_their_cores(processes: list[psutil.Process]) -> bool:
    """Whether a thread of theirs may run on a core that this process may not.

    A batch divides the cores among its graders, and a process can give itself more again.
    """
    given = os.sched_getaffinity(0)
    if len(given) == os.cpu_count():
        return False
    for process in processes:
        try:
            threads = os.listdir(f"/proc/{process.pid}/task")
        except OSError:
            continue
        for thread in threads:
            try:
                if not os.sched_getaffinity(int(thread)) <= given:
                    return True
            except OSError:
                continue
    return False
