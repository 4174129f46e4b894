"""torchrun and srun: their lines, what they print in real runs, read, and what they cannot start."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from hvdlab.launch import LaunchError, hosts, local, preflight
from hvdlab.launch import plan as plan_module
from hvdlab.launch.launchers import srun, torchrun
from hvdlab.launch.launchers.launcher import mpi_of
from hvdlab.launch.plan import plan
from hvdlab.launch.rank_output import RankOutput

LOCAL = (
    "OMP_NUM_THREADS=2 TF_NUM_INTRAOP_THREADS=2 TF_NUM_INTEROP_THREADS=1 "
    "TF_CPP_MIN_LOG_LEVEL=3 PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 "
)
SRUN = "srun -n 2 --label --kill-on-bad-exit --export=ALL "


@pytest.fixture
def four_cores(monkeypatch):
    """A user on a machine of four cores, without a GPU, in this environment; nothing else is set."""
    monkeypatch.setattr(local, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(plan_module, "gpus", lambda: 0)
    monkeypatch.setattr(local.tensorflow_log, "level", lambda: "3")
    monkeypatch.setattr(hosts, "_address", lambda name: None)
    for name in os.environ:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("HOME", "/home/learner")
    return monkeypatch


@pytest.fixture
def allocation(four_cores):
    four_cores.setenv("SLURM_JOB_ID", "7")
    four_cores.setenv("SLURM_TASKS_PER_NODE", "2")
    four_cores.setenv("SLURM_JOB_NODELIST", "localhost")
    return four_cores


def refused(*arguments, **options):
    with pytest.raises(LaunchError) as caught:
        plan(*arguments, **options)
    return str(caught.value)


# --- their lines -----------------------------------------------------------------------------------


def test_the_line_of_torchrun(four_cores):
    line = "torchrun --standalone --nproc-per-node 2 --tee 3 train.py --name 'a b'"
    assert plan(2, "train.py", "--name", "a b", launcher="torchrun").line() == LOCAL + line
    assert plan(2, "train.py", launcher="torchrun", hosts="localhost:2").line().startswith(LOCAL)


def test_torchrun_on_several_hosts_is_refused_with_the_line_for_each(four_cores):
    four = {"launcher": "torchrun", "hosts": "host1.invalid:2,host2.invalid:2"}
    assert re.fullmatch(
        r"torchrun starts ranks only on the machine where it runs: in the same folder on each of "
        r"host1\.invalid and host2\.invalid type\n    OMP_NUM_THREADS=2 torchrun --nnodes 2 "
        r"--nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint host1\.invalid:(2\d{4}) --rdzv-id \1 "
        r"train\.py --lr 0\.1",
        refused(4, "train.py", "--lr", "0.1", **four),
    )
    assert refused(3, "train.py", **four).startswith("torchrun starts the same number of ranks on")
    assert refused(3, "t.py", launcher="torchrun", hosts="a.invalid:1,b.invalid:2").startswith(
        "torchrun starts the same number of ranks on every host: give each host the same number of slots"
    )


def test_torchrun_in_an_allocation_starts_ranks_on_this_node_only(allocation):
    assert "--nproc-per-node 2" in plan(2, "train.py", launcher="torchrun").line()
    allocation.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    allocation.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    assert refused(2, "train.py", launcher="torchrun") == (
        "torchrun starts ranks only on the machine where it runs, and the allocation is node[1-2]: use "
        "--launcher srun."
    )


def test_the_line_of_srun(allocation):
    assert plan(2, "train.py", launcher="srun").line() == LOCAL + SRUN + "python train.py"
    assert refused(3, "train.py", launcher="srun").startswith("3 ranks, but the Slurm allocation")
    assert refused(2, "train.py", launcher="srun", hosts="host1.invalid:2") == (
        "srun starts ranks on the nodes that Slurm gave: leave out the hosts."
    )


def test_srun_gives_each_rank_the_cores_of_a_task(allocation):
    """Since Slurm 22.05 it does not take them over from sbatch."""
    allocation.setenv("SLURM_CPUS_PER_TASK", "3")
    line = plan(2, "train.py", launcher="srun").line()
    assert line.startswith("OMP_NUM_THREADS=3 TF_NUM_INTRAOP_THREADS=3 ")
    assert line.endswith(f"{SRUN}--cpus-per-task=3 python train.py")


def test_srun_is_asked_for_pmix_where_the_ranks_need_mpi(allocation, tmp_path):
    """It fails then where it has none, instead of starting ranks that do not meet."""
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd\n")
    planned = plan(2, script, launcher="srun")
    assert planned.line().endswith(f"{SRUN}--mpi=pmix python {script}")
    assert "HOROVOD_STALL_CHECK_TIME_SECONDS" in planned.variables


def test_srun_outside_of_an_allocation_is_refused(four_cores):
    assert refused(2, "train.py", launcher="srun") == (
        "srun starts ranks inside a Slurm allocation, and this is outside of one: begin with `salloc "
        "--ntasks=2`, or write a job for sbatch (docker/slurm/torch.sbatch)."
    )


# --- whose ranks need MPI --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("import horovod.torch as hvd", "Horovod"),
        ("def main():\n    from hvdlab.keras import horovod as hvd", "Horovod"),
        ("from mpi4py import MPI", "mpi4py"),
        ("import torch  # as horovod does", ""),
        ("import horovod.torch\ntorch.distributed.init_process_group()", ""),
        ("not Python", ""),
    ],
)
def test_scripts_that_need_mpi_are_told_by_their_imports(tmp_path, text, library):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert mpi_of(script) == library


def test_torchrun_is_refused_where_each_rank_would_be_alone(tmp_path, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd\n")
    (tmp_path / "torchrun").write_text("#!/bin/sh\n")
    (tmp_path / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(LaunchError) as caught:
        preflight.torchrun_must_fit(script)
    assert str(caught.value) == (
        f"{script} uses Horovod, whose ranks find each other only if mpirun starts them: with "
        "torchrun each rank would train separately. Leave out `--launcher torchrun`."
    )


def test_a_launcher_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=r"^there is no torchrun here: it comes with PyTorch"):
        preflight.torchrun_must_fit("train.py")
    with pytest.raises(LaunchError, match=r"^there is no srun here: on a Slurm cluster it is on"):
        preflight.srun_must_fit("train.py")


# --- what they print -------------------------------------------------------------------------------

REPORT = """\
W1121 20:22:26.583000 31294 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 3
E1121 20:22:26.847000 31294 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode:
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
=======================================================
train.py FAILED
-------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_20:22:26
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 31308)  (SIGTERM)
-------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_20:22:26
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 31309)
=======================================================
"""
LOST = (
    "RuntimeError: [gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2244"
)
THROWN = f"""\
[default1]:[rank1]: Traceback (most recent call last):
[default1]:[rank1]:   File "train.py", line 11, in <module>
[default1]:[rank1]: ValueError: the learning rate is negative
[default1]:terminate called without an active exception
[default0]:[rank0]: Traceback (most recent call last):
[default0]:[rank0]: {LOST}
"""


def read(launcher, text, code, capsys):
    """What is shown of these lines, and the reason."""
    output = RankOutput(2, launcher.Reader())
    for line in text.splitlines(keepends=True):
        output.line(line, "stderr")
    output.settle(everything=True)
    return capsys.readouterr().err, output.why(code, "LAUNCHER", "")


@pytest.mark.parametrize("code", [1, -6])
def test_torchruns_rank_that_failed_first_is_shown_and_no_consequence(capsys, code):
    """With -6 it aborted after its error: a thread of gloo's was left."""
    shown, reason = read(torchrun, THROWN + REPORT.format(code=code), 1, capsys)
    assert reason == ("rank 1 of 2 failed first: ValueError: the learning rate is negative", 1)
    assert shown.splitlines() == [
        "[1] Traceback (most recent call last):",
        '[1]   File "train.py", line 11, in <module>',
        "[1] ValueError: the learning rate is negative",
        "[1] terminate called without an active exception",
    ]


