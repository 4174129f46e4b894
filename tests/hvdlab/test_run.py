"""`hvdlab run`: refusals, what the ranks print, and how they end. With real ranks."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from hvdlab import hardware, refusals, run
from hvdlab.rank_output import RankOutput

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
        if sys.argv[1] == "exit":
            sys.exit(3)
        if sys.argv[1] == "wait":
            time.sleep(100)  # the stall
    hvd.allreduce(torch.ones(4), name="gradient")
"""
# Each rank starts a process of its own, ignores being asked to end, and tells the numbers of both.
STAY = """\
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "100"])
part = pathlib.Path(sys.argv[1], f"{os.getpid()}.part")
part.write_text(f"{os.getpid()} {child.pid}")
part.rename(part.with_suffix(".told"))
time.sleep(100)
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


# --- refusals --------------------------------------------------------------------------------------


def refused(capsys, *arguments):
    """The one sentence with which a run is refused."""
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    assert run.main(parser.parse_args([str(word) for word in arguments])) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.removeprefix("hvdlab run: ").rstrip("\n")


def programs(folder, **texts):
    """Small shell scripts as programs."""
    for name, text in texts.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)


def test_what_cannot_be_understood_is_refused(capsys, script, tmp_path):
    train = script("")
    assert refused(capsys, "-np", 0, train) == "-np: expected at least 1 rank, got 0."
    assert refused(capsys, "-np", 2, tmp_path / "no.py").endswith(
        "no.py is not a file: name the script for the ranks to run."
    )
    assert refused(capsys, "-np", 2, "-H", "host1:x", train).startswith("-H: expected HOST:SLOTS")
    assert refused(capsys, "-np", 5, "-H", "localhost:4", train) == (
        "5 ranks, but the hosts have room for 4: start no more, or ask for more room."
    )


def test_more_ranks_than_gpus_are_refused(capsys, script, tmp_path, monkeypatch):
    programs(tmp_path, nvidia_smi="echo 'GPU 0: A'; echo 'GPU 1: B'")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert refused(capsys, "-np", 3, script("")).startswith(
        "3 ranks, but 2 GPUs: each rank needs one of its own. Start at most 2, or set CUDA_VIS"
    )
    for visible, count in {"0": 1, "0,1": 2, "": 0, "-1": 0, "1,-1,0": 1, "0,1,2": 2}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert hardware.gpus() == count, visible


def test_a_machine_without_gpus_has_none(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert hardware.gpus() == 0


def test_another_mpi_than_horovods_is_refused(capsys, script, tmp_path, monkeypatch):
    train = script("")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    programs(tmp_path, mpirun="echo 'HYDRA build details:'")
    monkeypatch.setattr(refusals, "horovod_mpi", lambda: "Open MPI")
    assert refused(capsys, "-np", 2, train).startswith(
        f"Horovod was built for Open MPI, but {tmp_path}/mpirun is of MPICH, so every rank would be"
    )
    monkeypatch.setattr(refusals, "horovod_mpi", lambda: "none")
    assert refused(capsys, "-np", 2, train).startswith("Horovod was built without MPI, so mpirun")
    (tmp_path / "mpirun").unlink()
    monkeypatch.setenv("PATH", "/nowhere")
    assert refused(capsys, "-np", 2, train).startswith("there is no mpirun here: `make setup`")


@pytest.mark.parametrize(
    ("needs", "kind"),
    [
        (b"libmpi.so.40", "Open MPI"),
        (b"libmpi.so.12", "MPICH"),
        (b"libmpich.so.0", "MPICH"),
        (b"libc.so.6", "none"),
    ],
)
def test_the_mpi_of_horovod_is_read_from_its_libraries(needs, kind, tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/mpi_lib_v2.so").write_bytes(b"\x7fELF\0" + needs + b"\0libm.so.6\0")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(refusals, "find_spec", lambda name: spec)
    assert refusals.horovod_mpi() == kind
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    assert refusals.horovod_mpi() is None


def test_this_horovod_fits_this_mpirun():
    pytest.importorskip("horovod")
    refusals.mpirun_must_fit()
    assert refusals.horovod_mpi() == "Open MPI"


# --- what the ranks print --------------------------------------------------------------------------


@pytest.mark.mpi
def test_lines_carry_their_rank_and_what_the_user_set_is_kept(script):
    train = script(TELL)
    answer = hvdlab_run("-np", 2, train, "--lr", "0.1 x", OMP_NUM_THREADS="7")
    assert answer.returncode == 0
    told = json.dumps(["7", "30", "1", "--lr", "0.1 x"])
    assert sorted(answer.stdout.splitlines()) == [f"[0] {told}", f"[1] {told}"]
    assert sorted(answer.stderr.splitlines()) == [f"[{r}] a word of rank {r}" for r in (0, 1)]
    alone = hvdlab_run("-np", 1, train)
    assert json.loads(alone.stdout) == [str(hardware.usable_cores()), "30", "1"]
    assert alone.stderr == "a word of rank 0\n"


@pytest.mark.mpi
def test_a_dry_run_prints_one_line_and_starts_nothing(script, tmp_path):
    answer = hvdlab_run("-np", 2, "--dry-run", script(STAY), tmp_path)
    assert answer.returncode == 0 and answer.stderr == ""
    assert answer.stdout.count("\n") == 1 and "mpirun -np 2 --output tag python" in answer.stdout
    assert not list(tmp_path.glob("*.told"))


@pytest.mark.mpi
def test_nobody_who_reads_on_ends_the_run(script):
    train = script("import time\nprint('one', flush=True)\ntime.sleep(0.5)\nprint('two')")
    process = subprocess.Popen(
        command("-np", 2, train), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() in (b"[0] one\n", b"[1] one\n")
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait(30) == 141
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
def test_the_exit_code_is_that_of_the_rank_that_ended_first(script):
    pytest.importorskip("horovod.torch")
    answer = hvdlab_run("-np", 2, script(TRAIN), "exit")
    assert answer.returncode == 3
    assert answer.stderr == "hvdlab run: rank 1 of 2 ended first, with exit code 3.\n"


@pytest.mark.mpi
def test_a_rank_that_was_killed_is_named_with_its_signal(script):
    train = script("import os, time\ntime.sleep(0 if os.environ['OMPI_COMM_WORLD_RANK'] == '1' else 50)"
                   "\nos.kill(os.getpid(), 9)")  # fmt: skip
    answer = hvdlab_run("-np", 2, train)
    assert answer.returncode == 128 + 9
    assert answer.stderr.startswith("hvdlab run: rank 1 of 2 was ended by signal 9 (Killed) on ")


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


def told(folder):
    return [int(n) for path in folder.glob("*.told") for n in path.read_text().split()]


def wait_until_told(folder, process):
    while len(told(folder)) < 4:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def gone(numbers, seconds=10):
    """Whether these processes are gone, or will be in a moment."""

    def alive(n):
        return psutil.pid_exists(n) and psutil.Process(n).status() != psutil.STATUS_ZOMBIE

    end = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, numbers))


@pytest.mark.mpi
def test_the_time_limit_ends_all_ranks_and_says_where_they_were(script, tmp_path):
    answer = hvdlab_run("-np", 2, "--timeout", 4, script(STAY), tmp_path)
    line = STAY.splitlines().index("time.sleep(100)") + 1
    assert answer.returncode == 124
    assert answer.stderr.splitlines()[-1] == (
        "hvdlab run: train.py on 2 ranks did not end within 4 s; "
        f"rank 0 was in line {line}; rank 1 was in line {line}."
    )
    assert len(told(tmp_path)) == 4 and gone(told(tmp_path))


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
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.5)  # between two key presses
        _, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert error.splitlines()[-1] == f"hvdlab run: train.py on 2 ranks was ended by {number.name}."
    assert gone(told(tmp_path))


SAVE = """\
import pathlib, signal, sys, os, time

