"""Compare every operation of Horovod with NumPy: `operations own|processor|nccl [brief]`.

Each rank knows the numbers of all ranks, so it computes the expected result itself. The numbers are small
integers, because their sums and products are exact in every type and in every order.
"""

import sys
from collections.abc import Callable, Sequence

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
REDUCED = ("float32", "float64", "float16", "int64", "int32")  # Horovod reduces no other types
EXACT_PRODUCTS = ("float32", "float64", "int64", "int32")  # up to 3 to the power of 8 ranks
ROUNDED = ("allreduce, average", "allreduce, Adasum")  # all other operations are exact
ROUNDING = {"float64": 1e-12, "float32": 1e-6, "float16": 2e-3}

Pairs = list[tuple[torch.Tensor, np.ndarray]]  # (result, expected result)
Operation = Callable[[World, str, int], Pairs]  # of a type and a number of values


def values(rank: int, dtype: str, size: int) -> np.ndarray:
    """Return the `size` numbers of a rank: 1, 2 or 3."""
    return ((np.arange(size) * 7 + rank) % 3 + 1).astype(NUMPY[dtype])


def everyone(world: World, dtype: str, size: int) -> np.ndarray:
    """Return the numbers of all ranks, of shape (ranks, size)."""
    return np.stack([values(rank, dtype, size) for rank in range(world.size)])


def mine(world: World, dtype: str, size: int) -> torch.Tensor:
    """Return the numbers of this rank, on its device."""
    return torch.from_numpy(values(world.rank, dtype, size)).to(world.device)


def total(numbers: np.ndarray) -> np.ndarray:
    """Return the sum over the ranks of numbers of shape (ranks, size)."""
    return numbers.sum(0)


# --- the operations -----------------------------------------------------------------------------------


def one_tensor(
    operation: Callable[[torch.Tensor], torch.Tensor],
    expected: Callable[[np.ndarray], np.ndarray] = total,
) -> Operation:
    """Return an operation on one tensor per rank.

    Args:
        expected: numbers of all ranks (ranks, size) -> the result on every rank. Default: their sum.
    """

    def compared(world: World, dtype: str, size: int) -> Pairs:
        got = world.through(operation, mine(world, dtype, size))
        return [(got, expected(everyone(world, dtype, size)))]

    return compared


def all_reduce(
    expected: Callable[[np.ndarray], np.ndarray] = total, **options: object
) -> Operation:
    """Return `hvd.allreduce` with options, by default with op=hvd.Sum."""
    options = {"op": hvd.Sum, **options}
    return one_tensor(lambda tensor: hvd.allreduce(tensor, **options), expected)


def grouped_allreduce(world: World, dtype: str, size: int) -> Pairs:
    """Sum three tensors of different sizes at once."""
    sizes = (size, 1, size + 3)
    sent = [mine(world, dtype, s) for s in sizes]
    got = world.through(lambda *ts: hvd.grouped_allreduce(list(ts), op=hvd.Sum), *sent)
    return [(g, total(everyone(world, dtype, s))) for g, s in zip(got, sizes, strict=True)]


def allgather(world: World, dtype: str, size: int) -> Pairs:
    """Gather r + 1 rows of rank r."""
    rows = [np.tile(values(rank, dtype, size), (rank + 1, 1)) for rank in range(world.size)]
    sent = torch.from_numpy(rows[world.rank]).to(world.device)
    return [(world.through(hvd.allgather, sent), np.concatenate(rows))]


def broadcast(world: World, dtype: str, size: int) -> Pairs:
    """Broadcast the numbers of the last rank."""
    root = world.size - 1
    got = world.through(lambda t: hvd.broadcast(t, root_rank=root), mine(world, dtype, size))
    return [(got, values(root, dtype, size))]


def alltoall(world: World, dtype: str, size: int) -> Pairs:
    """Send r + s + 1 rows from rank r to rank s."""

    def rows(source: int, target: int) -> np.ndarray:
        numbers = values(source, dtype, size) + target
        return np.tile(numbers, (source + target + 1, 1)).astype(NUMPY[dtype])

    ranks = range(world.size)
    splits = torch.tensor([world.rank + target + 1 for target in ranks], dtype=torch.int32)
    sent = torch.from_numpy(np.concatenate([rows(world.rank, t) for t in ranks])).to(world.device)
    got = world.through(lambda t: hvd.alltoall(t, splits=splits)[0], sent)
    return [(got, np.concatenate([rows(source, world.rank) for source in ranks]))]


def reducescatter(world: World, dtype: str, size: int) -> Pairs:
    """Sum rows and partition them: the first ranks get one more row if there is a remainder."""
    rows = world.size + 1
    sent = torch.from_numpy(np.tile(values(world.rank, dtype, size), (rows, 1))).to(world.device)
    got = world.through(lambda t: hvd.reducescatter(t, op=hvd.Sum), sent)
    own = len(np.array_split(np.arange(rows), world.size)[world.rank])
    return [(got, np.tile(total(everyone(world, dtype, size)), (own, 1)))]


