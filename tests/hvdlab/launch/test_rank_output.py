"""What mpirun printed in real runs, read: what of it is shown, and who is blamed."""

import pytest

from hvdlab.launch.launchers import mpirun
from hvdlab.launch.rank_output import RankOutput

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
    output = RankOutput(ranks, mpirun.Reader())
    for line in text.splitlines(keepends=True):
        output.line(line, "stderr")
    output.settle(everything=True)
    return capsys.readouterr(), output.why(code, "mpirun", "120")


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


@pytest.mark.parametrize(
    "lost",
    [
        "RuntimeError: [gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
        "DistNetworkError: Connection was likely closed. Did the remote server shutdown or crash?",
    ],
)
def test_the_error_of_a_rank_of_torch_distributed_is_told_from_its_consequences(lost, capsys):
    """Torch puts its own tag before each line, and the other ranks lose their connection."""
    text = f"""\
[1,0]<stderr>: [rank0]: Traceback (most recent call last):
[1,0]<stderr>: [rank0]:   File "train.py", line 17, in <module>
[1,0]<stderr>: [rank0]: {lost}
[1,1]<stderr>: [rank1]: Traceback (most recent call last):
[1,1]<stderr>: [rank1]:   File "train.py", line 11, in <module>
[1,1]<stderr>: [rank1]: KeyError: 'lr'
"""
    shown, reason = read(text + EXIT.format(rank=0, code=1), 1, capsys)
    assert reason == ("rank 1 of 2 failed first: KeyError: 'lr'", 1)
    assert shown.err == (
        '[1] Traceback (most recent call last):\n[1]   File "train.py", line 11, in <module>\n'
        "[1] KeyError: 'lr'\n"
    )


@pytest.mark.parametrize(
    "number, name, hint", [(9, "Killed", " (no memory left?)"), (15, "Terminated", "")]
)
def test_only_a_rank_that_was_killed_may_have_had_no_memory_left(number, name, hint, capsys):
    said = f"prterun noticed that process rank 1 with PID 7 on node vm exited on signal {number} ({name})."
    _, reason = read(f"{'-' * 60}\n{said}\n{'-' * 60}\n", 128 + number, capsys)
    sentence = f"rank 1 of 2 was ended by signal {number} ({name}) on vm{hint}"
    assert reason == (sentence, 128 + number)


def test_of_consequences_without_a_cause_one_is_shown(capsys):
    both = SHUT_DOWN + SHUT_DOWN.replace("[1,0]", "[1,1]")
    shown, reason = read(both + EXIT.format(rank=1, code=1), 1, capsys)
    assert "[0] horovod.common" in shown.err and "[1]" not in shown.err
    assert reason == ("mpirun ended with exit code 1", 1)


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
    assert "not enough slots" in shown.err
    assert reason == ("mpirun ended with exit code 1: There are not enough slots available", 1)


def test_an_error_that_a_rank_survived_is_shown_and_not_blamed(capsys):
    text = OWN.replace("[1,1]", "[1,0]") + EXIT.format(rank=1, code=5)
    shown, reason = read(text, 5, capsys)
    assert "[0] KeyError: 'lr'" in shown.err
    assert reason == ("rank 1 of 2 ended first, with exit code 5", 5)


def test_ends_of_lines_that_mpirun_joins_are_taken_apart(capsys):
    shown, reason = read("[1,1]<stdout>: 50%[1,0]<stdout>: 40%", 0, capsys)
    assert shown.out == "[1] 50%\n[0] 40%\n" and reason == ("", 0)
