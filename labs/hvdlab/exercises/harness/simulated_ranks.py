"""Run a function on simulated ranks: threads of this process, with messages like those of MPI.

    rows = on_simulated_ranks(lambda comm: ring_all_reduce(comm, np.ones(8)), ranks=4)

A deadlock is found at once: it exists when every rank that has not ended waits. So a check can run many
cases in a second. Like Open MPI on one node, `Send` copies a message of at most `EAGER_BYTES` and returns.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable

import numpy as np

from hvdlab import HvdlabError

EAGER_BYTES = 4096


class Deadlock(HvdlabError):
    """Every rank that has not ended waits for another one."""


class _Group:
    """What the ranks share: messages under way, and the collectives that they have called."""

    def __init__(self, size: int) -> None:
        self.size, self.changed = size, threading.Condition()
        self.waiting, self.running, self.stopped = {}, set(range(size)), False
        self.messages, self.collectives = defaultdict(deque), defaultdict(dict)

    def until(self, rank: int, ready: Callable[[], bool]) -> None:
        """Wait, with the lock, until something is true that another rank does."""
        self.waiting[rank] = ready
        self._stop_deadlock()
        while not ready():
            if self.stopped:
                raise Deadlock("the ranks wait for each other")
            self.changed.wait()
        del self.waiting[rank]

    def end(self, rank: int, failed: bool) -> None:
        """Note that a rank has ended. If it failed, the others end, too."""
        with self.changed:
            self.running.discard(rank)
            self.waiting.pop(rank, None)
            self.stopped |= failed
            self._stop_deadlock()
            self.changed.notify_all()

    def _stop_deadlock(self) -> None:
        if len(self.waiting) == len(self.running) and not any(r() for r in self.waiting.values()):
            self.stopped = True
            self.changed.notify_all()


class SimulatedComm:
    """The communicator of a simulated rank.

    Attributes:
        rank: number of this rank.
        size: number of ranks.
    """

    def __init__(self, group: _Group, rank: int) -> None:
        self.group, self.rank, self.size, self.called = group, rank, group.size, 0

    def Send(self, buf: np.ndarray, dest: int) -> None:
        """Send an array. A large one waits for its receiver."""
        message = self._begin(buf, dest)
        with self.group.changed:
            if buf.nbytes > EAGER_BYTES:
                self.group.until(self.rank, lambda: message["received"])

    def Recv(self, buf: np.ndarray, source: int) -> None:
        """Receive an array of the same length."""
        group, queue = self.group, self.group.messages[source, self.rank]
        with group.changed:
            group.until(self.rank, lambda: bool(queue))
            message = queue.popleft()
            message["received"] = True
            group.changed.notify_all()
        buf[...] = message["values"]

    def Sendrecv(self, sendbuf: np.ndarray, dest: int, recvbuf: np.ndarray, source: int) -> None:
        """Send one array and receive another at the same time."""
        self._begin(sendbuf, dest)
        self.Recv(recvbuf, source)

    def allgather(self, value: object) -> list:
        """Return the values of all ranks in their order, on every rank."""
        group, number = self.group, self.called
        self.called += 1
        with group.changed:
            found = group.collectives[number]
            found[self.rank] = value
            group.changed.notify_all()
            group.until(self.rank, lambda: len(found) == self.size)
        return [found[rank] for rank in range(self.size)]

    def _begin(self, buf: np.ndarray, dest: int) -> dict:
        message = {"values": buf.copy(), "received": False}
        with self.group.changed:
            self.group.messages[self.rank, dest].append(message)
            self.group.changed.notify_all()
        return message


def on_simulated_ranks(function: Callable[[SimulatedComm], object], ranks: int) -> list:
    """Return what `function(comm)` returns on each of some simulated ranks.

    Raises:
        Deadlock: the ranks wait for each other.
        Exception: the error of the first rank that raised one.
    """
    group, returned, errors = _Group(ranks), [None] * ranks, [None] * ranks

    def run(rank: int) -> None:
        try:
            returned[rank] = function(SimulatedComm(group, rank))
        except Exception as error:
            errors[rank] = error
        group.end(rank, failed=errors[rank] is not None)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [error for error in errors if error is not None]
    for error in sorted(failed, key=lambda error: isinstance(error, Deadlock)):
        raise error
    return returned
