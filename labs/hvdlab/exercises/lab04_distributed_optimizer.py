"""Exercise of lab 4: a distributed optimizer with hooks and buckets, which overlaps the exchange."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

    from hvdlab.exercises.harness.nonblocking_communicator import Nonblocking

LAYERS, WIDTH, STEPS = 6, 8, 3
LAYER_BYTES = 4 * WIDTH**2
UNUSED_LAYER, STEP_WITHOUT = 4, 1  # of the last rank, in the case "unused"
TOLERANCE = 1e-6
OBJECT = "an object with step and zero_grad"


def distributed_optimizer(comm, optimizer, bucket_bytes):
    import torch

    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    class DistributedOptimizer:
        def __init__(self):
            self.buckets, self.ready, self.sent = [], set(), []
            for p in reversed(parameters):  # the gradients of the last layers are ready first
                if not self.buckets or self.bytes_of_last() + p.nbytes > bucket_bytes:
                    self.buckets.append([])
                self.buckets[-1].append(p)
                p.register_post_accumulate_grad_hook(self.gradient_is_ready)

        def bytes_of_last(self):
            return sum(p.nbytes for p in self.buckets[-1])

        def gradient_is_ready(self, p):
            if p in self.ready:
                raise RuntimeError("a second backward before step is not supported")
            self.ready.add(p)
            for bucket in self.buckets[len(self.sent) :]:  # in the same order on all ranks
                if not self.ready.issuperset(bucket):
                    break
                self.send(bucket)

        def send(self, bucket):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([g.ravel() for g in gradients]).numpy()
            total = np.empty_like(flat)
            self.sent.append((total, comm.Iallreduce(flat, total)))

        def step(self):
            for bucket in self.buckets[len(self.sent) :]:
                self.send(bucket)
            for bucket, (total, request) in zip(self.buckets, self.sent, strict=True):
                request.Wait()
                means = torch.from_numpy(total / comm.size).split([p.numel() for p in bucket])
                for p, mean in zip(bucket, means, strict=True):
                    p.grad = mean.view_as(p)
            self.ready.clear()
            self.sent.clear()
            optimizer.step()

        def zero_grad(self):
            optimizer.zero_grad()

    return DistributedOptimizer()


def observed(
    comm: "MPI.Comm", function: Callable, ranks: int, bucket_bytes: int, what: str
) -> dict | None:
    """Return what a rank measures in three steps, next to one process that has the batches of all ranks."""
    import torch
    import torch.distributed as dist

    from hvdlab.exercises.harness.nonblocking_communicator import Nonblocking

    group = dist.new_group(range(ranks))
    if dist.get_rank() >= ranks:
        return None
    start, batches = _numbers(ranks)
    serial, mine = ([w.clone().requires_grad_() for w in start] for _ in range(2))
    by_serial, by_mine = (torch.optim.SGD(each, lr=0.1, momentum=0.9) for each in (serial, mine))
    counting = Nonblocking(group)
    optimizer = function(counting, by_mine, bucket_bytes)
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        return {"kind": kind(optimizer)}
    most, in_backward, left_open = 0, [], 0
    for step in range(STEPS):
        before = len(counting.sizes)
        used = [_layers(rank, ranks, step, what) for rank in range(ranks)]
        passes = batches[step] if what == "accumulated" else batches[step, :1]
        by_serial.zero_grad()
        for batch in passes:
            (sum(map(_loss, [serial] * ranks, batch, used)) / ranks).backward()
        by_serial.step()
        optimizer.zero_grad()
        try:
            for batch in passes:
                loss = _loss(mine, batch[counting.rank], used[counting.rank])
                loss.first_layer.register_hook(partial(note, in_backward, counting, before))
                loss.backward()
        except Exception:
            if len(passes) == 1:
                raise
            counting.finish()
            return {"kind": OBJECT, "refused": True}
        optimizer.step()
        most = max(most, len(counting.sizes) - before)
        left_open += counting.under_way()
    counting.finish()
    return {
        "kind": OBJECT,
        "what": what,
        "calls": max(most, -(-LAYERS // (bucket_bytes // LAYER_BYTES))),
        "bytes": max([bucket_bytes, *counting.sizes]),
        "in_backward": in_backward,
        "open": left_open,
        "weights": torch.stack(mine).ravel().tolist(),
        "serial": torch.stack(serial).ravel().tolist(),
    }


def note(counts: list, comm: "Nonblocking", before: int, gradient: "torch.Tensor") -> None:
    """Note how many all-reduces have begun and are under way when only the first layer is left."""
    counts.append((len(comm.sizes) - before, comm.under_way()))


def _numbers(ranks):
    """Return the first weights, and batches with the axes step, pass and rank."""
    import torch

    draw = torch.Generator().manual_seed(1)
    weights = [torch.randn(WIDTH, WIDTH, generator=draw) / WIDTH**0.5 for _ in range(LAYERS)]
    return weights, torch.randn(STEPS, 2, ranks, 4, WIDTH, generator=draw)


def _layers(rank, ranks, step, what):
    """Return the numbers of the layers that a rank uses in a step."""
    skips = what == "unused" and rank == ranks - 1 and step == STEP_WITHOUT
    return [k for k in range(LAYERS) if not (skips and k == UNUSED_LAYER)]


def _loss(weights, x, layers):
    """Return the loss of a batch, with the output of the first layer as an attribute."""
    outputs = [x]
    for layer in layers:
        outputs.append((outputs[-1] @ weights[layer]).tanh())
    loss = (outputs[-1] ** 2).mean()
    loss.first_layer = outputs[1]
    return loss


def rubric(rows: list[dict]) -> dict[str, object]:
    """Return the measured value of each point of the rubric."""
    kinds = {"What the ranks return from": [row["kind"] for row in rows]}
    if set(*kinds.values()) != {OBJECT}:
        return kinds
    if "refused" in rows[0]:
        return kinds | {ACCUMULATION: RIGHT_OR_ERROR}
    weights, serial = (np.array([row[name] for row in rows]) for name in ("weights", "serial"))
    apart, wrong = np.ptp(weights, axis=0).max(), np.abs(weights - serial).max()
    if rows[0]["what"] == "accumulated":
        return kinds | {ACCUMULATION: "wrong weights" if wrong > TOLERANCE else RIGHT_OR_ERROR}
    found = {
        "The largest difference of a weight between two ranks in":
            apart if apart > TOLERANCE else 0.0,
        "The largest difference of a weight from the serial run in":
            wrong if wrong > TOLERANCE else 0.0,
        "The number of all-reduces that step did not wait for in": max(row["open"] for row in rows),
        "The number of all-reduces of a step, or the limit if it is fewer, in":
            max(row["calls"] for row in rows),
        "The bytes of the largest all-reduce, or bucket_bytes if they are fewer, in":
            max(row["bytes"] for row in rows),
    }  # fmt: skip
    if rows[0]["what"] == "plain":
        begun, under_way = np.min([row["in_backward"] for row in rows], axis=(0, 1))
        found |= {
            "The first all-reduce begins before the backward pass has ended in": bool(begun > 0),
            "An all-reduce is under way while the backward pass continues in": bool(under_way > 0),
        }
    return kinds | found


ACCUMULATION = "The result of"
RIGHT_OR_ERROR = "the right weights, or an error in the second backward pass"
# fmt: off
check_distributed_optimizer = RankExercise(
    distributed_optimizer,
    [
        Case((2, 2 * LAYER_BYTES, "plain"), "Each rank must make the step of a process that has all batches.",
             call="three steps on 2 ranks with bucket_bytes=512"),
        Case((3, 4 * LAYER_BYTES, "plain"), "The mean is over comm.size ranks, and a bucket has at most "
             "bucket_bytes bytes.", call="three steps on 3 ranks with bucket_bytes=1024"),
        Case((2, 2 * LAYER_BYTES, "unused"), "A gradient that one rank lacks counts as zeros, and all ranks "
             "send the buckets in the same order.", call="three steps in which a layer has no gradient "
             "on rank 1"),
        Case((2, 2 * LAYER_BYTES, "accumulated"), "A gradient changes after its bucket was sent. Send it "
             "later, or raise an error.", call="two backward passes per step"),
    ],
    {
        "That is the sum over the ranks: divide it by comm.size.": ("total / comm.size", "total"),
        "The mean is over comm.size ranks: yours divides by 2.": ("total / comm.size", "total / 2"),
        "optimizer.step() runs before the means are in the gradients: wait for the all-reduces first.":
            ("            optimizer.step()\n", "",
             "        def step(self):\n", "        def step(self):\n            optimizer.step()\n"),
        "All all-reduces begin in step: begin each in a hook, when its bucket is complete.":
            ("                self.send(bucket)\n\n        def send",
             "                break\n\n        def send"),
        "The hook waits for its all-reduce, so the backward pass waits, too: wait in step.":
            ("comm.Iallreduce(flat, total)))",
             "comm.Iallreduce(flat, total)))\n            self.sent[-1][1].Wait()"),
        "The gradients are averaged in the first step only: the hooks must stay registered.":
            ("            self.ready.add(p)\n", "            if self.steps:\n                return\n"
             "            self.ready.add(p)\n",
             "        def step(self):\n", "        def step(self):\n"
             "            if self.steps:\n                return optimizer.step()\n",
             "            self.sent.clear()\n", "            self.sent.clear()\n            self.steps = 1\n",
             "self.ready, self.sent = [], set(), []", "self.ready, self.sent, self.steps = [], set(), [], 0"),
        "Each gradient has an all-reduce of its own: put several into a bucket.":
            ("self.bytes_of_last() + p.nbytes > bucket_bytes", "True"),
        "The last bucket is not full, and it is never sent: send it, too.":
            ("        def bytes_of_last(self):\n",
             "            self.buckets = [b for b in self.buckets if len(b) * 256 == bucket_bytes]\n\n"
             "        def bytes_of_last(self):\n"),
        "The buckets do not depend on bucket_bytes.": ("> bucket_bytes", "> 512"),
        "A bucket that is complete was sent before an earlier one, which is not complete on this rank.":
            ("self.ready, self.sent = [], set(), []", "self.ready, self.sent = [], set(), {}",
             "for bucket in self.buckets[len(self.sent) :]:", "for bucket in self.buckets:",
             "if not self.ready.issuperset(bucket):\n                    break\n",
             "if id(bucket) in self.sent or not self.ready.issuperset(bucket):\n"
             "                    continue\n",
             "self.sent.append((total, comm.Iallreduce(flat, total)))",
             "self.sent[id(bucket)] = total, comm.Iallreduce(flat, total)",
             "for bucket in self.buckets:\n                self.send(bucket)",
             "for bucket in self.buckets:\n                if id(bucket) not in self.sent:\n"
             "                    self.send(bucket)",
             "for bucket, (total, request) in zip(self.buckets, self.sent, strict=True):\n",
             "for bucket in self.buckets:\n                total, request = self.sent[id(bucket)]\n"),
        "A bucket has more than bucket_bytes bytes.": ("> bucket_bytes", "> 2 * bucket_bytes"),
        "The gradients of the second backward pass are left out, and no error says so.":
            ('raise RuntimeError("a second backward before step is not supported")', "return"),
    },
    passed="two and three ranks make the steps of a single process, and the exchange begins during the "
           "backward pass.",
    observe=observed, gather=rubric, start=on_ranks, ranks=3,
    remedy="All ranks must send the same buckets in the same order: step sends the incomplete buckets, too.",
)
# fmt: on
