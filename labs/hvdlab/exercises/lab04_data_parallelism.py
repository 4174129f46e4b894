"""Exercises of lab 4: gradients of unequal shards, and an all-reduce written with send and receive."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises.harness.counting_communicator import Counting
from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.mpi_ranks import on_ranks
from hvdlab.exercises.harness.rank_exercise import RankExercise, kind
from hvdlab.exercises.lab04_rank_functions import first

if TYPE_CHECKING:
    from mpi4py import MPI

# --- exercise 1 ------------------------------------------------------------------------------------


def combine(local_gradients, local_counts):
    n = sum(local_counts)
    return sum(m / n * g for g, m in zip(local_gradients, local_counts, strict=True))


# fmt: off
check_combine = FunctionExercise(
    combine,
    [
        Case(([np.array([8.0, 0]), np.array([4.0, 8]), np.array([0.0, 16])], [1, 2, 5]), expected=[2, 12],
             reason="That is the mean over the 8 examples.",
             call="combine of the gradients [8, 0], [4, 8], [0, 16] of 1, 2 and 5 examples"),
        Case(([np.arange(6.0).reshape(2, 3), np.ones((2, 3))], [3, 1]),
             expected=[[0.25, 1, 1.75], [2.5, 3.25, 4]],
             call="combine of 2 x 3 gradients of 3 and 1 examples",
             reason="The result has the shape of one gradient, for any shape and any number of ranks."),
    ],
    {
        "This is the plain mean: every rank has the weight 1/K, no matter how many examples it has.":
            ("m / n", "1 / len(local_counts)"),
        "This is the sum of the local means: weight each by its examples, and divide by all examples.":
            ("m / n * g", "g"),
        "These are weights m_k that are not normalised: they add up to n = 8, not to 1.": ("m / n", "m"),
        "These are weights m_k divided by the number of ranks: divide by the number of examples.":
            ("m / n", "m / len(local_counts)"),
        "These are weights m_k divided by n, and then by the number of ranks too.":
            ("m / n", "m / n / len(local_counts)"),
        "np.dot sums over another axis where the gradients are matrices: add up weight times gradient.":
            lambda g, m: np.dot(m, np.stack(g)) / sum(m),
    },
    passed="the mean over all examples, for 1, 2 and 5 examples on three ranks, and for matrices.",
    shape=None,
)
# fmt: on

# --- exercises 4 and 5 -----------------------------------------------------------------------------


def naive_all_reduce(comm, values):
    total = values.copy()
    if comm.rank == 0:
        received = np.empty_like(values)
        for rank in range(1, comm.size):
            comm.Recv(received, source=rank)
            total += received
        for rank in range(1, comm.size):
            comm.Send(total, dest=rank)
    else:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
    return total


def sums(comm: "MPI.Comm", function: Callable, ranks: int, length: int) -> dict | None:
    """Return what a rank gets for vectors in which one rank has ones, and for (rank + 1) (1, 2, 3, ...)."""
    if not (part := first(comm, ranks)):
        return None
    where = (part.rank + 1) * np.arange(1.0, length + 1)
    vectors = [np.full(length, float(part.rank == k)) for k in range(ranks)]
    found = {
        "kinds": "an array like values",
        "results": [],
        "open": 0,
        "bytes": where.nbytes,
        "changed": 0,
    }
    for values in [*vectors, where.astype(np.float32), where]:
        counting, mine = Counting(part), values.copy()
        try:
            result = function(counting, mine)
        except Exception as error:
            if "MPI_ERR_TRUNCATE" in str(error):
                error.add_note("the message is longer than the array for it: np.empty_like")
            raise
        given = f"{result.dtype} {result.shape}" if isinstance(result, np.ndarray) else kind(result)
        if given != f"{values.dtype} {values.shape}":
            found["kinds"] = f"{given} for {values.dtype} {values.shape}"
        found["results"].append(result)
        found["open"] += counting.not_waited_for()
        found["changed"] += not np.array_equal(mine, values)
    return found | {"sent": counting.sent, "receivers": sorted(counting.receivers)}


def facts(rows: list[dict]) -> dict[str, object]:
    """Return what holds for every right all-reduce, whichever rank sums a chunk."""
    ranks, found = len(rows), {"What the ranks return from": [row["kinds"] for row in rows]}
    if set(*found.values()) != {"an array like values"}:
        return found
    *of_rank, float32, where = np.array([row["results"] for row in rows]).swapaxes(0, 1)
    times = np.array(of_rank).swapaxes(0, 1)  # [rank, whose, index]
    whole = np.isclose(times, 1).all(axis=1)  # [rank, index]
    right = ranks * (ranks + 1) / 2 * np.arange(1.0, whole.shape[1] + 1)
    return found | {
        "The number of times that a rank's values are added, at most, in": times.max(),
        "The number of ranks whose values are used in": int(times.any(axis=(0, 2)).sum()),
        "The number of ranks that return the whole sum in": int(whole.all(axis=1).sum()),
        "The number of indices at which some rank has the sum in": int(whole.any(axis=0).sum()),
        "The mean number of ranks whose values are in a result of": times.sum(axis=1).mean(),
        "The index at which a value is added in": "its own"
        if np.allclose(where, right)
        else "another",
        "The sum of float32 values in": "right" if np.allclose(float32, right) else "wrong",
        "The number of messages that a rank did not wait for in": sum(row["open"] for row in rows),
        "The number of arrays `values` that are changed in": sum(row["changed"] for row in rows),
    }


def naive_facts(rows: list[dict]) -> dict[str, object]:
    return facts(rows) | {
        "The bytes that the ranks send in": [row["sent"] for row in rows],
        "The ranks to which each rank sends in": [row["receivers"] for row in rows],
    }


def cases(name: str, *of_ranks: int) -> list[Case]:
    every = [(n, length) for n in of_ranks for length in (12, 13, n - 1) if length]
    reason = "Every rank must return the sum of the ranks' values, in an array of the same type and length."
    return [
        Case(case, reason, f"{name} of {case[1]} values on {case[0]} rank{'s'[: case[0] - 1]}")
        for case in every
    ]


def everyone_to_everyone(comm, values):
    total, received = values.copy(), np.empty_like(values)
    for step in range(1, comm.size):
        to, of = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Sendrecv(values, dest=to, recvbuf=received, source=of)
        total += received
    return total


def along_a_chain(comm, values):
    """As many bytes sent, from rank to rank down to 0: rank 1 receives two vectors, rank 0 only one."""
    total, received = values.copy(), np.empty_like(values)
    if comm.rank < comm.size - 1:
        comm.Recv(received, source=comm.rank + 1)
        total += received
    if comm.rank > 0:
        comm.Send(total, dest=comm.rank - 1)
        comm.Recv(total, source=0)
        return total
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total


SEND_TO_ALL = """\
        for rank in range(1, comm.size):
            comm.Send(total, dest=rank)
