"""Ranks that all-reduce on GPUs, as the doctor starts them: recorded answers, and real GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_cases import with_gpus

from hvdlab.doctor.answers import ProgramOutput
from hvdlab.doctor.checks import allreduce, frameworks
from hvdlab.doctor.two_rank_script import PLACES
from hvdlab.system import open_mpi

ROOT = Path(__file__).parents[3]


def ranks_said(count, *, direct, sharing, device="cuda:0", nccl="", code=0):
    """What `count` ranks of two_rank_script.py print."""
    total = [count * (count + 1) / 2 * place for place in PLACES]
    told = [{"stage": "joined", "size": count}]
    told += [{"stage": "placed", "device": device, "direct": direct, "sharing": sharing}]
    told += [{"stage": "summed", "sums": total}]
    lines = [json.dumps({"process": rank, **line}) for rank in range(count) for line in told]
    return ProgramOutput(code, "\n".join([nccl, *lines]), "")


VERSION = "host:1:1 [0] NCCL INFO NCCL version 2.29.7+cuda13.0"


@pytest.mark.parametrize(
    "count, nccl, runs, seen",
    [
        # GPUs, whether Horovod has NCCL, what the ranks of each start say, what the doctor says
        (4, True, [(2, True, 1)], ["2 ranks on a GPU each: Horovod all-reduces on GPUs with NCCL 2.29.7"]),
        (
            *(1, True, [(1, True, 1), (2, False, 2)]),
            ["1 rank on one GPU: Horovod all-reduces on GPUs with NCCL 2.29.7",
             "2 ranks on one GPU: Horovod all-reduces through host memory"],
        ),
        (1, False, [(2, False, 2)], ["2 ranks on one GPU: Horovod all-reduces through host memory"]),
        (2, False, [(2, False, 1)], ["2 ranks on a GPU each: Horovod all-reduces through host memory"]),
    ],
)  # fmt: skip
def test_ranks_prove_how_gpus_all_reduce(count, nccl, runs, seen, monkeypatch):
    monkeypatch.setattr(open_mpi, "mpirun", lambda: sys.executable)
    started = []

    def ask(commands, limit, removed=(), **variables):
        ranks, direct, sharing = runs[len(started)]
        started.append(commands["ranks"])
        assert commands["ranks"][:3] == ["mpirun", "-np", str(ranks)]
        assert commands["ranks"][-2:] == ["torch", "gpu"] and limit == 30
        version = VERSION if direct else ""
        return {"ranks": ranks_said(ranks, direct=direct, sharing=sharing, nccl=version)}

    monkeypatch.setattr(allreduce, "ask", ask)
    answer = allreduce.allreduce_on_gpus(with_gpus(count, torch={"horovod": {"nccl": nccl}}), 30)
    assert answer.state == "ok" and len(started) == len(runs)
    for words in seen:
        assert words in answer.seen
    assert ("with NCCL" in answer.seen) == nccl


@pytest.mark.parametrize(
    "run, state, seen",
    [
        (ranks_said(2, direct=True, sharing=1), "warning", "so it may not have been used"),
        (ranks_said(2, direct=False, sharing=0, device="cpu"), "warning", "the processor"),
        (ranks_said(2, direct=True, sharing=1, code=1), "failure", "exit code 1"),
        (
            ProgramOutput(1, "", "RuntimeError: CUDA-capable device(s) is/are busy or unavailable"),
            "failure",
            "compute mode Exclusive_Process",
        ),
        (ProgramOutput(None, '{"process": 1, "stage": "placed"}', "", "did not end within 30 s"), "failure",
         "did not end within 30 s, with 1 of 2 ranks started, in the all-reduce on the GPU"),
    ],
)  # fmt: skip
def test_what_ranks_on_gpus_do_not_prove_is_not_said(run, state, seen, monkeypatch):
    monkeypatch.setattr(open_mpi, "mpirun", lambda: sys.executable)
    monkeypatch.setattr(allreduce, "ask", lambda *_, **variables: {"ranks": run})
    answer = allreduce.allreduce_on_gpus(with_gpus(2, torch={}), 30)
    assert answer.state == state and seen in answer.seen and answer.fix
    assert "all-reduces on GPUs with NCCL" not in answer.seen


def test_the_first_proof_hides_gpus_from_tensorflow(monkeypatch):
    """TensorFlow would put the tensors of both ranks on the first GPU, which NCCL refuses."""
    monkeypatch.setattr(open_mpi, "mpirun", lambda: sys.executable)
    given = {}

    def ask(commands, limit, removed=(), **variables):
        given.update(variables)
        return {"ranks": ranks_said(2, direct=False, sharing=0)}

    monkeypatch.setattr(allreduce, "ask", ask)
    assert allreduce.allreduce(with_gpus(2, tensorflow={}), 30).state == "ok"
    assert given["CUDA_VISIBLE_DEVICES"] == "-1"


@pytest.mark.mpi
@pytest.mark.parametrize(
    "framework",
    [
        pytest.param(name, marks=pytest.mark.thorough if name == "tensorflow" else ())
        for name in frameworks.NAMES
    ],
)
def test_the_script_of_the_proof_runs_on_any_device(framework):
    """On the processor too: it says which device it had, and the doctor that this proves nothing of GPUs."""
    pytest.importorskip(framework)
    if framework == "torch" and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("the test with the marker gpu covers this")
    answer = allreduce.allreduce_on_gpus(
        with_gpus(1, **{framework: {"horovod": {"nccl": False}}}), 100
    )
    assert answer.state == "warning" and "chose the processor" in answer.seen, answer


NVIDIA_SMI = """\
#!/bin/sh
case "$*" in
    "--list-gpus") echo "GPU 0: NVIDIA A100 (UUID: GPU-1)";;
    "--query-gpu=name,memory.total,driver_version,compute_mode --format=csv,noheader")
        echo "NVIDIA A100, 40960 MiB, 550.54, Default";;
    *) exit 2;;
esac
"""


@pytest.mark.mpi
@pytest.mark.thorough
def test_the_doctor_asks_the_nvidia_smi_on_path(tmp_path):
    """The labs run on a machine whose GPU torch cannot use, and the launch line is the usual one."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("needs a torch for the processor only")
    (tmp_path / "nvidia-smi").write_text(NVIDIA_SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    found = examine(PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    assert found["gpus"]["state"] == "warning"
    assert found["gpus"]["seen"].startswith(
        "1: NVIDIA A100, 40960 MiB, driver 550.54; torch is built"
    )
    assert found["allreduce"]["state"] == found["allreduce_gpus"]["state"] == "ok"
    assert "not tried" in found["allreduce_gpus"]["seen"]


def examine(**variables) -> dict:
    """What the doctor finds here, by the id of the check."""
    answer = subprocess.run(
        [sys.executable, "-m", "hvdlab.doctor", "--json", "--timeout", "200"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "labs"), **variables},
        capture_output=True,
        text=True,
        timeout=500,
    )
    return {check["id"]: check for check in json.loads(answer.stdout)["checks"]}


@pytest.mark.gpu
@pytest.mark.mpi
def test_the_doctor_proves_gpus_where_there_are_some():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    hvd = pytest.importorskip("horovod.torch")
    found = examine()
    assert torch.cuda.get_device_name(0) in found["gpus"]["seen"]
    proof = found["allreduce_gpus"]
    assert proof["state"] == "ok" and "rank on" in proof["seen"].replace("ranks", "rank"), proof
    assert ("on GPUs with NCCL" in proof["seen"]) == bool(hvd.nccl_built())
