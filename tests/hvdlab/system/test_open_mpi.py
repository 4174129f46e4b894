"""What Open MPI 4 and 5 call the same thing: the texts are what both print."""

import os
import pwd
import sys

import pytest

from hvdgrade.sandbox import mounts
from hvdlab.doctor.answers import ProgramOutput
from hvdlab.doctor.checks import allreduce
from hvdlab.launch import local, script_on_ranks
from hvdlab.launch.launchers import mpirun
from hvdlab.launch.launchers.launcher import End, Line, Request
from hvdlab.launch.rank_output import RankOutput
from hvdlab.system import open_mpi

FOUR, FIVE = "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n", "mpirun (Open MPI) 5.0.11\n\n..."
DEBIANS = "mpirun.openmpi (OpenRTE) 4.1.4\n\n..."


@pytest.fixture
def only(tmp_path, monkeypatch):
    """Lets the only mpirun on PATH say which it is; returns its path."""

    def stand_in(text: str) -> str:
        program = tmp_path / "mpi" / "bin" / "mpirun"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\nprintf '%s' '{text}'\n")
        program.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return str(program)

    return stand_in


@pytest.mark.parametrize(
    "text, four", [(FOUR, True), (DEBIANS, True), (FIVE, False), ("HYDRA build 4.1.2", False)]
)
def test_the_version_decides_on_the_words(only, monkeypatch, text, four):
    program = only(text)
    monkeypatch.setattr(local, "physical_cores", lambda: [[0], [1]])
    assert open_mpi.mpirun() == program and open_mpi.is_version_4() is four
    assert open_mpi.tag_output() == (["--tag-output"] if four else ["--output", "tag"])
    set_for_three = local.environment(3)
    assert {name: value for name, value in set_for_three.items() if "_MCA_" in name} == (
        {
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
        }
        if four
        else {
            "OMPI_MCA_mpi_yield_when_idle": "1",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        }
    )
    command, variables = mpirun.start(Request(3, "train.py", [], set_for_three, [], [1, 2]))
    assert ("--tag-output" in command) is four
    assert not any("oversubscribe" in word for word in (*variables, *variables.values()))


@pytest.mark.parametrize(
    "text, variable",
    [
        (FOUR, "OMPI_MCA_rmaps_base_oversubscribe=1"),
        (FIVE, "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"),
    ],
)
def test_the_doctor_names_the_variable_that_this_mpirun_reads(only, monkeypatch, text, variable):
    only(text + "\nThere are not enough slots available in the system")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    horovod = ProgramOutput(0, '{"horovod": {"mpi": true}}', "")
    answer = allreduce.allreduce({"torch": horovod, "tensorflow": horovod}, 20)
    assert answer.seen == 'mpirun sees fewer slots than ranks ("not enough slots")'
    assert answer.fix == f"export {variable}"


def test_without_an_mpirun_nothing_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_mpi.mpirun() is None and not open_mpi.is_version_4()


ENDED = {
    "Open MPI 5": "Process name: [prterun-vm-7@1,1]\n   Exit code:    3",
    "Open MPI 4": "Process name: [[15099,1],1]\n  Exit code:    3",
}


@pytest.mark.parametrize("version", ENDED)
def test_the_rank_that_failed_first_is_found(only, version):
    only(FOUR if version == "Open MPI 4" else FIVE)
    reader, rule = mpirun.Reader(), "-" * 74
    blank = " " * (version == "Open MPI 5")
    text = [f"[1,1]<stderr>:{blank}ValueError: 3", f"[1,0]<stdout>:{blank}  indented"]
    if version == "Open MPI 4":
        aborted = "Primary job  terminated normally, but 1 process returned"
        text += [rule, aborted, "a non-zero exit code. Per user-direction, the job ...", rule]
    text += [rule, "mpirun detected that one or more processes exited with non-zero status, thus"]
    text += ["causing the job to be terminated. The first process to do so was:", ""]
    text += [*ENDED[version].split("\n"), rule]
    shown = [line for each in text for line in reader.read(each + "\n", "stdout")]
    assert shown == [Line(1, "stderr", "ValueError: 3"), Line(0, "stdout", "  indented")]
    assert reader.rest() == [] and reader.first == End(1, 3)


def test_a_signal_is_told_in_the_same_words():
    reader = mpirun.Reader()
    said = "mpirun noticed that process rank 0 with PID 0 on node vm exited on signal 9 (Killed)."
    for line in ("-" * 74, said, "-" * 74):
        assert reader.read(line, "stdout") == []
    assert reader.first == End(0, 137, "signal 9 (Killed) on vm")