def test_torchruns_report_tells_the_exit_code_and_the_signal(capsys):
    _, reason = read(torchrun, REPORT.format(code=3), 1, capsys)
    assert reason == ("rank 1 of 2 ended first, with exit code 3", 3)
    _, (sentence, code) = read(torchrun, REPORT.format(code=-9), 1, capsys)
    assert sentence.startswith("rank 1 of 2 was ended by signal 9 (Killed) on localhost")
    assert code == 128 + 9


def test_what_else_torchrun_says_is_shown(capsys):
    text = "Traceback (most recent call last):\nRuntimeError: no rendezvous\n"
    shown, reason = read(torchrun, "a warning\n" + text, 1, capsys)
    assert shown == "a warning\n" + text and reason == ("LAUNCHER ended with exit code 1", 1)


def test_torchruns_tags_in_the_midst_of_a_line_are_taken_out(capsys):
    """It puts one before everything that it finds, ten times a second."""
    text = "[default0]:epoch [default1]:step 1\n[default0]:1\n[default1]:100 %"
    assert read(torchrun, text, 0, capsys) == ("[1] step 1\n[0] epoch 1\n[1] 100 %\n", ("", 0))


SRUN_ENDS = """\
srun: error: vm: task 1: {how}
srun: launch/slurm: _step_signal: Terminating StepId=1.1
0: slurmstepd-vm: error: *** STEP 1.1 ON vm CANCELLED AT 2026-11-21T20:25:41 ***
srun: error: vm: task 0: Terminated
srun: Force Terminated StepId=1.1
"""


def test_sruns_rank_that_failed_first_is_shown_and_no_consequence(capsys):
    text = re.sub(r"\[default(\d)\]:", r"\1: ", THROWN)
    for how in ("Exited with exit code 1", "Aborted (core dumped)"):
        shown, reason = read(srun, text + SRUN_ENDS.format(how=how), 143, capsys)
        assert reason == ("rank 1 of 2 failed first: ValueError: the learning rate is negative", 1)
        assert "[0]" not in shown and "srun" not in shown and "[1] ValueError: the lea" in shown


def test_srun_tells_the_exit_code_and_the_signal(capsys):
    _, reason = read(srun, SRUN_ENDS.format(how="Exited with exit code 3"), 143, capsys)
    assert reason == ("rank 1 of 2 ended first, with exit code 3", 3)
    _, (sentence, code) = read(srun, SRUN_ENDS.format(how="Killed"), 143, capsys)
    assert sentence.startswith("rank 1 of 2 was ended by signal 9 (Killed) on vm")
    assert code == 128 + signal.SIGKILL


def test_what_else_srun_says_is_shown(capsys):
    text = (
        "srun: error: Unable to create step for job 7: More processors requested than permitted\n"
    )
    assert read(srun, text, 1, capsys) == (text, ("LAUNCHER ended with exit code 1", 1))
    assert read(srun, "01: \n10: step: 1\n", 0, capsys)[0] == "[1] \n[10] step: 1\n"
