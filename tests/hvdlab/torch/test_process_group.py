"""Ranks find each other under mpirun, torchrun and srun, and a single process forms a group of one."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.torch.process_group import rendezvous

pytest.importorskip("torch")

SCRIPT = Path(__file__).parent / "ranks" / "rendezvous.py"
NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_NODELIST": "node[7-9]",
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}


@pytest.fixture
def bare(monkeypatch):
    """An environment without a launcher, which `rendezvous` may change."""
    for name in list(os.environ):
        if name in NAMES or name.startswith(("SLURM_", "OMPI_COMM_")):
            monkeypatch.delenv(name)
    for name in NAMES:  # deleted again at the end, whichever function set it
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def lines(output):
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda each: int(each["RANK"]))


def check(found, ranks):
    assert len(found) == ranks, found
    for rank, each in enumerate(found):
        assert each["RANK"] == each["LOCAL_RANK"] == str(rank)
        assert each["WORLD_SIZE"] == each["LOCAL_WORLD_SIZE"] == str(ranks)
        assert each["total"] == sum(range(1, ranks + 1))
    assert len({each["MASTER_PORT"] for each in found}) == 1


@pytest.mark.mpi
def test_under_mpirun(run_ranks):
    code, output = run_ranks("rendezvous.py", np=3)
    assert code == 0, output
    check(lines(output), 3)
    assert {each["MASTER_ADDR"] for each in lines(output)} == {"127.0.0.1"}


@pytest.mark.slow
def test_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, SCRIPT], capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(lines(done.stdout), 2)


def test_alone(bare):
    rendezvous()
    found = {name: os.environ[name] for name in NAMES}
    assert found.pop("MASTER_ADDR") == "127.0.0.1"
    assert 1024 <= int(found.pop("MASTER_PORT")) < 65536
    assert found == {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.slurm
@pytest.mark.slow
def test_under_srun(slurm_cluster):
    done = subprocess.run(
        ["srun", "--ntasks=2", "--overcommit", "--time=2", sys.executable, SCRIPT],
        env={**os.environ, **slurm_cluster.environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    check(lines(done.stdout), 2)
    assert {int(each["MASTER_PORT"]) for each in lines(done.stdout)} < set(range(20_000, 30_000))


SITUATIONS = {  # what ranks 0 and 1 see; device, ranks on it and backend of each: sharing, and not
    "a GPU each": (("GPU-a,GPU-b",) * 2, [["cuda:0", 1, "nccl"]] * 2, [["cuda:1", 1, "nccl"]] * 2),
    "one is shown": (("GPU-a", "GPU-b"), [["cuda:0", 1, "nccl"]] * 2, [["cuda:0", 1, "nccl"]] * 2),
    "one is shared": (("GPU-a",) * 2, *([["cuda:0", 2, "gloo"], ["cpu", 0, "gloo"]],) * 2),
}


QUICK = {("mpirun", "one is shared"), ("torchrun", "a GPU each")}


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("launcher", "situation"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough)
        for case in itertools.product(["mpirun", "torchrun"], SITUATIONS)
    ],
)
def test_ranks_compare_their_gpus_and_meet_afterwards(launcher, situation, run_ranks):
    visible, *chosen = SITUATIONS[situation]
    if launcher == "mpirun":
        code, output = run_ranks("group_device.py", arguments=visible)
    else:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
        ]
        done = subprocess.run(
            [*command, SCRIPT.with_name("group_device.py"), *visible], capture_output=True, text=True,
            timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        code, output = done.returncode, done.stdout + done.stderr
    assert code == 0, output[-4000:]
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    found.sort(key=lambda each: each["rank"])
    assert [each["chosen"] for each in found] == chosen
    assert all(each["total"] == 3 and each["everyone"] == [0, 1] for each in found)
    assert output.count("2 ranks share 1 GPU, so the ranks") == (2 if "shared" in situation else 0)


def scontrol(monkeypatch, tmp_path, *words):
    """Put a `scontrol` first in the PATH that runs these words."""
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\n" + " ".join(words) + "\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


@pytest.mark.parametrize(("tasks", "here"), [("2(x3)", "2"), ("1,3,2", "2"), ("1(x2),4", "4")])
def test_the_words_of_srun(bare, tmp_path, tasks, here):
    scontrol(bare, tmp_path, "printf 'node7\\nnode8\\nnode9\\n'")
    for name, value in {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}.items():
        bare.setenv(name, value)
    rendezvous()
    assert {name: os.environ[name] for name in NAMES} == {
        "RANK": "5",
        "WORLD_SIZE": "6",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": here,
        "MASTER_ADDR": "node7",
        "MASTER_PORT": str(20_000 + (41 * 31 + 2) % 10_000),
    }


def test_two_steps_of_a_job_take_different_ports(bare, tmp_path):
    scontrol(bare, tmp_path, "echo node7")
    ports = set()
    for step in range(8):
        for name, value in {**SLURM, "SLURM_STEP_ID": str(step)}.items():
            bare.setenv(name, value)
        for name in NAMES:
            bare.delenv(name, raising=False)
        rendezvous()
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) == 8


def test_a_host_list_that_nobody_can_read_is_named(bare, tmp_path):
    scontrol(bare, tmp_path, "exit 3")
    for name, value in SLURM.items():
        bare.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"srun's host list 'node\[7-9\]' .* set MASTER_ADDR"):
        rendezvous()


def test_what_is_set_already_stays(bare):
    mine = dict.fromkeys(NAMES, "12")
    for name, value in {**SLURM, **mine}.items():
        bare.setenv(name, value)
    rendezvous()
    assert {name: os.environ[name] for name in NAMES} == mine
    bare.delenv("RANK")  # one of them missing: only that one is filled in
    for name in SLURM:
        bare.delenv(name)
    rendezvous()
    assert {name: os.environ[name] for name in NAMES} == {**mine, "RANK": "0"}


def test_what_is_set_by_hand_is_completed_or_refused(bare):
    by_hand = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    for name, value in by_hand.items():
        bare.setenv(name, value)
    rendezvous()
    here = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    assert {name: os.environ[name] for name in NAMES} == {**by_hand, **here}
    bare.setenv("WORLD_SIZE", "2")
    bare.delenv("LOCAL_WORLD_SIZE")
    with pytest.raises(RuntimeError, match="are set, but not LOCAL_WORLD_SIZE: set LOCAL_RANK to"):
        rendezvous()


LEAVES = """
import atexit
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from hvdlab.torch.process_group import rendezvous

def main():
    rendezvous()
    dist.init_process_group("gloo")
    network = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    print(threads())
    dist.destroy_process_group()

def threads():
    return sum("gloo" in path.read_text() for path in Path("/proc/self/task").glob("*/comm"))

atexit.register(lambda: print(threads()))  # after what `rendezvous` does there
main()
"""


@pytest.mark.slow
def test_no_thread_of_gloo_outlives_the_group(bare):
    """One that meets the end of Python aborts the rank: "terminate called without an active exception"."""
    command = [sys.executable, "-c", LEAVES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    before, after = map(int, done.stdout.split())
    assert before > 0
    assert after == 0


def test_a_recorded_script_ends_that_destroys_the_group_before_it_frees_the_network(tmp_path):
    """Without the Recorder it hangs."""
    script = SCRIPT.with_name("busy_end.py")
    done = subprocess.run(
        [sys.executable, script, "--record"],
        env={**os.environ, "HVDLAB_RUN_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
