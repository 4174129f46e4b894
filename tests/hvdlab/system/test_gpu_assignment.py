"""Which GPU each rank gets, in every situation that a launcher makes; and which GPUs a process may use."""

import doctest

import pytest

from hvdlab.system import gpu_assignment, hardware
from hvdlab.system.gpu_assignment import assign, obstacle

NCCL = 22907  # 2.29.7
A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"
SLICE_1, SLICE_2 = "MIG-1", "MIG-2"

# What the ranks see; the GPU of each; ranks on it; what keeps NCCL from connecting them.
SITUATIONS = {
    "one rank, one GPU": ([[A]], [A], [1], ""),
    "one rank, no GPU": ([[]], [None], [0], "1 of 1 ranks see no GPU"),
    "one rank, two GPUs": ([[A, B]], [A], [1], ""),
    "one rank, a slice": ([[SLICE_1]], [SLICE_1], [1], ""),
    "mpirun, all GPUs visible": ([[A, B], [A, B]], [A, B], [1, 1], ""),
    "mpirun, more GPUs than ranks": ([[A, B, C]] * 2, [A, B], [1, 1], ""),
    "Slurm, one GPU shown to each rank": ([[A], [B], [C]], [A, B, C], [1, 1, 1], ""),
    "each rank begins with its own": ([[A, B], [B, A]], [A, B], [1, 1], ""),
    "each rank begins with another's": ([[B, A], [A, B]], [B, A], [1, 1], ""),
    "one GPU, two ranks": ([[A], [A]], [A, A], [2, 2], "2 ranks share 1 GPU"),
    "two GPUs, three ranks": ([[A, B]] * 3, [A, B, A], [2, 1, 2], "3 ranks share 2 GPUs"),
    "two hosts": ([[A, B], [A, B], [C, D], [C, D]], [A, B, C, D], [1] * 4, ""),
    "two hosts, ranks placed in turn": ([[A, B], [C, D]] * 2, [A, C, B, D], [1] * 4, ""),
    "two hosts, one without GPUs": (
        [[A], [], [A]], [A, None, A], [2, 0, 2], "1 of 3 ranks see no GPU"
    ),
    "no GPU at all": ([[], []], [None, None], [0, 0], "2 of 2 ranks see no GPU"),
    "two slices, two ranks": (
        [[SLICE_1, SLICE_2]] * 2, [SLICE_1, SLICE_2], [1, 1], "NCCL does not connect MIG slices"
    ),
    "one slice shown to each rank": (
        [[SLICE_1], [SLICE_2]], [SLICE_1, SLICE_2], [1, 1], "NCCL does not connect MIG slices"
    ),
    "one slice, two ranks": ([[SLICE_1]] * 2, [SLICE_1] * 2, [2, 2], "2 ranks share 1 GPU"),
}  # fmt: skip


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_rank_gets_the_least_used_gpu_that_it_sees(situation, monkeypatch):
    monkeypatch.delenv(gpu_assignment.MANY_RANKS, raising=False)
    visible, gpus, ranks, why = SITUATIONS[situation]
    found = assign(visible)
    assert [
        None if a.index is None else v[a.index] for a, v in zip(found, visible, strict=True)
    ] == gpus
    assert [assignment.ranks for assignment in found] == ranks
    assert obstacle(visible, NCCL) == why


def test_a_build_without_nccl_connects_no_gpus():
    assert obstacle([[A], [B]], nccl=0) == obstacle([[A]], nccl=0) == "this build has no NCCL"


@pytest.mark.parametrize(
    ("nccl", "value", "why"),
    [(23000, "1", ""), (23000, "0", "share"), (23000, None, "share"), (NCCL, "1", "share")],
)
def test_nccl_connects_ranks_that_share_a_gpu_where_it_can_and_is_told_to(
    nccl, value, why, monkeypatch
):
    monkeypatch.delenv(gpu_assignment.MANY_RANKS, raising=False)
    if value:
        monkeypatch.setenv(gpu_assignment.MANY_RANKS, value)
    assert (why in obstacle([[A], [A]], nccl)) and (not why) == (not obstacle([[A], [A]], nccl))


def test_the_examples_of_the_docstrings_are_true(monkeypatch):
    monkeypatch.delenv(gpu_assignment.MANY_RANKS, raising=False)
    failed, tried = doctest.testmod(gpu_assignment)
    assert (failed, tried) == (0, 3)


# --- what a process may use -------------------------------------------------------------------------

WHOLE = (
    "GPU 0: NVIDIA H100 PCIe (UUID: GPU-aa11)",
    "GPU 1: NVIDIA H100 PCIe (UUID: GPU-ab22)",
)
SLICED = (
    "GPU 0: NVIDIA A100 (UUID: GPU-aa11)",
    "  MIG 3g.20gb     Device  0: (UUID: MIG-m1)",
    "  MIG 3g.20gb     Device  1: (UUID: MIG-m2)",
    "GPU 1: NVIDIA A100 (UUID: GPU-ab22)",
)


@pytest.mark.parametrize(
    ("lines", "visible", "found"),
    [
        (WHOLE, None, ["GPU-aa11", "GPU-ab22"]),
        (WHOLE, "0,1", ["GPU-aa11", "GPU-ab22"]),
        (WHOLE, "1,0", ["GPU-ab22", "GPU-aa11"]),
        (WHOLE, " 1 ", ["GPU-ab22"]),
        (WHOLE, "", []),
        (WHOLE, "-1", []),
        (WHOLE, "NoDevFiles", []),  # as some launchers write
        (WHOLE, "1,-1,0", ["GPU-ab22"]),
        (WHOLE, "0,2,1", ["GPU-aa11"]),  # there is no GPU 2
        (WHOLE, "GPU-ab22,GPU-aa11", ["GPU-ab22", "GPU-aa11"]),
        (WHOLE, "GPU-ab", ["GPU-ab22"]),  # the beginning is enough
        (WHOLE, "GPU-cc33", []),
        (WHOLE, "0,GPU-aa11", ["GPU-aa11"]),
        (SLICED, None, ["MIG-m1", "MIG-m2", "GPU-ab22"]),
        (SLICED, "MIG-m2", ["MIG-m2"]),
        (SLICED, "GPU-aa11", ["MIG-m1", "MIG-m2"]),
        (SLICED, "1", ["GPU-ab22"]),
        ((), None, []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(
    lines, visible, found, fake_nvidia_smi, monkeypatch
):
    fake_nvidia_smi(*lines)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert hardware.visible_gpus() == found
    assert hardware.gpus() == len(found)


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert hardware.visible_gpus() == []
