"""The checks of lab 8 accept what is right, and name the mistake in what is not."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlab.course import experiment
from hvdlab.exercises import NotYet
from hvdlab.exercises import lab08_cifar10_assessment as exercises

ASSESSMENT = Path(__file__).parents[3] / "assessment"


@pytest.mark.parametrize(
    ("answer", "says"),
    [((1, 2), "three things"), (({}, {}, 1), "two dicts with the keys"), (None, "Received: None")],
)
def test_parts_in_another_form_are_refused(answer, says):
    with pytest.raises(NotYet, match=says):
        exercises.check_where_time_goes(lambda marks, ranks: answer)


# --- the converted script ---------------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch):
    """As in a quick run."""
    monkeypatch.setattr(exercises, "QUICK", True)


@pytest.mark.parametrize("framework", ["keras", "torch"])
def test_the_solutions_lack_nothing_and_the_serial_scripts_all(framework, read_only, capsys):
    exercises.check_conversion(ASSESSMENT / "solutions" / framework / "assessment.py")
    assert "Not checked: " in capsys.readouterr().out
    with pytest.raises(NotYet, match="lacks one thing:\n.*No line imports Horovod"):
        exercises.check_conversion(ASSESSMENT / framework / "assessment.py")


@pytest.mark.mpi
@pytest.mark.slow
def test_a_mistake_is_found_in_a_run_and_without_it_the_script_is_right(
    tmp_path, sample_folder, monkeypatch, capsys
):
    monkeypatch.setenv("HVDLAB_DATA", str(sample_folder))
    monkeypatch.setattr(exercises, "QUICK", False)
    solution = ASSESSMENT / "solutions" / "torch" / "assessment.py"
    exercises.check_conversion(solution)
    assert "hvdlab check finds nothing" in capsys.readouterr().out
    source, shard = solution.read_text(), "rank=hvd.rank(),"
    assert source.count(shard) == 1
    (tmp_path / "assessment.py").write_text(source.replace(shard, "rank=0,"))
    with pytest.raises(NotYet, match="lacks one thing:\n.*Ranks 0 and 1 read the same batch"):
        exercises.check_conversion(tmp_path / "assessment.py")


@pytest.mark.parametrize(
    ("framework", "old", "new", "said"),
    [
        ("keras", "hvdlab.keras.horovod as", "horovod.tensorflow.keras as", "line 12: Horovod's own Keras"),
        ("torch", "batches = Batches(", "batches = dict(", "`Batches` is gone"),
        ("keras", "Recorder(batches),", "", "The `Recorder` is gone"),
        ("torch", "        recorder.epoch_end(", "        dict(", "epoch_end(epoch)` is gone"),
    ],
)  # fmt: skip
def test_what_a_script_lacks_is_named(framework, old, new, said, read_only, tmp_path):
    source = (ASSESSMENT / "solutions" / framework / "assessment.py").read_text()
    assert source.count(old) == 1
    (tmp_path / "assessment.py").write_text(source.replace(old, new))
    with pytest.raises(NotYet, match=re.escape(said)):
        exercises.check_conversion(tmp_path / "assessment.py")


def test_keras_on_pytorch_needs_no_epoch_end(read_only, tmp_path, capsys):
    source = (ASSESSMENT / "solutions/keras/assessment.py").read_text()
    (tmp_path / "assessment.py").write_text(
        source.replace("import keras\n", "import keras\nimport torch\n")
    )
    exercises.check_conversion(tmp_path / "assessment.py")
    assert "Not checked: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("framework", "module"), [("keras", "hvdlab.keras.horovod"), ("torch", "horovod.torch")]
)
def test_a_script_without_horovod_is_never_right(framework, module, tmp_path, monkeypatch):
    source = (ASSESSMENT / framework / "assessment.py").read_text()
    path = tmp_path / "assessment.py"
    path.write_text(f"import torch.distributed as dist\n{source}")  # which the hints let pass
    with pytest.raises(
        NotYet, match=f"lacks one thing:\n.*No line imports.*import {module} as hvd"
    ):
        exercises.check_conversion(path)
    path.write_text(source)
    with pytest.raises(NotYet, match=f"import {module} as hvd"):
        exercises.check_conversion(path)
    path.write_text(
        source.replace("import keras\n", "import keras, horovod.tensorflow.keras as hvd\n")
    )
    with pytest.raises(NotYet, match=f"import {module} as hvd"):
        exercises.check_conversion(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def main(:\n", "Python cannot read assessment.py: line 1: invalid syntax."),
        ("x = 1\x00", "Python cannot read assessment.py: source code.* null bytes"),
        ("", "No line imports Horovod"),
        (None, "is not there"),
    ],
)
def test_a_file_that_is_no_script_gets_a_sentence(text, said, tmp_path):
    if text is not None:
        (tmp_path / "assessment.py").write_text(text)
    with pytest.raises(NotYet, match=said):
        exercises.check_conversion(tmp_path / "assessment.py")


# --- the practice run ---------------------------------------------------------------------------------

PRACTISED = """\
from __future__ import annotations

