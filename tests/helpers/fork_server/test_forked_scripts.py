"""A script that a fork server runs does what it does when Python starts it, and ends in the same way."""

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
if "FORK_SERVERS" not in os.environ:
    pytest.skip("needs the fork servers of `make test`", allow_module_level=True)

STATE = """\
import json, os, sys
import torch

print(json.dumps({
    "words": sys.argv, "name": __name__, "file": __file__, "path": sys.path[0], "folder": os.getcwd(),
    "environment": dict(os.environ), "cores": sorted(os.sched_getaffinity(0)),
    "threads": torch.get_num_threads(), "input": sys.stdin.read(),
    "encodings": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors],
    "line": [sys.stdout.line_buffering, sys.stderr.line_buffering],
}))
print("an error", file=sys.stderr)
"""
ENDINGS = {
    "as usual": "",
    "exit code": "sys.exit(3)",
    "exit with a text": "sys.exit('the data are missing')",
    "error": "def train():\n    raise ValueError('no data')\ntrain()",
    "at exit": "import atexit\natexit.register(print, 'the last line')",
    **{
        number.name: f"os.kill(os.getpid(), {number})"
        for number in (signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL, signal.SIGINT)
    },
}


def run(script, forked):
    """Return the exit code and both outputs of a script."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not forked:
        del variables["FORK_SERVERS"]
    done = subprocess.run(
        ["taskset", "-c", "0", sys.executable, script.name, "--epochs", "3"],
        cwd=script.parent,
        env=variables,
        input="from the shell",
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_forked_script_is_as_one_that_python_started(ending, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(STATE + "\n" + ENDINGS[ending])
    forked, usual = run(script, True), run(script, False)
    assert forked[0] == usual[0]
    assert state_and_lines(forked[1]) == state_and_lines(usual[1])
    assert forked[2] == usual[2]


def state_and_lines(output):
    """Return the printed state, without the variable that switches the servers on, and the other lines."""
    first, *lines = output.splitlines()
    state = json.loads(first)
    state["environment"].pop("FORK_SERVERS", None)
    return state, lines


def test_it_is_forked_indeed(tmp_path):
    """It finds modules that it has not imported."""
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nprint('torch._dynamo' in sys.modules)\n")
    assert run(script, True)[1] == "True\n"
    assert run(script, False)[1] == "False\n"


def test_two_processes_draw_different_random_numbers(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import random\nimport numpy as np\nimport torch\nprint(np.random.rand(), random.random())\n"
    )
    first, second = (run(script, True)[1].split() for _ in range(2))
    assert first[0] != second[0] and first[1] != second[1]


def test_a_forked_process_ends_with_the_one_that_asked_for_it(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, time, torch\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n")
    asked = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    forked = psutil.Process(int(asked.stdout.readline()))
    assert forked.pid != asked.pid
    asked.kill()
    forked.wait(30)
    asked.wait(30)
    asked.stdout.close()
