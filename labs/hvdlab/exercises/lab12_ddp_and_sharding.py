"""Exercises of lab 12: averaged gradients, samplers, metrics and buckets; see also `lab12_sharding`.

Most of them run the learner's function on three ranks that Gloo connects, because some wrong functions are
right on two.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from hvdlab.exercises import NotYet, call, call_unchanged, received
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import (
    RankExercise,
    counted,
    number_or_kind,
    side_by_side,
)
from hvdlab.exercises.lab12_sharding import check_clip, check_rank_bytes, check_shard, check_zero1

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "check_accuracy",
    "check_average_gradients",
    "check_buckets",
    "check_clip",
    "check_orders",
    "check_rank_bytes",
    "check_shard",
    "check_zero1",
]

# --- exercise 1 ------------------------------------------------------------------------------------


def average_gradients(model):
    import torch
    import torch.distributed as dist

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    bucket = torch.cat([g.ravel() for g in gradients])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    for g, piece in zip(gradients, bucket.split([g.numel() for g in gradients]), strict=True):
        g.copy_(piece.view_as(g))


COLLECTIVES = (
    "all_reduce", "all_gather", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor",
    "all_reduce_coalesced",
)  # fmt: skip


def gradients_and_calls(comm: "MPI.Comm", function: Callable) -> dict:
    model = torch.nn.Sequential(*(torch.nn.Linear(*n) for n in ((2, 2), (2, 1), (1, 1))))
    model[1].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    for number, p in enumerate(trained):
        p.grad = (dist.get_rank() + 1.0) * (10 * number + torch.arange(p.numel()).reshape(p.shape))
    with counted(dist, *COLLECTIVES) as calls:
        function(model)
    frozen = all(p.grad is None for p in model[1].parameters())
    return {
        "The gradients of a layer that is not trained after": "None" if frozen else "tensors",
        "The gradients on the ranks after": torch.cat([p.grad.ravel() for p in trained]),
        "The collectives in": " ".join(calls),
    }


# fmt: off
check_average_gradients = RankExercise(
    average_gradients,
    [Case((), "Each gradient must become the mean of the ranks' gradients, in place, by one all-reduce of "
              "one flat tensor. Each piece of it must return to its gradient: in the same order, numel() "
              "numbers each.",
          call="average_gradients on 3 ranks")],
    {
        "It is the sum over the ranks: divide by dist.get_world_size().":
            ("    bucket /= dist.get_world_size()\n", ""),
        "It is the mean, divided by the number of ranks once more.":
            ("get_world_size()", "get_world_size() ** 2"),
        "It is half of the sum, and there are 3 ranks: divide by dist.get_world_size().":
            ("dist.get_world_size()", "2"),
        "Each rank divides its own gradients: all-reduce the bucket.": ("    dist.all_reduce(bucket)\n", ""),
        "The gradients are unchanged: copy the content of the bucket back into each .grad.":
            ("g.copy_(piece.view_as(g))", "g = piece.view_as(g)"),
        "The pieces return in another order: each must return to its gradient.":
            ("zip(gradients, bucket.split([g.numel() for g in gradients])",
             "zip(gradients[::-1], bucket.split([g.numel() for g in gradients[::-1]])"),
        "The means are right, with a collective for each gradient. Copy all gradients into one flat tensor, "
        "and reduce that.": ("    bucket = torch", "    for g in gradients:\n        dist.all_reduce(g)\n"
                         "        g /= dist.get_world_size()\n    return\n    bucket = torch"),
        "The means are right, by all_gather in place of one all_reduce, which adds while it sends, so that "
        "no rank has to receive the buckets of all others.":
            ("    dist.all_reduce(bucket)\n", "    buckets = [torch.empty_like(bucket) for _ in range(3)]\n"
             "    dist.all_gather(buckets, bucket)\n    bucket = sum(buckets)\n"),
        "A frozen layer has no gradient (None) before, and one after. Leave out the parameters whose .grad "
        "is None.":
            ("    gradients = [", "    for p in model.parameters():\n"
             "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n    gradients = ["),
    },
    passed="3 gradients of 3 ranks in one all-reduce, equal to the mean, and a frozen layer unchanged.",
    observe=gradients_and_calls, start=on_ranks, ranks=3,
)
# fmt: on

# --- exercise 2 ------------------------------------------------------------------------------------


def orders(images, epochs, rank, size):
    sampler = DistributedSampler(range(images), num_replicas=size, rank=rank, seed=1)
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def orders_of_both(function: Callable, images: int, epochs: int) -> dict[str, object]:
    """Return facts about the orders that do not depend on the random numbers, and if all hold, the orders."""
    try:
        both = [call(function, images, epochs, rank, 2, name="orders") for rank in range(2)]
        found = np.array(both, dtype=int)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (2, epochs, images // 2):
        raise NotYet(
            f"orders(images={images}, epochs={epochs}, rank, size=2) must return {epochs} lists of "
            f"{images // 2} numbers, one for each epoch. Received: {received(both)}"
        )
    shuffled = (np.diff(found) < 0).any()
    own = all((found[:, a] != found[:, b]).any() for a in range(epochs) for b in range(a))
    once = all(sorted(found[:, e].ravel()) == list(range(images)) for e in range(epochs))
    other = len(set(found[0].ravel())) > images // 2
    facts = {
        "The order of the images in": "shuffled" if shuffled else "not shuffled",
        "The order in each epoch of": "its own" if own else "that of another epoch",
        "What the two ranks read in an epoch of": "each image once" if once else "some images twice",
        "What a rank reads in": "other images in other epochs" if other else "the same images in all epochs",
    }  # fmt: skip
    each = {f"The orders of ranks 0 and 1 in epoch {e} in": found[:, e] for e in range(epochs)}
    return facts | each if shuffled and own and once and other else facts


# fmt: off
check_orders = FunctionExercise(
    orders,
    [Case((8, 3), "The orders are those of DistributedSampler with seed=1, and sampler.set_epoch(epoch) "
                  "before each epoch is enough.", call="orders(images=8, epochs=3, rank, size=2)")],
    {
        "The sampler shuffles by its seed and its epoch, and your code does not set the epoch.":
            ("        sampler.set_epoch(epoch)\n", ""),
        "The sampler must shuffle: leave out shuffle=False.":
            ("seed=1", "shuffle=False"),
        "All ranks must shuffle by the same seed: otherwise both read some images, and no rank reads others.":
            [("seed=1", "seed=1 + rank"), ("set_epoch(epoch)", "set_epoch(epoch + 5 * rank)")],
        "A rank shuffles only its images of epoch 0, and never reads the other images.":
            ("found.append(list(sampler))",
             "found.append(np.random.default_rng(epoch).permutation(np.arange(rank, images, size)))"),
        "Each rank has the order of the other: pass rank=rank.": ("rank=rank", "rank=size - 1 - rank"),
        "The seed is 1: pass seed=1.": ("seed=1", "seed=0"),
        "Set the epoch before the sampler is read, not after it.":
            ("        sampler.set_epoch(epoch)\n        found.append(list(sampler))",
             "        found.append(list(sampler))\n        sampler.set_epoch(epoch)"),
        "Epochs count from 0: the first is sampler.set_epoch(0).":
            ("set_epoch(epoch)", "set_epoch(epoch + 1)"),
    },
    passed="two ranks share 8 images in each of three epochs, in a new order each time.",
    observe=orders_of_both,
)
# fmt: on

# --- exercise 3 ------------------------------------------------------------------------------------


def accuracy(predict, images, labels):
    import torch
    import torch.distributed as dist

    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (predict(images[mine]) == labels[mine]).sum()
    both = torch.tensor([right.item(), len(labels[mine])], dtype=torch.float64)
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def returned_and_classified(comm: "MPI.Comm", function: Callable, n: int) -> dict:
    classified = []

    def predict(part: torch.Tensor) -> torch.Tensor:
        classified.append(len(part))
        return torch.tensor([int(i) % 3 != 0 for i in part], dtype=torch.long)

    returned = function(predict, torch.arange(n), torch.ones(n, dtype=torch.long))
    return {"returned": number_or_kind(returned), "classified": sum(classified)}


def accuracies(rows: list[dict]) -> dict[str, object]:
    each = side_by_side(rows)
    return {
        "What the ranks return for": each["returned"],
        "The number of images that the ranks classify together, for": sum(each["classified"]),
    }


MINE = "slice(dist.get_rank(), None, dist.get_world_size())"
SAMPLER = "list(torch.utils.data.DistributedSampler(images, shuffle=False))"
OWN = "    dist.all_reduce(both)\n", ""
MEAN = (
    "right.item(), len(labels[mine])", "right.item() / len(labels[mine]) if len(labels[mine]) else {}, 1",
)  # fmt: skip
# fmt: off
check_accuracy = RankExercise(
    accuracy,
    # Images 0 and 3 are classified wrong.
    [Case((n,), f"{good} of the {n} are classified right. Add up the right answers and the images over all "
                "ranks, each image once, and divide.",
                 f"{n} held-out images on 3 ranks") for n, good in ((5, 3), (4, 2), (1, 0))],
    {
        "DistributedSampler repeats images to give all ranks equally many. Take images[rank::size].":
            (MINE, SAMPLER),
        "The mean of the ranks' means gives the images of the smaller shard a larger weight: add up right "
        "answers and images, and divide once.":
            [(MEAN[0], MEAN[1].format(empty)) for empty in ("0", "1", "float('nan')")],
        "A rank without images has no mean: reduce the counts, and divide once.":
            ("right.item(), len(labels[mine])",
             "(right / len(labels[mine])).item() * len(labels[mine]), len(labels[mine])"),
        "Each rank returns the accuracy on its own shard: add up over all of them.": OWN,
        "Each rank classifies all images. Each takes its shard, images[rank::size].": (MINE, "slice(None)"),
        "Some images are in two shards: take images[rank::size], with the rank and the number of all ranks.":
            (MINE, "slice(dist.get_rank() % 2, None, 2)"),
        "Divide by the number of images that were classified, and return the quotient.":
            [("(both[0] / both[1])", "both[0]"),
             ("return (both[0] / both[1]).item()", "return both.tolist()")],
        "`return` the accuracy, a number.": ("return", "result ="),
        "Return the accuracy on every rank, not only on rank 0.":
            ("(both[0] / both[1]).item()", "(both[0] / both[1]).item() if dist.get_rank() == 0 else None"),
    },
    passed="1, 4 and 5 images on 3 ranks: each classified once, and counted once.",
    observe=returned_and_classified, gather=accuracies, start=on_ranks, ranks=3,
)
# fmt: on

# --- exercise 4 ------------------------------------------------------------------------------------


def buckets(sizes, first, cap):
    result, bucket, filled, limit = [], [], 0, first
    for number, size in enumerate(sizes):
        bucket.append(number)
        filled += size
        if filled >= limit:
            result.append(bucket)
            bucket, filled, limit = [], 0, cap
    if bucket:
        result.append(bucket)
    return result


def positions(function: Callable, *arguments: object) -> dict[str, str]:
    answer = call_unchanged(function, *arguments, name="buckets")
    try:
        return {"": str([[int(position) for position in bucket] for bucket in answer])}
    except (TypeError, ValueError):
        raise NotYet(
            f"buckets must return a list of lists of positions. Received: {received(answer)}"
        ) from None


# fmt: off
check_buckets = FunctionExercise(
    buckets,
    [
        Case(([600, 500, 900], 1000, 2000), expected="[[0, 1], [2]]",
             reason="600 bytes are below the limit of 1000, and 1100 reach it. The last stays below it."),
        Case(([1000, 500, 700], 1000, 2000), "1000 bytes reach the limit of 1000.", expected="[[0], [1, 2]]"),
        Case(([600, 500, 900, 200, 1500, 100], 1000, 2000),
             "900 + 200 + 1500 = 2600 is the first sum that reaches 2000.",
             expected="[[0, 1], [2, 3, 4], [5]]"),
        Case(([100, 100, 100, 100], 200, 200), "There is no empty bucket at the end.",
             expected="[[0, 1], [2, 3]]"),
    ],
    {
        "The limit of the first bucket is used for all.": ("0, cap", "0, first"),
        "The limit of the first bucket is `first`, not `cap`.": ("0, first", "0, cap"),
        "A bucket is full as soon as its size reaches the limit, and yours closes above its limit only.":
            (">= limit", "> limit"),
        "A bucket is closed after the gradient that fills it, and yours is closed before it.":
            ("        bucket.append(number)\n        filled += size\n        if filled >= limit:\n"
             "            result.append(bucket)\n            bucket, filled, limit = [], 0, cap",
             "        if bucket and filled + size > limit:\n"
             "            result.append(bucket)\n            bucket, filled, limit = [], 0, cap\n"
             "        bucket.append(number)\n        filled += size"),
        "The last bucket is missing: its gradients must be sent, too.":
            [("    if bucket:\n        result.append(bucket)\n", ""),
             ("return result", "return result[:-1]")],
        "The last bucket is empty.":
            [("    if bucket:\n    ", ""), ("return result", "return [*result, []]")],
        "Return the positions of the gradients, not their sizes.": ("append(number)", "append(size)"),
    },
    passed="four cases by hand. Small first buckets start the communication early.",
    observe=positions,
)
# fmt: on
