"""Every operation of Horovod, compared with NumPy: `operations own|processor|nccl [brief]`.

Each rank knows what all ranks contribute, so it calculates the expected result by itself. The numbers are
small integers: their sums and products are exact in every type, whatever the order.
"""

import sys
from collections.abc import Callable

import horovod.torch as hvd
import numpy as np
import torch

from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.world import World, join_world
from hvdlab.record import launched_rank

NUMPY = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "int64": np.int64,
    "int32": np.int32, "int8": np.int8, "uint8": np.uint8,
}  # fmt: skip
FLOATS = ("float32", "float64", "float16")
ALL = tuple(NUMPY)
REDUCED = ("float32", "float64", "float16", "int64", "int32")  # Horovod adds no others
EXACT_PRODUCTS = ("float32", "float64", "int64", "int32")  # 3 to the power of 8 ranks
ROUNDED = ("allreduce, average", "allreduce, Adasum")  # all others are exact
ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}

Pair = tuple[torch.Tensor, np.ndarray]  # what came, and what was expected


def values(rank: int, dtype: str, size: int) -> np.ndarray:
    """What `rank` contributes: 1, 2 or 3."""
    return ((np.arange(size) * 7 + rank) % 3 + 1).astype(NUMPY[dtype])


def everyone(world: World, dtype: str, size: int) -> np.ndarray:
    """Of shape (ranks, size)."""
    return np.stack([values(rank, dtype, size) for rank in range(world.size)])


def mine(world: World, dtype: str, size: int) -> torch.Tensor:
    return torch.from_numpy(values(world.rank, dtype, size)).to(world.device)


# --- one function per operation: (world, dtype, size) -> pairs ----------------------------------------


def reduce_by(op, numpy_function) -> Callable:
    def allreduce(world, dtype, size):
        got = world.through(lambda t: hvd.allreduce(t, op=op), mine(world, dtype, size))
        return [(got, numpy_function(everyone(world, dtype, size)))]

    return allreduce


def in_place(world, dtype, size):
    got = world.through(lambda t: hvd.allreduce_(t, op=hvd.Sum), mine(world, dtype, size))
    return [(got, everyone(world, dtype, size).sum(0))]


def asynchronous(world, dtype, size):
    def operation(tensor):
        return hvd.synchronize(hvd.allreduce_async(tensor, op=hvd.Sum))

    return [
        (world.through(operation, mine(world, dtype, size)), everyone(world, dtype, size).sum(0))
    ]


def scaled(world, dtype, size):
    """prescale_factor and postscale_factor."""

    def operation(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)

    return [
        (
            world.through(operation, mine(world, dtype, size)),
            2 * everyone(world, dtype, size).sum(0),
        )
    ]


def grouped_allreduce(world, dtype, size):
    sizes = (size, 1, size + 3)
    sent = [mine(world, dtype, s) for s in sizes]
    got = world.through(lambda *ts: hvd.grouped_allreduce(list(ts), op=hvd.Sum), *sent)
    return [(g, everyone(world, dtype, s).sum(0)) for g, s in zip(got, sizes, strict=True)]


def allgather(world, dtype, size):
    """Rank r has r + 1 rows."""
    rows = [np.tile(values(rank, dtype, size), (rank + 1, 1)) for rank in range(world.size)]
    sent = torch.from_numpy(rows[world.rank]).to(world.device)
    return [(world.through(hvd.allgather, sent), np.concatenate(rows))]


def broadcast(world, dtype, size):
    root = world.size - 1
    got = world.through(lambda t: hvd.broadcast(t, root_rank=root), mine(world, dtype, size))
    return [(got, values(root, dtype, size))]


def alltoall(world, dtype, size):
    """Rank r sends r + s + 1 rows to rank s."""

    def rows(source, target):
        return np.tile(values(source, dtype, size) + target, (source + target + 1, 1)).astype(
            NUMPY[dtype]
        )

    ranks = range(world.size)
    splits = torch.tensor([world.rank + target + 1 for target in ranks], dtype=torch.int32)
    sent = torch.from_numpy(np.concatenate([rows(world.rank, t) for t in ranks])).to(world.device)
    got = world.through(lambda t: hvd.alltoall(t, splits=splits)[0], sent)
    return [(got, np.concatenate([rows(source, world.rank) for source in ranks]))]


def reducescatter(world, dtype, size):
    """Rows are divided among the ranks; the first ranks get one more if there is a remainder."""
    rows = world.size + 1
    sent = torch.from_numpy(np.tile(values(world.rank, dtype, size), (rows, 1))).to(world.device)
    got = world.through(lambda t: hvd.reducescatter(t, op=hvd.Sum), sent)
    own = len(np.array_split(np.arange(rows), world.size)[world.rank])
    return [(got, np.tile(everyone(world, dtype, size).sum(0), (own, 1)))]


def fp16_compression(world, dtype, size):
    def operation(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)

    return [
        (world.through(operation, mine(world, dtype, size)), everyone(world, dtype, size).sum(0))
    ]


