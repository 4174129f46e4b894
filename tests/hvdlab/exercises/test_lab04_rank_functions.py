"""The checks of lab 4 about messages, the data-parallel gradient and the bytes of an all-reduce."""

import numpy as np
import pytest
from changed import changed

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab04_rank_functions as exercises


def pass_right(comm, values):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty_like(values)
    if comm.rank % 2:
        comm.Recv(received, source=left)
        comm.Send(values, dest=right)
    else:
        comm.Send(values, dest=right)
        comm.Recv(received, source=left)
    return received


def all_send_first(comm, values):
    received = np.empty_like(values)
    comm.Send(values, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received


def parallel_gradient(comm, gradient, batch):
    local = gradient(np.split(batch, comm.size)[comm.rank])
    total = np.empty_like(local)
    comm.Allreduce(local, total)
    return total / comm.size


@pytest.mark.mpi
def test_the_right_functions_pass(capsys):
    exercises.check_pass_right(pass_right)
    exercises.check_parallel_gradient(parallel_gradient)
    assert capsys.readouterr().out.count("Right: ") == 2


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (all_send_first, "deadlock: on 3 ranks nothing moved.*let the odd ranks receive first"),
        (changed(pass_right, "return received", "return values"), "That is the rank's own array"),
        (changed(pass_right, "+ 1) %", "+ 0.5) %", "- 1) %", "+ 1) %", "+ 0.5) %", "- 1) %"),
         "the array of the right neighbour"),
        (changed(pass_right, "    return received", "    pass"), "returns no array"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_pass_right(wrong, seconds=6 if wrong is all_send_first else 60)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (changed(parallel_gradient, " / comm.size", ""), "That is the sum over the ranks"),
        (changed(parallel_gradient, "total / comm.size", "local"), "of this rank's own shard"),
        (changed(parallel_gradient, "[comm.rank]", "[0]"), "of the same examples, numbers"),
        (changed(parallel_gradient, "np.split(batch, comm.size)[comm.rank]", "batch"),
         "computes the gradient of all 6 examples"),
        (changed(parallel_gradient, "    return total / comm.size", "    pass"), "returns no array"),
    ],
)  # fmt: skip
def test_a_wrong_gradient_is_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_parallel_gradient(wrong, seconds=60)


def busiest_bytes(algorithm, ranks, size):
    if algorithm == "naive":
        return 2 * (ranks - 1) * size
    return 2 * np.log2(ranks) * size if algorithm == "tree" else 4 * (ranks - 1) / ranks * size


def test_the_right_bytes_pass(capsys):
    exercises.check_busiest_bytes(busiest_bytes)
    assert "Right: on 2 ranks all three" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda *case: busiest_bytes(*case) / 2, "That is what the rank sends"),
        (lambda name, ranks, size: busiest_bytes(name, ranks, 1), "multiply it by the size"),
        (lambda name, ranks, size: 2 * (ranks - 1) * size, r'"tree", 4.*receives 2 arrays on the way up'),
        (lambda name, ranks, size: 2 * np.log2(ranks) * size, r'"naive", 4.*root receives 3 arrays'),
        (lambda *case: None, "returned None"),
    ],
)  # fmt: skip
def test_wrong_bytes_are_named(wrong, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_busiest_bytes(wrong)
