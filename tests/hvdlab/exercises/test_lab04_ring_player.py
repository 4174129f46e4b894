"""The steps of a learner's ring are what its ranks sent, added and waited for, also if it is wrong."""

import numpy as np
import pytest

from hvdlab.course.player import Message
from hvdlab.exercises import lab04_data_parallelism
from hvdlab.exercises.lab04_ring_player import RANKS, rounds_of, show_deadlock, show_ring, values_of
from hvdlab.launch import TimeUp, call


def ring_by_hand():
    """Return the messages (step, sender, chunk, value) of the ring, and the arrays after each step."""
    arrays = np.array([values_of(rank) for rank in range(RANKS)])
    messages, after = [], [arrays.copy()]
    for step in range(2 * RANKS - 2):
        before = arrays.copy()
        for rank in range(RANKS):
            chunk = (
                (rank - step) % RANKS if step < RANKS - 1 else (rank + 1 - step + RANKS - 1) % RANKS
            )
            value, right = before[rank, chunk], (rank + 1) % RANKS
            messages.append((step + 1, rank, chunk, value))
            arrays[right, chunk] = value + (before[right, chunk] if step < RANKS - 1 else 0)
        after.append(arrays.copy())
    assert (arrays == arrays[0, 0] * np.arange(1, RANKS + 1)).all() and arrays[0, 0] == 1111
    return messages, after


def numbers(arrays) -> list[list[float]]:
    return [[float(text) for text in array] for array in arrays]


def chunks_that_are_replaced(comm, values):
    """Its chunks are a list of new arrays, and each message is a copy."""
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = [chunk.copy() for chunk in np.array_split(values, size)]
    for step in range(2 * size - 2):
        received = np.empty_like(chunks[0])
        send, get = (rank - step) % size, (rank - step - 1) % size
        comm.Sendrecv(chunks[send].copy(), (rank + 1) % size, 0, received, (rank - 1) % size)
        chunks[get] = chunks[get] + received if step < size - 1 else received
    return np.concatenate(chunks)


def with_isend(comm, values):
    rank, size = comm.Get_rank(), comm.Get_size()
    chunks = np.array_split(values, size)
    for step in range(2 * size - 2):
        mine = chunks[(rank - step - 1) % size]
        received = np.empty_like(mine)
        request = comm.Isend(chunks[(rank - step) % size], dest=(rank + 1) % size)
        comm.Recv(received, source=(rank - 1) % size)
        request.Wait()
        mine[:] = mine + received if step < size - 1 else received
    return values


@pytest.mark.mpi
@pytest.mark.parametrize(
    "ring", [lab04_data_parallelism.ring_all_reduce, chunks_that_are_replaced, with_isend]
)
def test_the_steps_of_a_right_ring_are_those_of_the_algorithm(ring):
    messages, after = ring_by_hand()
    start, *steps, result = show_ring(ring).steps
    recorded = [
        (number, message.sender, message.start, float(message.label))
        for number, step in enumerate(steps, 1)
        for message in step.messages
    ]
    assert recorded == messages
    assert [numbers(step.arrays) for step in (start, *steps)] == [each.tolist() for each in after]
    assert numbers(result.arrays) == after[-1].tolist() and not any(result.wrong)
    assert all(m.receiver == (m.sender + 1) % RANKS for step in steps for m in step.messages)
    assert not any(m.wrong or m.into != m.start for step in steps for m in step.messages)
    assert steps[2].title == "Step 3 of 6"
    assert steps[2].sentences[1] == "Rank 1 sends chunk 3 (value 4044) to rank 2, which adds it."
    assert steps[5].sentences[0].endswith("to rank 1, which replaces its own.")


def adds_to_the_chunk_that_it_sends(comm, values):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    chunks, received = np.array_split(values, comm.size), np.empty(1)
    for step in range(comm.size - 1):
        mine = chunks[(comm.rank - step) % comm.size]
        comm.Sendrecv(mine, dest=right, recvbuf=received, source=left)
        mine += received
    return values


@pytest.mark.mpi
def test_a_chunk_that_is_added_to_another_one_is_shown_as_wrong():
    _, first, *_, result = show_ring(adds_to_the_chunk_that_it_sends).steps
    assert first.messages[0] == Message(0, 1, start=0, into=1, length=1, label="1", wrong=True)
    assert first.sentences[0] == (
        "Rank 0 sends chunk 0 (value 1) to rank 1, which adds it to its chunk 1: the wrong chunk."
    )
    assert first.arrays[1] == ("10", "21", "30", "40")
    assert result.wrong == ((0, 1, 2, 3),) * RANKS
    assert result.sentences[0].endswith(": wrong.")