def adasum(world: World, dtype: str, size: int) -> Pairs:
    """Compare Adasum of two ranks over MPI with its formula, and over NCCL with the average.

    Horovod computes the average if NCCL connects the ranks of one machine.
    """

    def expected(numbers: np.ndarray) -> np.ndarray:
        if world.size == 1:
            return numbers[0]
        if _through_nccl(world):
            return numbers.mean(0)
        a, b = numbers[:2].astype(np.float64)
        dot, aa, bb = a @ b, a @ a, b @ b
        return (1 - dot / (2 * aa)) * a + (1 - dot / (2 * bb)) * b

    return all_reduce(expected, op=hvd.Adasum)(world, dtype, size)


def _through_nccl(world: World) -> bool:
    return world.device.type == "cuda" and "NCCL" in world.label


def process_set(world: World, dtype: str, size: int) -> Pairs:
    """Sum in two process sets: rank 0, and all other ranks."""
    if world.size == 1:
        return all_reduce()(world, dtype, size)
    members = slice(0, 1) if world.rank == 0 else slice(1, None)
    chosen = PROCESS_SETS[min(world.rank, 1)]
    operation = all_reduce(lambda numbers: total(numbers[members]), process_set=chosen)
    return operation(world, dtype, size)


def join(world: World, dtype: str, size: int) -> Pairs:
    """Let rank 0 reduce one more tensor while the other ranks have joined: it gets its own numbers."""
    pairs = []
    if world.rank == 0:
        name = f"alone.{dtype}.{size}"
        got = world.through(
            lambda t: hvd.allreduce(t, op=hvd.Sum, name=name), mine(world, dtype, size)
        )
        pairs = [(got, values(0, dtype, size))]
    last = torch.tensor(hvd.join(world.device.index if _through_nccl(world) else -1))
    return [*pairs, (last, np.array(0))]


def objects(world: World, dtype: str, size: int) -> Pairs:
    """Call broadcast_object and allgather_object, which send pickled bytes in host memory."""
    root = world.size - 1
    sent = {"rank": world.rank, "values": values(world.rank, dtype, size)}
    got = hvd.broadcast_object(sent, root)
    gathered = hvd.allgather_object(world.rank)
    return [
        (torch.tensor(got["rank"]), np.array(root)),
        (torch.from_numpy(got["values"]), values(root, dtype, size)),
        (torch.tensor(gathered), np.arange(world.size)),
    ]


def barrier(world: World, dtype: str, size: int) -> Pairs:
    """Call the barrier, which has no result."""
    hvd.barrier()
    return [(torch.zeros(1), np.zeros(1))]


OPERATIONS: dict[str, tuple[Operation, Sequence[str]]] = {
    "allreduce, sum": (all_reduce(), REDUCED),
    "allreduce, average": (all_reduce(lambda x: x.mean(0), op=hvd.Average), FLOATS),
    "allreduce, minimum": (all_reduce(lambda x: x.min(0), op=hvd.Min), REDUCED),
    "allreduce, maximum": (all_reduce(lambda x: x.max(0), op=hvd.Max), REDUCED),
    "allreduce, product": (all_reduce(lambda x: x.prod(0), op=hvd.Product), EXACT_PRODUCTS),
    "allreduce in place": (one_tensor(lambda t: hvd.allreduce_(t, op=hvd.Sum)), FLOATS),
    "allreduce, asynchronous": (
        one_tensor(lambda t: hvd.synchronize(hvd.allreduce_async(t, op=hvd.Sum))),
        FLOATS,
    ),
    "allreduce, scaled before and after": (
        all_reduce(lambda x: 2 * x.sum(0), prescale_factor=0.5, postscale_factor=4.0),
        FLOATS,
    ),
    "grouped allreduce": (grouped_allreduce, REDUCED),
    "allgather of unequal sizes": (allgather, ALL),
    "broadcast": (broadcast, ALL),
    "alltoall with unequal splits": (alltoall, ALL),
    "reducescatter, sum": (reducescatter, REDUCED),
    "allreduce with fp16 compression": (
        all_reduce(compression=hvd.Compression.fp16),
        ("float32", "float64"),
    ),
    "allreduce, Adasum": (adasum, ("float32", "float64")),
    "allreduce in process sets": (process_set, REDUCED),
    "join": (join, ("float32",)),
    "broadcast and allgather of objects": (objects, ("float32",)),
    "barrier": (barrier, ("float32",)),
}
PROCESS_SETS: list[hvd.ProcessSet] = []


def main(findings: Findings) -> None:
    """Compare all operations for their types and some sizes; "brief" is one sum of one type."""
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
            except Exception as error:  # of several types; the other operations still run
                findings.wrong("", name, world.label, dtype, error)


def compare(
    findings: Findings,
    world: World,
    name: str,
    operation: Operation,
    dtype: str,
    sizes: Sequence[int],
) -> None:
    """Report the differences of an operation to NumPy; a wrong shape counts as an infinite difference."""
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
