"""Predict the speed of N ranks with a cost model of all-reduce and of a training step.

    python -m hvdlab.scaling                    # compares the model with published figures

    link = Link(latency=20e-6, bandwidth=3.1e9)
    cluster = Cluster(network=link, ranks_per_host=4, inside=Link(5e-6, 12e9))
    forecast(resnet, cluster, ranks=512).efficiency

The model simulates a step of Horovod. Gradients become ready during the backward pass, beginning with those
of the last layer. In every cycle the gradients that are ready are fused into buffers, and one buffer after
another is all-reduced. The step ends with the last all-reduce. All ranks do the same work and wait for the
slowest rank. All times are in seconds and all sizes in bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hvdlab.scaling.all_reduce import ALGORITHMS, Cluster


@dataclass(frozen=True)
class Network:
    """A neural network, and how fast one rank trains it.

    Attributes:
        layers: (parameters, work) of each layer, from the input to the output; work in any unit.
        images_per_second: of a single rank, which exchanges nothing.
        batch_size: images per rank and step. Default 64.
    """

    layers: tuple[tuple[float, float], ...]
    images_per_second: float
    batch_size: int = 64

    @property
    def parameters(self) -> float:
        """The number of parameters of all layers."""
        return sum(parameters for parameters, _ in self.layers)

    @property
    def compute(self) -> float:
        """The seconds of a step of a single rank."""
        return self.batch_size / self.images_per_second

    def gradients(self, slowdown: float = 1.0) -> list[tuple[float, float]]:
        """Return (seconds after the start of the step, parameters) of each gradient, last layer first.

        The forward pass takes one third of the step and the backward pass two thirds. The time of each layer
        is proportional to its work.

        Args:
            slowdown: factor of the compute time. Default 1.
        """
        whole = sum(work for _, work in self.layers)
        done, ready = 0.0, []
        for parameters, work in reversed(self.layers):
            done += work / whole
            ready.append((slowdown * self.compute * (1 + 2 * done) / 3, parameters))
        return ready


def exchange(
    ready: Sequence[tuple[float, float]],
    seconds: Callable[[float], float],
    fusion: float,
    cycle: float,
) -> list[tuple[float, float, float]]:
    """Return (begin, end, bytes) of each all-reduce of a step, in order of time.

    Every `cycle` seconds, Horovod fuses the gradients that are ready into buffers. A gradient that is larger
    than a buffer is sent separately.

    Args:
        ready: (seconds, bytes) of each gradient: when it is ready, and its size. In order of time.
        seconds: takes a number of bytes, and returns the time of one all-reduce.
        fusion: size of a buffer in bytes.
        cycle: seconds between two checks of Horovod.
    """
    sent, now, first = [], 0.0, 0
    while first < len(ready):
        if now < ready[first][0]:  # idle until the next check, half a cycle later on average
            now = ready[first][0] + cycle / 2
        waiting = [nbytes for at, nbytes in ready[first:] if at <= now]
        first += len(waiting)
        buffers = [0.0]
        for nbytes in waiting:
            if buffers[-1] and buffers[-1] + nbytes > fusion:
                buffers.append(0.0)
            buffers[-1] += nbytes
        for nbytes in buffers:
            sent.append((now, now + seconds(nbytes), nbytes))
            now = sent[-1][1]
    return sent


def step(
    network: Network,
    cluster: Cluster,
    ranks: int,
    *,
    algorithm: str = "ring",
    number_bytes: int = 4,
    fusion: float = 64 * 2**20,
    cycle: float = 5e-3,
    overlap: bool = True,
) -> tuple[float, float, list[tuple[float, float, float]]]:
    """Simulate a step of synchronous data-parallel training.

    Args:
        network: that is trained.
        cluster: on which it is trained.
        ranks: number of ranks.
        algorithm: "ring" (default), "hierarchical" or "tree".
        number_bytes: size of a number when it is sent: 4 for float32 (default), 2 for Compression.fp16.
        fusion: HOROVOD_FUSION_THRESHOLD in bytes. The default is that of Horovod in 2018; 0.28 has 128 MiB.
        cycle: HOROVOD_CYCLE_TIME in seconds. The default is that of Horovod in 2018; 0.28 has 1 ms.
        overlap: exchange during the backward pass (default). False if the same cores compute and exchange.

    Returns:
        When the slowest rank has computed, when the step ends (both in seconds), and the all-reduces of
        `exchange`.

    Raises:
        ValueError: an argument is out of range.
    """
    if ranks < 1 or algorithm not in ALGORITHMS:
        raise ValueError(
            f"a step needs ranks >= 1 and algorithm {' or '.join(ALGORITHMS)}. "
            f"Received: ranks={ranks}, algorithm={algorithm!r}"
        )
    computed = network.compute * cluster.slowest(ranks)
    if ranks == 1:
        return computed, computed, []
    ready = [
        (at if overlap else computed, number_bytes * parameters)
        for at, parameters in network.gradients(cluster.slowest(ranks))
    ]
    sent = exchange(ready, lambda n: cluster.all_reduce(n, ranks, algorithm), fusion, cycle)
    return computed, max(computed, sent[-1][1]), sent


def step_compute(
    compute: float, measured_ranks: int, ranks: int, fixed: float = 0.0, batch: float = 1.0
) -> float:
    """Return the compute time of a step in strong scaling, where the batch per rank falls.

    Args:
        compute: seconds of a step on `measured_ranks` ranks.
        measured_ranks: number of ranks on which `compute` was measured.
        ranks: number of ranks.
        fixed: seconds of `compute` that a smaller batch does not save, such as starting kernels. Default 0.
        batch: batch of all ranks, divided by that of the measurement. Default 1.
    """
    return fixed + (compute - fixed) * batch * measured_ranks / ranks


class Forecast(NamedTuple):
    """The predicted speed of N ranks. All times are seconds per step.

    Attributes:
        ranks: number of ranks N.
        images_per_second: of all ranks together.
        efficiency: images/s divided by N times the images/s of a single rank.
        step: time of a step.
        compute: compute time of a single rank.
        communication: time during which the network is busy.
        exposed: the part of `communication` after the slowest rank has finished computing.
        buffers: number of all-reduces.
        limit: "compute", "stragglers", "latency" or "bandwidth".
        overlap_exhausted: whether the communication takes longer than the rest of the backward pass, with
            which it could overlap.
    """

    ranks: int
    images_per_second: float
    efficiency: float
    step: float
    compute: float
    communication: float
    exposed: float
    buffers: int
    limit: str
    overlap_exhausted: bool


def forecast(network: Network, cluster: Cluster, ranks: int, **options: Any) -> Forecast:
    """Return the predicted speed of synchronous data-parallel training.

    `limit` names the largest loss of time: how much shorter the step would be with equally fast ranks
    ("stragglers"), without latency, or with infinite bandwidth. It is "compute" if each loss is less than 5 %
    of the step.

    Args:
        network: that is trained.
        cluster: on which it is trained.
        ranks: number of ranks.
        options: of `step`.

    Raises:
        ValueError: as `step`.
    """
    computed, end, sent = step(network, cluster, ranks, **options)
    links = {"network": cluster.network, "inside": cluster.inside or cluster.network}
    ideal = {
        "stragglers": {"jitter": 0.0},
        "latency": {name: link._replace(latency=0) for name, link in links.items()},
        "bandwidth": {name: link._replace(bandwidth=math.inf) for name, link in links.items()},
    }
    losses = {
        name: end - step(network, replace(cluster, **better), ranks, **options)[1]
        for name, better in ideal.items()
    }
    worst = max(losses, key=losses.get)
    communication = sum(done - begun for begun, done, _ in sent)
    return Forecast(
        ranks=ranks,
        images_per_second=ranks * network.batch_size / end,
        efficiency=network.compute / end,
        step=end,
        compute=network.compute,
        communication=communication,
        exposed=end - computed,
        buffers=len(sent),
        limit=worst if losses[worst] >= 0.05 * end else "compute",
        overlap_exhausted=bool(sent) and communication > computed - sent[0][0],
    )


def first_below(
    network: Network, cluster: Cluster, level: float, most: int, **options: Any
) -> int | None:
    """Return a number of ranks at which the efficiency falls below a level, or None up to `most` ranks.

    It halves the interval, so it finds one such place if the efficiency falls and rises again.

    Args:
        network: that is trained.
        cluster: on which it is trained.
        level: the efficiency, 0 to 1.
        most: largest number of ranks.
        options: of `step`.

    Raises:
        ValueError: as `step`.
    """
    if forecast(network, cluster, most, **options).efficiency >= level:
        return None
    above, below = 0, most
    while below - above > 1:
        middle = (above + below) // 2
        falls = forecast(network, cluster, middle, **options).efficiency < level
        above, below = (above, middle) if falls else (middle, below)
    return below
