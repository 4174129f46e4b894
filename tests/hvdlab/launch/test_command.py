"""`hvdlab run` with real ranks: what they print, and how they end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from lasting_ranks import SAVE, STAY, end_when_told, gone, told, wait_until_told

from hvdlab import cli
from hvdlab.system import hardware

TELL = """\
import json, os, sys
names = ["OMP_NUM_THREADS", "HOROVOD_STALL_CHECK_TIME_SECONDS", "OMPI_MCA_mpi_yield_when_idle"]
print(json.dumps([os.environ.get(name) for name in names] + sys.argv[1:]))
print("a word of rank", os.environ["OMPI_COMM_WORLD_RANK"], file=sys.stderr)
"""
# One rank leaves the training of the two in a way of its own.
TRAIN = """\
import sys, time
import torch
import horovod.torch as hvd

hvd.init()
for step in range(4):
    if hvd.rank() == 1 and step == 2:
        if sys.argv[1] == "raise":
            raise ValueError("the learning rate is negative")
        if sys.argv[1] == "wait":
            time.sleep(100)  # the stall
    hvd.allreduce(torch.ones(4), name="gradient")
"""


def command(*arguments):
    return [sys.executable, "-m", "hvdlab.cli", "run", *map(str, arguments)]


def hvdlab_run(*arguments, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def script(tmp_path):
    """Return a function that writes a script."""

    def write(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        return path

    return write


# --- what the ranks print --------------------------------------------------------------------------


@pytest.mark.mpi
def test_lines_carry_their_rank_and_what_the_user_set_is_kept(script, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # `make test` sets it
    train = script(TELL)
    answer = hvdlab_run("-np", 2, train, "--lr", "0.1 x", OMP_NUM_THREADS="7")
    assert answer.returncode == 0
    told = json.dumps(["7", "30", "1", "--lr", "0.1 x"])
    assert sorted(answer.stdout.splitlines()) == [f"[0] {told}", f"[1] {told}"]
    assert sorted(answer.stderr.splitlines()) == [f"[{r}] a word of rank {r}" for r in (0, 1)]
    alone = hvdlab_run("-np", 1, train)
    assert json.loads(alone.stdout) == [str(hardware.usable_cores()), "30", "1"]
    assert alone.stderr == "a word of rank 0\n"


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", "train.py"], "hvdlab run: give the number of ranks: hvdlab run -np 2 train.py."),
        (
            ["run", "train.py", "-np", "4"],
            "hvdlab run: -np comes after the script: write it before",
        ),
        (["check", "train.py", "--lr", "1", "-np", "4"], "hvdlab: -np comes after the script: "),
    ],
)
def test_ranks_are_counted_before_the_script_is_named(words, said, capsys):
    assert cli.main(words) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.mpi
def test_a_dry_run_prints_one_line_and_starts_nothing(script, tmp_path):
    answer = hvdlab_run("-np", 2, "--dry-run", script(STAY), tmp_path)
    assert answer.returncode == 0 and answer.stderr == ""
    assert answer.stdout.count("\n") == 1 and "mpirun -np 2 --output tag python" in answer.stdout
    assert not list(tmp_path.glob("*.told"))


@pytest.mark.mpi
def test_nobody_who_reads_on_ends_the_run(script):
    train = script("import time\nwhile True:\n    print('one', flush=True)\n    time.sleep(0.5)\n")
    process = subprocess.Popen(
        command("-np", 2, train), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() in (b"[0] one\n", b"[1] one\n")
        process.stdout.close()
        assert process.wait(30) == 141 and process.stderr.read() == b""
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


# --- how they end ----------------------------------------------------------------------------------


@pytest.mark.mpi
def test_the_rank_that_failed_first_is_shown_and_no_consequence(script):
    pytest.importorskip("horovod.torch")
    answer = hvdlab_run("-np", 2, script(TRAIN), "raise")
    assert answer.returncode == 1
    assert "[1] ValueError: the learning rate is negative" in answer.stderr
    assert "[1] Traceback (most recent call last):" in answer.stderr
    assert "[0]" not in answer.stderr and "shut down" not in answer.stderr
    assert answer.stderr.splitlines()[-1] == (
        "hvdlab run: rank 1 of 2 failed first: ValueError: the learning rate is negative."
    )


@pytest.mark.mpi
def test_a_rank_that_waits_for_ever_is_missed_by_name_and_line(script):
    pytest.importorskip("horovod.torch")
    answer = hvdlab_run(
        "-np", 2, script(TRAIN), "wait",
        HOROVOD_STALL_CHECK_TIME_SECONDS="2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="4",
    )  # fmt: skip
    assert answer.returncode == 1
    line = TRAIN.splitlines().index("            time.sleep(100)  # the stall") + 1
    assert answer.stderr.splitlines()[-1] == (
        "hvdlab run: rank 1 of 2 is missing: the others waited 4 s for allreduce.gradient; "
        f"rank 1 was in line {line}."
    )
    assert "shut down" not in answer.stderr


@pytest.mark.mpi
def test_ranks_that_wait_for_each_other_are_told_their_different_calls(script):
    pytest.importorskip("horovod.torch")
    calls = "import horovod.torch as hvd, torch\nhvd.init()\n"
    calls += "hvd.allreduce(torch.ones(1), name=('loss', 'accuracy')[hvd.rank()])\n"
    answer = hvdlab_run(
        "-np", 2, script(calls),
        HOROVOD_STALL_CHECK_TIME_SECONDS="2", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="4",
    )  # fmt: skip
    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith(
        "hvdlab run: the ranks made different calls and waited 4 s for each other: "
    )
    assert "rank 0 did not call allreduce.accuracy" in last
    assert "rank 1 did not call allreduce.loss" in last


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("number", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)]
)
def test_a_signal_leaves_nothing_behind(script, tmp_path, number, times):
    process = subprocess.Popen(
        command("-np", 2, script(STAY), tmp_path), stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until_told(tmp_path, process)
        process.send_signal(number)
        if times == 2:
            time.sleep(0.2)  # mpirun needs half a second to end ranks that do not want to
            process.send_signal(number)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == f"hvdlab run: train.py on 2 ranks was ended by {number.name}."
    assert gone(told(tmp_path))


@pytest.mark.mpi
def test_under_nohup_a_run_outlives_its_terminal(script, tmp_path):
    words = command("-np", 2, script(STAY), tmp_path)
    process = subprocess.Popen(["nohup", *words], stderr=subprocess.PIPE, text=True)
    try:
        wait_until_told(tmp_path, process)
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert error.splitlines()[-1] == "hvdlab run: train.py on 2 ranks was ended by SIGTERM."
    assert gone(told(tmp_path))


@pytest.mark.mpi
def test_a_rank_that_is_asked_to_end_may_save_its_work(script, tmp_path):
    """In the quarter of a second that mpirun gives it: on a busy machine it may be late, but not always."""
    saved = []
    for attempt in "123":
        (folder := tmp_path / attempt).mkdir()
        words = command("-np", 1, script(SAVE), folder)
        assert end_when_told(words, signal.SIGINT, folder) == 128 + signal.SIGINT
        saved += [path.read_text() for path in folder.glob("saved")]
        if "all that was learnt" in saved:
            break
    assert "all that was learnt" in saved


# --- in a Slurm allocation --------------------------------------------------------------------------


@pytest.mark.slurm
@pytest.mark.mpi
def test_in_an_allocation_the_ranks_are_one_world(slurm_cluster, script):
    pytest.importorskip("mpi4py")
    train = script("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)")
    told = slurm_cluster.run("salloc", "--quiet", "-n2", *command("-np", 2, train))
    assert sorted(told.splitlines()) == ["[0] 0 2", "[1] 1 2"]
    with pytest.raises(subprocess.CalledProcessError) as caught:
        slurm_cluster.run("salloc", "--quiet", "-n1", *command("-np", 2, train))
    assert caught.value.returncode == 2
    assert caught.value.stderr.splitlines()[0] == (
        "hvdlab run: 2 ranks, but the Slurm allocation has room for 1: start no more, or ask for more "
        "room."
    )


@pytest.mark.slurm
@pytest.mark.mpi
def test_scancel_leaves_nothing_behind(slurm_cluster, script, tmp_path):
    job = tmp_path / "job.sh"
    words = " ".join(command("-np", 2, script(STAY), tmp_path))
    job.write_text(f"#!/bin/sh\nexec {words}\n")
    number = slurm_cluster.run(
        "sbatch", "--parsable", "-n2", f"--output={tmp_path}/out", f"--chdir={tmp_path}", str(job)
    ).strip()
    end = time.monotonic() + 60
    while len(told(tmp_path)) < 4:
        assert time.monotonic() < end, (tmp_path / "out").read_text()
        time.sleep(0.1)
    slurm_cluster.run("scancel", number)
    assert gone(told(tmp_path), 60)
