"""Train the network of lab 13 with blocks that are split among ranks, by functions that a learner wrote.

    result = train([block], part_of, f_and_g, ranks=2)[0]
    result["losses"], result["alone"]      # of the ranks, and of a single process with the whole network

Every rank has a copy of the stem, of the last norm and of the head, and all ranks read the same batch. The
copies stay equal only because their gradients are equal.
"""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional as F

from hvdlab.data import load_fashion_mnist
from hvdlab.launch import call
from hvdlab.torch.lab_networks import ResidualMLP

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

LAYERS, HIDDEN = 2, 64  # blocks of the network, and its width
BATCH, STEPS, LEARNING_RATE = 64, 20, 0.05
MAX_NORM = 1.0  # norm to which gradients are clipped


def train(
    blocks: list[Callable],
    part_of: Callable,
    f_and_g: Callable,
    *,
    ranks: int = 2,
    clip: Callable | None = None,
) -> list[dict]:
    """Train 20 steps on Fashion-MNIST on several ranks, once with each of the block functions.

    Args:
        blocks: functions (x, part, f, g) -> output (batch, 64) of the whole block.
        part_of: function (weights of a block, rank, ranks) -> the weights that the rank holds, by name.
        f_and_g: function () -> (f, g), Megatron's two operations.
        ranks: number of ranks. Default 2.
        clip: function (split parameters, parameters with copies, largest norm) that changes the gradients.
            Default: gradients do not change.

    Returns:
        a dict for each block function: "losses" of the ranks and "alone", the losses of a single process,
        for each step; "sent", the bytes that rank 0 sent per step; "weights off", the largest difference
        of a weight from the single process at the end; "copies apart", the largest difference between
        copies on different ranks.

    Raises:
        LaunchError: see `hvdlab.launch.function_on_ranks.call`.
    """
    alone, file = _train_alone(clip is not None)
    names, uses = [block.__name__ for block in blocks], [*blocks, part_of, f_and_g]
    helpers = {"part_of": part_of.__name__, "f_and_g": f_and_g.__name__, "clip": None}
    if clip:
        uses.append(clip)
        helpers["clip"] = clip.__name__
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "whole.pt")
        torch.save(file, path)
        rows = call(_on_rank, names, str(path), helpers, ranks=ranks, timeout=300, uses=tuple(uses))
    return [{"alone": alone, **row} for row in rows[0]]


@cache
def _train_alone(clipped: bool) -> tuple[list[float], dict[str, Any]]:
    """Return the losses of a single process, and the weights and data for the ranks."""
    data = load_fashion_mnist()
    images = torch.tensor(data.train_images[: BATCH * STEPS]).flatten(1) / 255
    labels = torch.tensor(data.train_labels[: BATCH * STEPS]).long()
    torch.manual_seed(1)
    network = ResidualMLP(LAYERS, HIDDEN, image_size=28)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, momentum=0.9)
    losses = []
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_NORM)
        optimizer.step()
        losses.append(loss.item())
    weights = {"start": start, "end": network.state_dict()}
    return losses, {"images": images, "labels": labels, **weights}


def largest(differences: list[torch.Tensor]) -> float:
    """Return, on a rank, the largest absolute value in the tensors of all ranks."""
    value = max(difference.detach().abs().max() for difference in differences)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return value.item()


def _on_rank(
    comm: "Comm", blocks: list[str], path: str, helpers: dict[str, str | None]
) -> list[dict]:
    """Train on a rank with each block function; see `train`. `call` defines the functions on the rank."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    from hvdlab.course.split_training import BATCH, HIDDEN, LAYERS, LEARNING_RATE, MAX_NORM, largest
    from hvdlab.system.tcp_bytes import bytes_sent
    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    part_of, f_and_g, clip = (globals().get(helpers[key]) for key in ("part_of", "f_and_g", "clip"))
    f, g = f_and_g()
    file, rows = torch.load(path, weights_only=True), []
    batches = list(zip(file["images"].split(BATCH), file["labels"].split(BATCH), strict=True))
    for name in blocks:
        network = ResidualMLP(LAYERS, HIDDEN, image_size=28)
        network.load_state_dict(file["start"])
        held = [part_of(block.state_dict(), comm.rank, comm.size) for block in network.blocks]
        parts = [
            {key: value.clone().requires_grad_() for key, value in part.items()} for part in held
        ]
        network.blocks = None  # from here on the rank has only its parts
        is_split = ("up.weight", "up.bias", "down.weight").__contains__
        split = [part[key] for part in parts for key in part if is_split(key)]
        shared = [part[key] for part in parts for key in part if not is_split(key)]
        shared += network.parameters()

        optimizer = torch.optim.SGD([*split, *shared], LEARNING_RATE, momentum=0.9)
        losses, before = [], bytes_sent()
        for images, labels in batches:
            x = network.stem(images)
            for part in parts:
                x = globals()[name](x, part, f, g)
            loss = F.cross_entropy(network.head(network.norm(x)), labels)
            optimizer.zero_grad()
            loss.backward()
            if clip:
                clip(split, shared, MAX_NORM)
            optimizer.step()
            losses.append(loss.item())
        row = {"losses": losses, "sent": (bytes_sent() - before) / len(losses)}

        first = [parameter.detach().clone() for parameter in shared]
        for parameter in first:
            dist.broadcast(parameter, src=0)
        off = [value - file["end"][key] for key, value in network.state_dict().items()]
        for number, part in enumerate(parts):
            end = {key: file["end"][f"blocks.{number}.{key}"] for key in part}
            off += [part[key] - value for key, value in part_of(end, comm.rank, comm.size).items()]
        row["weights off"] = largest(off)
        row["copies apart"] = largest([a - b for a, b in zip(shared, first, strict=True)])
        rows.append(row)
    dist.destroy_process_group()
    return rows
