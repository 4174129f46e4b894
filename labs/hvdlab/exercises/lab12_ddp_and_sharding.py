"""Checks of lab 12: averaged gradients, samplers, metrics, buckets, memory, sharded states, clipping.

Most of them run the learner's function on three ranks that Gloo connects, because some wrong functions are
right on two. `lab12_rank_functions` has what runs on each rank, and `harness.gloo_ranks` starts the ranks.
"""

from collections.abc import Callable

import numpy as np

from hvdlab.exercises import NotYet, call, compare, exercise, number, right
from hvdlab.exercises import lab12_rank_functions as rank_functions
from hvdlab.exercises.harness.gloo_ranks import on_ranks


def _on_ranks(attempt: Callable, function: Callable, *arguments: object, ranks: int = 3) -> list:
    """Return what `attempt` returns on each rank, which calls the learner's function by its name."""
    return on_ranks(attempt, function.__name__, *arguments, ranks=ranks, uses=(function,))


# --- exercise 1: gradients in one bucket ------------------------------------------------------------


@exercise
def check_average_gradients(average_gradients: Callable) -> None:
    """Demand the mean of all ranks' gradients in place, by one all-reduce; gradients of None stay None."""
    rows = _on_ranks(rank_functions.try_average, average_gradients)
    for rank, row in enumerate(rows):
        if row["none"] != "None":
            raise NotYet(
                f"a frozen layer has no gradient (None) before, and {row['none']} after. Leave out the "
                "parameters whose .grad is None."
            )
        if row["error"] < 1e-6:
            continue
        likely = {
            "unchanged": "the gradients are unchanged: copy the content of the bucket back into each .grad.",
            "sum": "it is the sum over the ranks: divide by dist.get_world_size().",
            "twice": "it is the mean, divided by the number of ranks once more.",
            "half": "it is half of the sum, and there are 3 ranks: divide by dist.get_world_size().",
        }
        for case, says in likely.items():
            if row[case] < 1e-6:
                raise NotYet(f"rank {rank}: {says}")
        raise NotYet(
            f"rank {rank}: gradients differ from the mean of the ranks by {row['error']:.2g} in "
            f"{row['where']}. Each piece of the bucket must return to its gradient: in the same "
            "order, numel() numbers each, in the shape of that gradient."
        )
    for row in rows:
        calls, gradients = row["calls"], row["gradients"]
        if len(calls) > 1:
            raise NotYet(
                f"the means are right, with {len(calls)} collectives for {gradients} gradients. Copy all "
                "gradients into one flat tensor, and reduce that."
            )
        if calls != ["all_reduce"]:
            raise NotYet(
                f"the means are right, by {' '.join(calls) or 'other means'} in place of one all_reduce, "
                "which adds while it sends, so that no rank has to receive the buckets of all others."
            )
    right(
        f"{rows[0]['gradients']} gradients of 3 ranks in one all-reduce, equal to the mean, and a frozen "
        "layer unchanged."
    )


# --- exercise 2: a sampler that forgets the epoch ----------------------------------------------------


@exercise
def check_orders(orders: Callable) -> None:
    """Demand, of every rank, DistributedSampler's images with a new permutation in each epoch.

    Args:
        orders: The learner's `orders(images, epochs, rank, size)`.
    """
    from torch.utils.data import DistributedSampler

    found, expected = [], []
    for rank in range(2):
        found.append(call(orders, 12, 3, rank, 2, name="orders"))
        sampler = DistributedSampler(range(12), num_replicas=2, rank=rank, seed=1)
        expected.append([])
        for epoch in range(3):
            sampler.set_epoch(epoch)
            expected[rank].append(list(sampler))
    case = "orders(12, 3, rank, 2)"
    try:
        found = np.array(found, dtype=int)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (2, 3, 6):
        raise NotYet(f"{case} must return 3 lists of 6 numbers, one for each epoch.")
    if (found[:, 0] == found[:, 1]).all() and (found[:, 0] == found[:, 2]).all():
        raise NotYet(
            f"{case} is the same in all three epochs: {found[0, 0].tolist()}. The sampler shuffles by its "
            "seed and its epoch, and your code does not set the epoch."
        )
    for epoch in range(3):
        both = sorted(found[:, epoch].ravel())
        if both != list(range(12)):
            twice = sorted({int(i) for i in both if both.count(i) > 1})
            raise NotYet(
                f"in epoch {epoch} both ranks read the images {twice}, and no rank reads some of the "
                "others: all ranks must shuffle by the same seed."
            )
    if not (found == np.array(expected)).all():
        mistake = "the orders differ from those of DistributedSampler with seed=1"
        if set(found[0, 0]) == set(found[0, 1]):
            mistake = "a rank shuffles only its images of epoch 0, and never reads the other images"
        raise NotYet(f"{case}: {mistake}. sampler.set_epoch(epoch), before each epoch, is enough.")
    right("two ranks share 12 images in each of three epochs, in a new order each time.")


