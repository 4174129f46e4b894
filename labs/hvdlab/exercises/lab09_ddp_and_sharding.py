"""Checks of lab 9: averaged gradients, samplers, metrics, memory of a rank, sharded states, clipping.

Most of them run what the learner wrote on three ranks (what is right for two only shows there), with Gloo
between them: see `ddp_attempts` for what runs there, and `gloo_ranks` for how.
"""

import numpy as np

from hvdlab import exercises
from hvdlab.exercises import NotYet, right
from hvdlab.exercises import lab09_rank_functions as attempts
from hvdlab.exercises.harness.gloo_ranks import on_ranks


def _on_ranks(attempt, function, *arguments, ranks=3):
    """What `attempt` returns on each rank, or a sentence on why the learner's function failed there."""
    return on_ranks(attempt, function.__name__, *arguments, ranks=ranks, uses=(function,))


# --- exercise 1: gradients in one bucket ------------------------------------------------------------


def check_average_gradients(average_gradients) -> None:
    """Demand the mean of all ranks' gradients in place, by one all-reduce, None left alone."""
    rows = _on_ranks(attempts.try_average, average_gradients)
    for rank, row in enumerate(rows):
        if row["none"] != "None":
            raise NotYet(
                f"a frozen layer has no gradient (None) before, and {row['none']} after. Leave out the "
                "parameters whose .grad is None."
            )
        if row["error"] < 1e-6:
            continue
        likely = {
            "unchanged": "the gradients are as they were: copy what the bucket holds back into each .grad.",
            "sum": "it is the sum over the ranks: divide by dist.get_world_size().",
            "twice": "it is the mean, divided by the number of ranks once more.",
            "half": "it is half of the sum, and there are 3 ranks: divide by dist.get_world_size().",
        }
        for case, says in likely.items():
            if row[case] < 1e-6:
                raise NotYet(f"rank {rank}: {says}")
        raise NotYet(
            f"rank {rank}: gradients differ from the mean of the ranks by {row['error']:.2g} in "
            f"{row['where']}. Each piece of the bucket belongs where it came from: the same order, "
            "numel() numbers of it, in the shape of that gradient."
        )
    for row in rows:
        calls, gradients = row["calls"], row["gradients"]
        if len(calls) > 1:
            raise NotYet(
                f"the means are right, with {len(calls)} collectives for {gradients} gradients. Lay all "
                "gradients into one flat tensor, and reduce that."
            )
        if calls != ["all_reduce"]:
            raise NotYet(
                f"the means are right, by {' '.join(calls) or 'other means'} in place of one all_reduce, "
                "which adds up on the way: no rank has to receive the buckets of all others."
            )
    right(
        f"{rows[0]['gradients']} gradients of 3 ranks in one all-reduce, equal to the mean, and a frozen "
        "layer left alone."
    )


# --- exercise 2: a sampler that forgets the epoch ----------------------------------------------------


def check_orders(orders) -> None:
    """Demand, of every rank, DistributedSampler's images with a new permutation in each epoch."""
    from torch.utils.data import DistributedSampler

    found, wanted = [], []
    for rank in range(2):
        found.append(exercises.call(orders, 12, 3, rank, 2, name="orders"))
        sampler = DistributedSampler(range(12), num_replicas=2, rank=rank, seed=1)
        wanted.append([])
        for epoch in range(3):
            sampler.set_epoch(epoch)
            wanted[rank].append(list(sampler))
    case = "orders(12, 3, rank, 2)"
    try:
        found = np.array(found, dtype=int)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (2, 3, 6):
        raise NotYet(f"{case} shall return 3 lists of 6 numbers, one for each epoch.")
    if (found[:, 0] == found[:, 1]).all() and (found[:, 0] == found[:, 2]).all():
        raise NotYet(
            f"{case} is the same in all three epochs: {found[0, 0].tolist()}. The sampler mixes by its seed "
            "and its epoch, and nobody tells it the epoch."
        )
    for epoch in range(3):
        both = sorted(found[:, epoch].ravel())
        if both != list(range(12)):
            twice = sorted({int(i) for i in both if both.count(i) > 1})
            raise NotYet(
                f"in epoch {epoch} both ranks read the images {twice}, and others are read by nobody: all "
                "ranks must mix by the same seed."
            )
    if not (found == np.array(wanted)).all():
        same = set(found[0, 0]) == set(found[0, 1])
        says = (
            "a rank mixes only what it got in epoch 0, and never sees the rest of the images"
            if same
            else "the orders are others than those of DistributedSampler with seed=1"
        )
        raise NotYet(f"{case}: {says}. sampler.set_epoch(epoch), before each epoch, is enough.")
    right("two ranks share 12 images in each of three epochs, mixed anew each time.")


