"""Exercises of lab 12 about sharding: memory of a rank, ZeRO-1 by hand, FSDP, and a norm over the shards."""

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.gloo_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind, number_or_kind
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.memory import held

if TYPE_CHECKING:
    from mpi4py import MPI

# --- exercise 5 ------------------------------------------------------------------------------------


def rank_bytes(parameters, ranks, stage, weights=4, gradients=4, state=8):
    parts = ((weights, 3), (gradients, 2), (state, 1))
    return parameters * sum(part / ranks if stage >= first else part for part, first in parts)


# fmt: off
check_rank_bytes = FunctionExercise(
    rank_bytes,
    [
        Case((100, 4, 0), "Stage 0 shards nothing: 4 + 4 + 8 bytes per parameter.", expected=1600),
        Case((100, 4, 1), "Stage 1 shards the optimizer's state, and nothing else.", expected=1000),
        Case((100, 4, 2), "Stage 2 shards the gradients too.", expected=700),
        Case((100, 4, 3), "Stage 3 shards everything.", expected=400),
        *(Case((7.5e9, 64, stage, 2, 2, 12), f"Figure 1 of the paper of ZeRO has {gigabytes} GB.")
          for stage, gigabytes in enumerate([120, 31.4, 16.6, 1.9])),
    ],
    {
        "Your stages shard nothing: a rank stores 1/ranks of what a stage shards.":
            ("part / ranks if stage >= first else part", "part"),
        "Yours shards everything in every stage, and stage 0 shards nothing.":
            ("part / ranks if stage >= first else part", "part / ranks"),
        "Stage 2 shards the gradients too.": ("stage >= first", "min(stage, 1) >= first"),
        "Stage 3 shards the weights too.": ("stage >= first", "min(stage, 2) >= first"),
        "The order of the stages is the optimizer's state, the gradients, the weights.":
            ("(weights, 3)", "(weights, 1)", "(state, 1)", "(state, 3)"),
        "Each stage also shards what the stages before it shard.": ("stage >= first", "stage == first"),
        "That is what all ranks hold together of what is sharded.":
            ("parameters * sum(", "parameters * (ranks if stage == 3 else 1) * sum("),
        "It is right for float32. Use the arguments weights, gradients and state, here 2, 2 and 12 bytes.":
            ("    parts =", "    weights, gradients, state = 4, 4, 8\n    parts ="),
    },
    passed="four stages by hand, and 120, 31.4, 16.6 and 1.9 GB as in the paper's figure 1.",
    meaning="of bytes", rtol=1e-5,
)
# fmt: on

# --- exercise 6 ------------------------------------------------------------------------------------


def zero1(model, lr):
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    owners, numbers = [], [0] * size
    for parameter in model.parameters():  # to the rank that has the fewest numbers so far
        owner = numbers.index(min(numbers))
        owners.append((parameter, owner))
        numbers[owner] += parameter.numel()
    optimizer = torch.optim.Adam([p for p, owner in owners if owner == rank], lr)

    def step():
        optimizer.step()
        for parameter, owner in owners:
            dist.broadcast(parameter.data, src=owner)

    return optimizer, step


def flat(model: torch.nn.Module) -> torch.Tensor:
    """Return all weights as one tensor."""
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().ravel() for p in whole])


def own(model: torch.nn.Module) -> torch.Tensor:
    """Return the weights that this rank holds as one tensor."""
    local = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return torch.cat([p.detach().ravel() for p in local])


def steps_with_equal_gradients(comm: "MPI.Comm", function: Callable) -> dict:
    """Return how three steps compare with plain Adam, with equal gradients on all ranks."""
    torch.manual_seed(1)  # the same weights and the same (averaged) gradients on all ranks
    model, rate = ResidualMLP(6, 16, image_size=4), 0.02
    plain = copy.deepcopy(model)
    adam, start = torch.optim.Adam(plain.parameters(), rate), flat(plain)
    answer = function(model, rate)
    match answer:
        case [torch.optim.Optimizer() as optimizer, step] if callable(step):
            pass
        case _:
            return {"kind": kind(answer)}
    for number in range(3):
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            theirs.grad = torch.randn_like(theirs)
            ours.grad = theirs.grad.clone()
        step()
        adam.step()
        if number == 0:
            first = (flat(model) - start).abs().median().item() / rate
    weights = flat(model)
    low, high = weights.clone(), weights.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    share = held(model, optimizer)["optimizer"] / held(plain, adam)["optimizer"]
    return {
        "kind": "", "apart": (high - low).max().item(), "first": round(first, 3),
        "off": (weights - flat(plain)).abs().max().item(), "share": share,
    }  # fmt: skip


