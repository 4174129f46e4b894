"""The checks of lab 12: the right answer passes, and each typical mistake is called by its name.

The ranks are forked from this process instead of started by mpirun: what runs on them is the same.
"""

import ast
import importlib.util
import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from changed import changed  # noqa: E402
from forked_ranks import on_ranks  # noqa: E402

from hvdlab.course.experiment import LABS  # noqa: E402
from hvdlab.exercises import NotYet  # noqa: E402
from hvdlab.exercises import lab12_ddp_and_sharding as exercises  # noqa: E402
from hvdlab.exercises.harness import gloo_ranks  # noqa: E402
from hvdlab.launch import LaunchError, function_on_ranks  # noqa: E402

MISTAKES = {}  # check -> (a wrong answer, what the check says about it)


@pytest.fixture
def forked(monkeypatch):
    """Let the checks run on forked ranks: a second instead of five."""

    def call(attempt, *arguments, ranks, timeout, uses):
        def answer():
            there = {"np": np}
            for part in (*uses, attempt):
                exec(function_on_ranks._source(part), there)
            comm = SimpleNamespace(Barrier=lambda: None)  # all that is asked of MPI there
            return json.dumps(there[attempt.__name__](comm, *arguments))

        try:
            return [json.loads(row) for row in on_ranks(answer, ranks=ranks, timeout=300)]
        except AssertionError as error:
            raise LaunchError(str(error).strip().splitlines()[-1]) from None

    monkeypatch.setattr(gloo_ranks, "call", call)


# --- right answers --------------------------------------------------------------------------------


def average_gradients(model):
    import torch
    import torch.distributed as dist

    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    bucket = torch.cat([g.ravel() for g in gradients])
    dist.all_reduce(bucket)
    bucket /= dist.get_world_size()
    start = 0
    for g in gradients:
        g.copy_(bucket[start : start + g.numel()].view_as(g))
        start += g.numel()


def orders(images, epochs, rank, size):
    from torch.utils.data import DistributedSampler

    sampler, found = DistributedSampler(range(images), size, rank, seed=1), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    return found


def accuracy(predict, images, labels):
    import torch
    import torch.distributed as dist

    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (predict(images[mine]) == labels[mine]).sum()
    both = torch.stack([right, torch.tensor(len(images[mine]))])
    dist.all_reduce(both)
    return both[0] / both[1]


def rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8):
    return parameters * (
        weights / (ranks if stage == 3 else 1)
        + gradients / (ranks if stage >= 2 else 1)
        + state / (ranks if stage >= 1 else 1)
    )


