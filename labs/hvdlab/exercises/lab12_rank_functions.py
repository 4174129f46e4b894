"""The functions that the checks of lab 12 run on each rank.

`name` is the name of the learner's function, which is among the globals of the rank. Each function travels to
the ranks as source text (see `hvdlab.launch.call`), so it imports inside whatever it needs.
`harness.gloo_ranks` has connected the ranks. `comm` is an mpi4py communicator.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI


def kind(answer: object) -> str:
    """Return the type of a function's result, in words for a message."""
    if answer is None:
        return "None: is `return` missing?"
    if isinstance(answer, tuple | list):
        return f"({', '.join(type(each).__name__ for each in answer)})"
    return type(answer).__name__


def number(answer: object) -> float | None:
    """Return a number or a tensor of one number as a float, and None for all else."""
    try:
        return float(answer)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of many numbers
        return None


def try_average(comm: "MPI.Comm", name: str) -> dict[str, object]:
    """Return how far the gradients are from known results, and which collectives were called.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import torch
    import torch.distributed as dist

    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(*(torch.nn.Linear(4, n) for n in (3, 4, 4)))
    model[1].requires_grad_(False)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    before = {n: p.grad.clone() for n, p in named.items()}
    total = {n: g.clone() for n, g in before.items()}
    for gradient in total.values():
        dist.all_reduce(gradient)
    calls = []
    for collective in ("all_reduce", "all_gather", "broadcast", "reduce", "all_gather_into_tensor",
                "reduce_scatter_tensor", "all_reduce_coalesced"):  # fmt: skip
        real = getattr(dist, collective)
        setattr(
            dist,
            collective,
            lambda *a, name=collective, real=real, **k: calls.append(name) or real(*a, **k),
        )
    globals()[name](model)

    def distance(factor: float, source: dict = total) -> tuple[float, str]:
        apart = {n: float((p.grad - factor * source[n]).abs().max()) for n, p in named.items()}
        return max(apart.values()), max(apart, key=apart.get)

    size = dist.get_world_size()
    error, where = distance(1 / size)
    frozen = [p.grad for p in model[1].parameters()]
    return {
        "error": error, "where": where, "calls": calls, "gradients": len(named),
        "sum": distance(1)[0], "half": distance(1 / 2)[0], "twice": distance(1 / size**2)[0],
        "unchanged": distance(1, before)[0],
        "none": "None" if all(g is None for g in frozen) else "a tensor",
    }  # fmt: skip


def try_accuracy(comm: "MPI.Comm", name: str, sizes: list[int]) -> list[dict[str, object]]:
    """Return, for each number of images, the accuracy and how many images were classified.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
        sizes: The numbers of images.
    """
    import torch

    from hvdlab.exercises.lab12_rank_functions import kind, number

    rows = []
    for n in sizes:
        images, labels, classified = torch.arange(n), torch.ones(n, dtype=torch.long), []

        def predict(part: torch.Tensor, classified: list[int] = classified) -> torch.Tensor:
            classified.append(len(part))
            return torch.tensor([int(i) % 3 != 0 for i in part], dtype=torch.long)

        value = globals()[name](predict, images, labels)
        rows.append({"value": number(value), "kind": kind(value), "classified": sum(classified)})
    return rows


def try_zero1(comm: "MPI.Comm", name: str) -> dict[str, object]:
    """Return how five steps compare with plain Adam, with equal gradients on all ranks.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import copy

    import torch
    import torch.distributed as dist

    from hvdlab.exercises.lab12_rank_functions import kind
    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.memory import held

    torch.manual_seed(1)  # the same weights and the same (averaged) gradients on all ranks
    model = ResidualMLP(6, 16, image_size=4)
    plain = copy.deepcopy(model)
    adam = torch.optim.Adam(plain.parameters(), 0.02)
    answer = globals()[name](model, 0.02)
    match answer:
        case [torch.optim.Optimizer() as optimizer, step] if callable(step):
            pass
        case _:
            return {"kind": kind(answer)}
    for _ in range(5):
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            theirs.grad = torch.randn_like(theirs)
            ours.grad = theirs.grad.clone()
        step()
        adam.step()
    flat = torch.cat([p.detach().ravel() for p in model.parameters()])
    low, high = flat.clone(), flat.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    wanted = torch.cat([p.detach().ravel() for p in plain.parameters()])
    share = held(model, optimizer)["optimizer"] / held(plain, adam)["optimizer"]
    return {"kind": "", "spread": float((high - low).max()),
            "error": float((flat - wanted).abs().max()), "share": share}  # fmt: skip


def try_shard(comm: "MPI.Comm", name: str) -> dict[str, object]:
    """Return how three steps on each rank's images compare with a plain model on all images.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import copy

    import torch
    import torch.distributed as dist

    from hvdlab.exercises.lab12_rank_functions import kind
    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.memory import held

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = ResidualMLP(2, 16, image_size=4)
    plain = copy.deepcopy(model)
    start = torch.cat([p.detach().ravel() for p in plain.parameters()])
    adam = torch.optim.Adam(plain.parameters(), 0.02)
    optimizer = globals()[name](model, 0.02)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {"kind": kind(optimizer)}
    x, y = torch.randn(8, 1, 4, 4), torch.randint(10, (8,))
    for _ in range(3):
        for one, steps, n in ((model, optimizer, size), (plain, adam, 1)):
            mine = slice(rank % n, None, n)
            torch.nn.functional.cross_entropy(one(x[mine]), y[mine]).backward()
            steps.step()
            steps.zero_grad()
            one.zero_grad()
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    flat = torch.cat([p.detach().ravel() for p in whole])
    wanted = torch.cat([p.detach().ravel() for p in plain.parameters()])
    mine, all_of_it = held(model, optimizer), held(plain, adam)
    return {
        "kind": "", "sharded": mine["parameters"] < 0.8 * all_of_it["parameters"],
        "moved": float((flat - start).abs().max()), "error": float((flat - wanted).abs().max()),
        "state": mine["optimizer"] / all_of_it["optimizer"],
    }  # fmt: skip


def try_clip(comm: "MPI.Comm", name: str) -> list[dict[str, object]]:
    """Return the norm of this rank's gradients and the returned norm, for long and short gradients.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
    """
    import torch
    import torch.distributed as dist

    from hvdlab.exercises.lab12_rank_functions import kind, number

    rank, rows = dist.get_rank(), []
    for length, most in (((2.0, 3.0, 6.0), 3.5), ((0.2, 0.3, 0.6), 1.0)):
        mine = [length[rank] * torch.tensor([0.6]), length[rank] * torch.tensor([[0.8], [0.0]])]
        # A new list: a function that replaces its entries does not change these tensors.
        norm = globals()[name]([*mine], most)
        after = float(torch.cat([g.ravel() for g in mine]).norm())
        rows.append({"after": after, "norm": number(norm), "kind": kind(norm)})
    return rows