def steps_of_all(rows: list[dict]) -> dict[str, object]:
    if rows[0]["kind"]:
        return {"What zero1 returns in": rows[0]["kind"]}
    shares, middle = [row["share"] for row in rows], sorted(row["first"] for row in rows)[1]
    apart, off = (max(row[name] for row in rows) for name in ("apart", "off"))
    return {
        "What zero1 returns in": "(optimizer, step)",
        "The smallest part of the state on a rank after": "some" if min(shares) > 0 else "none",
        "The weights of the ranks, compared after": "equal" if apart < 1e-6 else "different",
        "The median size of a weight's first step, in learning rates, in": middle,
        "The result of": "that of plain Adam" if off < 1e-6 else "not that of plain Adam",
        "The largest part of the state on a rank after": "about a third"
        if max(shares) < 0.45
        else "nearly half"
        if max(shares) < 0.8
        else "all",
    }


# fmt: off
check_zero1 = RankExercise(
    zero1,
    [Case((), "Every parameter belongs to one rank, which updates it by Adam with the learning rate lr, and "
              "broadcasts it.", call="3 steps on 3 ranks")],
    {
        "A rank updates its own shard only, and the others must receive it. Broadcast each parameter from "
        "the rank that it belongs to.": ("return optimizer, step", "return optimizer, optimizer.step"),
        "Broadcast each parameter from the rank that it belongs to, and not from rank 0.":
            ("src=owner", "src=0"),
        "Each rank updates its shard by Adam with the learning rate lr, and yours is another optimizer.":
            ("Adam([p for p, owner in owners if owner == rank], lr)",
             "SGD([p for p, owner in owners if owner == rank], lr, momentum=0.9)"),
        "Give Adam the learning rate lr.": ("== rank], lr)", "== rank])"),
        "Update each parameter once per step.": ("        optimizer.step()", "        optimizer.step()\n"
                                                 "        optimizer.step()"),
        "A rank holds all of Adam's state: give the optimizer only the parameters of this rank.":
            ("[p for p, owner in owners if owner == rank]", "model.parameters()"),
        "The shards are unequal, as where weights and biases alternate: shard by size.":
            ("numbers.index(min(numbers))", "len(owners) % size"),
        "On one rank the optimizer has no state: each rank needs a shard of its own.":
            ("[p for p, owner in owners if owner == rank]", "model.parameters()",
             "numbers.index(min(numbers))", "0",
             "        optimizer.step()", "        rank == 0 and optimizer.step()"),
    },
    passed="after 3 steps on 3 ranks the weights are those of plain Adam, and each rank has a third of its "
           "state.",
    observe=steps_with_equal_gradients, gather=steps_of_all, start=on_ranks, ranks=3,
)
# fmt: on

# --- exercise 7 ------------------------------------------------------------------------------------


def shard(model, lr):
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.Adam(model.parameters(), lr)


def three_steps(comm: "MPI.Comm", function: Callable) -> dict:
    """Return how three steps on each rank's images compare with a plain model on all images."""
    from torch.distributed.tensor.debug import CommDebugMode  # slow to import

    torch.manual_seed(1)
    model, rate = ResidualMLP(2, 16, image_size=4), 0.02
    plain = copy.deepcopy(model)
    adam, optimizer = torch.optim.Adam(plain.parameters(), rate), function(model, rate)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {"kind": kind(optimizer)}
    x, y = torch.randn(8, 1, 4, 4), torch.randint(10, (8,))
    mine, first, start = slice(dist.get_rank(), None, dist.get_world_size()), None, own(model)
    for _ in range(3):
        for one, steps, images in ((plain, adam, slice(None)), (model, optimizer, mine)):
            with CommDebugMode() as counts, warnings.catch_warnings(action="ignore"):
                torch.nn.functional.cross_entropy(one(x[images]), y[images]).backward()
            steps.step()
            steps.zero_grad()
            one.zero_grad()
        if first is None:
            first = (own(model) - start).abs().median().item() / rate
    here, all_of_it = held(model, optimizer), held(plain, adam)
    return {
        "kind": "", "first": round(first, 3),
        "scatters": counts.get_comm_counts().get(torch.ops.c10d._reduce_scatter_base_, 0),
        "weights": here["parameters"] / all_of_it["parameters"],
        "state": here["optimizer"] / all_of_it["optimizer"],
        "off": (flat(model) - flat(plain)).abs().max().item(),
    }  # fmt: skip


def sharded(rows: list[dict]) -> dict[str, object]:
    row = rows[0]
    if row["kind"]:
        return {"What shard returns in": row["kind"]}
    return {
        "What shard returns in": "an optimizer",
        "The part of the weights on a rank after": "half" if row["weights"] < 0.8 else "all",
        "The median size of a weight's first step, in learning rates, in": row["first"],
        "The number of reduce-scatters in a backward pass, up to 3, in": min(row["scatters"], 3),
        "The result of": "that of plain Adam" if row["off"] < 1e-5 else "not that of plain Adam",
        "The part of the optimizer's state on a rank after": "half"
        if row["state"] < 0.8
        else "all",
    }


