"""Checks of lab 11 for the functions that the learner writes: torchrun's variables, and a rank's shard."""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, right

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SHARD_CASES = (  # n, rank, size, epoch, seed
    (8, 0, 2, 0, 0),
    (8, 1, 2, 0, 0),
    (9, 1, 2, 0, 1),
    (257, 3, 4, 2, 7),
    (10, 0, 1, 1, 3),
)


@exercise
def check_torchrun_variables(function: Callable) -> None:
    """Demand the four numbers that torchrun gives to a rank.

    Args:
        function: The learner's function of node, local_rank, ranks_per_node and nodes.
    """
    for node, local_rank, per_node, nodes in (
        (0, 0, 1, 1),
        (1, 2, 4, 2),
        (2, 0, 8, 3),
        (0, 3, 4, 2),
    ):
        case = f"torchrun_variables({node}, {local_rank}, {per_node}, {nodes})"
        answer = call(function, node, local_rank, per_node, nodes)
        if not isinstance(answer, dict) or set(answer) != set(NAMES):
            raise NotYet(f"{case} must return a dict with {', '.join(NAMES)}. Received: {answer!r}")
        rank, size = node * per_node + local_rank, nodes * per_node
        expected = {"RANK": rank, "WORLD_SIZE": size}
        expected |= {"LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": per_node}
        mistakes = {
            "RANK": {
                "RANK counts over all nodes: node 1 of four ranks per node begins with rank 4.": local_rank,
                "Ranks count from 0.": rank + 1,
                "A node has ranks_per_node ranks: multiply its number by that, and not by nodes.": (
                    node * nodes + local_rank
                ),
            },
            "WORLD_SIZE": {
                "WORLD_SIZE is the number of all ranks, on all nodes.": [per_node, nodes],
            },
            "LOCAL_RANK": {"LOCAL_RANK counts on one node and starts at 0 on each of them.": rank},
            "LOCAL_WORLD_SIZE": {"LOCAL_WORLD_SIZE is the number of ranks on one node.": size},
        }
        for name in NAMES:
            compare(f'{case}["{name}"]', answer[name], expected[name], mistakes[name])
    right(
        "rank 6 of 8 is local rank 2 on node 1. The script of every rank reads its own numbers, so one "
        "program can act differently on each rank."
    )


@exercise
def check_shard_indices(function: Callable) -> None:
    """Demand the indices that `DistributedSampler` yields, for a rank and an epoch.

    Args:
        function: The learner's function of n, rank, size, epoch and seed.
    """
    import torch
    from torch.utils.data import DistributedSampler

    def permuted(n: int, seed: int) -> list[int]:
        return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()

    def taken(order: list[int], rank: int, size: int) -> list[int]:
        return [*order, *order[: -len(order) % size]][rank::size]

    for n, rank, size, epoch, seed in SHARD_CASES:
        case = f"shard_indices({n}, {rank}, {size}, epoch={epoch}, seed={seed})"
        sampler = DistributedSampler(range(n), size, rank, seed=seed)
        sampler.set_epoch(epoch)
        expected = list(sampler)
        answer = call(function, n, rank, size, epoch, seed)
        try:
            answer = [int(index) for index in answer]
        except (TypeError, ValueError):
            raise NotYet(f"{case} must return a list of indices. Received: {answer!r}") from None
        order = permuted(n, seed + epoch)
        per_rank = -(-n // size)
        padded = [*order, *order[: -n % size]]
        if len(answer) != per_rank:
            raise NotYet(
                f"{case} has {len(answer)} indices, expected {per_rank}. Append the first indices "
                f"of the order until it has {per_rank * size} entries, so that all ranks get equally many."
            )
        same_epoch, own_seed = permuted(n, seed), permuted(n, seed + epoch + rank)
        named = {
            "Every size-th index beginning with the rank, and not a contiguous part: order[rank::size].": (
                padded[rank * per_rank : (rank + 1) * per_rank]
            ),
            "The number of the epoch must be part of the seed: seed + epoch.": (
                taken(same_epoch, rank, size)
            ),
            "The seed must not contain the rank: all ranks must compute the same order.": (
                taken(own_seed, rank, size)
            ),
            "The order is not permuted: use torch.randperm with the generator.": (
                taken([*range(n)], rank, size)
            ),
        }
        mistakes = {sentence: np.array(wrong) for sentence, wrong in named.items()}
        compare(case, answer, expected, mistakes, "It differs from DistributedSampler.")
    right(
        "your indices are those of DistributedSampler. All ranks compute the same order without a message, "
        "and each takes every size-th index of it."
    )
