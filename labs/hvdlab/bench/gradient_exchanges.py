"""How Horovod can send the gradients of a PyTorch network: what benchmarks compare.

    optimizer = EXCHANGES["one buffer"](hvd, model, optimizer, mine.compression)

Each function returns what takes the place of the optimizer. A single rank sends nothing in any of them.
"""

import time

import torch

POLL_SECONDS = 50e-6


def one_by_one(hvd, model, optimizer, compression):
    """`hvd.DistributedOptimizer`: each gradient as soon as the backward pass has it."""
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)


def one_group(hvd, model, optimizer, compression):
    """`groups=1`: Horovod waits until it has all gradients, and sends them by one all-reduce."""
    return hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=compression, groups=1
    )


def one_by_one_polled(hvd, model, optimizer, compression):
    """As `one_by_one`, but the step looks every 50 us whether the gradients are there.

    Horovod's own `synchronize` looks every millisecond (torch/mpi_ops_v2.cc, WaitAndClear).
    """
    optimizer = one_by_one(hvd, model, optimizer, compression)
    synchronize = optimizer.synchronize

    def polled():
        for handle, _ in list(optimizer._handles.values()):
            if handle is not None:
                _wait(hvd, handle)
        synchronize()

    optimizer.synchronize = polled
    return optimizer


def one_buffer(hvd, model, optimizer, compression):
    """All gradients in one array, which one all-reduce averages in place: nothing is copied for fusion."""
    return OneBuffer(hvd, model, optimizer, compression, polled=False)


def one_buffer_polled(hvd, model, optimizer, compression):
    """As `one_buffer`, and the step looks every 50 us whether the gradients are there."""
    return OneBuffer(hvd, model, optimizer, compression, polled=True)


def first_numbers(hvd, model, optimizer, compression):
    """One number of each gradient: what an exchange costs except for the bytes. It is no training."""
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=FirstNumber)


def nothing(hvd, model, optimizer, compression):
    """Horovod's thread runs, and no gradient is sent."""
    return optimizer


EXCHANGES = {
    "one by one": one_by_one,
    "one group": one_group,
    "one by one, polled": one_by_one_polled,
    "one buffer": one_buffer,
    "one buffer, polled": one_buffer_polled,
    "first numbers": first_numbers,
    "nothing": nothing,
}


class OneBuffer:
    """Stands for an optimizer whose gradients are views of one array."""

    def __init__(self, hvd, model, optimizer, compression, polled: bool):
        self.hvd, self.optimizer, self.compression = hvd, optimizer, compression
        self.polled = polled
        parameters = [p for p in model.parameters() if p.requires_grad]
        sizes = [p.numel() for p in parameters]
        self.buffer = torch.zeros(sum(sizes), device=parameters[0].device)
        for parameter, part in zip(parameters, self.buffer.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def zero_grad(self):
        """Keep the views: the backward pass adds to them."""
        self.buffer.zero_()

    def step(self):
        if self.hvd.size() > 1:
            sent, context = self.compression.compress(self.buffer)
            handle = self.hvd.allreduce_async_(sent, name="gradients")
            if self.polled:
                _wait(self.hvd, handle)
            averaged = self.compression.decompress(self.hvd.synchronize(handle), context)
            self.buffer.copy_(averaged)  # nothing to do where it was averaged in place
        self.optimizer.step()


class FirstNumber:
    """A compression that sends one number of a gradient, and leaves the gradient as it was."""

    @staticmethod
    def compress(tensor):
        return tensor.flatten()[:1].cpu().clone(), tensor

    @staticmethod
    def decompress(tensor, context):
        return context


def _wait(hvd, handle):
    while not hvd.poll(handle):
        time.sleep(POLL_SECONDS)
