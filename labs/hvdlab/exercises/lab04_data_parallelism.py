"""Checks of lab 4: gradients of unequal shards, and an all-reduce written with send and receive."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from hvdlab.exercises import NotYet, call_unchanged, compare, exercise, right
from hvdlab.exercises.lab04_rank_functions import LIMIT_SECONDS, on_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

# --- exercise 1 ------------------------------------------------------------------------------------


@exercise
def check_combine(combine: Callable) -> None:
    """Demand the mean gradient over all examples: the sum of m_k / n times the local mean, any shape."""
    gradients = [np.array([8.0, 0.0]), np.array([4.0, 8.0]), np.array([0.0, 16.0])]
    counts = [1, 2, 5]
    weighted = sum(m * g for m, g in zip(counts, gradients, strict=True))
    mistakes = {
        "This is the plain mean: every rank has the weight 1/K, no matter how many examples it has.":
            sum(gradients) / 3,
        "This is the sum of the local means: divide the weights by the number of all examples.":
            sum(gradients),
        "These are weights m_k that are not normalised: they add up to n = 8, not to 1.": weighted,
        "These are weights m_k divided by the number of ranks: divide by the number of examples.":
            weighted / 3,
        "These are weights m_k divided by n, and then by the number of ranks too.": weighted / 24,
    }  # fmt: skip
    case = "combine of the gradients [8, 0], [4, 8], [0, 16] of 1, 2 and 5 examples"
    answer = _gradient(combine, gradients, counts)
    compare(case, answer, weighted / 8, mistakes, "That is the mean over the 8 examples.")
    matrices = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    if not np.allclose(_gradient(combine, matrices, [3, 1]), (3 * matrices[0] + matrices[1]) / 4):
        raise NotYet(
            "it is right for vectors of three ranks, but not for 2 x 3 matrices of two ranks."
        )
    right("the mean over all examples, for 1, 2 and 5 examples on three ranks, and for matrices.")


def _gradient(combine: Callable, gradients: list[np.ndarray], counts: list[int]) -> np.ndarray:
    copies = [gradient.copy() for gradient in gradients]
    answer = call_unchanged(combine, copies, list(counts), name="combine")
    if answer is None:
        raise NotYet("combine returns None: `return` the combined gradient.")
    try:
        answer = np.asarray(answer, dtype=float)
    except (TypeError, ValueError):
        raise NotYet(
            f"combine must return one array, the combined gradient. Received: {answer!r}"
        ) from None
    if answer.shape != gradients[0].shape:
        raise NotYet(
            f"combine returns the shape {answer.shape}, expected that of one gradient, {gradients[0].shape}."
        )
    return answer


# --- exercises 2 and 3 -----------------------------------------------------------------------------


@exercise
def check_naive_all_reduce(naive_all_reduce: Callable, seconds: float = LIMIT_SECONDS) -> None:
    """Demand the sum on each of 3 ranks, and that all other ranks exchange messages only with rank 0.

    Args:
        naive_all_reduce: The learner's `naive_all_reduce(comm, values)`.
        seconds: How long the ranks may take.
    """
    rows = _try(
        naive_all_reduce, 3, seconds, "rank 0 receives from each, then sends to each",
        "Rank 0 begins with its own values and adds the values of each other rank once",
    )  # fmt: skip
    for rank, (row, *_) in enumerate(rows):
        wanted = (2 if rank == 0 else 1) * row["bytes"]
        if row["sent"] != wanted:
            raise NotYet(
                f"the sums are right, but rank {rank} of 3 sends {row['sent']} bytes. In the "
                f"naive algorithm vectors of {row['bytes']} bytes go to rank 0 and back: rank {rank} "
                f"sends {wanted}."
            )
        if rank and row["receivers"] != [0]:
            raise NotYet(
                f"the sums are right, but rank {rank} of 3 sends to rank {max(row['receivers'])}. In the "
                "naive algorithm all others send to rank 0 only, which adds up what it receives."
            )
    right("the sum on each of 3 ranks; rank 0 sends and receives two whole vectors.")


@exercise
def check_ring_all_reduce(ring_all_reduce: Callable, seconds: float = LIMIT_SECONDS) -> None:
    """Demand the sum on 1, 2, 3 and 4 ranks for any length, and at most 2(N-1)/N of the bytes sent.

    Args:
        ring_all_reduce: The learner's `ring_all_reduce(comm, values)`.
        seconds: How long the ranks may take.
    """
    for ranks in (2, 3, 4):
        rows = _try(
            ring_all_reduce, ranks, seconds,
            "If all ranks send before any rank receives, all wait: use comm.Sendrecv, or Isend",
            "In the last phase a finished sum must replace what is there, not be added",
        )  # fmt: skip
        for rank, of_rank in enumerate(rows):
            for row in of_rank:
                chunk = -(-row["length"] // ranks) * row["bytes"] // row["length"]  # the largest
                bound = 2 * (ranks - 1) * chunk
                if row["sent"] > bound:
                    raise NotYet(
                        f"the sums are right on {ranks} ranks, but rank {rank} sends {row['sent']} bytes "
                        f"for a vector of {row['length']} values, {row['bytes']} bytes: "
                        f"{row['sent'] / bound:.1f} times the ring's 2 (N-1) chunks of {chunk}. Send one "
                        "chunk per step, not the whole vector."
                    )
        for rank, of_rank in enumerate(rows):
            receivers = of_rank[0]["receivers"]
            if len(receivers) > 1:
                raise NotYet(
                    f"the sums are right on {ranks} ranks, but rank {rank} sends to the ranks "
                    f"{', '.join(map(str, receivers))}. In the ring it only sends to its right neighbour, "
                    f"rank {(rank + 1) % ranks}."
                )
    right("the sum on 1, 2, 3 and 4 ranks for any length, within 2 (N-1)/N of the bytes.")


def try_all_reduce(comm: "MPI.Comm", name: str, lengths: list[int]) -> list[dict]:
    """Return, on a rank, how the learner's all-reduce compares with MPI's, until the first wrong sum.

    `who` holds 100^rank: its sum shows how often each rank was added. `where` differs at each index.

    Args:
        comm: The communicator of all ranks.
        name: The name of the learner's function.
        lengths: The lengths of the vectors.
    """
    from mpi4py import MPI

    from hvdlab.exercises.harness.counting_communicator import Counting

    rows = []
    for length in lengths:
        for world in (MPI.COMM_SELF, comm):
            who = np.full(length, 100.0**world.rank)
            where = (world.rank + 1) * np.arange(1.0, length + 1)
            inputs = {"who": who, "where": where, "float32": where.astype(np.float32)}
            for kind, values in inputs.items():
                counting, expected = Counting(world), np.empty_like(values)
                world.Allreduce(values, expected)
                try:
                    result = globals()[name](counting, values.copy())
                except Exception as error:
                    rest = length % world.size and f", which {world.size} does not divide"
                    error.add_note(
                        f"with {length} {values.dtype} values{rest or ''} on {world.size} ranks"
                    )
                    if "MPI_ERR_TRUNCATE" in str(error):
                        error.add_note("the message is longer than the array for it: np.empty_like")
                    raise
                array = isinstance(result, np.ndarray)
                good = array and result.dtype == values.dtype and np.array_equal(result, expected)
                rows.append({
                    "length": length, "kind": kind, "ranks": world.size, "good": good,
                    "shape": list(result.shape) if array else type(result).__name__,
                    "dtypes": [str(values.dtype), str(result.dtype) if array else ""],
                    "result": result if array else None, "expected": expected,
                    "sent": counting.sent, "bytes": values.nbytes, "receivers": sorted(counting.receivers),
                    "open": counting.not_waited_for() if good else 0,
                })  # fmt: skip
                all_good = np.array([int(good)])
                comm.Allreduce(MPI.IN_PLACE, all_good, MPI.MIN)
                if not all_good[0]:
                    return rows
    return rows


def _try(
    function: Callable, ranks: int, seconds: float, advice: str, once: str
) -> list[list[dict]]:
    """Return the rows of each rank after a run on real ranks, or raise NotYet with what is wrong.

    `advice` is for ranks that wait for each other, `once` for values that are added twice.
    """
    lengths = [12, 13, ranks - 1]
    rows = on_ranks(try_all_reduce, function, ranks, seconds, lengths, advice=f"{advice}.")
    last_rows = [of_rank[-1] for of_rank in rows]
    if not all(row["good"] for row in last_rows):
        raise NotYet(_mistake(last_rows, once))
    for rank, of_rank in enumerate(rows):
        if any(row["open"] for row in of_rank):
            raise NotYet(
                f"the sums are right, but rank {rank} does not wait for what it began with Isend: call "
                "`.Wait()` on its result before you use the array again."
            )
    return [[row for row in of_rank if row["ranks"] == ranks] for of_rank in rows]


def _mistake(rows: list[dict], once: str) -> str:
    """Return a sentence about what is wrong with the sums of one case, from the row of each rank."""
    size, length = rows[0]["ranks"], rows[0]["length"]
    case = f"{length} values on {size} rank{'s' if size > 1 else ''}"
    for rank, row in enumerate(rows):
        expected_type, returned_type = row["dtypes"]
        if isinstance(row["shape"], str):
            return (
                f"{case}: it returns {row['shape']} on rank {rank}; return the array with the sums."
            )
        if row["shape"] != [length]:
            return f"{case}: rank {rank} returns the shape {row['shape']}, not [{length}]."
        if returned_type != expected_type:
            return (
                f"{case}: rank {rank} returns {returned_type}, expected {expected_type}; values.copy() and "
                "np.empty_like(values) keep the type."
            )
    rank, row = next((rank, row) for rank, row in enumerate(rows) if not row["good"])
    if size > 1 and all(np.allclose(size * np.array(r["result"]), r["expected"]) for r in rows):
        return f"{case}: that is the mean over the ranks; return the sum."
    if row["kind"] == "float32":
        return (
            "the sums are right in float64 and wrong in float32: make the buffer for what you receive "
            "with np.empty_like, so that it has the type of what is sent."
        )
    results = np.array([r["result"] for r in rows], dtype=float)
    index = int(np.flatnonzero(results[rank] != np.array(row["expected"]))[0])
    differs = f"{results[rank, index]:g} instead of {row['expected'][index]:g}"
    if row["kind"] == "where":
        return (
            f"{case}: every rank is added once, but at the wrong index: rank {rank} has {differs} at "
            f"index {index}. What you receive belongs to the chunk that your neighbour sent."
        )
    mistake = (
        _miscount(results, size, rank, index, once) or f"rank {rank} has {differs} at index {index}"
    )
    return f"{case}: {mistake}."


def _miscount(results: np.ndarray, size: int, rank: int, index: int, once: str) -> str | None:
    """Return what sums of 100^rank show about the mistake, or None where they are no such sums."""
    whole = np.isfinite(results) & (results >= 0) & (results < 100.0**size)
    if not whole.all() or np.any(results % 1):
        return None
    counts = results[..., None] // 100.0 ** np.arange(size) % 100  # [rank, index, whose]
    if counts.max() > 1:
        at = [int(i) for i in np.argwhere(counts > 1)[0]]
        return f"rank {at[0]} has rank {at[2]}'s values {counts[tuple(at)]:g} times at index {at[1]}. {once}"
    full = (counts == 1).all(axis=2)  # [rank, index]
    if np.array_equal(counts, np.broadcast_to(np.eye(size)[:, None], counts.shape)):
        return "each rank returns its own values: nothing was added"
    if full.all(axis=1).any():
        some = ", ".join(str(r) for r in np.flatnonzero(full.all(axis=1)))
        return f"only rank {some} has the sum, and rank {rank} does not: send it back to all"
    if full.any(axis=0).all():
        return (
            "each rank has the finished sum of one chunk, and the rest is not there: that is the "
            "reduce-scatter phase; the all-gather phase, which passes the finished chunks on, is missing"
        )
    nowhere = np.flatnonzero(~full.any(axis=0))
    if results.shape[1] % size and nowhere[-1] == results.shape[1] - 1:
        return (
            f"the last {len(nowhere)} of the values are summed on no rank: {size} does not divide "
            f"{results.shape[1]}, and chunks of {results.shape[1] // size} leave a rest. Use "
            "np.array_split"
        )
    whose = int(np.flatnonzero(counts[rank, index] == 0)[0])
    return f"on rank {rank}, the values of rank {whose} are missing at index {index}"