# --- exercise 3: an accuracy that counts some images twice ----------------------------------------


@exercise
def check_accuracy(accuracy: Callable) -> None:
    """Demand right answers over images, each image once, also where a rank has fewer or none.

    Args:
        accuracy: The learner's `accuracy(predict, images, labels)`.
    """
    # Images 0 and 3 are classified wrong. By hand: 5 images 3/5; 4 images 2/4; 1 image 0/1.
    rows = _on_ranks(rank_functions.try_accuracy, accuracy, [5, 4, 1])
    for index, (n, expected) in enumerate(((5, 0.6), (4, 0.5), (1, 0.0))):
        _check_accuracy_of([row[index] for row in rows], n, expected)
    right("1, 4 and 5 images on 3 ranks: each classified once, and counted once.")


def _check_accuracy_of(results: list[dict], n: int, expected: float) -> None:
    case = f"{n} held-out image{'s' if n > 1 else ''} on 3 ranks"
    values = [result["value"] for result in results]
    if None in values:
        rank = values.index(None)
        raise NotYet(
            f"{case}: return the accuracy, a number. Received on rank {rank}: {results[rank]['kind']}"
        )
    classified = [result["classified"] for result in results]
    if not np.allclose(values, expected):
        if not np.allclose(values, values[0], equal_nan=True):
            mistake = "The ranks disagree: add up over all of them."
        elif any(np.isnan(values)):
            mistake = "A rank without images has no mean: reduce the counts, and divide once."
        elif sum(classified) > n:
            mistake = (
                f"{sum(classified)} images were classified: DistributedSampler repeats images to give all "
                "ranks equally many. Take images[rank::size]."
            )
        else:
            mistake = (
                "The mean of the ranks' means gives the images of the smaller shard a larger weight: add up "
                "right answers and images, and divide once."
            )
        returned = ", ".join(f"{value:.3f}" for value in values)
        raise NotYet(f"{case}: {returned}, expected {expected:.3f}. {mistake}")
    if sum(classified) != n:
        raise NotYet(
            f"{case}: {expected:.3f} is right, but {sum(classified)} images were classified: "
            f"{', '.join(map(str, classified))}. Each rank takes its shard, images[rank::size]."
        )


# --- exercise 4: gradients to buckets ----------------------------------------------------------------


@exercise
def check_buckets(buckets: Callable) -> None:
    """Demand DDP's assignment: a bucket is closed as soon as its size reaches its limit.

    Args:
        buckets: The learner's `buckets(sizes, first, cap)`, which returns lists of positions.
    """
    for sizes, first, cap, expected, reason in (
        ([600, 500, 900], 1000, 2000, [[0, 1], [2]],
         "600 bytes are below the limit of 1000, and 1100 reach it. The last bucket stays below its limit."),
        ([1000, 500, 700], 1000, 2000, [[0], [1, 2]], "1000 bytes reach the limit of 1000."),
        ([600, 500, 900, 200, 1500, 100], 1000, 2000, [[0, 1], [2, 3, 4], [5]],
         "900 + 200 + 1500 = 2600 is the first sum that reaches 2000."),
        ([100, 100, 100, 100], 200, 200, [[0, 1], [2, 3]], "there is no empty bucket at the end."),
    ):  # fmt: skip
        case = f"buckets({sizes}, first={first}, cap={cap})"
        answer = call(buckets, list(sizes), first, cap)
        try:
            found = [[int(position) for position in bucket] for bucket in answer]
        except (TypeError, ValueError):
            raise NotYet(
                f"{case} must return a list of lists of positions. Received: {answer!r}"
            ) from None
        if found == expected:
            continue
        mistakes = (
            (_assign(sizes, first, first, at_least=True), "the limit of the first bucket is used for all."),
            (_assign(sizes, cap, cap, at_least=True), "the limit of the first bucket is `first`, not `cap`."),
            (_assign(sizes, first, cap, at_least=False), "yours closes a bucket above its limit only."),
            (expected[:-1], "the last bucket is missing: its gradients must be sent, too."),
            ([*expected, []], "the last bucket is empty."),
        )  # fmt: skip
        likely = next((says for wrong, says in mistakes if found == wrong), "")
        raise NotYet(
            f"{case} must be {expected}, because {reason} Received: {found}. {likely}".strip()
        )
    right("four cases by hand. Small first buckets start the communication early.")


