"""A communicator that counts all-reduces, and knows which of them are under way."""

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

Buffer = np.ndarray | torch.Tensor


class Nonblocking:
    """A communicator with `rank`, `size`, Iallreduce and Allreduce, like that of MPI; Gloo sends the bytes.

    Attributes:
        sizes: bytes of each all-reduce that this rank has called.
        requests: what Iallreduce has returned.
    """

    def __init__(self, group: "ProcessGroup") -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), group.size()
        self.sizes, self.requests = [], []

    def Get_rank(self) -> int:
        """Return the number of this rank."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self.size

    def Iallreduce(self, sendbuf: object, recvbuf: Buffer, op: object = None) -> "Request":
        """Start to add up an array or a tensor over the ranks. A `sendbuf` like MPI.IN_PLACE is not read."""
        total = torch.as_tensor(recvbuf).detach()
        if isinstance(sendbuf, Buffer):
            total.copy_(torch.as_tensor(sendbuf))
        self.sizes.append(total.nbytes)
        self.requests.append(Request(dist.all_reduce(total, group=self.group, async_op=True)))
        return self.requests[-1]

    def Allreduce(self, sendbuf: object, recvbuf: Buffer, op: object = None) -> None:
        """Add up an array or a tensor over the ranks, and wait for the result."""
        self.Iallreduce(sendbuf, recvbuf, op).Wait()

    def __getattr__(self, name: str) -> object:
        raise AttributeError(f"comm.{name} is not for this exercise: use comm.Iallreduce")

    def under_way(self) -> int:
        """Return how many all-reduces have been called and not been waited for."""
        return sum(not request.waited for request in self.requests)

    def finish(self) -> None:
        """Wait for the all-reduces that are under way."""
        for request in self.requests:
            request.Wait()


class Request:
    """A request that remembers whether it was waited for."""

    def __init__(self, work: "Work") -> None:
        self.work, self.waited = work, False

    def Wait(self) -> None:
        """Wait for the result."""
        if not self.waited:
            self.work.wait()
        self.waited = True

    def Test(self) -> bool:
        """Return whether the result is there."""
        self.waited |= self.work.is_completed()
        return self.waited

    wait, test = Wait, Test
