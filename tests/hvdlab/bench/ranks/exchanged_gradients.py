"""A rank of `hvdlab.bench`: report how much the gradients of each exchange differ from the average."""

import functools
from collections.abc import Callable

from hvdlab.bench import ranks

comm = ranks.communicator()
import horovod.torch as hvd  # noqa: E402
import torch  # noqa: E402

from hvdlab.bench.gradient_exchanges import EXCHANGES  # noqa: E402
from hvdlab.torch.device import InHorovodsLayout, ThroughHost  # noqa: E402


def gradients_after_a_step(send: Callable) -> torch.Tensor:
    """Return the gradients as one array; the images differ from rank to rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = send(model, torch.optim.SGD(model.parameters(), 0.1))
    optimizer.zero_grad()
    model(torch.ones(5, 3) * (1 + comm.rank)).square().sum().backward()
    optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


hvd.init()
own = gradients_after_a_step(lambda model, optimizer: optimizer)
average = sum(torch.tensor(gradient) for gradient in comm.allgather(own.tolist())) / comm.size
gaps = {}
for compression in (InHorovodsLayout, ThroughHost):  # the second sends copies, as from a GPU
    for name, exchange in EXCHANGES.items():
        send = functools.partial(exchange, hvd, compression=compression)
        found = gradients_after_a_step(send)
        gap = float((found - average).abs().max() / average.abs().max())
        gaps[name] = max(gap, gaps.get(name, 0.0))
ranks.tell({"rank": comm.rank, "gaps": gaps})
