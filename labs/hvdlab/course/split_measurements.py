"""Measurements of labs 13 and 14 on a split network: serial, by hand, and with `hybrid_parallel.py`.

Network, batches and steps are the same for every split, so that all losses can be compared with
those of `serial`. A split is (data, tensor, pipeline): the number of ranks on each of these axes.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from hvdlab.course.experiment import LABS, by_run_length
from hvdlab.launch import call, run
from hvdlab.torch import memory
from hvdlab.torch.lab_networks import ResidualMLP
from hvdlab.torch.model_parallel.pipeline_stages import batch

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

Split = tuple[int, int, int]
LAYERS, HIDDEN, IMAGE = 8, 256, 16  # blocks of the network, its width, height of an image in pixels
BATCH, MICRO_BATCHES = 64, 4  # examples of a batch, and its micro-batches
STEPS = by_run_length(quick=5, learner=20, reference=20)


def serial(seed: int, micro_batches: int = 1) -> dict:
    """Train the whole network on this process, with one thread.

    Args:
        micro_batches: micro-batches per batch, whose gradients are accumulated. Default 1.

    Returns:
        "losses" and "seconds" of each step; "memory", the bytes of parameters, gradients and optimizer
        state; "sent", 0 bytes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = ResidualMLP(LAYERS, HIDDEN, IMAGE)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    losses, seconds = [], []
    for number in range(STEPS):
        images, labels = (tensor.chunk(micro_batches) for tensor in batch(number, BATCH, IMAGE))
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
    """Train with a pipeline step that was written by hand, with one rank per stage.

    Args:
        step: function (stage, images, labels, width) -> loss on the last rank, None on the others. Images
            and labels are lists of micro-batches.
        micro_batches: micro-batches per batch. Default 4.
        ranks: number of ranks and of stages. Default 2.

    Returns:
        a dict for each rank: "losses" of each step (None except on the last rank) and "seconds" of each
        step; "memory", the bytes of parameters, gradients and optimizer state; "sent", the median of the
        bytes sent per step.

    Raises:
        LaunchError: see `hvdlab.launch.call`.
    """
    sizes = [LAYERS, HIDDEN, IMAGE, BATCH, STEPS]
    uses = {"ranks": ranks, "timeout": 300, "uses": (step,)}
    return call(_train_stage, step.__name__, seed, micro_batches, sizes, **uses)


def _train_stage(comm: "Comm", step: str, seed: int, micro_batches: int, sizes: list[int]) -> dict:
    """Train one stage on a rank, with the step function of that name; see `by_hand`."""
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
        images, labels = (
            tensor.chunk(micro_batches) for tensor in batch(number, batch_size, image)
        )
        dist.barrier()
        before, start = bytes_sent(), MPI.Wtime()  # noqa: F821, `call` defines this name on the ranks
        optimizer.zero_grad()
        losses.append(globals()[step](mine, images, labels, hidden))
        optimizer.step()
        seconds.append(MPI.Wtime() - start)  # noqa: F821
        dist.barrier()
        sent.append(bytes_sent() - before)
    held = sum(memory.held(mine, optimizer).values())
    return {"losses": losses, "seconds": seconds, "memory": held, "sent": int(np.median(sent))}


def hybrid(ranks: int, *arguments: object) -> list[dict]:
    """Run `hybrid_parallel.py` and return what its ranks measured.

    Args:
        ranks: number of ranks.

    Returns:
        a dict for each split, schedule and number of micro-batches.

    Raises:
        LaunchError: see `hvdlab.launch.run`.
    """
    with TemporaryDirectory() as folder:
        output = Path(folder, "measured.json")
        script = LABS / "hybrid_parallel.py"
        run(script, *arguments, "--output", output, ranks=ranks, show=False)
        return json.loads(output.read_text(encoding="utf-8"))


