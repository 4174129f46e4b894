"""Methods by which Horovod can send the gradients of a PyTorch network; benchmarks compare them.

    optimizer = EXCHANGES["one buffer"](hvd, model, optimizer, mine.compression)

Each function returns an object that takes the place of the optimizer. A single rank sends nothing with any
method.
"""

import time
from functools import partial
from types import ModuleType

import torch

POLL_SECONDS = 50e-6


class FirstNumber:
    """A compression that sends one number of a gradient and leaves the gradient unchanged."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first number of a gradient, and the gradient as the context."""
        return tensor.flatten()[:1].cpu().clone(), tensor

    @staticmethod
    def decompress(tensor: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """Return the gradient that `compress` received."""
        return context


def one_by_one(
    hvd: ModuleType,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    compression: type,
    polled: bool = False,
    groups: int | None = None,
) -> torch.optim.Optimizer:
    """Return `hvd.DistributedOptimizer`: it sends each gradient as soon as the backward pass has it.

    Args:
        optimizer: makes the step.
        polled: whether the step checks every 50 us whether the gradients have arrived. Horovod's own
            `synchronize` checks every millisecond (torch/mpi_ops_v2.cc, WaitAndClear).
        groups: 1 lets Horovod wait until it has all gradients, and send them with one all-reduce.
    """
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=compression, groups=groups
    )
    if polled:
        synchronize = optimizer.synchronize

        def poll() -> None:
            for handle, _ in list(optimizer._handles.values()):
                if handle is not None:
                    _wait(hvd, handle)
            synchronize()

        optimizer.synchronize = poll
    return optimizer


class OneBuffer:
    """An optimizer whose gradients are views of one array, which one all-reduce averages in place.

    Horovod then copies nothing into its fusion buffer.
    """

    def __init__(
        self,
        hvd: ModuleType,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        compression: type,
        polled: bool = False,
    ) -> None:
        """Allocate the array; the arguments are those of `one_by_one`."""
        self.hvd, self.optimizer, self.compression = hvd, optimizer, compression
        self.polled = polled
        parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in parameters]
        self.buffer = torch.zeros(sum(sizes), device=parameters[0].device)
        for parameter, part in zip(parameters, self.buffer.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def zero_grad(self) -> None:
        """Set the gradients to zero and keep the views, because the backward pass adds to them."""
        self.buffer.zero_()

    def step(self) -> None:
        """Average the gradients of all ranks, and make a step of the optimizer."""
        if self.hvd.size() > 1:
            sent, context = self.compression.compress(self.buffer)
            handle = self.hvd.allreduce_async_(sent, name="gradients")
            if self.polled:
                _wait(self.hvd, handle)
            averaged = self.compression.decompress(self.hvd.synchronize(handle), context)
            self.buffer.copy_(averaged)  # copies nothing if the all-reduce was in place
        self.optimizer.step()


def _wait(hvd: ModuleType, handle: int) -> None:
    while not hvd.poll(handle):
        time.sleep(POLL_SECONDS)


EXCHANGES = {
    "one by one": one_by_one,
    "one group": partial(one_by_one, groups=1),
    "one by one, polled": partial(one_by_one, polled=True),
    "one buffer": OneBuffer,
    "one buffer, polled": partial(OneBuffer, polled=True),
    # One number of each gradient: the cost of an exchange except for the bytes. The ranks do not train
    # together.
    "first numbers": lambda hvd, model, optimizer, compression: one_by_one(
        hvd, model, optimizer, FirstNumber
    ),
    # Horovod's thread runs, and no gradient is sent.
    "nothing": lambda hvd, model, optimizer, compression: optimizer,
}
