"""Ranks that are threads: their messages, and a deadlock that is found without a time limit."""

import numpy as np
import pytest

from hvdlab.exercises.harness.simulated_ranks import EAGER_BYTES, Deadlock, on_simulated_ranks

SMALL = np.zeros(EAGER_BYTES, np.uint8)
LARGE = np.zeros(EAGER_BYTES + 1, np.uint8)


def send_first(values):
    def exchange(comm):
        received = np.empty_like(values)
        comm.Send(values + comm.rank, dest=1 - comm.rank)
        comm.Recv(received, source=1 - comm.rank)
        return int(received[0])

    return exchange


def test_a_small_message_is_buffered_and_a_large_one_waits():
    assert on_simulated_ranks(send_first(SMALL), 2) == [1, 0]
    with pytest.raises(Deadlock):
        on_simulated_ranks(send_first(LARGE), 2)


def test_sendrecv_of_large_messages_is_no_deadlock():
    def pass_right(comm):
        received = np.empty_like(LARGE)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(LARGE + comm.rank, dest=right, recvbuf=received, source=left)
        return int(received[0])

    assert on_simulated_ranks(pass_right, 4) == [3, 0, 1, 2]


def test_a_message_is_a_copy_and_messages_keep_their_order():
    def two_messages(comm):
        values = np.array([1.0])
        if comm.rank == 0:
            comm.Send(values, dest=1)
            values[:] = 2
            comm.Send(values, dest=1)
            return None
        received = []
        for _ in range(2):
            comm.Recv(values, source=0)
            received.append(values[0])
        return received

    assert on_simulated_ranks(two_messages, 2)[1] == [1, 2]


def test_a_collective_that_one_rank_does_not_call_is_a_deadlock():
    assert on_simulated_ranks(lambda comm: comm.allgather(comm.rank), 3) == [[0, 1, 2]] * 3
    with pytest.raises(Deadlock):
        on_simulated_ranks(lambda comm: comm.rank == 2 or comm.allgather(0), 3)


def test_the_error_of_a_rank_is_raised_and_not_the_wait_of_the_others():
    with pytest.raises(ZeroDivisionError):
        on_simulated_ranks(lambda comm: comm.allgather(1 / comm.rank), 3)
