"""The job scripts of docker/slurm, without Slurm: what they refuse, and when they queue a job again."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "docker" / "slurm"


@pytest.mark.parametrize("name", ["train", "torch", "assess"])
@pytest.mark.parametrize("arguments", [[], ["nothing.py"], ["mine.py"]])
def test_reports_an_impossible_job_in_one_sentence(tmp_path, name, arguments):
    (tmp_path / "mine.py").write_text("")
    answer = subprocess.run(
        ["bash", SCRIPTS / f"{name}.sbatch", *arguments],  # like a job
        env={**os.environ, "SLURM_SUBMIT_DIR": str(tmp_path), "HVDLAB_ENV": "elsewhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 2 and answer.stdout == ""
    (sentence,) = answer.stderr.splitlines()
    wrong = "elsewhere" if arguments == ["mine.py"] else f"got '{''.join(arguments)}'"
    assert sentence.startswith(f"{name}.sbatch: ") and wrong in sentence


def job(folder: Path, name: str, *arguments, **variables) -> subprocess.Popen:
    """Return a function that runs a job script, with test programs in place of Slurm's and Open MPI's."""
    return subprocess.Popen(
        ["bash", SCRIPTS / f"{name}.sbatch", *arguments],
        env={
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(folder),
            "SLURM_JOB_ID": "7",
            "HVDLAB_ENV": str(folder),
            **variables,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stand_in(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


@pytest.mark.parametrize(
    "arguments, variables, said",
    [
        ([], {}, "the script has no --checkpoint FOLDER"),
        (["--checkpoint-every", "2"], {}, "the script has no --checkpoint FOLDER"),
        (["--checkpoint", "kept"], {}, ""),
        (["--epochs", "9", "--checkpoint=kept"], {"SLURM_RESTART_COUNT": "9"}, ""),
        (["--checkpoint", "kept"], {"SLURM_RESTART_COUNT": "10"}, "queued again 10 times"),
        (
            ["--checkpoint", "kept"],
            {"SLURM_RESTART_COUNT": "2", "HVDLAB_RESTARTS": "2"},
            "queued again 2 times",
        ),
    ],
)
def test_only_a_job_with_checkpoints_is_queued_again(tmp_path, arguments, variables, said):
    """A script without checkpoints would restart each time, and occupy the nodes forever."""
    (tmp_path / "mine.py").touch()
    stand_in(tmp_path, "scontrol", 'echo "scontrol $*"')
    stand_in(tmp_path, "mpirun", "echo started\nexec sleep 60")
    process = job(tmp_path, "train", "mine.py", *arguments, **variables)
    try:
        assert process.stdout.readline() == "started\n"
        deadline = time.monotonic() + 30
        while not catches(process.pid, signal.SIGUSR1):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGUSR1)  # like Slurm 90 s before the time limit
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    if said:
        assert (process.returncode, out) == (1, "")
        (sentence,) = err.splitlines()
        assert sentence.startswith("train.sbatch: ") and said in sentence
        assert "job 7 is not queued again" in sentence
    else:
        assert out.endswith("job 7 is queued again\nscontrol requeue 7\n")


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, according to the kernel."""
    (mask,) = re.findall(
        r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.M
    )
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("library", ["horovod.torch as hvd", "mpi4py.MPI"])
def test_torch_sbatch_refuses_a_script_that_needs_mpirun(tmp_path, library):
    (tmp_path / "mine.py").write_text(f"import {library}\n")
    stand_in(tmp_path, "python", f'exec {sys.executable} "$@"')
    stand_in(tmp_path, "srun", "echo started")
    process = job(tmp_path, "torch", "mine.py", "--lr", "1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    (sentence,) = err.splitlines()
    assert re.match(r"torch\.sbatch: mine\.py uses (Horovod|mpi4py), whose ranks", sentence)
    assert sentence.endswith("sbatch docker/slurm/train.sbatch mine.py --lr 1")
