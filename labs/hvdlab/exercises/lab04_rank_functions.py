"""Exercises of lab 4: a message round a ring, a data-parallel gradient, and the bytes of an all-reduce."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises.harness.counting_communicator import Counting
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.mpi_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind, number_or_kind

if TYPE_CHECKING:
    from mpi4py import MPI


def first(comm: "MPI.Comm", ranks: int) -> "MPI.Comm | None":
    """Return a communicator of the first so many ranks; None on the others."""
    part = comm.Split(int(comm.rank < ranks), comm.rank)
    return part if comm.rank < ranks else None


def array_or_kind(result: object) -> list | str:
    """Return the numbers of an array, and the kind of all else."""
    return result.tolist() if isinstance(result, np.ndarray) else kind(result)


# --- exercise 2 ------------------------------------------------------------------------------------


def pass_right(comm, values):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(values)
    if comm.rank % 2 == 0:
        comm.Send(values, dest=right)
        comm.Recv(received, source=left)
    else:
        comm.Recv(received, source=left)
        comm.Send(values, dest=right)
    return received


def messages(comm: "MPI.Comm", function: Callable, ranks: int) -> dict | None:
    if not (part := first(comm, ranks)):
        return None
    counting = Counting(part)
    result = function(counting, np.array([10.0 * part.rank, 10.0 * part.rank + 1]))
    return {"What the ranks return from": array_or_kind(result),
            "The ranks to which each rank sends in": sorted(counting.receivers)}  # fmt: skip


# fmt: off
check_pass_right = RankExercise(
    pass_right,
    [Case((n,), f"Rank k has [10 k, 10 k + 1]. It sends to rank k + 1, and the last of the {n} ranks to rank "
                "0.",
          call=f"pass_right on {n} ranks") for n in (3, 4)],
    {
        "That is the array of the right neighbour: send to rank + 1, receive from rank - 1.":
            ("right, left =", "left, right ="),
        "That is the rank's own array: return the array that you receive into.":
            ("return received", "return values"),
        "Return the array that you receive into.": ("return received", "pass"),
        "Each rank must send only to its right neighbour, and yours sends to all others.":
            ("return received", "other = np.empty_like(values)\n"
             "    for step in range(2, comm.size):\n"
             "        to, of = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size\n"
             "        comm.Sendrecv(values, dest=to, recvbuf=other, source=of)\n"
             "    return received"),
    },
    passed="every rank gets the array of its left neighbour, although each send waits for its receiver.",
    observe=messages, start=on_ranks, ranks=4,
    remedy="If all ranks send before any rank receives, all wait: let the odd ranks receive first.",
)
# fmt: on

# --- exercise 3 ------------------------------------------------------------------------------------


def parallel_gradient(comm, gradient, batch):
    shard = np.split(batch, comm.size)[comm.rank]
    local = gradient(shard)
    total = np.empty_like(local)
    comm.Allreduce(local, total)
    return total / comm.size


def used_and_returned(comm: "MPI.Comm", function: Callable, examples: tuple) -> dict:
    used = []

    def gradient(indices: np.ndarray) -> np.ndarray:
        used.extend(np.asarray(indices).tolist())
        return np.array(examples)[indices].mean(keepdims=True)

    returned = function(comm, gradient, np.arange(len(examples)))
    one = isinstance(returned, np.ndarray) and returned.size == 1
    return {"returned": number_or_kind(returned.item() if one else returned), "used": used}


def one_row(rows: list[dict]) -> dict:
    used = [row["used"] for row in rows]
    return {
        "The number of examples whose gradient each rank computes in": list(map(len, used)),
        "The numbers of the examples that the ranks compute together in": sorted(sum(used, [])),
        "What the ranks return from": [row["returned"] for row in rows],
    }


STRIDED = "np.split(batch, comm.size)[comm.rank]", "batch[comm.rank :: comm.size]"
# fmt: off
check_parallel_gradient = RankExercise(
    parallel_gradient,
    [Case(((1.0, 2.0, 6.0, 3.0, 5.0, 13.0),), call="parallel_gradient on 3 ranks",
          reason="The batch has 6 examples, each rank computes the gradient of a shard of 2, and all return "
          "the mean of the shards' gradients.")],
    {
        "That is the sum over the ranks: divide it by comm.size.": (" / comm.size", ""),
        "That is the gradient of this rank's own shard: combine it with comm.Allreduce.":
            [("total / comm.size", "local"), (*STRIDED, "total / comm.size", "local")],
        "It is divided twice by the number of ranks.": ("/ comm.size", "/ comm.size**2"),
        "All ranks compute the gradient of the same examples: choose the shard by comm.rank.":
            ("[comm.rank]", "[0]"),
        "Each rank computes only its shard of 2 examples, np.split(batch, comm.size)[comm.rank], and yours "
        "computes the gradient of all 6.": ("np.split(batch, comm.size)[comm.rank]", "batch"),
        "A rank never calls gradient(...): call it with the shard of this rank.":
            ("gradient(shard)", "shard.mean(keepdims=True)"),
        "`return` the averaged gradient.": ("return total / comm.size", "pass"),
    },
    passed="each rank computes 2 of 6 examples, and all ranks hold the mean gradient of the 6.",
    observe=used_and_returned, gather=one_row, start=on_ranks, ranks=3,
)
# fmt: on

# --- exercise 6 ------------------------------------------------------------------------------------


def busiest_bytes(algorithm, ranks, size):
    arrays = {
        "naive": 2 * (ranks - 1),
        "tree": 2 * np.log2(ranks),
        "ring": 4 * (ranks - 1) / ranks,
    }
    return arrays[algorithm] * size


# fmt: off
check_busiest_bytes = FunctionExercise(
    busiest_bytes,
    [Case((algorithm, ranks, 1000), why) for ranks, log in ((2, 1), (4, 2), (8, 3)) for algorithm, why in (
        ("naive", f"The root receives {ranks - 1} arrays and sends {ranks - 1}."),
        ("tree", f"The root receives {log} arrays on the way up and sends as many."),
        ("ring", f"A rank sends {2 * (ranks - 1)} chunks of 1/{ranks} of the array, and receives as many."))],
    {
        "That is what the rank sends. Add what it receives, which is as much.": ("* size", "/ 2 * size"),
        "That is the number of arrays: multiply it by the size of one.": (" * size", ""),
        "In a tree the root receives one array per level, log2(ranks) arrays, and sends as many.":
            ("np.log2(ranks)", "(ranks - 1)"),
        "In the naive algorithm the root receives an array from each other rank, ranks - 1 arrays, and sends "
        "as many.": ('"naive": 2 * (ranks - 1)', '"naive": 2 * np.log2(ranks)'),
        "A rank of the ring sends chunks of 1/ranks of the array, and yours sends whole arrays.":
            ("(ranks - 1) / ranks", "(ranks - 1)"),
        "A rank of the ring sends in two phases, ranks - 1 chunks in each.": ("4 * (ranks", "2 * (ranks"),
    },
    passed="on 2 ranks all three move 2 arrays through the busiest rank; from 4 ranks on the ring moves "
           "fewest.",
    meaning="of bytes",
)
# fmt: on
