"""A communicator that counts all-reduces, and knows which of them are under way."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI


class Nonblocking:
    """A communicator with `rank`, `size`, Iallreduce and Allreduce, for arrays and tensors.

    Attributes:
        sizes: bytes of each all-reduce that this rank has called.
        requests: what Iallreduce has returned.
    """

    def __init__(self, comm: "MPI.Comm") -> None:
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.sizes, self.requests = [], []

    def Get_rank(self) -> int:
        """Return the number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Iallreduce(self, sendbuf: object, recvbuf: object, op: "MPI.Op | None" = None) -> "Request":
        """Start to add up an array over the ranks."""
        self.sizes.append(_bytes(recvbuf))
        options = () if op is None else (op,)
        self.requests.append(Request(self.comm.Iallreduce(sendbuf, recvbuf, *options)))
        return self.requests[-1]

    def Allreduce(self, sendbuf: object, recvbuf: object, op: "MPI.Op | None" = None) -> None:
        """Add up an array over the ranks, and wait for the result."""
        self.Iallreduce(sendbuf, recvbuf, op).Wait()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"comm.{name} is not for this exercise: use comm.Iallreduce")

    def under_way(self) -> int:
        """Return how many all-reduces have been called and not been waited for."""
        return sum(not request.waited for request in self.requests)

    def finish(self) -> bool:
        """Wait for the all-reduces that are under way, if all ranks have called equally many."""
        if len(set(self.comm.allgather(len(self.requests)))) > 1:
            return False
        for request in self.requests:
            request.Wait()
        return True


class Request:
    """A request of MPI that remembers whether it was waited for."""

    def __init__(self, request: "MPI.Request") -> None:
        self.request, self.waited = request, False

    def Wait(self) -> None:
        """Wait for the result."""
        self.waited = True
        self.request.Wait()

    def Test(self) -> bool:
        """Return whether the result is there."""
        done = self.request.Test()
        self.waited |= done
        return done

    wait, test = Wait, Test


def _bytes(buf: object) -> int:
    array = buf[0] if isinstance(buf, list | tuple) else buf
    return array.nbytes if hasattr(array, "nbytes") else np.asarray(array).nbytes