def _assign(sizes: list[int], first: int, cap: int, *, at_least: bool) -> list[list[int]]:
    """Return buckets with these limits; `at_least` closes a bucket at its limit, otherwise above it."""
    result, filled, limit = [[]], 0, first
    for position, size in enumerate(sizes):
        result[-1].append(position)
        filled += size
        if filled > limit or (at_least and filled == limit):
            result.append([])
            filled, limit = 0, cap
    return result if result[-1] else result[:-1]


# --- exercise 5: the memory of a rank ------------------------------------------------------------


@exercise
def check_rank_bytes(rank_bytes: Callable) -> None:
    """Demand ZeRO's formula for stages 0 to 3, in float32 and in mixed precision.

    Args:
        rank_bytes: The learner's
            `rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8)`.
    """
    for stage, expected, reason in (  # 100 parameters, 4 ranks
        (0, 1600, "stage 0 shards nothing: 4 + 4 + 8 bytes per parameter."),
        (1, 1000, "stage 1 shards the optimizer's state, and nothing else."),
        (2, 700, "stage 2 shards the gradients too."),
        (3, 400, "stage 3 shards everything."),
    ):
        case = f"rank_bytes(100, 4, {stage})"
        answer = number(call(rank_bytes, 100, 4, stage, name="rank_bytes"), case, "of bytes")
        mistakes = {"That is what all ranks hold together.": 4 * expected} if stage == 3 else {}
        compare(case, answer, expected, mistakes, f"By hand: {reason}", rtol=1e-5)
    for stage, expected in enumerate(
        [120, 31.4, 16.6, 1.9]
    ):  # GB: Rajbhandari et al. 2020, figure 1
        case = f"rank_bytes(7.5e9, 64, {stage}, 2, 2, 12)"
        answer = number(call(rank_bytes, 7.5e9, 64, stage, 2, 2, 12, name="rank_bytes"), case)
        if abs(answer / 1e9 - expected) > 0.06:
            raise NotYet(
                "right for float32. 7.5 billion parameters on 64 ranks with 2 bytes per weight, 2 per "
                f"gradient and 12 of state are {answer / 1e9:.4g} GB in stage {stage}; the paper has "
                f"{expected}. Use the arguments weights, gradients and state."
            )
    right("four stages by hand, and 120, 31.4, 16.6 and 1.9 GB as in the paper's figure 1.")


# --- exercise 6: ZeRO-1 by hand ---------------------------------------------------------------------


@exercise
def check_zero1(zero1: Callable) -> None:
    """Demand plain Adam's weights on every rank, with about a third of the state on each of three.

    Args:
        zero1: The learner's `zero1(model, lr)`, which returns (optimizer, step).
    """
    rows = _on_ranks(rank_functions.try_zero1, zero1)
    if rows[0]["kind"]:
        raise NotYet(f"zero1 must return (optimizer, step). Received: {rows[0]['kind']}")
    spread = max(row["spread"] for row in rows)
    error = max(row["error"] for row in rows)
    shares = [row["share"] for row in rows]
    if min(shares) == 0:
        raise NotYet("on one rank the optimizer has no state: each rank needs a shard of its own.")
    if spread > 1e-6:
        raise NotYet(
            f"after 5 steps the ranks' weights differ by {spread:.2g}: a rank updates its own shard only, "
            "and the others must receive it. Broadcast each parameter from the rank that it belongs to."
        )
    if error > 1e-6:
        raise NotYet(
            f"the ranks agree, and differ from plain Adam by {error:.2g} after 5 steps. Does every parameter "
            "belong to one rank, and is it updated once, by Adam with the learning rate lr?"
        )
    if max(shares) > 0.45:
        advice = "the shards are unequal, as where weights and biases alternate: shard by size"
        if min(shares) > 0.8:
            advice = "give the optimizer only the parameters of this rank"
        raise NotYet(
            f"the weights are those of Adam, but a rank holds {max(shares):.0%} of its state: {advice}."
        )
    right(
        f"5 steps on 3 ranks, at most {error:.1g} from plain Adam, with "
        f"{', '.join(f'{share:.0%}' for share in shares)} of the state."
    )


