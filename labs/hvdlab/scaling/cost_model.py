"""What N ranks will do: a cost model of all-reduce and of the training step around it.

    python -m hvdlab.scaling                    # compares the model with published figures

    link = calibrate(sizes, seconds, ranks=2)   # or Link(latency=20e-6, bandwidth=3.1e9)
    cluster = Cluster(network=link, ranks_per_host=4, inside=Link(5e-6, 12e9))
    forecast(resnet, cluster, ranks=512).efficiency

A message of S bytes takes alpha + S / beta seconds (Hockney 1994). A step is played through as Horovod
does it: gradients become ready during the backward pass, the last layer's first; every cycle those
that are ready are fused into buffers, and one buffer after another is all-reduced. The step ends
with the last of them. Of N ranks that do equal work all wait for the slowest. Seconds and bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

# --- all-reduce -------------------------------------------------------------------------------------


class Link(NamedTuple):
    """One connection, in one direction: seconds to start a message, bytes per second after that."""

    latency: float
    bandwidth: float


def ring(nbytes: float, ranks: int, link: Link) -> float:
    """Seconds of a ring all-reduce: 2(N-1) steps, each with a chunk of S/N bytes.

    No algorithm sends less than 2(N-1)/N S bytes a rank (Patarasuk and Yuan 2009).
    """
    return 2 * (ranks - 1) * (link.latency + nbytes / ranks / link.bandwidth)


def hierarchical(nbytes: float, hosts: int, per_host: int, network: Link, inside: Link) -> float:
    """Seconds of an all-reduce in three phases: reduce-scatter in each host, a ring across the hosts
    for each share, all shares at once through the one network card, and all-gather in each host."""
    shares = Link(network.latency, network.bandwidth / per_host)
    return ring(nbytes, per_host, inside) + ring(nbytes / per_host, hosts, shares)


@dataclass(frozen=True)
class Cluster:
    """Hosts of `ranks_per_host` GPUs (or cores) each, and what connects them."""

    network: Link  # between two hosts; the bandwidth is that of a host's network card
    ranks_per_host: int = 1
    inside: Link | None = None  # between two ranks of a host; None: as the network
    jitter: float = 0.0  # standard deviation of a rank's compute time, as a fraction of it

    def all_reduce(self, nbytes: float, ranks: int, algorithm: str = "ring") -> float:
        """Seconds of one all-reduce by `ranks` ranks, which fill one host after another."""
        inside, hosts = self.inside or self.network, -(-ranks // self.ranks_per_host)
        if hosts == 1:
            return ring(nbytes, ranks, inside)
        if algorithm == "hierarchical":
            return hierarchical(nbytes, hosts, self.ranks_per_host, self.network, inside)
        # The ring enters and leaves each host once; its slowest connection sets the pace.
        latency = max(self.network.latency, inside.latency)
        return ring(nbytes, ranks, Link(latency, min(self.network.bandwidth, inside.bandwidth)))

    def slowest(self, ranks: int) -> float:
        """Compute time of the slowest of `ranks`, in units of the mean: what the largest of N normal
        numbers is on average (Blom 1958, within 5 %)."""
        return 1 + self.jitter * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def calibrate(nbytes: Sequence[float], seconds: Sequence[float], ranks: int) -> Link:
    """The link under which `ring` comes nearest to measured all-reduces.

    A straight line over the sizes, of least *relative* error. A latency below zero becomes zero.

    Raises:
        ValueError: fewer than two sizes, one rank, or a time that does not grow with the size.
    """
    sizes, times = np.asarray(nbytes, float), np.asarray(seconds, float)
    if ranks < 2 or len(set(sizes)) < 2:
        raise ValueError(
            "calibrate needs all-reduces of at least two sizes on at least two ranks. "
            f"Received: sizes {sorted(set(sizes))} on {ranks} rank(s)"
        )
    slope, start = np.polyfit(sizes, times, 1, w=1 / times)
    if start < 0:
        start, slope = 0.0, (sizes / times).sum() / ((sizes / times) ** 2).sum()
    if slope <= 0:
        raise ValueError("seconds must grow with nbytes: these timings have no bandwidth in them.")
    steps = 2 * (ranks - 1)
    return Link(float(start) / steps, steps / ranks / float(slope))


# --- a training step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A neural network: its layers from the input to the output, and how fast one rank is."""

    layers: tuple[tuple[float, float], ...]  # (parameters, work); work in any unit
    images_per_second: float  # of one rank that exchanges nothing
    batch_size: int = 64  # images a rank in a step

    @property
    def parameters(self) -> float:
        return sum(parameters for parameters, _ in self.layers)

    @property
    def compute(self) -> float:
        """Seconds of a step of one rank."""
        return self.batch_size / self.images_per_second

    def gradients(self, slowdown: float = 1.0) -> list[tuple[float, float]]:
        """(seconds after the start of the step, parameters) of each gradient, the last layer's first.

        The forward pass takes a third of the step and the backward pass two thirds, shared among the
        layers as the multiplications are.
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
    """(begin, end, bytes) of each all-reduce for gradients (seconds, bytes) in order of time.

    `seconds(bytes)` is the time of one all-reduce. What is ready when Horovod looks, every `cycle`
    seconds, is fused into buffers of `fusion` bytes; a larger gradient travels alone.
    """
    sent, now, first = [], 0.0, 0
    while first < len(ready):
        if now < ready[first][0]:  # idle until the next look, half a cycle later on average
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
    """When the slowest rank has computed, when the step ends, and its all-reduces (see `exchange`).

    Args:
        algorithm: "ring" or "hierarchical".
        number_bytes: of a number on its way: 4 for float32, 2 for Compression.fp16.
        fusion, cycle: HOROVOD_FUSION_THRESHOLD in bytes and HOROVOD_CYCLE_TIME in seconds. The
            defaults are those of Horovod in 2018; 0.28 has 128 MiB and 1 ms.
        overlap: exchange during the backward pass; False where the same cores compute and exchange.
    """
    if ranks < 1 or algorithm not in ("ring", "hierarchical"):
        raise ValueError(
            'a step needs ranks >= 1 and algorithm "ring" or "hierarchical". '
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


class Forecast(NamedTuple):
    """What `ranks` ranks will do. Seconds are those of one step."""

    ranks: int
    images_per_second: float
    efficiency: float  # images/s over N times those of one rank
    step: float
    compute: float  # of one rank alone
    communication: float  # during which the network is busy
    exposed: float  # of it, after the slowest rank has finished computing
    buffers: int  # all-reduces
    limit: str  # "compute", "stragglers", "latency" or "bandwidth"
    overlap_exhausted: bool  # more communication than backward pass to hide it behind


def forecast(network: Network, cluster: Cluster, ranks: int, **options) -> Forecast:
    """Predict a synchronous data-parallel step of `ranks` ranks; `options` are those of `step`.

    `limit` is what costs most: the part of the step that would vanish with equally fast ranks, no
    latency, or endless bandwidth; "compute" if none of them takes 5 % of the step.
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