# --- exercise 3: an accuracy that counts some images twice ----------------------------------------


def check_accuracy(accuracy) -> None:
    """Demand right answers over images, each image once, also where a rank has fewer or none."""
    # Images 0 and 3 are classified wrong. By hand: 5 images 3/5; 4 images 2/4; 1 image 0/1.
    rows = _on_ranks(attempts.try_accuracy, accuracy, [5, 4, 1])
    for number, (n, wanted) in enumerate(((5, 0.6), (4, 0.5), (1, 0.0))):
        of_ranks = [row[number] for row in rows]
        case = f"{n} held-out image{'s' if n > 1 else ''} on 3 ranks"
        values = [one["value"] for one in of_ranks]
        if None in values:
            rank = values.index(None)
            raise NotYet(
                f"{case}: return the accuracy, a number. Received on rank {rank}: {of_ranks[rank]['kind']}"
            )
        if not np.allclose(values, wanted):
            asked = sum(one["asked"] for one in of_ranks)
            says = f"{case}: {', '.join(f'{value:.3f}' for value in values)}, by hand it is {wanted:.3f}."
            if not np.allclose(values, values[0], equal_nan=True):
                says += " The ranks disagree: add up over all of them."
            elif any(np.isnan(values)):
                says += " A rank without images has no mean: reduce the counts, and divide once."
            elif asked > n:
                says += (
                    f" {asked} images were classified: DistributedSampler fills the last round up with "
                    "images that were dealt already. Take images[rank::size]."
                )
            else:
                says += (
                    " The mean of the ranks' means gives the images of the smaller part more weight: "
                    "add up right answers and images, and divide once."
                )
            raise NotYet(says)
        asked = [one["asked"] for one in of_ranks]
        if sum(asked) != n:
            raise NotYet(
                f"{case}: {wanted:.3f} is right, but {sum(asked)} images were classified: "
                f"{', '.join(map(str, asked))}. Each rank takes its part, images[rank::size]."
            )
    right("1, 4 and 5 images on 3 ranks: each classified once, and counted once.")


# --- exercise 4: the memory of a rank ------------------------------------------------------------


def check_rank_bytes(rank_bytes) -> None:
    """Demand ZeRO's formula for stages 0 to 3, in float32 and in mixed precision."""
    hand = [1600, 1000, 700, 400]  # 100 parameters, 4 ranks
    reasons = [
        "stage 0 shards nothing: 4 + 4 + 8 bytes a parameter.",
        "stage 1 shards the optimizer's state, and nothing else.",
        "stage 2 shards the gradients too.",
        "stage 3 shards everything.",
    ]
    for stage, wanted in enumerate(hand):
        found = _number(exercises.call(rank_bytes, 100, 4, stage, name="rank_bytes"), stage)
        if np.isclose(found, wanted):
            continue
        if np.isclose(found, 4 * wanted) and stage == 3:
            raise NotYet(f"rank_bytes(100, 4, 3) is {found:g}: that is what all ranks hold.")
        raise NotYet(
            f"rank_bytes(100, 4, {stage}) is {found:g}, by hand {wanted}: {reasons[stage]}"
        )
    published = [120, 31.4, 16.6, 1.9]  # GB: Rajbhandari et al. 2020, figure 1
    for stage, wanted in enumerate(published):
        found = exercises.call(rank_bytes, 7.5e9, 64, stage, 2, 2, 12, name="rank_bytes")
        if abs(_number(found, stage) / 1e9 - wanted) > 0.06:
            raise NotYet(
                f"right for float32. 7.5 billion parameters on 64 ranks with 2 bytes a weight, 2 a gradient "
                f"and 12 of state are {found / 1e9:.4g} GB in stage {stage}; the paper has {wanted}. Use the "
                "arguments weights, gradients and state."
            )
    right("four stages by hand, and 120, 31.4, 16.6 and 1.9 GB as in the paper's figure 1.")


def _number(value, stage):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise NotYet(
            f"rank_bytes of stage {stage} shall return a number. Received: {value!r}"
        ) from None


# --- exercise 5: ZeRO-1 by hand ---------------------------------------------------------------------


