"""Ranks that wait for each other are told from ranks that are slow."""

import pytest

pytest.importorskip("torch")

from hvdlab.exercises import NotYet
from hvdlab.exercises.harness import gloo_ranks  # noqa: E402


def add_up(comm, first):
    """The sum of all ranks' 1; in the first call four threads of rank 1 share a core for seconds before."""
    import hashlib
    import os
    from concurrent.futures import ThreadPoolExecutor

    import torch
    import torch.distributed as dist

    global threads  # what they waited for is counted while they live
    one = torch.ones(1)
    dist.barrier()
    if comm.rank == 1 and not os.path.exists(first):
        open(first, "w", encoding="utf-8").close()
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        threads = ThreadPoolExecutor(4)
        work = [
            threads.submit(hashlib.pbkdf2_hmac, "sha256", b"", b"", 1_500_000) for _ in range(4)
        ]
        for each in work:
            each.result()
    dist.all_reduce(one)
    return one.item()


@pytest.mark.mpi
def test_a_slow_rank_is_no_deadlock(tmp_path, monkeypatch):
    monkeypatch.setattr(gloo_ranks, "SECONDS", 1)
    first = tmp_path / "first"
    assert gloo_ranks.on_ranks(add_up, str(first), ranks=2, uses=(add_up,)) == [2, 2]
    assert first.exists()


def alone(comm):
    import torch
    import torch.distributed as dist

    if comm.rank == 0:
        dist.all_reduce(torch.ones(1))


@pytest.mark.mpi
@pytest.mark.thorough
def test_a_collective_without_the_others_is_a_deadlock(monkeypatch):
    monkeypatch.setattr(gloo_ranks, "SECONDS", 4)
    with pytest.raises(NotYet, match=r"alone: .*after \d+ s rank 0 in `dist.all_reduce\("):
        gloo_ranks.on_ranks(alone, ranks=2, uses=(alone,))
