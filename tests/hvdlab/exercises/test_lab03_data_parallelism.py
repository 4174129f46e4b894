"""The checks of lab 3: the right answer passes, and each typical mistake is called by its name."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab03_data_parallelism as exercises

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
    raise NotImplementedError("Lab 3, exercise 1: write it")


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


def test_a_stub_stays_a_stub():
    with pytest.raises(NotImplementedError):
        exercises.check_combine(stub)


# --- exercise 2 ------------------------------------------------------------------------------------


def naive(comm, values):
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(values, source=0)
        return values
    total, received = values.copy(), np.empty_like(values)
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total


def naive_for_the_root(comm, values):
    if comm.rank > 0:
        comm.Send(values, dest=0)
        return values
    total, received = values.copy(), np.empty_like(values)
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    return total


def naive_without_its_own(comm, values):
    if comm.size == 1:
        return values
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(values, source=0)
        return values
    total, received = np.zeros_like(values), np.empty_like(values)
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total


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


def naive_mean(comm, values):
    total, received = values.copy(), np.empty_like(values)
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
        return total
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    total /= comm.size
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total


def naive_in_float64(comm, values):
    total, received = values.copy(), np.empty_like(values)
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
        return total.astype(float)
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total.astype(float)


def naive_twice(comm, values):
    total, received = values.copy(), np.empty_like(values)
    if comm.rank > 0:
        comm.Send(values, dest=0)
        comm.Recv(total, source=0)
        return total
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
        total += received
    if comm.size > 1:
        total += values
    for rank in range(1, comm.size):
        comm.Send(total, dest=rank)
    return total


def naive_from_itself(comm, values):
    if comm.rank == 0:
        received = np.empty_like(values)
        for rank in range(comm.size):
            comm.Recv(received, source=rank)
    return values


def naive_returns_on_the_root_only(comm, values):
    if comm.rank > 0:
        comm.Send(values, dest=0)
        return None
    received = np.empty_like(values)
    for rank in range(1, comm.size):
        comm.Recv(received, source=rank)
    return values + received if comm.size > 1 else values


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


NAIVE = {naive_for_the_root, everyone_to_everyone, with_a_name_from_outside}


def cases(quick, *named):
    """Return the mistakes as parameters; a mistake outside `quick` only runs if asked for."""
    return [
        pytest.param(wrong, says, marks=() if wrong in quick else pytest.mark.thorough)
        for wrong, says in named
    ]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    cases(
        NAIVE,
        (naive_for_the_root, "only rank 0 has the sum, and rank 1 does not: send it back"),
        (naive_without_its_own, "12 values on 3 ranks: on rank 0, the values of rank 0 are missing"),
        (everyone_to_everyone, "rank 1 of 3 sends 192 bytes.*: rank 1 sends 96"),
        (naive_along_a_chain, "rank 2 of 3 sends to rank 1. In the naive algorithm all others send to"),
        (by_the_library, "comm.Allreduce is not for this exercise"),
        (naive_mean, "12 values on 3 ranks: that is the mean over the ranks; return the sum"),
        (naive_in_float64, "rank 0 returns float64, expected float32"),
        (naive_twice, "rank 0's values 2 times at index 0. Rank 0 begins with its own"),
        (naive_from_itself, "rank 0 of 1 receives from itself"),
        (naive_returns_on_the_root_only, "it returns NoneType on rank 1"),
        (with_a_name_from_outside, "'mean_over_examples' is not defined. A function that runs on the ranks"),
    ),
)  # fmt: skip
def test_a_wrong_naive_way_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_naive_all_reduce(wrong)


@pytest.mark.mpi
def test_ranks_that_have_not_started_yet_are_no_deadlock():
    """Before a rank has imported NumPy and MPI, the time is up."""
    with pytest.raises(NotYet, match=r"^not all 3 ranks have started within 0\.1 s.*cell again\.$"):
        exercises.check_naive_all_reduce(naive, seconds=0.1)


# --- exercise 3 ------------------------------------------------------------------------------------


def ring(comm, values):
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(values, size)
    for step in range(size - 1):
        received = np.empty_like(chunks[(rank - step - 1) % size])
        request = comm.Isend(chunks[(rank - step) % size], dest=right)
        comm.Recv(received, source=left)
        request.Wait()
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        received = np.empty_like(chunks[(rank - step) % size])
        comm.Sendrecv(chunks[(rank - step + 1) % size], right, 0, received, left)
        chunks[(rank - step) % size][:] = received
    return np.concatenate(chunks)


def ring_send_first(comm, values):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(values, size)
    for step in range(size - 1):
        received = np.empty_like(chunks[(rank - step - 1) % size])
        comm.Send(chunks[(rank - step) % size], dest=(rank + 1) % size)
        comm.Recv(received, source=(rank - 1) % size)
        chunks[(rank - step - 1) % size] += received
    return values


def ring_adds_twice(comm, values):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(values, size)
    for step in range(2 * (size - 1)):
        received = np.empty_like(chunks[(rank - step - 1) % size])
        comm.Sendrecv(
            chunks[(rank - step) % size],
            dest=(rank + 1) % size,
            recvbuf=received,
            source=(rank - 1) % size,
        )
        chunks[(rank - step - 1) % size] += received
    return values


def ring_without_all_gather(comm, values):
    rank, size = comm.rank, comm.size
    chunks = np.array_split(values, size)
    for step in range(size - 1):
        received = np.empty_like(chunks[(rank - step - 1) % size])
        comm.Sendrecv(
            chunks[(rank - step) % size],
            dest=(rank + 1) % size,
            recvbuf=received,
            source=(rank - 1) % size,
        )
        chunks[(rank - step - 1) % size] += received
    return values


def ring_of_whole_vectors(comm, values):
    total, passing, received = values.copy(), values.copy(), np.empty_like(values)
    for _ in range(comm.size - 1):
        comm.Sendrecv(
            passing,
            dest=(comm.rank + 1) % comm.size,
            recvbuf=received,
            source=(comm.rank - 1) % comm.size,
        )
        total += received
        passing[:] = received
    return total


def ring_that_drops_the_rest(comm, values):
    rank, size = comm.rank, comm.size
    right, left, length = (rank + 1) % size, (rank - 1) % size, len(values) // comm.size
    chunks = [values[length * k : length * (k + 1)] for k in range(size)]
    for step in range(size - 1):
        received = np.empty_like(chunks[0])
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        into = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank - step + 1) % size], dest=right, recvbuf=into, source=left)
    return values


def ring_that_reshapes(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = values.reshape(size, -1)
    for step in range(size - 1):
        received = np.empty_like(chunks[0])
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        into = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank - step + 1) % size], dest=right, recvbuf=into, source=left)
    return values


def ring_of_float64(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(values, size)
    for step in range(size - 1):
        received = np.empty(len(chunks[(rank - step - 1) % size]))
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        into = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank - step + 1) % size], dest=right, recvbuf=into, source=left)
    return values


def ring_that_does_not_wait(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = np.array_split(values, size)
    for step in range(2 * (size - 1)):
        received = np.empty_like(chunks[(rank - step - 1) % size])
        comm.Isend(chunks[(rank - step) % size], dest=right)
        comm.Recv(received, source=left)
        comm.Barrier()
        if step < size - 1:
            chunks[(rank - step - 1) % size] += received
        else:
            chunks[(rank - step - 1) % size][:] = received
    return values


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


def ring_of_whole_vectors_with_a_rest(comm, values):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    if len(values) % size:
        total, passing, received = values.copy(), values.copy(), np.empty_like(values)
        for _ in range(size - 1):
            comm.Sendrecv(passing, dest=right, recvbuf=received, source=left)
            total += received
            passing[:] = received
        return total
    chunks = np.array_split(values, size)
    for step in range(size - 1):
        received = np.empty_like(chunks[0])
        comm.Sendrecv(chunks[(rank - step) % size], dest=right, recvbuf=received, source=left)
        chunks[(rank - step - 1) % size] += received
    for step in range(size - 1):
        into = chunks[(rank - step) % size]
        comm.Sendrecv(chunks[(rank - step + 1) % size], dest=right, recvbuf=into, source=left)
    return values


def ring_in_the_wrong_order(comm, values):
    total = values.copy()
    if comm.size > 1:
        comm.Sendrecv(values, dest=1 - comm.rank, recvbuf=total, source=1 - comm.rank)
        total = np.roll(total + values, 1)
    return total


def returns_nothing(comm, values):
    values *= 1


RINGS = {ring_send_first, ring_of_whole_vectors, ring_without_all_gather, ring_that_reshapes}


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_ring_is_right(capsys):
    exercises.check_ring_all_reduce(ring)
    assert "Right: the sum on 1, 2, 3 and 4 ranks" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    cases(
        RINGS,
        (ring_send_first, r"deadlock: on 2 ranks nothing moved for 6 s\. Rank 0 is in `comm\.Send\(.*"
         r"; rank 1 is in `comm\.Send.*If all ranks send before any rank receives"),
        (ring_adds_twice, "times at index 0. In the last phase a finished"),
        (ring_without_all_gather, "the all-gather phase, which passes .* is missing"),
        (ring_of_whole_vectors, r"3 ranks, but rank 0 sends 192 bytes for .* of 12 values.*: 1\.5 times"),
        (ring_that_drops_the_rest, r"13 values on 2 ranks: the last 1 .*2 does not divide 13.*leave a rest"),
        (ring_that_reshapes, r"failed on rank \d of 2, in `chunks = values\.reshape.*cannot reshape"
         r".*; with 13 float64 values, which 2 does not divide"),
        (ring_of_float64, "right in float64 and wrong in float32"),
        (naive, r"rank 0 sends 192 bytes for a vector of 12 values, 96 bytes: 1\.5 times"),
        (ring_of_whole_vectors_with_a_rest, "3 ranks, but rank 0 sends 208 bytes.* of 13 values"),
        (ring_that_does_not_wait, r"does not wait for what it began with Isend: call `\.Wait\(\)`"),
        (each_chunk_to_its_rank, "rank 0 sends to the ranks 1, 2. In the ring .* right neighbour, rank 1"),
        (ring_in_the_wrong_order, "added once, but at the wrong index: rank 0 has"),
        (returns_nothing, "it returns NoneType on rank 0"),
    ),
)  # fmt: skip
def test_a_wrong_ring_is_named(wrong, says):
    seconds = 6 if wrong is ring_send_first else 120  # it waits all of them, and no other does
    with pytest.raises(NotYet, match=says):
        exercises.check_ring_all_reduce(wrong, seconds=seconds)


@pytest.mark.mpi
def test_a_stub_stays_a_stub_on_the_ranks():
    with pytest.raises(NotImplementedError, match="Lab 3, exercise 1"):
        exercises.check_ring_all_reduce(stub)