def check_zero1(zero1) -> None:
    """Demand plain Adam's weights on every rank, with about a third of the state on each of three."""
    rows = _on_ranks(attempts.try_zero1, zero1)
    if rows[0]["kind"]:
        raise NotYet(f"zero1 shall return (optimizer, step). Received: {rows[0]['kind']}")
    spread = max(row["spread"] for row in rows)
    error = max(row["error"] for row in rows)
    shares = [row["share"] for row in rows]
    if min(shares) == 0:
        raise NotYet("on one rank the optimizer has no state: each rank needs a part of its own.")
    if spread > 1e-6:
        raise NotYet(
            f"after 5 steps the ranks' weights differ by {spread:.2g}: a rank has stepped its own part, and "
            "the others must get it. Broadcast each parameter from the rank that it belongs to."
        )
    if error > 1e-6:
        raise NotYet(
            f"the ranks agree, and differ from plain Adam by {error:.2g} after 5 steps. Does every parameter "
            "belong to one rank, and step once, by Adam with the rate lr?"
        )
    if max(shares) > 0.45:
        says = (
            "give the optimizer only the parameters of this rank"
            if min(shares) > 0.8
            else "the shares are unequal, as where weights and biases take turns: deal by size"
        )
        raise NotYet(
            f"the weights are those of Adam, but a rank holds {max(shares):.0%} of its state: {says}."
        )
    right(
        f"5 steps on 3 ranks, at most {error:.1g} from plain Adam, with "
        f"{', '.join(f'{share:.0%}' for share in shares)} of the state."
    )


# --- exercise 6: an optimizer made too early ---------------------------------------------------------


def check_shard(shard) -> None:
    """Demand weights sharded by fully_shard, and an optimizer that updates them as plain Adam does."""
    rows = _on_ranks(attempts.try_shard, shard, ranks=2)
    if rows[0]["kind"]:
        raise NotYet(f"shard shall return the optimizer. Received: {rows[0]['kind']}")
    if not rows[0]["sharded"]:
        raise NotYet("each rank still holds all weights: call fully_shard on the model.")
    if max(row["moved"] for row in rows) == 0:
        raise NotYet(
            "the weights do not move: fully_shard puts new parameters, shards, in place of the old ones, and "
            "the optimizer still has the old. Make it after."
        )
    error = max(row["error"] for row in rows)
    if error > 1e-5:
        raise NotYet(
            f"after 3 steps the weights differ by {error:.2g} from those of plain Adam on the images of both "
            "ranks. FSDP averages the gradients of what it shards: is every parameter below a fully_shard, "
            "and the rate lr?"
        )
    if max(row["state"] for row in rows) > 0.8:
        raise NotYet("a rank holds the optimizer's state of all weights, not of its shard.")
    right(
        f"3 steps on two ranks, at most {error:.1g} from plain Adam, with half of weights and state on each."
    )


# --- exercise 7: a norm over the shards ------------------------------------------------------------------


def check_clip(clip) -> None:
    """Demand one factor for all ranks, from the norm over all shards; short gradients left alone."""
    rows = _on_ranks(attempts.try_clip, clip)
    long, short = zip(*rows, strict=True)
    norms = np.array([2, 3, 6])  # of the ranks' gradients: 2^2 + 3^2 + 6^2 = 7^2
    case = "the gradients of ranks 0, 1 and 2 have the norms 2, 3 and 6, and 3.5 is allowed"
    clipped = np.array([one["after"] for one in long])
    case += f": afterwards {', '.join(f'{norm:.3g}' for norm in clipped)}"
    for wrong, says in (
        (np.minimum(norms, 3.5), "each rank clips by the norm of its own shard, and (2, 3, 3.5) points "
         "elsewhere than (2, 3, 6)."),
        (norms / 7, "that is a norm of 1: the largest that is allowed is `most`."),
        (3.5 * norms / 11, "that is 2 + 3 + 6 = 11 as a norm: add up the squares, take the root of the sum."),
        (3.5 * norms / 49, "that is 49 as a norm: take the root of the sum of squares."),
        (norms, "nothing was clipped: change the gradients in place, by mul_."),
    ):  # fmt: skip
        if np.allclose(clipped, wrong, atol=1e-4):
            raise NotYet(f"{case}: {says}")
    if not np.allclose(clipped, norms / 2, atol=1e-4):
        raise NotYet(f"{case}, by hand 1, 1.5 and 3: one norm over all tensors of all ranks.")
    if not np.allclose([one["after"] for one in short], norms / 10, atol=1e-6):
        raise NotYet(
            "gradients of norm 0.2, 0.3 and 0.6 make 0.7, and 1 is allowed: leave them as they are."
        )
    says = "the gradients are right; return the norm before clipping, 7 and 0.7 here"
    returned = [one["norm"] for one in (*long, *short)]
    if None in returned:
        kinds = [one["kind"] for one in (*long, *short)]
        raise NotYet(f"{says}, a number. Received: {kinds[returned.index(None)]}")
    if not np.allclose(returned, [7] * 3 + [0.7] * 3, atol=1e-4):
        raise NotYet(f"{says}.")
    right("norms of 2, 3 and 6 on 3 ranks become 1, 1.5 and 3; what is short enough stays.")