import sys
import hvdlab.data

part = whole = firsts = load_all = None  # names of its own, whatever the starter calls its
data = hvdlab.data.load_cifar10(None)
sizes = [len(array) for array in data[:4]]
raise SystemExit(f"{__name__} {__file__} {sys.argv} {sizes} {data.folder}, line {sys._getframe().f_lineno}")
"""


def test_a_practice_run_runs_the_script_as_it_is(tmp_path, cifar10_folder):
    lab = ast.parse((ASSESSMENT.parent / "labs/08_cifar10_assessment.py").read_text())
    texts = {
        node.targets[0].id: node.value.value
        for node in lab.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    script, starter = tmp_path / "assessment.py", tmp_path / "practice.py"
    script.write_text(PRACTISED)
    starter.write_text(texts["FIRST_IMAGES"] + texts["START"])
    command = [sys.executable, str(starter), str(script)]
    environment = {**os.environ, "HVDLAB_DATA": str(cifar10_folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    sizes = [2000, 2000, 1000, 1000]
    expected = f"__main__ {script} {[str(script)]} {sizes} {cifar10_folder}, line 9"
    assert done.stderr.strip() == expected


# --- the way to the grader --------------------------------------------------------------------------


def test_handing_in_returns_the_code_and_the_report(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does
    (tmp_path / "assessment.py").write_text("this is no Python")
    code, report = exercises.hand_in(tmp_path / "assessment.py", tmp_path / "report.json")
    assert (code, report["status"]) == (2, "not_gradable")
    assert report == json.loads((tmp_path / "report.json").read_text())
    said = capsys.readouterr().out
    assert "NOT GRADABLE" in said and "\x1b" not in said


def test_the_site_shows_the_grading_that_the_course_ships(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "REFERENCE", True)
    monkeypatch.setattr(experiment, "_WANTED", "shipped")
    code, report = exercises.hand_in(tmp_path / "no script", tmp_path / "report.json")
    solution = ASSESSMENT / "solutions/keras/assessment.py"
    assert report["submission"]["sha256"] == hashlib.sha256(solution.read_bytes()).hexdigest()
    assert (code, report["verdict"], len(report["checks"])) == (0, "pass", 8)
    output = capsys.readouterr().out
    assert "A grading of the solution that the course ships: " in output
    assert all(check["title"] in output for check in report["checks"])


def test_a_wrong_profile_leaves_no_report(tmp_path):
    (tmp_path / "report.json").write_text("old")
    code, report = exercises.hand_in(tmp_path, tmp_path / "report.json", profile="none")
    assert (code, report) == (2, {})


def test_a_grading_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    started = []
    popen = subprocess.Popen

    def slow(command, **options):
        started.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", slow)
    with pytest.raises(TimeoutError, match="within 0.5 s"):
        exercises.hand_in(tmp_path, tmp_path / "report.json", timeout=0.5)
    assert started[0].poll() is not None