def decompositions(ranks: int) -> list[Split]:
    """Return all splits of that many ranks that the network and the schedule 1F1B allow.

    Args:
        ranks: number of ranks, the product of a split's three numbers.
    """
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    products = [(d, t, ranks // d // t) for d in sizes for t in sizes if ranks // d % t == 0]
    return [split for split in products if split[2] <= MICRO_BATCHES and LAYERS % split[2] == 0]


@cache
def trained(ranks: int, seed: int, only: str | None) -> dict:
    """Train every split of that many ranks and return what the ranks measured.

    Each split is trained with the schedules 1F1B and GPipe. The result is kept, so a second call with the
    same arguments trains nothing.

    Args:
        ranks: number of ranks.
        only: a single split such as "1x2x2", which is trained with 1F1B only. None: all splits.

    Returns:
        a list with a dict for each rank, by (split, schedule).
    """
    names = [only] if only else ["x".join(map(str, split)) for split in decompositions(ranks)]
    kinds = ["1f1b"] if only else ["1f1b", "gpipe"]
    rows = hybrid(
        ranks, *names, "--schedules", *kinds, "--micro-batches", MICRO_BATCHES,
        "--num-layers", LAYERS, "--hidden-size", HIDDEN, "--image-size", IMAGE,
        "--batch-size", BATCH, "--steps", STEPS, "--seed", seed,
    )  # fmt: skip
    return {(tuple(each["split"]), each["schedule"]): each["ranks"] for each in rows}


@cache
def schedules(stages: int, counts: tuple[int, ...], repeat: int) -> list[dict]:
    """Return measurements of GPipe and 1F1B with several numbers of micro-batches, of 64 examples each.

    With two stages the ranks compute. With more stages they simulate devices (see `TracedStage` in
    hybrid_parallel.py) that need 20 ms for a forward pass. The result is kept for equal arguments.

    Args:
        stages: number of stages and of ranks.
        repeat: number of the repetition, which is also the seed.

    Returns:
        a dict for each schedule and number of micro-batches.
    """
    options = ["--hidden-size", 256, "--steps", 5]
    if stages > 2:
        options = ["--hidden-size", 128, "--steps", 3, "--device-ms", 20]
    return hybrid(
        stages, f"1x1x{stages}", "--schedules", "gpipe", "1f1b", "--micro-batches", *counts,
        "--micro-batch-size", 64, "--num-layers", LAYERS, "--seed", repeat, *options,
    )  # fmt: skip


def parameters(split: Split) -> float:
    """Return the largest number of parameters of a rank, before FSDP2 shards them.

    The first stage has the most, because it has the stem.
    """
    _, tensor, stages = split
    # Of a block: what the tensor axis splits, with the bias of `up`; then norm and bias of `down`.
    matrices, rest = 8 * HIDDEN**2 + 4 * HIDDEN, 3 * HIDDEN
    stem, head = IMAGE**2 * HIDDEN + HIDDEN, 2 * HIDDEN + 10 * HIDDEN + 10
    return LAYERS // stages * (matrices / tensor + rest) + stem + (head if stages == 1 else 0)


def link(ranks: int) -> tuple[float, float]:
    """Measure latency and bandwidth of Gloo's all-reduce on this machine.

    The model is t = alpha + 2 (N-1)/N S / beta for N ranks and S bytes (Hockney 1994). It is fitted to
    arrays of 4 KB to 8 MB, by relative errors.

    Args:
        ranks: number of ranks, N.

    Returns:
        (alpha, beta): seconds of any all-reduce, and bytes per second that a rank sends.
    """
    sizes = 4096 * 16 ** np.arange(4) // np.array([1, 1, 1, 2])
    seconds = np.max(call(_all_reduces, sizes, ranks=ranks, timeout=300), axis=0)
    sent = 2 * (ranks - 1) / ranks * sizes
    slope, alpha = np.polyfit(sent, seconds, 1, w=1 / seconds)
    return max(alpha, 0.0), 1 / slope


def _all_reduces(comm: "Comm", sizes: np.ndarray) -> list[float]:
    """Return the median seconds of an all-reduce on a rank, for each size in bytes."""
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
