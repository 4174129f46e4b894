"""Train the network of lab 10 with blocks that are split among ranks, by functions that a learner wrote.

    found = train([block], part_of, f_and_g, ranks=2)[0]
    found["losses"], found["alone"]        # of the ranks, and of one process with the whole network

The stem, the last norm and the head are whole on every rank, and all ranks read the same batch. Nothing
keeps the copies equal but equal gradients.
"""

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F

from hvdlab.data import load_fashion_mnist
from hvdlab.launch import call
from hvdlab.torch.lab_networks import ResidualMLP

LAYERS, HIDDEN, BATCH, STEPS, RATE = 2, 64, 64, 20, 0.05
MOST = 1.0  # the norm of a gradient, where it is clipped


def train(
    blocks: list[Callable],
    part_of: Callable,
    f_and_g: Callable,
    *,
    ranks: int = 2,
    clip: Callable | None = None,
) -> list[dict]:
    """Train 20 steps on Fashion-MNIST on that many ranks, once with each of the blocks.

    Args:
        blocks: functions (x, part, f, g) -> output of the whole block.
        part_of: (weights of a block, rank, ranks) -> what the rank holds of them.
        f_and_g: () -> (f, g).
        clip: (split parameters, whole ones, most) changes gradients. Default: none is changed.

    Returns:
        for each block a dict: "losses" and "alone", of each step; "sent", bytes that rank 0 sent in a
        step; "weights off", the largest difference of a weight from the one process at the end; "copies
        apart", that of what the ranks hold whole.

    Raises:
        LaunchError: as `hvdlab.launch.function_on_ranks.call`.
    """
    alone, file = _alone(clip is not None)
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
def _alone(clipped):
    """The losses of one process with the whole network, and what the ranks need: weights and data."""
    data = load_fashion_mnist()
    images = torch.tensor(data.train_images[: BATCH * STEPS]).flatten(1) / 255
    labels = torch.tensor(data.train_labels[: BATCH * STEPS]).long()
    torch.manual_seed(1)
    network = ResidualMLP(LAYERS, HIDDEN, image_size=28)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9)
    losses = []
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(network.parameters(), MOST)
        optimizer.step()
        losses.append(loss.item())
    weights = {"start": start, "end": network.state_dict()}
    return losses, {"images": images, "labels": labels, **weights}


def _on_rank(comm, blocks, path, helpers):
    """On a rank, where the functions that `helpers` names are: train with each block."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F

    from hvdlab.course.split_training import BATCH, HIDDEN, LAYERS, MOST, RATE
    from hvdlab.system.tcp_bytes import bytes_sent
    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.process_group import rendezvous

    def largest(differences):
        value = max(difference.detach().abs().max() for difference in differences)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return value.item()

    rendezvous()
    dist.init_process_group("gloo")
    part_of, f_and_g, clip = (globals().get(helpers[key]) for key in ("part_of", "f_and_g", "clip"))
    f, g = f_and_g()
    file, rows = torch.load(path, weights_only=True), []
    batches = list(zip(file["images"].split(BATCH), file["labels"].split(BATCH), strict=True))
    for name in blocks:
        network = ResidualMLP(LAYERS, HIDDEN, image_size=28)
        network.load_state_dict(file["start"])
        parts = []
        for number in range(LAYERS):
            mine = part_of(network.blocks[number].state_dict(), comm.rank, comm.size)
            parts.append({key: value.clone().requires_grad_() for key, value in mine.items()})
        network.blocks = None  # from here on the rank has its parts only
        is_split = ("up.weight", "up.bias", "down.weight").__contains__
        split = [part[key] for part in parts for key in part if is_split(key)]
        shared = [part[key] for part in parts for key in part if not is_split(key)]
        shared += network.parameters()

        optimizer = torch.optim.SGD([*split, *shared], RATE, momentum=0.9)
        losses, before = [], bytes_sent()
        for images, labels in batches:
            x = network.stem(images)
            for part in parts:
                x = globals()[name](x, part, f, g)
            loss = F.cross_entropy(network.head(network.norm(x)), labels)
            optimizer.zero_grad()
            loss.backward()
            if clip:
                clip(split, shared, MOST)
            optimizer.step()
            losses.append(loss.item())
        sent = (bytes_sent() - before) / len(losses)

        first = [parameter.detach().clone() for parameter in shared]
        for parameter in first:
            dist.broadcast(parameter, src=0)
        off = [value - file["end"][key] for key, value in network.state_dict().items()]
        for number, part in enumerate(parts):
            end = {key: file["end"][f"blocks.{number}.{key}"] for key in part}
            end = part_of(end, comm.rank, comm.size)
            off += [part[key] - end[key] for key in part]
        row = {"losses": losses, "sent": sent, "weights off": largest(off)}
        row["copies apart"] = largest([a - b for a, b in zip(shared, first, strict=True)])
        rows.append(row)
    dist.destroy_process_group()
    return rows
