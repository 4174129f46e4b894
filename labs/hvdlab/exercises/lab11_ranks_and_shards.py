"""Exercises of lab 11 in which the learner writes a function: torchrun's variables, and a rank's shard."""

from collections.abc import Callable

from hvdlab.exercises import NotYet, call, number, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def torchrun_variables(node, local_rank, ranks_per_node, nodes):
    return {
        "RANK": node * ranks_per_node + local_rank,
        "WORLD_SIZE": nodes * ranks_per_node,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": ranks_per_node,
    }


def variables(torchrun_variables: Callable, *arguments: int) -> dict[str, float]:
    """Return the four numbers that a rank gets."""
    answer = call(torchrun_variables, *arguments, name="torchrun_variables")
    if not isinstance(answer, dict) or set(answer) != set(NAMES):
        raise NotYet(
            f"torchrun_variables must return a dict with {', '.join(NAMES)}. Received: {received(answer)}"
        )
    if texts := [name for name in NAMES if isinstance(answer[name], str)]:
        raise NotYet(
            f"{texts[0]} is the text {answer[texts[0]]!r}. In the environment it is a text, but here return "
            "a whole number."
        )
    return {f"{name} in": number(answer[name], name) for name in NAMES}


# fmt: off
check_torchrun_variables = FunctionExercise(
    torchrun_variables,
    [
        Case((0, 0, 1, 1), "A single rank has the number 0 of 1."),
        Case((1, 2, 4, 2), "Node 1 begins with rank 4, and 2 nodes have 8 ranks."),
        Case((2, 0, 8, 3), "Node 2 begins with rank 16, and 3 nodes have 24 ranks."),
        Case((0, 3, 4, 2), "Node 0 begins with rank 0."),
    ],
    {
        "RANK counts over all nodes: node 1 of four ranks per node begins with rank 4.":
            ("node * ranks_per_node + local_rank", "local_rank"),
        "Ranks count from 0.": ("+ local_rank", "+ local_rank + 1"),
        "A node has ranks_per_node ranks: multiply its number by that, and not by nodes.":
            ("node * ranks_per_node", "node * nodes"),
        "WORLD_SIZE is the number of all ranks, on all nodes.":
            [("nodes * ranks_per_node", "ranks_per_node"), ("nodes * ranks_per_node", "nodes")],
        "LOCAL_RANK counts on one node and starts at 0 on each of them.":
            ('"LOCAL_RANK": ', '"LOCAL_RANK": node * ranks_per_node + '),
        "LOCAL_WORLD_SIZE is the number of ranks on one node.":
            ('"LOCAL_WORLD_SIZE": ', '"LOCAL_WORLD_SIZE": nodes * '),
    },
    passed="rank 6 of 8 is local rank 2 on node 1. The script of every rank reads its own numbers, so one "
    "program can act differently on each rank.",
    observe=variables,
)
# fmt: on


def shard_indices(n, rank, size, epoch, seed):
    import torch

    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist()
    order += order[: -n % size]
    return order[rank::size]


# fmt: off
check_shard_indices = FunctionExercise(
    shard_indices,
    [
        Case((8, 1, 2, 0, 0), "Rank 1 of 2 takes every second index of the order, beginning with number 1."),
        Case((9, 1, 2, 0, 1), "Append the first index of the order, so that both ranks get 5 indices."),
        Case((9, 0, 2, 0, 1), "Rank 0 takes every second index of the order, beginning with number 0."),
        Case((257, 3, 4, 2, 7), "It differs from DistributedSampler."),
        Case((10, 0, 1, 1, 3), "A single rank reads the whole order of seed + epoch."),
    ],
    {
        "All ranks must get equally many indices: append the first indices of the order until size divides "
        "its length.": ("    order += order[: -n % size]\n", ""),
        "Append indices instead of leaving some out, as drop_last=True does.":
            ("order += order[: -n % size]", "order = order[: n // size * size]"),
        "Append the first indices of the order, and not the last ones.":
            ("order[: -n % size]", "order[n - (-n % size) :]"),
        "Take every size-th index beginning with the rank, and not a contiguous part: order[rank::size].":
            ("order[rank::size]", "order[rank * len(order) // size : (rank + 1) * len(order) // size]"),
        "The number of the epoch must be part of the seed: seed + epoch.": ("seed + epoch", "seed"),
        "The argument seed must be part of the seed: seed + epoch.": ("seed + epoch", "epoch"),
        "The seed must not contain the rank: all ranks must compute the same order.":
            ("seed + epoch", "seed + epoch + rank"),
        "The order is not permuted: use torch.randperm with the generator.":
            ("torch.randperm(n, generator=generator).tolist()", "list(range(n))"),
    },
    passed="your indices are those of DistributedSampler. All ranks compute the same order without a "
    "message, and each takes every size-th index of it.",
    shape=None, meaning="(a list of indices)",
)
# fmt: on
