"""Assigning cores and GPUs to workers, so that no two workers share a core or GPU."""

import os
from pathlib import Path

import pytest

from hvdgrade.batch import core_allocation
from hvdgrade.batch.arguments import Refused
from hvdlab.system import hardware


def nvidia_smi(folder: Path, monkeypatch, text: str) -> None:
    """A program of that name that lists these GPUs, in place of the driver's."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def machine(monkeypatch, threads, cores, quota=0.0):
    """Let this machine have so many threads and no GPUs, whatever it has."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(threads)))
    monkeypatch.setattr(core_allocation, "physical_cores", lambda: cores(range(threads)))
    monkeypatch.setattr(hardware, "cpu_quota", lambda: quota)


def test_no_two_workers_share_a_core_or_gpu(monkeypatch, tmp_path):
    machine(monkeypatch, 9, lambda all: [[core] for core in all])
    listed = "\n".join(f"GPU {i}: NVIDIA H100 (UUID: GPU-{i}f)" for i in range(4))
    nvidia_smi(tmp_path, monkeypatch, listed)
    for ranks, workers in ((2, 2), (1, 3), (4, 1), (2, None)):
        parts = core_allocation.worker_slots(ranks, workers, oversubscribe=False)
        assert len(parts) == (workers or 2)  # 4 GPUs for 2 ranks each
        for kind in (0, 1):
            used = [thing for part in parts for thing in part[kind]]
            assert len(used) == len(set(used))
        assert all(len(cores) >= ranks and len(gpus) >= ranks for cores, gpus in parts)
    with pytest.raises(
        Refused,
        match="need 10 hardware threads.* 9 usable threads on 9 cores: choose at most 4 ",
    ):
        core_allocation.worker_slots(2, 5, oversubscribe=False)
    with pytest.raises(Refused, match="need 8 GPUs, but there are 4: choose at most 2 "):
        core_allocation.worker_slots(2, 4, oversubscribe=False)
    assert len(core_allocation.worker_slots(2, 5, oversubscribe=True)) == 5
    parts = core_allocation.worker_slots(2, None, oversubscribe=False, on_gpus=False)
    assert len(parts) == 4 and {gpus for _, gpus in parts} == {None}
    few = core_allocation.worker_slots(4, None, oversubscribe=False)  # eight ranks would need eight
    assert [gpus for _, gpus in few] == [["GPU-0f", "GPU-1f", "GPU-2f", "GPU-3f"]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert {gpus for _, gpus in core_allocation.worker_slots(1, None, oversubscribe=False)} == {
        None
    }


def test_workers_divide_the_slices_of_a_gpu(monkeypatch, tmp_path):
    """By number each worker would get slice 0, as the numbers count whole GPUs."""
    machine(monkeypatch, 8, lambda all: [[core] for core in all])
    listed = """GPU 0: NVIDIA A100 (UUID: GPU-a)
  MIG 3g.20gb Device 0: (UUID: MIG-b)
  MIG 3g.20gb Device 1: (UUID: MIG-c)
GPU 1: NVIDIA A100 (UUID: GPU-d)"""
    nvidia_smi(tmp_path, monkeypatch, listed)
    parts = core_allocation.worker_slots(1, None, oversubscribe=False)
    assert [gpus for _, gpus in parts] == [["MIG-b"], ["MIG-c"], ["GPU-d"]]


@pytest.mark.parametrize("threads", (12, 10, 6, 20, 16))
def test_workers_of_any_size_share_no_physical_core(monkeypatch, threads):
    half = threads // 2
    machine(monkeypatch, threads, lambda all: [[core, core + half] for core in range(half)])
    for ranks in range(1, threads + 1):
        most = len(core_allocation.worker_slots(ranks, None, oversubscribe=False))
        assert most == max(1, threads // 2 // -(-ranks // 2))
        for workers in range(1, most + 1):
            parts = core_allocation.worker_slots(ranks, workers, oversubscribe=False)
            used = [
                core for part, _ in parts for core in {thread % (threads // 2) for thread in part}
            ]
            assert len(used) == len(set(used)) and all(len(part) >= ranks for part, _ in parts)


def test_a_quota_of_a_container_counts_as_its_cores_do(monkeypatch):
    machine(monkeypatch, 64, lambda all: [[core] for core in all], quota=4.0)
    assert len(core_allocation.worker_slots(2, None, oversubscribe=False)) == 2
    with pytest.raises(Refused, match="has 4 usable threads on 64 cores: choose at most 2 "):
        core_allocation.worker_slots(2, 3, oversubscribe=False)
