"""The checks of lab 4: the right answer passes, and each typical mistake is called by its name."""

import inspect
import textwrap

import numpy as np
import pytest
from changed import changed

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab04_data_parallelism as exercises

# --- exercise 1 ------------------------------------------------------------------------------------


def mean_over_examples(gradients, counts):
    return sum(m * g for m, g in zip(counts, gradients, strict=True)) / sum(counts)


def in_place(gradients, counts):
    gradients[0] *= counts[0]
    for g, m in zip(gradients[1:], counts[1:], strict=True):
        gradients[0] += m * g
    return gradients[0] / sum(counts)


def overwrites_the_last(gradients, counts):
    total = gradients[-1]
    total *= counts[-1]
    return sum([m * g for m, g in zip(counts[:-1], gradients[:-1], strict=True)], total) / sum(
        counts
    )


def stub(*arguments):
    raise NotImplementedError("Lab 4, exercise 1: write it")


def test_the_mean_over_all_examples_is_right(capsys):
    exercises.check_combine(mean_over_examples)
    assert "Right: the mean over all examples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda g, m: np.mean(g, axis=0), r"is \[4, 8\], expected \[2, 12\].*plain mean: every rank"),
        (lambda g, m: sum(g), "sum of the local means"),
        (lambda g, m: sum(a * b for a, b in zip(m, g, strict=True)), "not normalised: they add up"),
        (lambda g, m: mean_over_examples(g, m) / len(g), "and then by the number of ranks too"),
        (lambda g, m: mean_over_examples(g, m) * sum(m) / len(g), "divide by the number of examples"),
        (lambda g, m: g[0], r"expected \[2, 12\]\. That is the mean over the 8 examples\.$"),
        (lambda g, m: None, "returns None"),
        (lambda g, m: 3.0, r"returns the shape \(\)"),
        (lambda g, m: g[5], "combine raises IndexError"),
        (lambda g, m: np.dot(m, np.stack(g)) / sum(m), "but not for 2 x 3 matrices"),
        (in_place, "work on a copy"),
        (overwrites_the_last, "work on a copy"),
        (lambda g, m: (mean_over_examples(g, m), sum(m)), "one array, the combined gradient"),
        (lambda g, m: ["a", "b"], "one array, the combined gradient"),
    ],
)  # fmt: skip
def test_a_wrong_combination_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_combine(wrong)


# --- exercise 2 ------------------------------------------------------------------------------------


def naive(comm, values):
    total, received = values.copy(), np.empty_like(values)
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
    else:
        for rank in range(1, comm.size):
            comm.Recv(received, source=rank)
            total += received
        for rank in range(1, comm.size):
            comm.Send(total, dest=rank)
    return total


SEND_TO_ALL = """\
        for rank in range(1, comm.size):
            comm.Send(total, dest=rank)
"""
RECEIVE_THE_TOTAL = "        comm.Recv(total, source=0)\n"
RECEIVE_FROM_ALL = "range(1, comm.size):\n            comm.Recv("


def everyone_to_everyone(comm, values):
    total, received = values.copy(), np.empty_like(values)
    for step in range(1, comm.size):
        to, of = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        comm.Sendrecv(values, dest=to, recvbuf=received, source=of)
        total += received
    return total


def naive_along_a_chain(comm, values):
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


def by_the_library(comm, values):
    total = np.empty_like(values)
    comm.Allreduce(values, total)
    return total


def with_a_name_from_outside(comm, values):
    return mean_over_examples([values], [1])


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_naive_way_is_right(capsys):
    exercises.check_naive_all_reduce(naive)
    assert "Right: the sum on each of 3 ranks" in capsys.readouterr().out


def some(quick, cases):
    """Return `cases` as parameters; those whose numbers are not in `quick` only run if asked for."""
    marks = {True: (), False: pytest.mark.thorough}
    return [pytest.param(*case, marks=marks[i in quick]) for i, case in enumerate(cases)]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    some({0, 2, 10}, [
        (changed(naive, RECEIVE_THE_TOTAL, "", SEND_TO_ALL, ""),
         "only rank 0 has the sum, and rank 1 does not: send it back"),
        (changed(naive, "values.copy()", "np.zeros_like(values) if comm.size > 1 else values"),
         "12 values on 3 ranks: on rank 0, the values of rank 0 are missing"),
        (everyone_to_everyone, "rank 1 of 3 sends 192 bytes.*: rank 1 sends 96"),
        (naive_along_a_chain, "rank 2 of 3 sends to rank 1. In the naive algorithm all others send to"),
        (by_the_library, "comm.Allreduce is not for this exercise"),
        (changed(naive, SEND_TO_ALL, "        total /= comm.size\n" + SEND_TO_ALL),
         "12 values on 3 ranks: that is the mean over the ranks; return the sum"),
        (changed(naive, "return total", "return total.astype(float)"),
         "rank 0 returns float64, expected float32"),
        (changed(naive, SEND_TO_ALL, "        total += values * (comm.size > 1)\n" + SEND_TO_ALL),
         "rank 0's values 2 times at index 0. Rank 0 begins with its own"),
        (changed(naive, RECEIVE_FROM_ALL, RECEIVE_FROM_ALL.replace("1, ", "")),
         "rank 0 of 1 receives from itself"),
        (changed(naive, RECEIVE_THE_TOTAL, "        return None\n", SEND_TO_ALL, ""),
         "it returns NoneType on rank 1"),
        (with_a_name_from_outside, "'mean_over_examples' is not defined. A function that runs on the ranks"),
    ]),
)  # fmt: skip
def test_a_wrong_naive_way_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_naive_all_reduce(wrong)


