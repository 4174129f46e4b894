"""What labs 10 and 11 measure of a network that is split: serial, by hand, and by `hybrid_parallel.py`.

One network, one batch, twenty steps, whatever the split, so that all losses can be laid over those of
`serial`. A split is (data, tensor, pipeline).
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from torch.nn import functional as F

from hvdlab.course.experiment import LABS
from hvdlab.launch import call, run
from hvdlab.torch import memory
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.model_parallel.pipeline_stages import batch

LAYERS, HIDDEN, IMAGE = 8, 256, 16  # of the network
BATCH, MICRO_BATCHES, STEPS = 64, 4, 20


def serial(seed: int, micro_batches: int = 1) -> dict:
    """Train on this process, with one thread. Returns what `by_hand` returns of a rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = ResidualMLP(LAYERS, HIDDEN, IMAGE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses, seconds = [], []
    for number in range(STEPS):
        images, labels = (part.chunk(micro_batches) for part in batch(number, BATCH, IMAGE))
        start, total = perf_counter(), 0.0
        optimizer.zero_grad()
        for x, y in zip(images, labels, strict=True):
            loss = F.cross_entropy(network(x), y) / micro_batches
            loss.backward()
            total += loss.item()
        optimizer.step()
        seconds.append(perf_counter() - start)
        losses.append(total)
    held = sum(memory.held(network, optimizer).values())
    torch.set_num_threads(threads)
    return {"losses": losses, "seconds": seconds, "memory": held, "sent": 0}


def by_hand(step: Callable, seed: int, micro_batches: int = MICRO_BATCHES, ranks: int = 2) -> list:
    """Train with a pipeline step that was written by hand, on as many ranks as stages.

    Args:
        step: step(stage, images, labels, width) -> the loss on the last rank, else None.

    Returns:
        A dict for each rank: "losses" (None but on the last), "seconds" of each step, "memory", the
        bytes of parameters, gradients and optimizer, and "sent", the bytes sent in a step.
    """
    sizes = [LAYERS, HIDDEN, IMAGE, BATCH, STEPS]
    uses = {"ranks": ranks, "timeout": 300, "uses": (step,)}
    return call(_train_stage, step.__name__, seed, micro_batches, sizes, **uses)


def _train_stage(comm, step, seed, micro_batches, sizes):
    import torch
    import torch.distributed as dist

    from hvdlab.system.tcp_bytes import bytes_sent
    from hvdlab.torch import memory
    from hvdlab.torch.lab_networks import ResidualMLP
    from hvdlab.torch.model_parallel.pipeline_stages import batch, stage
    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    layers, hidden, image, batch_size, steps = sizes
    mine = stage(ResidualMLP(layers, hidden, image), comm.rank, comm.size)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
    losses, seconds, sent = [], [], []
    for number in range(steps):
        images, labels = (part.chunk(micro_batches) for part in batch(number, batch_size, image))
        dist.barrier()
        before, start = bytes_sent(), MPI.Wtime()  # noqa: F821, a name that `call` gives to the ranks
        optimizer.zero_grad()
        losses.append(globals()[step](mine, images, labels, hidden))
        optimizer.step()
        seconds.append(MPI.Wtime() - start)  # noqa: F821
        dist.barrier()
        sent.append(bytes_sent() - before)
    held = sum(memory.held(mine, optimizer).values())
    return {"losses": losses, "seconds": seconds, "memory": held, "sent": int(np.median(sent))}


def hybrid(ranks: int, *arguments) -> list[dict]:
    """What the ranks of `hybrid_parallel.py` measured: a dict for each split, schedule and m."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "measured.json")
        script = LABS / "hybrid_parallel.py"
        run(script, *arguments, "--output", output, ranks=ranks, show=False)
        return json.loads(output.read_text())


def decompositions(ranks: int) -> list[tuple[int, int, int]]:
    """All (data, tensor, pipeline) with that product which the network and 1F1B allow."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    products = [(d, t, ranks // d // t) for d in sizes for t in sizes if ranks // d % t == 0]
    return [split for split in products if split[2] <= MICRO_BATCHES and LAYERS % split[2] == 0]


@cache
def trained(ranks: int, seed: int, only: str | None) -> dict:
    """Every split of that many ranks, trained: {(split, schedule): its ranks}.

    With 1F1B, and where there are stages with GPipe, too. `only`: one split, with 1F1B;
    None for all.
    """
    names = [only] if only else ["x".join(map(str, split)) for split in decompositions(ranks)]
    kinds = ["1f1b"] if only else ["1f1b", "gpipe"]
    found = hybrid(
        ranks, *names, "--schedules", *kinds, "--micro-batches", MICRO_BATCHES,
        "--num-layers", LAYERS, "--hidden-size", HIDDEN, "--image-size", IMAGE,
        "--batch-size", BATCH, "--steps", STEPS, "--seed", seed,
    )  # fmt: skip
    return {(tuple(each["split"]), each["schedule"]): each["ranks"] for each in found}


@cache
def schedules(stages: int, counts: tuple[int, ...], repeat: int) -> list[dict]:
    """GPipe and 1F1B with these numbers of micro-batches, of 64 examples each.

    Two stages compute. More of them play devices (see `TracedStage` in hybrid_parallel.py), with 20 ms
    for a forward pass.
    """
    how = ["--hidden-size", 256, "--steps", 5]
    if stages > 2:
        how = ["--hidden-size", 128, "--steps", 3, "--device-ms", 20]
    return hybrid(
        stages, f"1x1x{stages}", "--schedules", "gpipe", "1f1b", "--micro-batches", *counts,
        "--micro-batch-size", 64, "--num-layers", LAYERS, "--seed", repeat, *how,
    )  # fmt: skip


def parameters(split: tuple[int, int, int]) -> float:
    """Of the rank that has most of them (the first stage: it has the stem), before FSDP2 shards them."""
    _, tensor, stages = split
    matrices = 8 * HIDDEN**2 + 4 * HIDDEN  # of a block, with the bias of `up`: split along tensor
    rest = 3 * HIDDEN  # its norm, and the bias of `down`: on each rank of the tensor axis
    stem, head = IMAGE**2 * HIDDEN + HIDDEN, 2 * HIDDEN + 10 * HIDDEN + 10
    return LAYERS // stages * (matrices / tensor + rest) + stem + (head if stages == 1 else 0)


def link(ranks: int) -> tuple[float, float]:
    """(alpha, beta) of Gloo's all-reduce here: seconds of any, and bytes a second that a rank sends.

    t = alpha + 2 (N-1)/N S / beta (Hockney 1994), fitted to 4 KB to 8 MB with errors in percent.
    """
    sizes = 4096 * 16 ** np.arange(4) // np.array([1, 1, 1, 2])
    seconds = np.max(call(_all_reduces, sizes, ranks=ranks, timeout=300), axis=0)
    sent = 2 * (ranks - 1) / ranks * sizes
    slope, alpha = np.polyfit(sent, seconds, 1, w=1 / seconds)
    return max(alpha, 0.0), 1 / slope


def _all_reduces(comm, sizes):
    import torch
    import torch.distributed as dist

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rows = []
    for nbytes in sizes:
        values, seconds = torch.zeros(nbytes // 4), []
        for _ in range(25):
            dist.barrier()
            start = MPI.Wtime()  # noqa: F821
            dist.all_reduce(values)
            seconds.append(MPI.Wtime() - start)  # noqa: F821
        rows.append(float(np.median(seconds[5:])))
    return rows