def save(*_):
    pathlib.Path(sys.argv[1], "saved").write_text("all that was learnt")
    sys.exit()

signal.signal(signal.SIGTERM, save)
for part in range(4):  # what `wait_until_told` waits for
    pathlib.Path(sys.argv[1], f"{part}.told").write_text(str(os.getpid()))
time.sleep(100)
"""


@pytest.mark.mpi
def test_a_rank_that_is_asked_to_end_may_save_its_work(script, tmp_path):
    process = subprocess.Popen(command("-np", 1, script(SAVE), tmp_path), stderr=subprocess.DEVNULL)
    try:
        wait_until_told(tmp_path, process)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
    finally:
        process.kill()
    assert (tmp_path / "saved").read_text() == "all that was learnt"


# --- mpirun's words, as it said them ----------------------------------------------------------------

SHUT_DOWN = """\
[1,0]<stderr>: Traceback (most recent call last):
[1,0]<stderr>:   File "train.py", line 14, in <module>
[1,0]<stderr>: horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was
"""
EXIT = """\
--------------------------------------------------------------------------
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-12356@1,{rank}]
   Exit code:    {code}
--------------------------------------------------------------------------
"""
LOST = """\
------------------------------------------------------------
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-host1-24508@0,0] on node host1
  Remote daemon: [prterun-host1-24508@0,1] on node host2

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
------------------------------------------------------------
"""
OWN = """\
[1,1]<stderr>: Traceback (most recent call last):
[1,1]<stderr>:   File "train.py", line 8, in <module>
[1,1]<stderr>: KeyError: 'lr'
[1,1]<stderr>: 2026-11-21 W something of a library at exit
"""


def read(text, code, capsys, ranks=2):
    """What is shown of these lines, and the reason."""
    output = RankOutput(ranks)
    for line in text.splitlines(keepends=True):
        output.line(line)
    output.settle(everything=True)
    return capsys.readouterr(), output.why(code, "120")


def test_a_consequence_that_ends_before_its_cause_is_not_blamed(capsys):
    shown, reason = read(SHUT_DOWN + OWN + EXIT.format(rank=0, code=1), 1, capsys)
    assert reason == ("rank 1 of 2 failed first: KeyError: 'lr'", 1)
    assert "[0]" not in shown.err and "[1] KeyError" in shown.err and "prterun" not in shown.err


def test_a_consequence_that_a_library_logs_is_not_shown(capsys):
    logged = (
        "[1,0]<stderr>: W0000 local_rendezvous.cc:412] UNKNOWN: Horovod has been shut down. This\n"
    )
    shown, reason = read(logged + OWN + EXIT.format(rank=1, code=1), 1, capsys)
    assert "[0]" not in shown.err
    assert reason == ("rank 1 of 2 failed first: KeyError: 'lr'", 1)


def test_a_rank_that_ends_early_without_an_error_is_named(capsys):
    _, reason = read(SHUT_DOWN + EXIT.format(rank=0, code=1), 1, capsys, ranks=3)
    assert reason == ("ranks 1, 2 of 3 ended while the others still exchanged", 1)


def test_a_lost_host_is_a_failure_although_mpirun_ends_with_0(capsys):
    shown, reason = read("[1,0]<stdout>: step 1\n" + LOST, 0, capsys)
    assert reason == ("lost the connection to host2: its ranks are gone, all others were ended", 1)
    assert shown.out == "[0] step 1\n" and shown.err == ""


def test_what_else_mpirun_says_is_shown(capsys):
    text = "-" * 60 + "\nThere are not enough slots available\n" + "-" * 60 + "\n"
    shown, reason = read(text, 1, capsys)
    assert "not enough slots" in shown.err and reason == ("mpirun ended with exit code 1", 1)


def test_an_error_that_a_rank_survived_is_shown_and_not_blamed(capsys):
    text = OWN.replace("[1,1]", "[1,0]") + EXIT.format(rank=1, code=5)
    shown, reason = read(text, 5, capsys)
    assert "[0] KeyError: 'lr'" in shown.err
    assert reason == ("rank 1 of 2 ended first, with exit code 5", 5)


def test_ends_of_lines_that_mpirun_joins_are_taken_apart(capsys):
    shown, reason = read("[1,1]<stdout>: 50%[1,0]<stdout>: 40%", 0, capsys)
    assert shown.out == "[1] 50%\n[0] 40%\n" and reason == ("", 0)


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
    assert gone(told(tmp_path), 30)