NO_SRUN = """\
The SLURM process starter for PRRTE was unable to locate a usable "srun"
command in its path. Please check your path and try again.
"""
NO_SLOTS = """\
There are not enough slots available in the system to satisfy the 3
slots that were requested by the application:

  python

Either request fewer procs for your application, or make more slots
available for use.
"""


@pytest.mark.parametrize(
    ("message", "first"),
    [
        (
            NO_SRUN,
            'The SLURM process starter for PRRTE was unable to locate a usable "srun" command in its path',
        ),
        (
            NO_SLOTS,
            "There are not enough slots available in the system to satisfy the 3 slots that were "
            "requested by the application",
        ),
        ("The file libmpi.so.40 of v1.2 is missing\n", "The file libmpi.so.40 of v1.2 is missing"),
    ],
)
def test_the_first_sentence_of_a_message_is_its_reason(message, first):
    rule = "-" * 74
    output = f"a line before\n{rule}\n{message}{rule}\n{rule}\nMPI_INIT failed. Sorry.\n{rule}\n"
    assert open_mpi.first_sentence(open_mpi.first_message(output)) == first
    assert open_mpi.first_message("no message. At all.") == ""
    reader = mpirun.Reader()
    output = RankOutput(2, reader, show=lambda line: None)
    for line in (rule, *message.splitlines(), rule):
        output.line(f"{line}\n", "stderr")
    assert output.why(1, "mpirun", "") == (f"mpirun ended with exit code 1: {first}", 1)


def test_the_message_of_a_rank_comes_before_what_mpirun_says_of_its_end():
    """As Open MPI 5 prints it where it has no UCX and OMPI_MCA_pml=ucx is set."""
    rule = "-" * 74
    mine = [
        rule,
        "No components were able to be opened in the pml framework.",
        "",
        "This ...",
        rule,
    ]
    ended = [
        rule,
        "prterun has exited due to process rank 1 with PID 0 on node vm calling",
        '"abort".',
        rule,
    ]
    output = RankOutput(2, mpirun.Reader(), show=lambda line: None)
    for line in [*(f"[1,1]<stderr>: {text}" for text in mine), *ended]:
        output.line(f"{line}\n", "stderr")
    said = (
        "mpirun ended with exit code 1: No components were able to be opened in the pml framework"
    )
    assert output.why(1, "mpirun", "") == (said, 1)


def test_without_a_home_open_mpi_gets_that_of_the_user(monkeypatch):
    monkeypatch.setenv("HOME", "/mine")
    assert open_mpi.home() == {} and "HOME" not in local.environment(2)
    for change in (lambda: monkeypatch.setenv("HOME", ""), lambda: monkeypatch.delenv("HOME")):
        change()
        assert local.environment(2)["HOME"] == pwd.getpwuid(os.geteuid()).pw_dir
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)  # a user without an entry
    assert open_mpi.home() == {"HOME": "/"}


@pytest.mark.mpi
def test_ranks_start_without_a_home(tmp_path, monkeypatch):
    """As in a job of cron. By itself no program of Open MPI starts, not even `mpirun --version`."""
    (script := tmp_path / "tell.py").write_text("print('here')\n")
    monkeypatch.delenv("HOME")
    open_mpi.version.cache_clear()
    assert "Open MPI" in open_mpi.version(open_mpi.mpirun()).text
    assert script_on_ranks.run(script, ranks=2, show=False, timeout=60) == "here\nhere\n"


def test_a_submission_finds_the_mpi_of_an_image_and_nothing_of_a_users(only, monkeypatch):
    program = only(FOUR)
    folder = program.removesuffix("/mpirun")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":/opt/hpcx/ompi/lib:relative")
    monkeypatch.setenv("OPAL_PREFIX", "/opt/hpcx/ompi")
    assert folder not in mounts.search_path().split(":")
    assert not any(program.startswith(f"{place}/") for place in mounts.readable())
    monkeypatch.setattr(mounts, "SYSTEM", (*mounts.SYSTEM, str(folder)))
    assert mounts.search_path().split(":")[1] == folder
    assert mounts.libraries() == {
        "LD_LIBRARY_PATH": "/opt/hpcx/ompi/lib",
        "OPAL_PREFIX": "/opt/hpcx/ompi",
    }