OPTIMIZER = "torch.optim.Adam(model.parameters(), lr)"
# fmt: off
check_shard = RankExercise(
    shard,
    [Case((), "Call fully_shard for each block and for the model, then create Adam with the learning rate "
              "lr.",
          call="3 steps of a model with 2 blocks on 2 ranks")],
    {
        "Each rank still holds all weights: call fully_shard for each block and for the model.":
            ("        fully_shard(block, mesh=mesh)\n    fully_shard(model, mesh=mesh)", "        pass"),
        "The weights do not move: fully_shard replaces the parameters by new ones, the shards, and the "
        "optimizer still has the old ones. Create the optimizer after it.":
            ("    for block", f"    optimizer = {OPTIMIZER}\n    for block",
             f"return {OPTIMIZER}", "return optimizer"),
        "The model is one unit, so a pass gathers all its weights at once: call fully_shard for each block, "
        "too.":
            ("        fully_shard(block, mesh=mesh)", "        pass"),
        "Only the blocks are sharded. FSDP averages the gradients of what it shards, so the ranks compute "
        "other weights for the rest: call fully_shard for the model, too.":
            ("    fully_shard(model, mesh=mesh)\n", ""),
        "Give Adam the learning rate lr.": ("parameters(), lr)", "parameters())"),
        "The learning rate is multiplied by the number of ranks: give Adam lr.":
            ("parameters(), lr)", "parameters(), 2 * lr)"),
        "Return the optimizer.": ("return torch", "torch"),
        "The optimizer updates only the blocks: give it all parameters of the model.":
            ("model.parameters()", "model.blocks.parameters()"),
    },
    passed="3 steps on two ranks as with plain Adam, with half of weights and state on each, gathered block "
           "by block.",
    observe=three_steps, gather=sharded, start=on_ranks, ranks=2,
)
# fmt: on

# --- exercise 8 ------------------------------------------------------------------------------------


def clip(gradients, most):
    import torch.distributed as dist

    total = sum(g.pow(2).sum() for g in gradients)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > most:
        for g in gradients:
            g.mul_(most / norm)
    return norm.item()


def norms(comm: "MPI.Comm", function: Callable, lengths: list[float], most: float) -> dict:
    length = lengths[dist.get_rank()]
    mine = [length * torch.tensor([0.6]), length * torch.tensor([[0.8], [0.0]])]
    # A new list: a function that replaces its entries does not change these tensors.
    returned = function([*mine], most)
    return {
        "The norms of the ranks' gradients after": torch.cat([g.ravel() for g in mine])
        .norm()
        .item(),
        "What the ranks return from": number_or_kind(returned),
    }


def each_tensor(gradients, most):
    whole = 0
    for g in gradients:
        total = g.pow(2).sum()
        dist.all_reduce(total)
        g.mul_((most / total.sqrt()).clamp(max=1))
        whole = whole + total
    return whole.sqrt()


# fmt: off
check_clip = RankExercise(
    clip,
    [Case((lengths, most), reason, f"clip of gradients with the norms {lengths}, at most {most}")
     for lengths, most, reason in (
         ([2.0, 3.0, 6.0], 3.5, "The norm over all tensors of all ranks is the root of 4 + 9 + 36, so 7, and "
                                "the factor for all is 3.5 / 7. Return 7, the norm before clipping."),
         ([0.2, 0.3, 0.6], 1.0, "The norm of all is 0.7, and 1 is allowed: leave the gradients as "
                                "they are."))],
    {
        "Each rank clips by the norm of its own shard, and (2, 3, 3.5) has another direction than (2, 3, 6).":
            ("    dist.all_reduce(total)\n", ""),
        "That is 2 + 3 + 6 = 11 as a norm: add up the squares, take the root of the sum.":
            ("dist.all_reduce(total)\n    norm = total.sqrt()",
             "norm = total.sqrt()\n    dist.all_reduce(norm)"),
        "There is one norm over all tensors of all ranks, and yours clips each tensor alone.": each_tensor,
        "That is a norm of 1: the largest that is allowed is `most`.": ("most / norm", "1 / norm"),
        "That is 49 as a norm: take the root of the sum of squares.": ("total.sqrt()", "total"),
        "Gradients whose norm is allowed must stay as they are.":
            ("    if norm > most:\n        for g in gradients:\n            g",
             "    for g in gradients:\n        g"),
        "Nothing was clipped: change the gradients in place, by mul_.": ("g.mul_(", "g.mul("),
        "The gradients are right: `return` the norm before clipping, a number.":
            [("return norm.item()", "pass"), ("return norm.item()", "return [norm]")],
        "The gradients are right: return the norm before clipping, and yours is the one after it.":
            ("return norm.item()", "return min(norm.item(), most)"),
        "The gradients are right: return the norm over all ranks, and yours is that of this rank.":
            ("    total = sum(", "    own = sum(", "g in gradients)\n    dist",
             "g in gradients)\n    total = own.clone()\n    dist", "norm.item()", "own.sqrt().item()"),
    },
    passed="norms of 2, 3 and 6 on 3 ranks become 1, 1.5 and 3; smaller ones stay unchanged.",
    observe=norms, start=on_ranks, ranks=3, rtol=1e-4,
)
# fmt: on
