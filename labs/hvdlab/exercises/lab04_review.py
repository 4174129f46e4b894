"""Exercise of lab 4: review four patches of an all-reduce that computes a mean."""

import numpy as np

from hvdlab.exercises.harness.function_exercise import Case, FunctionExercise
from hvdlab.exercises.harness.patch_review import PatchReview
from hvdlab.exercises.harness.simulated_ranks import Deadlock, on_simulated_ranks

MOST_RANKS, LONGEST = 8, 100_000


def ring_mean(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    result = values.copy()
    chunks = np.array_split(result, size)
    for step in range(size - 1):
        mine = chunks[(rank - step - 1) % size]
        received = np.empty_like(mine)
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        mine += received
    result /= size
    for step in range(size - 1):
        stale = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank + 1 - step) % size], dest=right, recvbuf=stale, source=left)
    return result


SENDRECV = "comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)"
PATCHES = {
    "a": ("chunks = np.array_split(result, size)",
          "n = -(-len(result) // size)  # rounded up\n"
          "    chunks = [result[k * n : (k + 1) * n] for k in range(size)]"),
    "b": ("mine += received", "mine[:] = (mine + received) / 2", "    result /= size\n", ""),
    "c": (SENDRECV, "comm.Send(chunks[(rank - step) % size], dest=right)\n"
                    "        comm.Recv(received, source=left)"),
    "d": ("chunks = np.array_split(result, size)",
          "n = len(result) // size\n    chunks = result[: n * size].reshape(size, n)"),
}  # fmt: skip


def fault(function, ranks: int, length: int) -> str:
    """Return what is wrong with the mean of vectors of this length on so many simulated ranks."""
    vectors = np.random.default_rng(0).normal(size=(ranks, length))
    try:
        found = on_simulated_ranks(lambda comm: function(comm, vectors[comm.rank]), ranks)
    except Deadlock:
        return "The ranks wait for each other for ever."
    if any(each.shape != (length,) for each in found):
        return "A rank returns an array of another length."
    wrong = np.any([~np.isclose(each, vectors.mean(axis=0)) for each in found], axis=0)
    return f"{wrong.sum():,} of the values are not the mean." if wrong.any() else ""


def unusable(ranks: int, length: int) -> str:
    if 1 <= ranks <= MOST_RANKS and 1 <= length <= LONGEST:
        return ""
    return f"choose 1 to {MOST_RANKS} ranks, and a length of 1 to {LONGEST:,}."


RING_REVIEW = PatchReview(
    ring_mean,
    PATCHES,
    fault,
    example={"ranks": 2, "length": 8},
    tried=[
        {"ranks": ranks, "length": length}
        for ranks in (1, 2, 3, 4, 8)
        for length in (1, 8, 13, 20_000)
    ],
    check_case=unusable,
)


def review_ring():
    return {
        "a": "correct",
        "b": {"ranks": 4, "length": 8},
        "c": {"ranks": 2, "length": 20_000},
        "d": {"ranks": 2, "length": 9},
    }


check_review_ring = FunctionExercise(
    review_ring,
    [Case(())],
    observe=RING_REVIEW.verdicts,
    passed="one patch is correct, and each of the others fails in your case.",
    shape=bool,
)
