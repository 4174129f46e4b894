"""TensorFlow's log lines go. Errors and what a script prints stay: as text, from ranks, in a notebook."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from hvdlab.launch import script_on_ranks
from hvdlab.launch.launchers import mpirun
from hvdlab.launch.rank_output import RankOutput
from hvdlab.system import tensorflow_log

# Lines of TensorFlow 2.21, of 2.16, and of a log that is initialized.
LOGGED = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795916558.569328   12485 port.cc:153] oneDNN custom operations are on. You may see",
    "W0000 00:00:1795916558.645049   12485 computation_placer.cc:177] computation placer already registered",
    "2026-11-28 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.",
    "2026-11-28 10:00:00.123456: W external/local_xla/xla/tsl/framework/cpu_allocator_impl.cc:83] Allocation",
    "I1128 10:00:00.123456 140737 device_compiler.h:208] Compiled cluster using XLA!",
]
KEPT = [
    "E0000 00:00:1795916561.536012   12485 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)",
    "F0000 00:00:1795916561.536012   12485 tensor.cc:852] Check failed: dtype() == expected_dtype",
    "2026-11-28 10:00:00.123456: E tensorflow/core/framework/op.cc:1] an error",
    "2026-11-28 10:00:00.123456: F tensorflow/core/platform/cpu_feature_guard.cc:1] AVX is missing",
    # Horovod and PyTorch warn in other formats.
    "[2026-11-28 10:00:00.123456: W horovod/common/stall_inspector.cc:107] One or more tensors were",
    "[W1128 10:00:00.123456789 socket.cpp:767] [c10d] The client socket cannot be initialized",
    "W1128 10:00:00.123000 12485 torch/_dynamo/convert_frame.py:964] torch._dynamo hit recompile_limit (8)",
    "I1128 10:00:00.123456 140737 train.py:12] step 10",  # Python's absl, called by a script
    "WARNING:tensorflow:5 out of the last 5 calls triggered retracing",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: the learning rate is negative",
    "I think that I0000 00:00:1795916558.569328   12485 port.cc:153] is noise",
    "I0000 is a number, and W is a letter",
    "WARNING: the loss is not finite",
    "",
    "Ünïcode ✓",
]


@pytest.mark.parametrize("line", LOGGED)
def test_information_and_warnings_of_tensorflow_are_removed(line):
    assert tensorflow_log.without_log(line, "2") == ""


@pytest.mark.parametrize("line", KEPT)
@pytest.mark.parametrize("level", ["0", "1", "2", "3", "unknown"])
def test_errors_and_lines_of_others_stay(line, level):
    assert tensorflow_log.without_log(line, level) == line


def test_the_level_of_the_user_decides():
    text = "\n".join(LOGGED)
    assert tensorflow_log.without_log(text, "0") == text
    assert tensorflow_log.without_log(text, "1").splitlines() == [LOGGED[2], LOGGED[4]]
    assert tensorflow_log.without_log(text, "3") == ""


def test_lines_keep_their_order_and_a_progress_bar_its_text():
    both = [line for pair in zip(LOGGED, KEPT, strict=False) for line in pair]
    text = "".join(f"{line}\n" for line in both)
    kept = tensorflow_log.without_log(text, "2")
    assert kept.splitlines() == KEPT[: len(LOGGED)]
    bar = f" 10%|#    | 1/10\r{LOGGED[1]}"
    assert tensorflow_log.without_log(bar, "2") == " 10%|#    | 1/10\r"


def test_a_new_process_gets_the_level_of_the_user_else_errors(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    assert tensorflow_log.level() == "0"
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tensorflow_log.level() == "3"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert tensorflow_log.level() == "2"


def test_the_reason_of_a_failed_rank_is_not_a_log_line(capsys):
    """A library may log between the lines of a traceback."""
    output = RankOutput(1, mpirun.Reader())
    for line in [KEPT[9], KEPT[10], LOGGED[0], LOGGED[1], KEPT[11]]:
        output.line(f"[1,0]<stderr>: {line}\n", "stderr")
    output.settle(everything=True)
    assert capsys.readouterr().err.splitlines() == KEPT[9:12]
    sentence, _ = output.why(1, "mpirun", "120")
    assert sentence == "rank 0 of 1 failed first: ValueError: the learning rate is negative"


PRINT = """\
import os, sys
for number, line in enumerate({lines!r}):
    os.write(2, (line + "\\n").encode())