def returns_the_mean(comm, values):
    total = np.empty_like(values)
    comm.Sendrecv(values, (comm.rank + 1) % comm.size, 0, total, (comm.rank - 1) % comm.size)
    return (values + total) / 2 if comm.rank else None


@pytest.mark.mpi
def test_results_of_another_kind_are_shown():
    _, first, result = show_ring(returns_the_mean).steps
    assert first.sentences[0] == (
        "Rank 0 sends its whole array (values 1, 2, 3, 4) to rank 1, which leaves its array as it was."
    )
    assert result.sentences[:2] == (
        "Rank 0 returns no array: wrong.", "Rank 1 returns 5.5, 11, 16.5, 22: wrong."
    )  # fmt: skip


def sends_in_the_second_step(comm, values):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = np.empty(1)
    comm.Sendrecv(values[:1], dest=right, recvbuf=received, source=left)
    values[:1] += received
    comm.Send(values[:1], dest=right)
    comm.Recv(received, source=left)


@pytest.mark.mpi
def test_a_ring_that_waits_shows_the_steps_before_and_the_lines():
    _, first, last = show_ring(sends_in_the_second_step).steps
    assert first.title == "Step 1 of 1" and len(first.messages) == RANKS
    assert first.arrays[1] == ("11", "20", "30", "40")
    assert last.title == "Deadlock"
    assert last.sentences[0] == (
        "Rank 0 waits in line 6 in Send to rank 1: comm.Send(values[:1], dest=right)"
    )
    for rank, waiting in enumerate(last.waiting):
        assert waiting.code[waiting.line] == "    comm.Send(values[:1], dest=right)"
        assert waiting.state == f"Rank {rank} waits in line 6 in Send to rank {(rank + 1) % RANKS}"


def one_sends_and_one_receives(comm, length):
    if comm.rank == 0:
        comm.Ssend(np.zeros(length), dest=1)
    comm.Recv(np.empty(length), source=1 - comm.rank, tag=7)


@pytest.mark.mpi
def test_a_deadlock_shows_the_function_of_each_rank_with_its_line():
    with pytest.raises(TimeUp) as caught:
        call(one_sends_and_one_receives, 10, ranks=2, timeout=6)
    (step,) = show_deadlock(caught.value).steps
    lines = [waiting.code[waiting.line].strip() for waiting in step.waiting]
    assert lines == [
        "comm.Ssend(np.zeros(length), dest=1)",
        "comm.Recv(np.empty(length), source=1 - comm.rank, tag=7)",
    ]
    assert step.waiting[0].code[0] == "def one_sends_and_one_receives(comm, length):"
    assert step.sentences[1] == f"Rank 1 waits in line 4: {lines[1]}"


def fails_in_its_second_step(comm, values):
    comm.Sendrecv(values, (comm.rank + 1) % 4, 0, np.empty(4), (comm.rank - 1) % 4)
    return values[7]


def stub(comm, values):
    raise NotImplementedError("Lab 4, exercise 5: write it")


@pytest.mark.mpi
def test_an_error_is_the_last_step_and_a_stub_raises_its_own():
    *_, last = show_ring(fails_in_its_second_step).steps
    assert last.title == "Error"
    assert last.sentences[0].startswith("fails_in_its_second_step failed on rank ")
    assert "in `return values[7]`: IndexError" in last.sentences[0]
    with pytest.raises(NotImplementedError, match="Lab 4, exercise 5"):
        show_ring(stub)


END = {"array": [], "returned": [1.0]}


def line(to=None, source=None):
    return {"to": to, "source": source, "start": 0, "values": [1.0]}


def test_a_message_belongs_to_the_step_after_all_that_its_sender_knows():
    root = [line(source=1), line(source=-1), line(to=1), line(to=2), END]
    other = [line(to=0), line(source=0), END]
    sent, rounds = rounds_of([root, other, other])
    assert [(s.round, s.sender, s.receiver) for s in sent] == [
        (1, 1, 0), (1, 2, 0), (2, 0, 1), (3, 0, 2)
    ]  # fmt: skip
    assert rounds == [[1, 1, 2, 3], [1, 2], [1, 3]]


def test_a_call_that_did_not_end_has_sent_its_message_if_it_arrived():
    waits = line(to=1, source=1)
    sent, rounds = rounds_of([[waits], [line(source=0), END]])
    assert [(s.round, s.sender) for s in sent] == [(1, 0)] and rounds == [[], [1]]
    sent, rounds = rounds_of([[waits], [line(to=0)]])
    assert sent == [] and rounds == [[], []]