def zero1(model, lr):
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    parameters = list(model.parameters())
    numbers = np.cumsum([p.numel() for p in parameters])  # another division than the lab's
    owner = [int(size * (number - 1) // numbers[-1]) for number in numbers]
    mine = [p for p, its in zip(parameters, owner, strict=True) if its == rank]
    optimizer = torch.optim.Adam(mine, lr)

    def step():
        optimizer.step()
        for p, its in zip(parameters, owner, strict=True):
            dist.broadcast(p.data, src=its)

    return optimizer, step


def shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr)


def clip(gradients, most):
    import torch
    import torch.distributed as dist

    total = sum(g.pow(2).sum() for g in gradients)
    dist.all_reduce(total)
    norm = torch.sqrt(total)
    for g in gradients:
        g.mul_(torch.clamp(most / norm, max=1))
    return norm


def buckets(sizes, first, cap):
    result, limit = [[]], first
    for number in range(len(sizes)):
        if result[-1] and sum(sizes[each] for each in result[-1]) >= limit:
            result.append([])
            limit = cap
        result[-1].append(number)
    return result


RIGHT = {
    exercises.check_buckets: buckets,
    exercises.check_average_gradients: average_gradients,
    exercises.check_orders: orders,
    exercises.check_accuracy: accuracy,
    exercises.check_rank_bytes: rank_bytes,
    exercises.check_zero1: zero1,
    exercises.check_shard: shard,
    exercises.check_clip: clip,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_the_right_answer_is_right(check, forked, capsys):
    check(RIGHT[check])
    assert capsys.readouterr().out.startswith("Right: ")


def stub(*arguments):
    raise NotImplementedError("Lab 12, exercise 1: write it")


def broken(*arguments):
    return 1 / 0


@pytest.mark.parametrize("check", RIGHT, ids=lambda check: check.__name__)
def test_what_is_not_written_or_fails(check, forked):
    with pytest.raises(NotImplementedError):
        check(stub)
    with pytest.raises(NotYet, match="ZeroDivisionError: division by zero"):
        check(broken)


@pytest.mark.mpi
@pytest.mark.thorough
def test_on_the_ranks_of_mpirun(capsys):
    exercises.check_clip(clip)
    assert "become 1, 1.5 and 3" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.thorough
def test_ranks_that_wait_for_each_other(monkeypatch):
    def clip(gradients, most):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.all_reduce(torch.zeros(1))

    monkeypatch.setattr(gloo_ranks, "SECONDS", 4)
    with pytest.raises(
        NotYet, match=r"clip: .*after \d+ s rank 0 in `dist.all_reduce\(.*the same order"
    ):
        exercises.check_clip(clip)


# --- wrong answers ------------------------------------------------------------------------------------


FILL = """\
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
"""
GATHER = """\
    buckets = [torch.empty_like(bucket) for _ in range(dist.get_world_size())]
    dist.all_gather(buckets, bucket)
    bucket = sum(buckets)
"""


def one_by_one(model):
    import torch.distributed as dist

    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


def frozen_too(model):
    import torch

    for p in model.parameters():
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    average_gradients(model)  # noqa: F821  (not there: see below)


MISTAKES[exercises.check_average_gradients] = [
    (changed(average_gradients, "    bucket /= dist.get_world_size()\n", ""),
     "sum over the ranks: divide by"),
    (changed(average_gradients, "get_world_size()", "get_world_size() ** 2"),
     "divided by the number of ranks once more"),
    (changed(average_gradients, "dist.get_world_size()", "2"), "half of the sum, and there are 3 ranks"),
    (one_by_one, "the means are right, with 4 collectives for 4 gradients"),
    (changed(average_gradients, "    dist.all_reduce(bucket)\n", GATHER),
     "the means are right, by all_gather in place of one all_reduce"),
    (changed(average_gradients, "g.copy_(bucket[", "(bucket["), "copy the content of the bucket back"),
    ((changed(average_gradients, "    for g in gradients:", "    for g in reversed(gradients):")),
     "the same order, numel"),
    (frozen_too, "average_gradients' is not defined"),
    (changed(average_gradients, "    gradients = [", FILL + "    gradients = ["),
     r"no gradient \(None\) before, and a tensor after"),
]  # fmt: skip


def own_part_only(images, epochs, rank, size):
    mine = np.arange(rank, images, size)
    return [np.random.default_rng([rank, epoch]).permutation(mine) for epoch in range(epochs)]


MISTAKES[exercises.check_orders] = [
    (changed(orders, "        sampler.set_epoch(epoch)\n", ""), "the same in all three epochs"),
    (changed(orders, "seed=1", "seed=1 + rank"), "all ranks must shuffle by the same seed"),
    (own_part_only, "never reads the other images"),
    (lambda n, e, r, s: orders(n, e, s - 1 - r, s), "differ from those of DistributedSampler"),
    (lambda n, e, r, s: orders(n, 1, r, s), "3 lists of 6 numbers"),
    (lambda n, e, r, s: None, "3 lists of 6 numbers"),
]  # fmt: skip


MINE = "slice(dist.get_rank(), None, dist.get_world_size())"


def mean_of_means(predict, images, labels):
    import torch.distributed as dist

    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (predict(images[mine]) == labels[mine]).float().mean()
    dist.all_reduce(right)
    return right / dist.get_world_size()


def everything(predict, images, labels):
    return (predict(images) == labels).float().mean()


def on_rank_0(predict, images, labels):
    import torch.distributed as dist

    return everything(predict, images, labels) if dist.get_rank() == 0 else None  # noqa: F821


def nothing(predict, images, labels):
    return None


def both_numbers(predict, images, labels):
    return [int((predict(images) == labels).sum()), len(labels)]


MISTAKES[exercises.check_accuracy] = [
    (changed(mean_of_means, "as dist", "as dist\n    from torch.utils.data import DistributedSampler",
             MINE, "list(DistributedSampler(images, shuffle=False))"),
     "5 held-out images on 3 ranks.* 6 images were classified: DistributedSampler"),
    (mean_of_means, "mean of the ranks' means"),
    (changed(mean_of_means, "    dist.all_reduce(right)\n", "", " / dist.get_world_size()", ""),
     "The ranks disagree"),
    (everything, "15 images were classified: 5, 5, 5"),
    (changed(accuracy, MINE, "slice(dist.get_rank() % 2, None, 2)"),
     "The ranks disagree|images were classified"),
    (on_rank_0, "'everything' is not defined"),
    (nothing, "a number. Received on rank 0: None: is `return` missing"),
    (both_numbers, r"5 held-out images.* a number. Received on rank 0: \(int, int\)$"),
]  # fmt: skip


MISTAKES[exercises.check_buckets] = [
    (changed(buckets, "limit = cap", "pass"), "the limit of the first bucket is used for all"),
    (changed(buckets, "[[]], first", "[[]], cap"), "the limit of the first bucket is `first`"),
    (changed(buckets, ">= limit", "> limit"), "above its limit only"),
    (changed(buckets, "return result", "return result[:-1]"), "the last bucket is missing"),
    (lambda sizes, first, cap: [*buckets(sizes, first, cap), []], "the last bucket is empty"),
    (changed(buckets, "return result", "return len(result)"), "a list of lists of positions. Received: 2"),
]  # fmt: skip


def test_the_buckets_are_those_of_pytorch():
    from torch.distributed import _compute_bucket_assignment_by_size

    sizes = [600, 500, 900, 200, 1500, 100]
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    assert _compute_bucket_assignment_by_size(tensors, [1000, 2000])[0] == buckets(
        sizes, 1000, 2000
    )


MISTAKES[exercises.check_rank_bytes] = [
    (lambda p, n, s, w=4, g=4, k=8: (w + g + k) * p, r"3?.*stage 1 shards the optimizer's"),
    (lambda p, n, s, w=4, g=4, k=8: (w + g + k) * p / n, "stage 0 shards nothing"),
    (lambda p, n, s, w=4, g=4, k=8: rank_bytes(p, n, min(s, 1), w, g, k),
     "stage 2 shards the gradients too"),
    (lambda p, n, s, w=4, g=4, k=8: rank_bytes(p, n, s, w, g, k) * (n if s == 3 else 1),
     "what all ranks hold"),
    (lambda p, n, s, w=4, g=4, k=8: rank_bytes(p, n, s), "Use the arguments weights"),
    (lambda p, n, s, w=4, g=4, k=8: None, "rank_bytes.*returned None"),
]  # fmt: skip


def nothing_returned(model, lr):
    pass


OWNER = "[int(size * (number - 1) // numbers[-1]) for number in numbers]"


def only_the_step(model, lr):
    import torch

    return torch.optim.Adam(model.parameters(), lr).step


MISTAKES[exercises.check_zero1] = [
    (changed(zero1, "return optimizer, step", "return optimizer, optimizer.step"),
     "the ranks' weights differ by"),
    (changed(zero1, "Adam(mine", "Adam(parameters"),
     "a rank holds 100% of its state: give the optimizer only"),
    (changed(zero1, OWNER, "[number % size for number in range(len(parameters))]"),
     "a rank holds 4.% of its state: the shards are unequal"),
    (only_the_step, r"must return \(optimizer, step\)\. Received: method$"),
    (changed(zero1, "return optimizer, step", "return optimizer.step, optimizer"),
     r"must return \(optimizer, step\)\. Received: \(method, Adam\)$"),
    (changed(zero1, "return optimizer, step", "return optimizer, step()"),
     r"must return \(optimizer, step\)\. Received: \(Adam, NoneType\)$"),
    (nothing_returned, r"Received: None: is `return` missing\?$"),
    (changed(zero1, "Adam(mine, lr)", "SGD(mine, lr, momentum=0.9)"), "differ from plain Adam by"),
    (changed(zero1, "Adam(mine", "Adam(parameters", OWNER, "[0] * len(numbers)",
             "optimizer.step()", "rank == 0 and optimizer.step()"),
     "on one rank the optimizer has no state"),
]  # fmt: skip


SHARD = "    fully_shard(model, mesh=mesh)\n"


MISTAKES[exercises.check_shard] = [
    (nothing_returned, r"must return the optimizer\. Received: None: is `return` missing\?$"),
    (only_the_step, r"must return the optimizer\. Received: method$"),
    (changed(shard, SHARD, "    for block in model.blocks:\n        fully_shard(block, mesh=mesh)\n"),
     "is every parameter below a fully_shard"),
    (changed(shard, SHARD, "", "    return torch", "    optimizer = torch",
             "(), lr)\n", "(), lr)\n" + SHARD + "    return optimizer\n"),
     "the weights do not move: .* Create the optimizer after"),
    (changed(shard, SHARD, ""), "each rank still holds all weights"),
    (changed(shard, "(), lr)", "(), 2 * lr)"),
     "after 3 steps the weights differ by .* from those of plain Adam"),
]  # fmt: skip


def test_shards_on_the_processor_where_pytorch_is_built_for_gpus(
    forked, tmp_path, monkeypatch, capsys
):
    """Such a PyTorch says "cuda" also where there is no GPU. The two functions are those of the lab."""
    lab = ast.parse((LABS / "12_ddp_and_sharding.py").read_text())
    both = [n for n in lab.body if getattr(n, "name", "") in ("faulty_shard", "shard")]
    path = tmp_path / "shards.py"
    path.write_text("\n\n".join(map(ast.unparse, both)))
    spec = importlib.util.spec_from_file_location("shards", path)
    shards = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shards)
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda check=False: cuda)
    with pytest.raises(NotYet, match="the weights do not move: .* Create the optimizer after"):
        exercises.check_shard(shards.faulty_shard)
    exercises.check_shard(shards.shard)
    assert capsys.readouterr().out.startswith("Right: ")


