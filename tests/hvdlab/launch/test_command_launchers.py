"""`hvdlab run --launcher`: real ranks of each launcher find each other, and end as those of mpirun do."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from lasting_ranks import SAVE, STAY, STAYS_IN_LINE, end_when_told, gone, told, wait_until_told

from hvdlab.launch import command as run_command
from hvdlab.launch.plan import plan

pytest.importorskip("torch")
pytestmark = pytest.mark.mpi

ALL_REDUCE = """\
import os, sys
import torch
import torch.distributed as dist
from hvdlab.torch.process_group import rendezvous

rendezvous()
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(total.item(), dist.get_world_size(), os.environ["LOCAL_RANK"], os.environ["OMP_NUM_THREADS"])
if dist.get_rank() == 1 and sys.argv[1:] == ["raise"]:
    raise ValueError("the learning rate is negative")
dist.all_reduce(total)  # in which the other rank loses this one
dist.destroy_process_group()
"""
ONE_ENDS = """\
import os, sys, time
if "0" in map(os.environ.get, ("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID")):
    time.sleep(1000)  # longer than a test waits: the launcher must end it
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
sys.exit(3)
"""
SRUN = pytest.param("srun", marks=pytest.mark.slurm)


@pytest.fixture(scope="module")
def allocation(slurm_cluster):
    """The variables of an allocation of two tasks."""
    answer = subprocess.run(
        ["salloc", "--no-shell", "--ntasks=2"],
        env={**os.environ, **slurm_cluster.environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    job = answer.stderr.split()[-1]
    assert job.isdecimal(), answer.stderr
    node = slurm_cluster.run("squeue", "--noheader", "--format=%N", f"--job={job}").strip()
    given = {"SLURM_JOB_ID": job, "SLURM_TASKS_PER_NODE": "2", "SLURM_JOB_NODELIST": node}
    yield {**slurm_cluster.environment, **given}
    slurm_cluster.run("scancel", job)


@pytest.fixture
def command(request, tmp_path):
    """A function: the words and the environment that run a script's text on two ranks."""

    def words(launcher, text, *arguments, ranks=2):
        given = request.getfixturevalue("allocation") if launcher == "srun" else {}
        script = tmp_path / "train.py"
        script.write_text(text)
        start = [sys.executable, "-m", "hvdlab.cli", "run", "-np", ranks, "--launcher", launcher]
        folder = tmp_path / "tmp"  # of which a launcher shall leave nothing
        folder.mkdir(exist_ok=True)
        environment = {**os.environ, **given, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
        return [str(word) for word in (*start, script, *arguments)], environment

    return words


def answer(command, *arguments, **options) -> subprocess.CompletedProcess:
    words, environment = command(*arguments, **options)
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", SRUN])
def test_ranks_find_each_other(command, launcher, tmp_path):
    ran = answer(command, launcher, ALL_REDUCE)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(ran.stdout.splitlines()) == ["[0] 3.0 2 0 1", "[1] 3.0 2 1 1"]
    assert not [path.name for path in (tmp_path / "tmp").iterdir() if "torch" in path.name]


@pytest.mark.parametrize("launcher", ["torchrun", SRUN])  # mpirun: test_command.py
def test_the_rank_that_failed_first_is_shown_and_no_consequence(command, launcher):
    ran = answer(command, launcher, ALL_REDUCE, "raise")
    assert ran.returncode == 1
    assert "[1] Traceback (most recent call last):" in ran.stderr
    assert "[0]" not in ran.stderr and "by peer" not in ran.stderr
    assert ran.stderr.splitlines()[-1] == (
        "hvdlab run: rank 1 of 2 failed first: ValueError: the learning rate is negative."
    )


@pytest.mark.parametrize(
    ("launcher", "how"),
    [
        ("mpirun", "exits"),
        ("mpirun", "killed"),
        ("torchrun", "exits"),
        pytest.param("torchrun", "killed", marks=pytest.mark.thorough),
        pytest.param("srun", "exits", marks=pytest.mark.slurm),
        pytest.param("srun", "killed", marks=[pytest.mark.slurm, pytest.mark.thorough]),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_ended_first(command, launcher, how):
    code, sentence = {
        "exits": (3, "rank 1 of 2 ended first, with exit code 3."),
        "killed": (128 + 9, "rank 1 of 2 was ended by signal 9 (Killed) on "),
    }[how]
    ran = answer(command, launcher, ONE_ENDS, how)
    assert ran.returncode == code
    assert ran.stderr.startswith(f"hvdlab run: {sentence}") and ran.stderr.count("\n") == 1


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun", SRUN])
def test_the_time_limit_ends_all_ranks_and_says_where_they_were(
    command, launcher, tmp_path, monkeypatch
):
    _, environment = command(launcher, STAY)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # The time is up when both ranks have begun, however busy the machine is.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * (len(told(tmp_path)) == 4))
    monkeypatch.setattr(run_command, "time", clock)
    planned = plan(2, tmp_path / "train.py", str(tmp_path), launcher=launcher)
    assert run_command.follow(planned, "train.py", 500) == (
        "train.py on 2 ranks did not end within 500 s; "
        f"rank 0 was in line {STAYS_IN_LINE}; rank 1 was in line {STAYS_IN_LINE}",
        124,
    )
    assert len(told(tmp_path)) == 4 and gone(told(tmp_path))


@pytest.mark.parametrize("launcher", ["torchrun", SRUN])
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_an_interrupt_leaves_nothing_behind(command, launcher, times, tmp_path):
    words, environment = command(launcher, STAY, tmp_path)
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_told(tmp_path, process)
        process.send_signal(signal.SIGINT)
        if times == 2:
            time.sleep(0.2)  # else the kernel makes one of two
            process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert error == "hvdlab run: train.py on 2 ranks was ended by SIGINT.\n"
    assert gone(told(tmp_path))
    assert not [path.name for path in (tmp_path / "tmp").iterdir() if "run" in path.name]


@pytest.mark.parametrize("launcher", ["torchrun", SRUN])
def test_a_rank_that_is_asked_to_end_may_save_its_work(command, launcher, tmp_path):
    words, environment = command(launcher, SAVE, tmp_path, ranks=1)
    assert end_when_told(words, signal.SIGTERM, tmp_path, **environment) == 128 + signal.SIGTERM
    assert (tmp_path / "saved").read_text() == "all that was learnt"


@pytest.mark.slurm
def test_srun_is_refused_where_each_rank_would_be_alone(command):
    """Debian 12's Slurm lists PMIx, and cannot load it."""
    ran = answer(command, "srun", "from mpi4py import MPI\n")
    assert ran.returncode == 2 and ran.stdout == ""
    (sentence,) = ran.stderr.splitlines()
    assert " uses mpi4py, whose ranks srun can only start if Slurm has PMIx, " in sentence
    assert sentence.endswith(" Leave out `--launcher srun`: mpirun uses the same nodes.")
