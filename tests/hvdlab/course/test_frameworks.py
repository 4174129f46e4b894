"""A lab loads the module of the framework that the learner chose."""

import pytest

from hvdlab.course import experiment, frameworks


@pytest.fixture(autouse=True)
def learner(monkeypatch):
    monkeypatch.setattr(experiment, "QUICK", False)
    monkeypatch.setattr(experiment, "REFERENCE", False)
    monkeypatch.delenv("LAB_FRAMEWORK", raising=False)
    monkeypatch.setattr(frameworks, "import_module", lambda name: name)


def test_the_learner_chooses(capsys):
    assert frameworks.load("dense_training", "torch") == "hvdlab.course.dense_training_torch"
    assert "train with torch" in capsys.readouterr().out


def test_a_quick_run_uses_torch_and_a_reference_run_keras(monkeypatch):
    monkeypatch.setattr(experiment, "QUICK", True)
    assert frameworks.load("f1_training", "keras").endswith("_torch")
    monkeypatch.setattr(experiment, "QUICK", False)
    monkeypatch.setattr(experiment, "REFERENCE", True)
    assert frameworks.load("f1_training", "torch").endswith("_keras")


def test_the_environment_takes_precedence(monkeypatch):
    monkeypatch.setattr(experiment, "QUICK", True)
    monkeypatch.setenv("LAB_FRAMEWORK", "keras")
    assert frameworks.load("f1_training", "torch").endswith("_keras")


def test_another_framework_is_refused(monkeypatch):
    with pytest.raises(frameworks.UnknownFramework, match='"keras" or "torch". Received: .jax.'):
        frameworks.load("f1_training", "jax")
    monkeypatch.setenv("LAB_FRAMEWORK", "mxnet")
    with pytest.raises(frameworks.UnknownFramework, match="mxnet"):
        frameworks.load("f1_training", "keras")


def test_the_line_says_why_another_framework_trains(monkeypatch, capsys):
    frameworks.load("f1_training", "keras")
    monkeypatch.setattr(experiment, "QUICK", True)
    frameworks.load("f1_training", "keras")
    monkeypatch.setenv("LAB_FRAMEWORK", "torch")
    frameworks.load("f1_training", "keras")
    first, quick, chosen = capsys.readouterr().out.splitlines()
    assert first.endswith("train with keras.")
    assert "train with torch, because LAB_QUICK is set" in quick
    assert "train with torch, because LAB_FRAMEWORK is set" in chosen
