"""Root without CAP_SYS_PTRACE, as in Docker's containers, sees the ranks of a submission."""

import json
import subprocess
import sys

import docker_container
import pytest

LOOK = """
import json, os, subprocess, sys, time
from pathlib import Path
import psutil
from hvdgrade.run import processes
from hvdgrade.run.owner_rights import as_owner, variables

program = "import ctypes, sys; {hide}; print(flush=True); sys.stdin.read()"
hidden = "ctypes.CDLL(None).prctl(4, 0)"  # PR_SET_DUMPABLE
seen = {}
for name, hide in (("open", "0"), ("hidden", hidden)):
    child = subprocess.Popen(
        ["python3", "-c", program.format(hide=hide)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        user=61184, group=61184, extra_groups=[], env={"OMPI_COMM_WORLD_RANK": "1", "PATH": "/usr/bin"})
    child.stdout.readline()
    process = psutil.Process(child.pid)
    try:
        process.environ()
        refused = False
    except psutil.AccessDenied:
        refused = True
    torch = processes.has_torch(process)
    seen[name] = [refused, variables(process).get("OMPI_COMM_WORLD_RANK"), torch]
    child.kill()
    child.wait()
seen["me"] = Path("/proc/thread-self/status").read_text().split("Uid:")[1].split("\\n")[0].split()
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_root_of_a_container_sees_the_variables_of_another_users_process(tmp_path):
    if obstacle := docker_container.why_not():
        pytest.skip(obstacle)
    answer = docker_container.run(tmp_path, [sys.executable, "-c", LOOK], seconds=120)
    assert answer.returncode == 0, answer.stderr
    seen = json.loads(answer.stdout)
    assert seen["open"] == [True, "1", False]
    assert seen["hidden"] == [True, None, True]  # who hides its memory may have loaded PyTorch
    assert seen["me"] == ["0"] * 4  # the thread that looked has kept its rights for itself


def test_a_process_that_has_ended_has_no_variables():
    look = (
        "import psutil, subprocess; from hvdgrade.run.owner_rights import variables\n"
        "child = subprocess.Popen(['true']); process = psutil.Process(child.pid); child.wait()\n"
        "print(variables(process))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=120
    )
    assert answer.stdout == "{}\n", answer.stderr