"""
# fmt: off
check_naive_all_reduce = RankExercise(
    naive_all_reduce,
    cases("naive_all_reduce", 1, 3),
    {
        "Only rank 0 has the sum: send it back to all.":
            (SEND_TO_ALL, "", "        comm.Recv(total, source=0)\n", ""),
        "Rank 0's own values are missing: it begins with a copy of them.":
            [("values.copy()", "np.zeros_like(values)"),
             ("values.copy()", "np.zeros_like(values) if comm.size > 1 else values")],
        "Rank 0 begins with its own values, and adds the values of each other rank once.":
            [("values.copy()", "2 * values"),
             (SEND_TO_ALL, "        total += values * (comm.size > 1)\n" + SEND_TO_ALL)],
        "Rank 0 receives the values of the others, but does not add them.": ("total += received", "pass"),
        "Each rank returns its own values: nothing was added.": ("return total", "return values"),
        "That is the mean over the ranks; return the sum.":
            (SEND_TO_ALL, "        total /= comm.size\n" + SEND_TO_ALL),
        "values.copy() and np.empty_like(values) keep the type, also float32.":
            ("return total", "return total.astype(float)"),
        "Return the array with the sums on every rank.":
            [("return total", "pass"), (SEND_TO_ALL, "", "comm.Recv(total, source=0)", "return None")],
        "Every rank sends its values to every other. In the naive algorithm they go to rank 0 and back, so "
        "the other ranks send one vector.": everyone_to_everyone,
        "In the naive algorithm all other ranks send to rank 0 only, which adds up what it receives.":
            along_a_chain,
    },
    passed="the sum on each of 3 ranks; rank 0 sends and receives two whole vectors.",
    observe=sums, gather=naive_facts, start=on_ranks, ranks=3,
    remedy="Rank 0 receives from each other rank, then sends to each.",
)
# fmt: on


def ring_all_reduce(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    result = values.copy()
    chunks = np.array_split(result, size)
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        received = np.empty_like(mine)
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        mine += received
    for step in range(size - 1):
        stale = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank + 1 - step) % size], dest=right, recvbuf=stale, source=left)
    return result


def ring_facts(rows: list[dict]) -> dict[str, object]:
    ranks, length = len(rows), rows[0]["bytes"] // 8
    most = 2 * (ranks - 1) * -(-length // ranks) * 8  # bytes
    return facts(rows) | {
        "The bytes that a rank sends, as a multiple of 2 (N-1) chunks, or 1 for fewer, in":
            max([1, *(row["sent"] / most for row in rows if most)]),
        "The number of ranks to which a rank sends, at most, in":
            max(len(row["receivers"]) for row in rows),
    }  # fmt: skip


def whole_vectors(comm, values):
    total, passing, received = values.copy(), values.copy(), np.empty_like(values)
    for _ in range(comm.size - 1):
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(passing, dest=right, recvbuf=received, source=left)
        total += received
        passing[:] = received
    return total


def each_chunk_to_its_rank(comm, values):
    chunks = np.array_split(values, comm.size)
    for step in range(1, comm.size):
        to, of = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        received = np.empty_like(chunks[comm.rank])
        comm.Sendrecv(chunks[to], dest=to, recvbuf=received, source=of)
        chunks[comm.rank] += received
    for step in range(1, comm.size):
        to, of = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Sendrecv(chunks[comm.rank], dest=to, recvbuf=chunks[of], source=of)
    return values


# fmt: off
check_ring_all_reduce = RankExercise(
    ring_all_reduce,
    cases("ring_all_reduce", 1, 2, 3, 4),
    {
        "In the last phase a finished sum must replace what is there, not be added.":
            ("recvbuf=stale, source=left)", "recvbuf=(new := np.empty_like(stale)), source=left)\n"
             "        stale += new"),
        "Each rank has the finished sum of one chunk: that is the reduce-scatter phase. The all-gather "
        "phase, which passes the finished chunks on, is missing.":
            ("range(size - 1):\n        stale", "range(0):\n        stale"),
        "A step of the all-gather phase is missing: each finished chunk needs N-1 steps to reach all.":
            ("range(size - 1):\n        stale", "range(size - 2):\n        stale"),
        "A step of the reduce-scatter phase is missing: a chunk needs N-1 steps to collect all values.":
            ("range(size - 1):\n        mine", "range(size - 2):\n        mine"),
        "The number of ranks does not divide 13, and chunks of one size leave a rest that is summed on no "
        "rank: use np.array_split.":
            ("np.array_split(result, size)", "[result[k * n :][:n] for k in range(size)]",
             "    right, left", "    n = len(values) // size\n    right, left"),
        "Make the buffer for what you receive with np.empty_like, so that it has the type of what is sent.":
            ("np.empty_like(mine)", "np.zeros(len(mine))"),
        "Each rank returns its own values: nothing was added.": ("return result", "return values"),
        "The caller still needs `values`: work on a copy of it.":
            ("result = values.copy()", "result = values"),
        "That is the mean over the ranks; return the sum.": ("return result", "return result / size"),
        "Return the array with the sums.": ("return result", "pass"),
        "What you receive belongs to the chunk that your neighbour sent, and yours is at another index.":
            ("return result", "return np.roll(result, size > 1)"),
        "Wait for what you began with Isend: call `.Wait()` on its result before you use the array again.":
            ("comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)",
             "comm.Isend(chunks[(rank - step) % size], dest=right)\n"
             "        comm.Recv(received, source=left)\n"
             "        comm.Barrier()"),
        "Send one chunk per step, not the whole vector.": whole_vectors,
        "That is the naive algorithm, in which rank 0 sends whole vectors: send one chunk per step.":
            naive_all_reduce,
        "Send one chunk per step, not the whole vector, also where the number of ranks does not divide its "
        "length.":
            ("    rank, size", "    if len(values) % comm.size:\n        return whole_vectors(comm, values)\n"
             "    rank, size"),
        "In the ring a rank only sends to its right neighbour, rank + 1.": each_chunk_to_its_rank,
    },
    passed="the sum on 1, 2, 3 and 4 ranks for any length, within 2 (N-1)/N of the bytes.",
    observe=sums, gather=ring_facts, start=on_ranks, ranks=4,
    remedy="If all ranks send before any rank receives, all wait: use comm.Sendrecv, or Isend.",
)
# fmt: on
