"""The launch line and its environment, and that mpirun does what they say."""

import json
import os
import subprocess

import pytest

from hvdlab import hardware, launch

TELL = """\
import json, os
print(json.dumps([os.environ["OMPI_COMM_WORLD_RANK"], len(os.sched_getaffinity(0)),
                  os.environ["OMP_NUM_THREADS"]]))
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, hardware.usable_cores() + 1])
def test_ranks_start_and_may_run_on_every_core(ranks, tmp_path):
    script = tmp_path / "tell.py"
    script.write_text(TELL)
    answer = subprocess.run(
        launch.command(ranks, script),
        env={**os.environ, **launch.environment(ranks)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    told = sorted(json.loads(line) for line in answer.stdout.splitlines())
    assert [rank for rank, _, _ in told] == sorted(str(rank) for rank in range(ranks))
    assert {cores for _, cores, _ in told} == {hardware.usable_cores()}
    assert {threads for _, _, threads in told} == {str(max(1, hardware.usable_cores() // ranks))}


def test_arguments_follow_the_script():
    assert launch.command(4, "train.py", "--lr", "0.1") == [
        "mpirun", "-np", "4", "python", "train.py", "--lr", "0.1",
    ]  # fmt: skip


def test_processor_flags_are_those_of_the_kernel(monkeypatch):
    known = {"amx_bf16", "avx512_bf16"}
    assert hardware.cpu_has_bfloat16() == bool(known & hardware.cpu_flags())
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"avx2", "avx512f"}))
    assert not hardware.cpu_has_bfloat16()
    monkeypatch.setattr(hardware, "cpu_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert hardware.cpu_has_bfloat16()
