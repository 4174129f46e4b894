"""Runs of the checks of labs 5 and 11: written by hand, or real."""

import os

import pytest

from hvdlab.exercises.harness import conversion_runs


@pytest.fixture
def fake(monkeypatch):
    """Return the run that every check gets."""
    from fake_conversion_run import FakeRun  # needs PyTorch

    run = FakeRun()
    monkeypatch.setattr(conversion_runs, "watch", run)
    monkeypatch.setattr(conversion_runs, "QUICK", False)
    monkeypatch.setattr(conversion_runs, "REFERENCE", False)
    return run


@pytest.fixture
def real(monkeypatch):
    """Let the checks start ranks, without a GPU."""
    monkeypatch.setattr(conversion_runs, "QUICK", False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(
        conversion_runs, "LIMIT_SECONDS", float(os.environ.get("HVDLAB_TEST_LIMIT", 300))
    )
