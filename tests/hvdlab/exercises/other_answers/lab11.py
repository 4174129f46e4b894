"""Right answers of lab 11 in other styles."""

import math

import numpy as np
import torch
from torch.utils.data import DistributedSampler


def by_counting(node, local_rank, ranks_per_node, nodes):
    places = [(n, local) for n in range(nodes) for local in range(ranks_per_node)]
    local = sum(1 for n, _ in places if n == node)
    numbers = places.index((node, local_rank)), len(places), local_rank, local
    return dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), numbers, strict=True))


def with_tensors(node, local_rank, per_node, nodes):
    return dict(
        LOCAL_WORLD_SIZE=np.int64(per_node),
        LOCAL_RANK=float(local_rank),
        WORLD_SIZE=torch.tensor(nodes * per_node),
        RANK=torch.arange(nodes * per_node).reshape(nodes, per_node)[node, local_rank],
    )


def by_the_sampler(n, rank, size, epoch, seed):
    sampler = DistributedSampler(range(n), size, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def as_a_table(n, rank, size, epoch, seed):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch))
    each = math.ceil(n / size)
    return torch.cat([order, order[: each * size - n]]).reshape(each, size)[:, rank]


torchrun_variables = [by_counting, with_tensors]
shard_indices = [by_the_sampler, as_a_table]