print("on stdout: {log}", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("level", ["0", "2"])
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_ranks_show_errors_and_their_own_lines_in_order(level, launcher, tmp_path):
    lines = [*LOGGED, *KEPT[:9], *LOGGED, *KEPT[12:]]
    script = tmp_path / "script.py"
    script.write_text(PRINT.format(lines=lines, log=LOGGED[1]), encoding="utf-8")
    shown = script_on_ranks.run(
        script, ranks=1, timeout=120, show=False, launcher=launcher, TF_CPP_MIN_LOG_LEVEL=level
    ).splitlines()
    printed = f"on stdout: {LOGGED[1]}"
    assert printed in shown  # on another pipe, so its place is open
    shown.remove(printed)
    assert shown == (lines if level == "0" else [*KEPT[:9], *KEPT[12:]])


TENSORFLOW = """\
import sys
import tensorflow as tf
print("sum", float(tf.reduce_sum(tf.ones(3))))
print("from the script", file=sys.stderr)
"""


@pytest.mark.mpi
@pytest.mark.slow
def test_ranks_that_import_tensorflow_show_only_their_own_lines(tmp_path, monkeypatch):
    pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    script = tmp_path / "script.py"
    script.write_text(TENSORFLOW)
    output = script_on_ranks.run(script, ranks=2, timeout=300, show=False)
    assert sorted(output.splitlines()) == ["from the script"] * 2 + ["sum 3.0"] * 2


def shown_by_notebook(*cells) -> list[dict]:
    """Return what a real kernel shows of these cells."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # With PYTEST_CURRENT_TEST a kernel does not read its file descriptors.
    others = "TF_CPP_MIN_LOG_LEVEL", "PYTEST_CURRENT_TEST"
    environment = {name: value for name, value in os.environ.items() if name not in others}
    NotebookClient(notebook, timeout=300, allow_errors=True).execute(env=environment)
    return [output for cell in notebook.cells for output in cell.outputs]


@pytest.mark.notebook
@pytest.mark.slow
def test_a_notebook_shows_what_the_process_and_its_children_write_without_the_log():
    lines = [*LOGGED, *KEPT, *LOGGED]
    write = (
        f"import os, sys, subprocess\nfor line in {lines!r}: os.write(2, (line + '\\n').encode())"
    )
    child = "subprocess.run(['sh', '-c', 'echo \"$LINE\" >&2; echo child >&2'], env={'LINE': line})"
    outputs = shown_by_notebook(
        "import hvdlab.course", f"{write}\nline = {LOGGED[1]!r}\n_ = {child}"
    )
    assert {output.name for output in outputs} == {"stderr"}
    text = "".join(output.text for output in outputs)
    assert text.split("\n") == [*KEPT, "child", ""]


@pytest.mark.notebook
@pytest.mark.slow
def test_a_notebook_that_imports_tensorflow_shows_nothing_of_it():
    pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")
    outputs = shown_by_notebook("import hvdlab.course", f"{TENSORFLOW}\n1 / 0")
    streams = {output.name: output.text for output in outputs if output.output_type == "stream"}
    assert streams == {"stdout": "sum 3.0\n", "stderr": "from the script\n"}
    assert outputs[-1].ename == "ZeroDivisionError" and len(outputs[-1].traceback) > 1


def test_nothing_changes_outside_a_notebook(monkeypatch):
    """A traceback printed while Python ends would be lost in a pipe that this process reads itself."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    before = os.fstat(2)
    tensorflow_log.quiet_notebook.__wrapped__()
    assert os.fstat(2) == before
