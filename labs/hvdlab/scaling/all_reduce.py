"""Predict the time of an all-reduce from the latency, the bandwidth and the addition time of a machine.

    link = calibrate(sizes, seconds, ranks=2)   # or Link(latency=20e-6, bandwidth=3.1e9)
    ring(64e6, 512, link), tree(64e6, 512, 1, link, link)

A message of S bytes takes alpha + S / beta seconds (Hockney 1994). Adding up S received bytes takes another
S gamma seconds (Thakur, Rabenseifner and Gropp 2005). All times are in seconds and all sizes in bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

ALGORITHMS = "ring", "hierarchical", "tree"


class Link(NamedTuple):
    """A connection in one direction.

    Attributes:
        latency: seconds until a message starts.
        bandwidth: bytes per second after that.
    """

    latency: float
    bandwidth: float


def ring(nbytes: float, ranks: int, link: Link, addition: float = 0.0) -> float:
    """Return the seconds of a ring all-reduce: 2(N-1) steps, each with a chunk of S/N bytes.

    No algorithm sends less than 2(N-1)/N S bytes per rank (Patarasuk and Yuan 2009). In the first half of
    the steps each rank also adds the chunk that it received to its own.

    Args:
        nbytes: size S of the tensor in bytes.
        ranks: number of ranks N.
        link: between two neighbours in the ring.
        addition: seconds per byte that is added up. Default 0.
    """
    chunk = nbytes / ranks
    return (ranks - 1) * (2 * (link.latency + chunk / link.bandwidth) + chunk * addition)


def tree(
    nbytes: float, hosts: int, per_host: int, network: Link, inside: Link, addition: float = 0.0
) -> float:
    """Return the seconds of an all-reduce in a double binary tree across hosts, with a chain in each host.

    The sum travels up the tree and down again, so the latency grows with 2 log2(hosts). Each of two
    complementary trees carries half of the tensor, in many small pieces, and a rank sends and adds as much
    as in a ring (Sanders, Speck and Traff 2009). NCCL has such trees since its version 2.4 of 2019. The time
    until the first piece has arrived everywhere is that of the latency only.

    Args:
        nbytes: size S of the tensor in bytes.
        hosts: number of hosts.
        per_host: number of ranks on each host.
        network: between two hosts.
        inside: between two ranks of a host.
        addition: seconds per byte that is added up. Default 0.
    """
    ranks = hosts * per_host
    levels = math.ceil(math.log2(hosts))
    latency = 2 * (levels * network.latency + (per_host - 1) * inside.latency)
    used = ([network] if hosts > 1 else []) + ([inside] if per_host > 1 else [])
    slowest = min((link.bandwidth for link in used), default=math.inf)
    return latency + (ranks - 1) / ranks * nbytes * (2 / slowest + addition)


def hierarchical(
    nbytes: float, hosts: int, per_host: int, network: Link, inside: Link, addition: float = 0.0
) -> float:
    """Return the seconds of a hierarchical all-reduce, which has three phases.

    They are a reduce-scatter in each host, a ring across the hosts for each shard, and an all-gather in each
    host. In the second phase all shards share the network card of the host.

    Args:
        nbytes: size of the tensor in bytes.
        hosts: number of hosts.
        per_host: number of ranks on each host.
        network: between two hosts.
        inside: between two ranks of a host.
        addition: seconds per byte that is added up. Default 0.
    """
    shard_link = Link(network.latency, network.bandwidth / per_host)
    within = ring(nbytes, per_host, inside, addition)
    return within + ring(nbytes / per_host, hosts, shard_link, addition)


@dataclass(frozen=True)
class Cluster:
    """Hosts and their connections.

    Attributes:
        network: between two hosts. The bandwidth is that of a host's network card.
        ranks_per_host: number of GPUs (or cores) of each host. Default 1.
        inside: between two ranks of a host. None (default): the same as `network`.
        jitter: standard deviation of the compute time of a rank, as a fraction of its mean. Default 0.
        addition: seconds per byte that a rank adds up. Default 0.
    """

    network: Link
    ranks_per_host: int = 1
    inside: Link | None = None
    jitter: float = 0.0
    addition: float = 0.0

    def all_reduce(self, nbytes: float, ranks: int, algorithm: str = "ring") -> float:
        """Return the seconds of one all-reduce. The ranks fill one host after another.

        Args:
            nbytes: size of the tensor in bytes.
            ranks: number of ranks.
            algorithm: "ring" (default), "hierarchical" or "tree".
        """
        inside, hosts = self.inside or self.network, -(-ranks // self.ranks_per_host)
        if algorithm == "tree":
            per_host = min(ranks, self.ranks_per_host)
            return tree(nbytes, hosts, per_host, self.network, inside, self.addition)
        if hosts == 1:
            return ring(nbytes, ranks, inside, self.addition)
        if algorithm == "hierarchical":
            per_host = self.ranks_per_host
            return hierarchical(nbytes, hosts, per_host, self.network, inside, self.addition)
        # The ring enters and leaves each host once. Its slowest connection limits its speed.
        latency = max(self.network.latency, inside.latency)
        slowest = Link(latency, min(self.network.bandwidth, inside.bandwidth))
        return ring(nbytes, ranks, slowest, self.addition)

    def slowest(self, ranks: int) -> float:
        """Return the compute time of the slowest rank, divided by the mean.

        It is the expected maximum of N normal numbers (Blom 1958, within 5 %).
        """
        return 1 + self.jitter * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def calibrate(nbytes: Sequence[float], seconds: Sequence[float], ranks: int) -> Link:
    """Return the link with which `ring` fits measured all-reduces best.

    It is a straight line over the sizes with the smallest *relative* error. A latency below zero becomes 0.

    Args:
        nbytes: sizes of the tensors in bytes.
        seconds: time of each all-reduce.
        ranks: number of ranks.

    Raises:
        ValueError: there are fewer than two sizes, only one rank, or the time does not grow with the size.
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
        raise ValueError(
            "seconds must grow with nbytes, otherwise no bandwidth can be computed from them."
        )
    steps = 2 * (ranks - 1)
    return Link(float(start) / steps, steps / ranks / float(slope))
