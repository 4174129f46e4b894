"""A function on every rank: its results, and its errors in one sentence."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hvdlab.launch import LaunchError, TimeUp, call


def add_up(comm, numbers, scale):
    total = np.empty(len(numbers))
    comm.Allreduce(scale * (comm.rank + 1) * np.array(numbers, dtype=float), total)
    print("rank", comm.rank, "prints", end="\n")
    return {"rank": comm.rank, "total": total, "largest": total.max(), "none": None}


def twice(x):
    return 2 * x


def uses_twice(comm):
    return twice(comm.rank)


def stub(comm):
    raise NotImplementedError("Lab 4, exercise 9: write it")


def index_error(comm):
    values = np.arange(3)
    if comm.rank == 1:
        return int(values[7])
    comm.Barrier()


def join_and_stay(comm):
    import atexit

    import torch
    import torch.distributed as dist

    from hvdlab.torch.process_group import rendezvous

    rendezvous()
    dist.init_process_group("gloo")
    atexit.register(lambda: print("still a member:", dist.is_initialized()))
    total = torch.ones(1)
    dist.all_reduce(total)
    return float(total)


def wait_for_each_other(comm):
    if comm.rank < 2:
        comm.Recv(np.empty(1), source=1 - comm.rank)


def unknown_result(comm):
    return {1, 2}


OUTSIDE = 3


def uses_outside(comm):
    return OUTSIDE + comm.rank


@pytest.mark.mpi
def test_call_returns_what_each_rank_returns(capfd):
    results = call(add_up, np.array([1, 2]), 10, ranks=3)
    assert results == [
        {"rank": rank, "total": [60.0, 120.0], "largest": 120.0, "none": None} for rank in range(3)
    ]
    assert sorted(capfd.readouterr().out.splitlines()) == [f"rank {r} prints" for r in range(3)]


@pytest.mark.mpi
def test_call_takes_a_function_inside_another_and_those_that_it_uses():
    def thrice(comm, x):
        return 3 * x + comm.size

    assert call(thrice, 5, ranks=1) == [16]
    assert call(uses_twice, ranks=2, uses=(twice,)) == [0, 2]


@pytest.mark.mpi
@pytest.mark.parametrize(("function", "name"), [(uses_outside, "OUTSIDE"), (uses_twice, "twice")])
def test_a_name_that_the_ranks_do_not_have_is_one_sentence(function, name):
    with pytest.raises(LaunchError) as caught:
        call(function, ranks=2)
    assert str(caught.value) in [
        f"{function.__name__} on rank {rank}: the name {name!r} is not defined. A function that "
        "runs on the ranks can only use np, MPI, and what it imports or defines inside itself: a "
        "decorator or an annotation is outside. launch.call passes other functions with uses=."
        for rank in (0, 1)
    ]


@pytest.mark.mpi
def test_ranks_leave_the_group_that_a_function_joined(capfd):
    pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
    assert call(join_and_stay) == [2, 2]
    assert capfd.readouterr().out.count("still a member: False") == 2


@pytest.mark.mpi
def test_an_error_on_one_rank_ends_all_and_names_rank_and_line():
    with pytest.raises(LaunchError) as caught:
        call(index_error, ranks=2, timeout=60)
    assert str(caught.value).startswith(
        "index_error failed on rank 1 of 2, in `return int(values[7])`: IndexError: "
    )
    with pytest.raises(LaunchError, match="TypeError: a set cannot be sent"):
        call(unknown_result, ranks=1)
    with pytest.raises(NotImplementedError, match="Lab 4, exercise 9: write it"):
        call(stub, ranks=2)


def numbers(comm):  # as a module that NumPy imports is called
    return comm.rank


def ends(comm):
    raise SystemExit


@pytest.mark.mpi
def test_a_function_may_be_called_as_a_module_is_and_must_return():
    assert call(numbers, ranks=2) == [0, 1]
    with pytest.raises(LaunchError, match="^ends ended rank 0 instead of returning .sys.exit"):
        call(ends, ranks=2)


@pytest.mark.mpi
def test_ranks_that_wait_for_each_other_are_ended_and_told_where_they_are():
    with pytest.raises(TimeUp) as caught:
        call(wait_for_each_other, ranks=3, timeout=8)
    line = "`comm.Recv(np.empty(1), source=1 - comm.rank)`"
    assert str(caught.value) == (
        "wait_for_each_other on 3 ranks did not end within 8 s: "
        f"rank 0 is in {line}; rank 1 is in {line}; rank 2 is done."
    )


def imports_slowly(comm):
    import slow_module  # noqa: F401


@pytest.mark.mpi
def test_ranks_that_still_import_are_not_said_to_wait_for_each_other(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TimeUp, match="rank 1 did not start: it is still in `import slow_module"):
        call(imports_slowly, ranks=2, timeout=8)


def answers_and_lingers(comm):
    import atexit
    import time

    atexit.register(time.sleep, 60)
    return comm.rank


@pytest.mark.mpi
def test_ranks_that_have_answered_and_do_not_end_have_answered():
    assert call(answers_and_lingers, ranks=2, timeout=8) == [0, 1]


@pytest.mark.parametrize("function", [lambda comm: 1, len])
def test_a_function_without_a_source_is_one_sentence(function):
    with pytest.raises(LaunchError, match="has no source code that could be sent to the ranks"):
        call(function)


@pytest.mark.mpi
def test_call_takes_a_function_of_a_notebook_cell(tmp_path):
    """IPython keeps the source of a cell; `inspect` finds it there."""
    pytest.importorskip("IPython")
    cell = "from hvdlab.launch import call\ndef f(comm):\n    return comm.rank\nprint(call(f))"
    program = (
        f"from IPython.core.interactiveshell import InteractiveShell as S\nS().run_cell({cell!r})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "[0, 1]" in answer.stdout, answer.stdout + answer.stderr
