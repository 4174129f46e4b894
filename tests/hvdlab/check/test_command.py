"""`hvdlab check` tells what it found, and in one sentence why a script cannot be checked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from check_cases import ROOT
from check_events import as_run, run

from hvdlab import cli, launch
from hvdlab.check import command
from hvdlab.check.command import CheckError, check
from hvdlab.check.report import Checked
from hvdlab.faults import faults, write
from hvdlab.system import open_mpi


def hvdlab_check(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "hvdlab.check", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "labs"), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.mpi
def test_the_command_shows_a_table_writes_json_and_says_by_its_exit_code_what_came():
    script = write("init_missing_torch", Path())
    line = faults()["init_missing_torch"].line
    done = hvdlab_check("-np", 2, "--json", "found.json", script)
    assert done.returncode == 1
    assert f"init_missing_torch.py:{line}" in done.stdout and "hvd.init()" in done.stdout
    found = json.loads(Path("found.json").read_text(encoding="utf-8"))
    assert [(one["id"], one["line"]) for one in found["findings"]] == [("init-missing", line)]


@pytest.mark.parametrize(
    "name, text, sentence",
    [
        ("mine.py", None, "is not a file"),
        ("mine.py", "def f(:\n", "Python cannot read mine.py: line 1"),
        ("mine.ipynb", '{"cells": [], "metadata": null}', "mine.ipynb is a notebook"),
    ],
)
def test_a_script_that_cannot_be_read_gets_one_sentence(name, text, sentence):
    script = Path(name)
    if text is not None:
        script.write_text(text, encoding="utf-8")
    done = hvdlab_check("-np", 2, script)
    assert done.returncode == 2
    assert sentence in done.stderr and "Traceback" not in done.stderr


def test_without_arguments_the_script_is_missing_and_nothing_else():
    done = hvdlab_check()
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("arguments are required: SCRIPT")


@pytest.mark.parametrize(
    "text, library",
    [
        ("from torch.distributed import fsdp", "torch.distributed.fsdp"),
        ("import lightning", "lightning"),
        ("from mpi4py import MPI", "mpi4py"),
    ],
)
def test_a_script_whose_ranks_meet_without_horovod_is_not_said_to_be_alone(text, library):
    Path("mine.py").write_text(text, encoding="utf-8")
    reason = (
        f"mine.py trains with {library}, and `hvdlab check` knows the mistakes of scripts with "
    )
    with pytest.raises(CheckError, match=reason):
        check("mine.py", timeout=60)


@pytest.mark.mpi
@pytest.mark.thorough
def test_a_script_that_fails_before_it_trains_is_told_as_that():
    Path("mine.py").write_text(
        "import horovod.torch as hvd\nhvd.init()\nopen('not there')\n", encoding="utf-8"
    )
    with pytest.raises(
        CheckError, match="nothing was trained, because .*FileNotFoundError.*line 3"
    ):
        check("mine.py", timeout=60)


@pytest.mark.mpi
def test_an_import_that_fails_is_not_taken_for_a_missing_init():
    Path("helper.py").write_text(
        "import horovod.torch as hvd\nimport not_there\nhvd.init()\n", encoding="utf-8"
    )
    Path("mine.py").write_text(
        "import horovod.torch as hvd\nimport helper\nhvd.rank()\n", encoding="utf-8"
    )
    done = hvdlab_check("-np", 2, "mine.py")
    assert done.returncode == 2 and "init-missing" not in done.stdout
    assert "ModuleNotFoundError: No module named 'not_there', line 2" in done.stderr


TRAINING = """\
import horovod.torch as hvd, torch
hvd.init()
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], 0.1 * hvd.size()))
losses = []
for step in range(20):
    loss = (weight * torch.randn(3)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(float(loss))
print(losses[15])
"""


@pytest.mark.mpi
def test_what_the_check_left_out_is_stated_where_the_script_then_fails():
    Path("mine.py").write_text(TRAINING, encoding="utf-8")
    found = check("mine.py", timeout=60)
    assert (found.findings, found.error) == ([], None)
    assert "check ended the training of line 6 early" in found.left_out
    assert "IndexError: list index out of range, line 12" in found.left_out
    done = hvdlab_check("mine.py")
    assert done.returncode == 0 and "line 12. That line may need the whole" in done.stdout


@pytest.mark.parametrize(
    "kind, facts, stated",
    [
        ("pass", {"left": "cut", "iterations": 2}, True),
        ("pass", {"left": "cut", "iterations": 5}, False),  # the loop has 5 rounds
        ("pass", {"left": "at its end", "iterations": 5}, False),
        ("pass", {"left": "cut", "iterations": 2, "steps": 3}, False),  # the training went on
        ("pass", {"left": "cut", "iterations": 2, "line": 9}, False),  # inside fit
        ("fitted", {"cut": True}, True),
        ("fitted", {"cut": False}, False),
    ],
)
def test_an_error_after_the_last_step_may_come_from_what_the_check_left_out(kind, facts, stated):
    events = run()
    for of in events.values():
        of[-1] |= {"error": "IndexError: list index out of range", "line": 12}
        for number, step in enumerate((one for one in of if one["kind"] == "step"), 1):
            step["steps"] = number
        of[-2:-1] = []  # the pass of the correct run
        of.insert(0, {"kind": "fit", "line": 9, "length": 5, "steps": 0, "content": None})
        of.insert(-1, {"kind": kind, "line": 6, "steps": 5, **facts})
    sentence = command._left_out(as_run(events))
    assert bool(sentence) == stated
    if stated:
        assert (
            "line 6 early" in sentence
            and "IndexError: list index out of range, line 12" in sentence
        )


@pytest.mark.mpi
@pytest.mark.parametrize(
    "end, sentence",
    [
        ("v1.Session()\nprint('done')", r"line 5 opens a session of TensorFlow 1, .* only\.$"),
        (
            "print('done')",
            r"the script reached its end, and no optimizer of PyTorch or Keras made a step\.$",
        ),
        pytest.param(
            "raise SystemExit('no data')",
            r"rank 0 ended with exit code 1 \(no data\), line 5",
            marks=pytest.mark.thorough,
        ),
        ("os._exit(7)", r"the ranks ended early: rank [01] of 2 ended first, with exit code 7\."),
    ],
)
def test_how_a_script_ended_early_is_told(end, sentence):
    start = "import os\nimport horovod.torch as hvd\nhvd.init()\nclass v1: Session = dict\n"
    Path("mine.py").write_text(f"{start}{end}\n", encoding="utf-8")
    with pytest.raises(CheckError, match=f"mine.py: nothing was trained, because {sentence}"):
        check("mine.py", timeout=60)


@pytest.mark.mpi
@pytest.mark.thorough
def test_ranks_that_wait_for_ever_are_never_told_as_nothing_found(monkeypatch):
    monkeypatch.setattr(command, "judge", lambda events, facts: [])
    Path("mine.py").write_text(
        "import horovod.torch as hvd, torch\nhvd.init()\nif hvd.rank():\n"
        "    hvd.allgather(torch.ones(1))\nhvd.allreduce(torch.ones(1))\n",
        encoding="utf-8",
    )
    said = (
        r"for ever. Rank 0 waited in hvd.allreduce, line 5. Rank 1 waited in hvd.allgather, line 4."
    )
    with pytest.raises(CheckError, match=said):
        check("mine.py", timeout=60)


@pytest.mark.parametrize(
    "words, said",
    [
        (["missing.py"], "hvdlab: missing.py is not a file: name the Python script"),
        (["lab.ipynb"], "hvdlab: lab.ipynb is a notebook, but ranks run a Python file: write"),
        (["saved.py"], "hvdlab: saved.py is a notebook, but ranks run a Python file: write"),
        (["broken.py"], "hvdlab: Python cannot read broken.py: "),
        (["mine.py"], "hvdlab: there is no mpirun here: run `hvdlab doctor`."),
    ],
)
def test_what_cannot_be_checked_is_refused_before_anything_is_printed(
    words, said, monkeypatch, capsys
):
    monkeypatch.setattr(open_mpi, "search_path", lambda: "/nowhere")
    Path("mine.py").write_text("import horovod.torch\n", encoding="utf-8")
    Path("broken.py").write_text("def\n", encoding="utf-8")
    for notebook in ("lab.ipynb", "saved.py"):
        Path(notebook).write_text(
            '{"cells": [], "metadata": {"a": null}, "nbformat": 4}', encoding="utf-8"
        )
    assert cli.main(["check", *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(said) and told.err.count("\n") == 1
    if "notebook" in said:
        assert cli.main(["run", "-np", "2", *words]) == 2
        assert capsys.readouterr().err == told.err.replace("hvdlab:", "hvdlab run:")
        with pytest.raises(launch.LaunchError, match="is a notebook"):
            launch.run(words[0])


def test_findings_that_cannot_be_written_are_shown_all_the_same(monkeypatch, capsys):
    Path("mine.py").write_text("import horovod.torch\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        cli.main(["check", "--json", "not/there.json", "mine.py"])
    assert "expected a file in a folder that exists, got not/there.json" in capsys.readouterr().err

    def full(path, text):
        raise OSError(28, "No space left on device")

    checked = Checked([], None, None, "itself", 1, 1.0, "", {})
    monkeypatch.setattr(command, "check", lambda *of, **them: checked)
    monkeypatch.setattr(command.file_system, "write_text", full)
    assert cli.main(["check", "--json", "found.json", "mine.py"]) == 2
    told = capsys.readouterr()
    assert "nothing" in told.out.lower()
    assert told.err == "hvdlab: --json found.json cannot be written: No space left on device.\n"


@pytest.mark.mpi
@pytest.mark.parametrize(
    "text",
    [
        "",
        "print(1)\n",
        "import torch\n",
        "import horovod.torch as hvd\n",
        "import horovod.torch as hvd\nhvd.init()\n",
        "import torch.distributed as dist\nif False:\n    dist.init_process_group()\n",
    ],
    ids=["empty", "print", "torch", "horovod", "init", "ddp"],
)
def test_where_no_rank_trains_nothing_is_found(text):
    Path("mine.py").write_text(text, encoding="utf-8")
    with pytest.raises(
        CheckError, match=r"mine\.py: nothing was trained, because the script reached"
    ):
        check("mine.py")
