"""Answers of lab 4 that wait or fail on the ranks; see also test_every_exercise.py."""

import numpy as np
import pytest

from hvdlab.exercises import NotYet
from hvdlab.exercises import lab04_data_parallelism as exercises
from hvdlab.exercises.harness import mpi_ranks
from hvdlab.exercises.lab04_distributed_optimizer import check_distributed_optimizer
from hvdlab.exercises.lab04_rank_functions import check_pass_right

pytestmark = pytest.mark.mpi


def all_send_first(comm, values):
    received = np.empty_like(values)
    comm.Send(values, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received


def ring_send_first(comm, values):
    if comm.size > 1:
        comm.Send(values, dest=(comm.rank + 1) % comm.size)
    return values


@pytest.mark.parametrize(
    ("check", "answer", "says"),
    [
        (check_pass_right, all_send_first, "let the odd ranks receive first"),
        pytest.param(
            exercises.check_ring_all_reduce,
            ring_send_first,
            "rank 1 is in `comm.Send.*If all ranks send before any rank receives",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ranks_that_wait_for_each_other(check, answer, says, monkeypatch):
    monkeypatch.setattr(mpi_ranks, "SECONDS", 8)
    with pytest.raises(NotYet, match=rf"deadlock: nothing .* rank 0 is in `comm\.Send\(.*{says}"):
        check(answer)


def test_ranks_that_have_not_started_yet_are_no_deadlock(monkeypatch):
    """Before a rank has imported NumPy and MPI, the time is up."""
    monkeypatch.setattr(mpi_ranks, "SECONDS", 0.1)
    with pytest.raises(NotYet, match=r"^not all 3 ranks have started within 0\.4 s.*cell again\.$"):
        exercises.check_naive_all_reduce(exercises.naive_all_reduce)


def by_the_library(comm, values):
    total = np.empty_like(values)
    comm.Allreduce(values, total)
    return total


def from_itself(comm, values):
    received = np.empty_like(values)
    comm.Recv(received, source=comm.rank)


def with_a_name_from_outside(comm, values):
    return by_the_library(comm, values)


def into_equal_parts(comm, values):
    chunks = values.reshape(comm.size, -1)
    return comm.comm.allreduce(chunks).ravel()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (by_the_library, "comm.Allreduce is not for this exercise"),
        (from_itself, "rank 0 of 1 receives from itself"),
        (with_a_name_from_outside, "'by_the_library' is not defined. A function that runs on the ranks"),
        (into_equal_parts, r"failed on rank \d of 3, in `chunks = values\.reshape.*cannot reshape"),
    ],
)  # fmt: skip
def test_a_function_that_fails_gets_a_reason(answer, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_naive_all_reduce(answer)


def sends_only_full_buckets(comm, optimizer, bucket_bytes):
    import torch

    waiting, sent = [], []

    def ready(p):
        waiting.append(p)
        if sum(q.nbytes for q in waiting) >= bucket_bytes:
            flat = torch.cat([q.grad.ravel() for q in waiting]).numpy()
            sent.append((waiting.copy(), flat, comm.Iallreduce(flat.copy(), flat)))
            waiting.clear()

    class Wrapper:
        def zero_grad(self):
            optimizer.zero_grad()

        def step(self):
            for bucket, flat, request in sent:
                request.Wait()
                for k, p in enumerate(bucket):
                    p.grad = torch.from_numpy(flat[k * 64 : k * 64 + 64] / comm.size).view_as(p)
            sent.clear()
            waiting.clear()
            optimizer.step()

    for group in optimizer.param_groups:
        for p in group["params"]:
            p.register_post_accumulate_grad_hook(ready)
    return Wrapper()


@pytest.mark.thorough
def test_buckets_that_are_full_on_some_ranks_only_are_a_deadlock():
    with pytest.raises(NotYet, match=r"request\.Wait\(\).*step sends the incomplete buckets, too"):
        check_distributed_optimizer(sends_only_full_buckets)
