"""The composed scripts are complete Python, cover every axis, and are graded only once."""

import json
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from hvdgrade.profiles import load
from tests.measurements import honest_styles
from tests.measurements.styles import part
from tests.measurements.styles.script import script
from tests.measurements.styles.table import settings, styles

PASS = Path(__file__).parents[1] / "fixtures" / "results" / "pass.json"
AXES = {
    "framework": part.FRAMEWORKS,
    "data": part.DATA,
    "exchange": part.EXCHANGES,
    "optimizer": part.OPTIMIZERS,
    "schedule": part.SCHEDULES,
    "structure": part.STRUCTURES,
    "regularisation": part.REGULARISATIONS,
    "precision": part.PRECISIONS,
}
TENSORFLOW = {"keras_fit", "keras_step", "keras_tape", "keras_legacy"}
BY_HAND = {"torch_allreduce", "torch_mpi4py", "keras_step", "keras_tape"}
SERVERS = {"torch_allreduce", "torch_mpi4py"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with all scripts."""
    folder = tmp_path_factory.mktemp("scripts")
    for style in styles():
        (folder / f"{style.name}.py").write_text(script(style, settings(style)), encoding="utf-8")
    return folder


def test_scripts_have_no_undefined_and_no_unused_names(folder):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--no-cache",
        "--isolated",
        "--select",
        "F,E9",
    ]
    run = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(list(folder.iterdir())) == len(styles())
    assert sum(not style.rule for style in styles()) >= 60


def test_scripts_fit_the_size_limit_and_name_their_style(folder):
    for style in styles():
        source = (folder / f"{style.name}.py").read_text(encoding="utf-8")
        doc = " ".join(source.split('"""')[1].split())
        assert len(source.encode()) <= 64_000
        for axis in AXES:
            assert f"{axis} {getattr(style, axis)}" in doc
        assert (style.rule in doc) if style.rule else ("Rule that it bends" not in doc)


def test_every_value_of_every_axis_occurs_three_times():
    for axis, values in AXES.items():
        counts = Counter(getattr(style, axis) for style in styles())
        assert set(counts) == set(values)
        assert min(counts.values()) >= 3, (axis, counts)


def test_every_sensible_pair_occurs():
    every = styles()
    for framework, data in product(part.FRAMEWORKS, part.DATA):
        sensible = data != ("loader" if framework in TENSORFLOW else "tfdata")
        found = any((s.framework, s.data) == (framework, data) for s in every)
        assert found == sensible, (framework, data)
    for framework, exchange in product(part.FRAMEWORKS, ("each", "accumulate", "fused", "fp16")):
        sensible = (framework, exchange) != ("torch_mpi4py", "fp16")  # MPI has no such type
        found = any(s.framework == framework and s.exchange.startswith(exchange) for s in every)
        assert found == sensible, (framework, exchange)
    assert {s.framework for s in every if s.exchange == "scattered"} == BY_HAND
    assert {s.framework for s in every if s.exchange == "server"} == SERVERS


def test_a_second_call_grades_only_scripts_without_a_result(tmp_path, monkeypatch):
    style, graded = styles()[0], []
    document = json.loads(PASS.read_text(encoding="utf-8"))
    document["grader"]["rules_sha256"] = load("dli").rules_sha256

    def grade(path, ranks, rules):
        graded.append(path.name)
        return document

    monkeypatch.setattr(honest_styles, "grade", grade)
    for _ in range(2):
        honest_styles.result_of(style, tmp_path, load("dli"), "dli", quiet=True)
    assert graded == [f"{style.name}.py"]
    document["grader"]["rules_sha256"] = "other rules"
    kept = tmp_path / "dli" / f"{style.name}.json"
    kept.write_text(kept.read_text().replace(load("dli").rules_sha256, "other rules"))
    honest_styles.result_of(style, tmp_path, load("dli"), "dli", quiet=True)
    assert len(graded) == 2