# --- exercise 7: an optimizer made too early ---------------------------------------------------------


@exercise
def check_shard(shard: Callable) -> None:
    """Demand weights sharded by fully_shard, and an optimizer that updates them as plain Adam does.

    Args:
        shard: The learner's `shard(model, lr)`, which returns the optimizer.
    """
    rows = _on_ranks(rank_functions.try_shard, shard, ranks=2)
    if rows[0]["kind"]:
        raise NotYet(f"shard must return the optimizer. Received: {rows[0]['kind']}")
    if not rows[0]["sharded"]:
        raise NotYet("each rank still holds all weights: call fully_shard on the model.")
    if max(row["moved"] for row in rows) == 0:
        raise NotYet(
            "the weights do not move: fully_shard replaces the parameters by new ones, the shards, and the "
            "optimizer still has the old ones. Create the optimizer after it."
        )
    error = max(row["error"] for row in rows)
    if error > 1e-5:
        raise NotYet(
            f"after 3 steps the weights differ by {error:.2g} from those of plain Adam on the images of both "
            "ranks. FSDP averages the gradients of what it shards: is every parameter below a fully_shard, "
            "and the learning rate lr?"
        )
    if max(row["state"] for row in rows) > 0.8:
        raise NotYet("a rank holds the optimizer's state of all weights, not of its shard.")
    right(
        f"3 steps on two ranks, at most {error:.1g} from plain Adam, with half of weights and state on each."
    )


# --- exercise 8: a norm over the shards ------------------------------------------------------------------


@exercise
def check_clip(clip: Callable) -> None:
    """Demand one factor for all ranks, from the norm over all shards; short gradients stay unchanged.

    Args:
        clip: The learner's `clip(gradients, most)`, which returns the norm before clipping.
    """
    rows = _on_ranks(rank_functions.try_clip, clip)
    long, short = zip(*rows, strict=True)
    norms = np.array([2, 3, 6])  # of the ranks' gradients: 2^2 + 3^2 + 6^2 = 7^2
    mistakes = {
        "Each rank clips by the norm of its own shard, and (2, 3, 3.5) has another direction than "
        "(2, 3, 6).": np.minimum(norms, 3.5),
        "That is a norm of 1: the largest that is allowed is `most`.": norms / 7,
        "That is 2 + 3 + 6 = 11 as a norm: add up the squares, take the root of the sum.": 3.5
        * norms
        / 11,
        "That is 49 as a norm: take the root of the sum of squares.": 3.5 * norms / 49,
        "Nothing was clipped: change the gradients in place, by mul_.": norms,
    }
    case = "the gradients of ranks 0, 1 and 2 have the norms 2, 3 and 6, and 3.5 is allowed: the norm after"
    clipped = np.array([result["after"] for result in long])
    one_norm = "There is one norm over all tensors of all ranks."
    compare(case, clipped, norms / 2, mistakes, one_norm, atol=1e-4)
    if not np.allclose([result["after"] for result in short], norms / 10, atol=1e-6):
        raise NotYet(
            "gradients of norm 0.2, 0.3 and 0.6 make 0.7, and 1 is allowed: leave them as they are."
        )
    message = "the gradients are right; return the norm before clipping, 7 and 0.7 here"
    returned = [result["norm"] for result in (*long, *short)]
    if None in returned:
        kinds = [result["kind"] for result in (*long, *short)]
        raise NotYet(f"{message}, a number. Received: {kinds[returned.index(None)]}")
    if not np.allclose(returned, [7] * 3 + [0.7] * 3, atol=1e-4):
        raise NotYet(f"{message}.")
    right("norms of 2, 3 and 6 on 3 ranks become 1, 1.5 and 3; smaller ones stay unchanged.")