@pytest.mark.mpi
def test_ranks_that_have_not_started_yet_are_no_deadlock():
    """Before a rank has imported NumPy and MPI, the time is up."""
    with pytest.raises(NotYet, match=r"^not all 3 ranks have started within 0\.4 s.*cell again\.$"):
        exercises.check_naive_all_reduce(naive, seconds=0.1)


# --- exercise 3 ------------------------------------------------------------------------------------


def ring(comm, values):
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(values, size)
    for step in range(size - 1):  # reduce-scatter
        received = np.empty_like(chunks[(rank - step - 1) % size])
        request = comm.Isend(chunks[(rank - step) % size], dest=right)
        comm.Recv(received, source=left)
        request.Wait()
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):  # all-gather
        received = np.empty_like(chunks[(rank - step) % size])
        comm.Sendrecv(chunks[(rank - step + 1) % size], right, 0, received, left)
        chunks[(rank - step) % size][:] = received
    return np.concatenate(chunks)


def ring_of_whole_vectors(comm, values):
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


def ring_in_the_wrong_order(comm, values):
    total = values.copy()
    if comm.size > 1:
        comm.Sendrecv(values, dest=1 - comm.rank, recvbuf=total, source=1 - comm.rank)
        total = np.roll(total + values, 1)
    return total


SPLIT, WAIT = "np.array_split(values, size)", "        request.Wait()\n"
ring_send_first = changed(ring, "request = comm.Isend(", "comm.Send(", WAIT, "")
ring_that_drops_the_rest = changed(
    ring, SPLIT, "[values[k * (len(values) // size) :][: len(values) // size] for k in range(size)]",
    "np.concatenate(chunks)", "values",
)  # fmt: skip
ring_of_float64 = changed(
    ring,
    "np.empty_like(chunks[(rank - step - 1) % size])",
    "np.empty(len(chunks[rank - step - 1]))",
)
ring_of_whole_vectors_with_a_rest = changed(
    ring_of_whole_vectors, "    total, passing",
    "    if len(values) % comm.size == 0:\n"
    + textwrap.indent(inspect.getsource(ring).partition("\n")[2], "    ")
    + "    total, passing",
)  # fmt: skip


def returns_nothing(comm, values):
    values *= 1


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_ring_is_right(capsys):
    exercises.check_ring_all_reduce(ring)
    assert "Right: the sum on 1, 2, 3 and 4 ranks" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    some({0, 2, 3, 5}, [
        (ring_send_first,
         r"deadlock: on 2 ranks nothing moved for 6 s\. Rank 0 is in `comm\.Send\(.*"
         r"; rank 1 is in `comm\.Send.*If all ranks send before any rank receives"),
        (changed(ring, "[:] = received", " += received"), "times at index 0. In the last phase a finished"),
        (changed(ring, "range(size - 1):  # all-gather", "range(0):"),
         "the all-gather phase, which passes .* is missing"),
        (ring_of_whole_vectors, r"3 ranks, but rank 0 sends 192 bytes for .* of 12 values.*: 1\.5 times"),
        (ring_that_drops_the_rest, r"13 values on 2 ranks: the last 1 .*2 does not divide 13.*leave a rest"),
        (changed(ring, SPLIT, "values.reshape(size, -1)"),
         r"failed on rank \d of 2, in `chunks = values\.reshape.*cannot reshape"
         r".*; with 13 float64 values, which 2 does not divide"),
        (ring_of_float64, "right in float64 and wrong in float32"),
        (naive, r"rank 0 sends 192 bytes for a vector of 12 values, 96 bytes: 1\.5 times"),
        (ring_of_whole_vectors_with_a_rest, "3 ranks, but rank 0 sends 208 bytes.* of 13 values"),
        (changed(ring, WAIT, "        comm.Barrier()\n"),
         r"does not wait for what it began with Isend: call `\.Wait\(\)`"),
        (each_chunk_to_its_rank, "rank 0 sends to the ranks 1, 2. In the ring .* right neighbour, rank 1"),
        (ring_in_the_wrong_order, "added once, but at the wrong index: rank 0 has"),
        (returns_nothing, "it returns NoneType on rank 0"),
    ]),
)  # fmt: skip
def test_a_wrong_ring_is_named(wrong, says):
    seconds = 6 if wrong is ring_send_first else 120  # it waits all of them, and no other does
    with pytest.raises(NotYet, match=says):
        exercises.check_ring_all_reduce(wrong, seconds=seconds)


@pytest.mark.mpi
def test_a_stub_stays_a_stub_on_the_ranks():
    with pytest.raises(NotImplementedError, match="Lab 4, exercise 1"):
        exercises.check_ring_all_reduce(stub)