def adasum(world, dtype, size):
    """Two ranks over MPI: the formula. Over NCCL within one machine Horovod takes the average."""
    all_values = everyone(world, dtype, size)
    if world.size == 1:
        expected = all_values[0]
    elif world.device.type == "cuda" and "NCCL" in world.label:
        expected = all_values.mean(0)
    else:
        a, b = all_values[:2].astype(np.float64)
        dot, aa, bb = a @ b, a @ a, b @ b
        expected = (1 - dot / (2 * aa)) * a + (1 - dot / (2 * bb)) * b
    return [
        (
            world.through(lambda t: hvd.allreduce(t, op=hvd.Adasum), mine(world, dtype, size)),
            expected,
        )
    ]


def process_set(world, dtype, size):
    """Rank 0 reduces alone, the others among themselves."""
    if world.size == 1:
        return reduce_by(hvd.Sum, lambda x: x.sum(0))(world, dtype, size)
    chosen = PROCESS_SETS[min(world.rank, 1)]

    def operation(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum, process_set=chosen)

    members = (
        everyone(world, dtype, size)[:1] if world.rank == 0 else everyone(world, dtype, size)[1:]
    )
    return [(world.through(operation, mine(world, dtype, size)), members.sum(0))]


def join(world, dtype, size):
    """Rank 0 has one tensor more than the others, which have joined: it gets its own values."""
    on_gpu = world.device.type == "cuda" and "NCCL" in world.label
    place = world.device.index if on_gpu else -1
    pairs = []
    if world.rank == 0:
        sent = mine(world, dtype, size)
        got = world.through(
            lambda t: hvd.allreduce(t, op=hvd.Sum, name=f"alone.{dtype}.{size}"), sent
        )
        pairs = [(got, values(0, dtype, size))]
    last = torch.tensor(hvd.join(place))
    return [*pairs, (last, np.array(0))]


def objects(world, dtype, size):
    """broadcast_object and allgather_object, which send pickled bytes in host memory."""
    root = world.size - 1
    got = hvd.broadcast_object(
        {"rank": world.rank, "values": values(world.rank, dtype, size)}, root
    )
    gathered = hvd.allgather_object(world.rank)
    return [
        (torch.tensor(got["rank"]), np.array(root)),
        (torch.from_numpy(got["values"]), values(root, dtype, size)),
        (torch.tensor(gathered), np.arange(world.size)),
    ]


def barrier(world, dtype, size):
    hvd.barrier()
    return [(torch.zeros(1), np.zeros(1))]


OPERATIONS = {
    "allreduce, sum": (reduce_by(hvd.Sum, lambda x: x.sum(0)), REDUCED),
    "allreduce, average": (reduce_by(hvd.Average, lambda x: x.mean(0)), FLOATS),
    "allreduce, minimum": (reduce_by(hvd.Min, lambda x: x.min(0)), REDUCED),
    "allreduce, maximum": (reduce_by(hvd.Max, lambda x: x.max(0)), REDUCED),
    "allreduce, product": (reduce_by(hvd.Product, lambda x: x.prod(0)), EXACT_PRODUCTS),
    "allreduce in place": (in_place, FLOATS),
    "allreduce, asynchronous": (asynchronous, FLOATS),
    "allreduce, scaled before and after": (scaled, FLOATS),
    "grouped allreduce": (grouped_allreduce, REDUCED),
    "allgather of unequal sizes": (allgather, ALL),
    "broadcast": (broadcast, ALL),
    "alltoall with unequal splits": (alltoall, ALL),
    "reducescatter, sum": (reducescatter, REDUCED),
    "allreduce with fp16 compression": (fp16_compression, ("float32", "float64")),
    "allreduce, Adasum": (adasum, ("float32", "float64")),
    "allreduce in process sets": (process_set, REDUCED),
    "join": (join, ("float32",)),
    "broadcast and allgather of objects": (objects, ("float32",)),
    "barrier": (barrier, ("float32",)),
}
PROCESS_SETS: list = []


def main(findings: Findings) -> None:
    how, brief = sys.argv[1], sys.argv[2:] == ["brief"]
    size = launched_rank()[1]
    if size > 1:
        PROCESS_SETS.extend([hvd.ProcessSet([0]), hvd.ProcessSet(range(1, size))])
    world = join_world(how, PROCESS_SETS)
    sizes = (1, 7, 1000, 1 << 20) if world.device.type == "cuda" else (1, 7, 1000)
    for name, (operation, dtypes) in OPERATIONS.items():
        if brief and name != "allreduce, sum":
            continue
        for dtype in dtypes[: 1 if brief else None]:
            try:
                compare(findings, world, name, operation, dtype, sizes)
            except (
                Exception
            ) as error:  # Horovod raises several kinds; the other operations still run
                findings.wrong("", name, world.label, dtype, error)


def compare(findings, world, name, operation, dtype, sizes) -> None:
    differences: list[np.ndarray] = []
    shapes: list[str] = []
    for size in sizes:
        for got, expected in operation(world, dtype, size):
            if tuple(got.shape) != expected.shape:
                shapes.append(f"shape {tuple(got.shape)}, expected {expected.shape}")
                continue
            difference = np.abs(got.cpu().numpy().astype(np.float64) - expected.astype(np.float64))
            scale = np.maximum(1.0, np.abs(expected.astype(np.float64)))
            differences.append((difference / scale).ravel())
    differences.append(np.full(len(shapes), np.inf))
    limit = ROUNDING[dtype] if name in ROUNDED else 0.0
    note = "; ".join(shapes)[:200]
    findings.check("", name, world.label, dtype, np.concatenate(differences), limit, "NumPy", note)


if __name__ == "__main__":
    start(main)