OVER_RANKS, ROOT = "    dist.all_reduce(total)\n", "    norm = torch.sqrt(total)\n"


def each_tensor(gradients, most):
    import torch.distributed as dist

    whole = 0
    for g in gradients:
        total = g.pow(2).sum()
        dist.all_reduce(total)
        g.mul_((most / total.sqrt()).clamp(max=1))
        whole = whole + total
    return whole.sqrt()


MISTAKES[exercises.check_clip] = [
    (changed(clip, OVER_RANKS, ""), "Each rank clips by the norm of its own shard"),
    (changed(clip, OVER_RANKS + ROOT, ROOT + OVER_RANKS.replace("total", "norm")),
     "2 \\+ 3 \\+ 6 = 11 as a norm"),
    (each_tensor, "one norm over all tensors"),
    (changed(clip, "most / norm", "1 / norm"), "a norm of 1: the largest that is allowed is `most`"),
    (changed(clip, "torch.sqrt(total)", "total"), "take the root"),
    (changed(clip, "torch.clamp(most / norm, max=1)", "most / norm"), "leave them as they are"),
    (changed(clip, "g.mul_(", "g.mul("), "Nothing was clipped"),
    (changed(clip, "for g in gradients:", "for i, g in enumerate(gradients):",
             "g.mul_(", "gradients[i] = g.mul("),
     "Nothing was clipped"),
    (changed(clip, "    return norm\n", ""),
     "return the norm before clipping, 7 .* a number. Received: None: is `return` missing"),
    (changed(clip, "return norm", "return [norm]"),
     r"return the norm before clipping, 7 .* a number. Received: \(Tensor\)$"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "wrong", "says"), [(check, *row) for check, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_is_named(check, wrong, says, forked):
    with pytest.raises(NotYet, match=says):
        check(wrong)
