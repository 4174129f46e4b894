"""`launch.run`: what it returns, which rank it says has failed, and that it leaves no process behind."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import psutil
import pytest
from lasting_ranks import STAY, gone, told

from hvdlab.launch import LaunchError, TimeUp, script_on_ranks

PRINT = """\
import os, sys
print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "got", sys.argv[1:], os.environ.get("COLOUR"))
"""
FAIL = """\
import os
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    raise ValueError("the learning rate is negative")
"""


def write(folder, text):
    script = folder / "script.py"
    script.write_text(text)
    return script


@pytest.mark.mpi
def test_run_prints_and_returns_what_every_rank_prints(tmp_path, capfd):
    output = script_on_ranks.run(
        write(tmp_path, PRINT), "--lr", 0.1, ranks=2, timeout=60, COLOUR="blue"
    )
    assert sorted(output.splitlines()) == [
        f"rank {rank} got ['--lr', '0.1'] blue" for rank in (0, 1)
    ]
    assert capfd.readouterr().out == output
    script_on_ranks.run(write(tmp_path, PRINT), ranks=1, timeout=60, show=False)
    assert capfd.readouterr().out == ""


@pytest.mark.mpi
def test_run_names_the_script_and_shows_the_error_of_a_rank_that_fails(tmp_path, capfd):
    script = write(tmp_path, FAIL)
    with pytest.raises(LaunchError) as caught:
        script_on_ranks.run(script, ranks=2, timeout=60, show=False)
    sentence = "rank 1 of 2 failed first: ValueError: the learning rate is negative."
    lines = str(caught.value).splitlines()
    assert lines[:2] == ["script.py on 2 ranks failed.", sentence]
    assert lines[2].startswith("Traceback")
    assert lines[-1] == "ValueError: the learning rate is negative"
    with pytest.raises(LaunchError) as caught:
        script_on_ranks.run(script, ranks=2, timeout=60)
    assert str(caught.value) == f"script.py on 2 ranks failed, see above.\n{sentence}"
    assert "ValueError: the learning rate is negative" in capfd.readouterr().out


ALL_REDUCE = """\
import os, sys
import torch
import horovod.torch as hvd

hvd.init()
print("rank", hvd.rank(), "has begun", flush=True)
if hvd.rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("the learning rate is negative")
    if sys.argv[1] == "exit":
        os._exit(3)
    os.kill(os.getpid(), 9)
hvd.allreduce(torch.ones(4), name="gradient")
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raise", "rank 1 of 2 failed first: ValueError: the learning rate is negative."),
        pytest.param(
            "exit", "rank 1 of 2 ended first, with exit code 3.", marks=pytest.mark.thorough
        ),
        ("kill", "rank 1 of 2 was ended by signal 9 (Killed) on "),
    ],
)
def test_run_reports_the_failed_rank_as_the_command_does(tmp_path, how, reason):
    """The same sentence and the same lines: the error of rank 1, and not that of rank 0 which follows."""
    pytest.importorskip("horovod.torch")
    script = write(tmp_path, ALL_REDUCE)
    answer = subprocess.run(
        [sys.executable, "-m", "hvdlab.cli", "run", "-np", "2", script, how],
        capture_output=True,
        text=True,
        timeout=120,
    )
    *error, sentence = answer.stderr.splitlines()
    sentence = sentence.removeprefix("hvdlab run: ")
    assert sentence.startswith(reason)
    with pytest.raises(LaunchError) as caught:
        script_on_ranks.run(script, how, ranks=2, timeout=60, show=False)
    _, same_sentence, *lines = str(caught.value).splitlines()
    assert same_sentence == sentence
    printed = answer.stdout.splitlines() + error
    assert sorted(lines) == sorted(re.sub(r"^\[\d\] ", "", line) for line in printed)
    assert "shut down" not in str(caught.value)


@pytest.mark.mpi
def test_run_ends_every_rank_when_the_time_is_up(tmp_path, monkeypatch):
    # The time is up when all have told, however busy the machine is.
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 1000 * (len(told(tmp_path)) == 4))
    monkeypatch.setattr(script_on_ranks, "time", clock)
    with pytest.raises(TimeUp, match="script.py on 2 ranks did not end within 500 s"):
        script_on_ranks.run(write(tmp_path, STAY), tmp_path, ranks=2, timeout=500, show=False)
    started = told(tmp_path)
    assert len(started) == 4
    assert gone(started)


@pytest.mark.mpi
@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_leaves_nothing_behind(tmp_path, times):
    def interrupt():
        while len(told(tmp_path)) < 4:
            time.sleep(0.1)
        for _ in range(times):  # a learner who presses stop twice
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        try:
            script_on_ranks.run(write(tmp_path, STAY), tmp_path, ranks=2, timeout=60, show=False)
        finally:
            thread.join()
    assert gone(told(tmp_path))


@pytest.mark.mpi
def test_run_ends_ranks_whose_launcher_was_killed(tmp_path):
    def kill():
        while len(told(tmp_path)) < 4:
            time.sleep(0.1)
        psutil.Process(told(tmp_path)[0]).parent().kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(LaunchError) as caught:
        script_on_ranks.run(write(tmp_path, STAY), tmp_path, ranks=2, timeout=30, show=False)
    assert type(caught.value) is LaunchError  # and no TimeUp
    assert gone(told(tmp_path))


def test_a_script_that_is_missing_is_one_sentence(tmp_path):
    with pytest.raises(LaunchError, match=r"nothing\.py is not a file: name the Python script"):
        script_on_ranks.run(tmp_path / "nothing.py")


@pytest.mark.mpi
def test_torchrun_starts_ranks_of_this_environment(tmp_path):
    pytest.importorskip("torch")
    text = PRINT.replace("OMPI_COMM_WORLD_RANK", "RANK") + "print(sys.prefix)\n"
    output = script_on_ranks.run(
        write(tmp_path, text),
        "--lr",
        0.1,
        launcher="torchrun",
        timeout=120,
        show=False,
        COLOUR="blue",
    )
    expected = [f"rank {rank} got ['--lr', '0.1'] blue" for rank in (0, 1)]
    assert sorted(output.splitlines()) == sorted([*expected, sys.prefix, sys.prefix])
    failing = write(tmp_path, FAIL.replace("OMPI_COMM_WORLD_RANK", "RANK"))
    with pytest.raises(
        LaunchError, match="rank 1 of 2 failed first: ValueError: the learning rate"
    ):
        script_on_ranks.run(failing, launcher="torchrun", timeout=120, show=False)


def test_another_launcher_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="launcher must be mpirun or torchrun. Received: launcher='ssh'"
    ):
        script_on_ranks.run(write(tmp_path, PRINT), launcher="ssh")
