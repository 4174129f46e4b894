"""Unusual answers of lab 12, and what its right answers must agree with; see also test_every_exercise.py."""

import re

import forked_ranks
import pytest
import torch
from lab_functions import lab_functions

from hvdlab.exercises import NotYet, lab12_sharding
from hvdlab.exercises import lab12_ddp_and_sharding as exercises
from hvdlab.exercises.harness import gloo_ranks


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(gloo_ranks, "call", forked_ranks.call)


@pytest.mark.mpi
@pytest.mark.thorough
def test_on_the_ranks_of_mpirun(capsys):
    exercises.check_clip(lab12_sharding.clip)
    assert "become 1, 1.5 and 3" in capsys.readouterr().out


@pytest.mark.mpi
@pytest.mark.thorough
def test_ranks_that_wait_for_each_other(monkeypatch):
    def clip(gradients, most):
        import torch
        import torch.distributed as dist

        if dist.get_rank() == 0:
            dist.all_reduce(torch.zeros(1))

    monkeypatch.setattr(gloo_ranks, "SECONDS", 4)
    with pytest.raises(
        NotYet, match=r"clip: .*after \d+ s rank 0 in `dist.all_reduce\(.*the same order"
    ):
        exercises.check_clip(clip)


def with_a_name_from_outside(*arguments):
    return nothing(*arguments)


def nothing(*arguments):
    pass


def only_the_step(model, lr):
    import torch

    return torch.optim.Adam(model.parameters(), lr).step


def exchanged(model, lr):
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr)
    return optimizer.step, optimizer


@pytest.mark.parametrize(
    ("check", "answer", "says"),
    [
        (exercises.check_average_gradients, with_a_name_from_outside, "'nothing' is not defined"),
        (exercises.check_zero1, only_the_step, "ranks is method, expected (optimizer, step)."),
        (exercises.check_zero1, exchanged, "ranks is (method, Adam), expected"),
        (exercises.check_zero1, nothing, "ranks is None: is `return` missing?, expected"),
        (exercises.check_shard, only_the_step, "ranks is method, expected an optimizer."),
        (exercises.check_orders, lambda n, e, r, s: exercises.orders(n, 1, r, s), "3 lists of 4 numbers"),
        (exercises.check_buckets, lambda *_: 2, "a list of lists of positions. Received: 2"),
    ],
)  # fmt: skip
def test_an_unusual_answer_is_named(check, answer, says, forked):
    with pytest.raises(NotYet, match=re.escape(says)):
        check(answer)


def test_the_bytes_are_those_of_the_paper():
    """Rajbhandari et al. 2020, figure 1, in GB."""
    found = [lab12_sharding.rank_bytes(7.5e9, 64, stage, 2, 2, 12) / 1e9 for stage in range(4)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.06)


def test_shards_on_the_processor_where_pytorch_is_built_for_gpus(
    forked, tmp_path, monkeypatch, capsys
):
    """Such a PyTorch says "cuda" also where there is no GPU. The two functions are those of the lab."""
    shards = lab_functions("12_ddp_and_sharding.py", tmp_path, "faulty_shard", "shard")
    cuda = torch.device("cuda")
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda check=False: cuda)
    with pytest.raises(NotYet, match="The weights do not move: .* Create the optimizer after"):
        exercises.check_shard(shards.faulty_shard)
    exercises.check_shard(shards.shard)
    assert capsys.readouterr().out.startswith("Right: ")
