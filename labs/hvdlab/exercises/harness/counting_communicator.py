"""A communicator that counts what a rank sends and receives."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


class Counting:
    """A communicator with `rank`, `size`, Send, Recv, Sendrecv, Isend, Irecv and Barrier, that counts.

    MPI may buffer a small message and return from Send at once. Here every send waits for its receiver, so
    that a deadlock does not depend on the size of the messages.

    Attributes:
        sent: Bytes that this rank has sent.
        received: Bytes that this rank has received.
        messages: Copies of the arrays that were sent.
        receivers: The ranks that received them.
    """

    def __init__(self, comm: "MPI.Comm") -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.sent = self.received = 0
        self.messages, self.receivers, self.requests = [], set(), []

    def Get_rank(self) -> int:
        """Return the number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self.comm.Barrier()

    def Send(self, buf: object, dest: int, tag: int = 0) -> None:
        """Send an array, like MPI's Ssend."""
        self._count(buf, dest)
        self.comm.Ssend(buf, dest, tag)

    Ssend = Send

    def Isend(self, buf: object, dest: int, tag: int = 0) -> "MPI.Request":
        """Start to send an array, like MPI's Issend."""
        self._count(buf, dest)
        return self._keep(self.comm.Issend(buf, dest, tag))

    Issend = Isend

    # A default of -1 is Open MPI's ANY_SOURCE and ANY_TAG.
    def Recv(
        self, buf: object, source: int = -1, tag: int = -1, status: "MPI.Status | None" = None
    ) -> None:
        """Receive into an array."""
        self._expect(buf, source)
        self.comm.Recv(buf, source, tag, status)

    def Irecv(self, buf: object, source: int = -1, tag: int = -1) -> "MPI.Request":
        """Start to receive into an array."""
        self._expect(buf, source)
        return self._keep(self.comm.Irecv(buf, source, tag))

    def Sendrecv(
        self, sendbuf: object, dest: int, sendtag: int = 0, recvbuf: object = None, source: int = -1,
        recvtag: int = -1, status: "MPI.Status | None" = None,
    ) -> None:  # fmt: skip
        """Send one array and receive another at the same time."""
        self._count(sendbuf, dest)
        self._expect(recvbuf, source)
        self.comm.Sendrecv(sendbuf, dest, sendtag, recvbuf, source, recvtag, status)

    def __getattr__(self, name: str) -> object:
        raise AttributeError(
            f"comm.{name} is not for this exercise: write it with Send, Recv, Sendrecv, Isend and "
            "Irecv (with capital letters: they send arrays without pickling)"
        )

    def _count(self, buf: object, dest: int) -> None:
        if dest == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} sends to itself")
        self.sent += _array(buf).nbytes
        self.messages.append(_array(buf).copy())
        self.receivers.add(int(dest))

    def _expect(self, buf: object, source: int) -> None:
        if source == self.rank:
            raise ValueError(f"rank {self.rank} of {self.size} receives from itself")
        self.received += _array(buf).nbytes

    def _keep(self, request: "MPI.Request") -> "MPI.Request":
        self.requests.append(request)
        return request

    def not_waited_for(self) -> int:
        """Return how many requests were not waited for; MPI sets a request to null when it is waited for."""
        open_requests = [request for request in self.requests if request]
        for request in open_requests:
            request.Wait()
        return len(open_requests)


def _array(buf: object) -> np.ndarray:
    return np.asarray(buf[0] if isinstance(buf, list | tuple) else buf)
