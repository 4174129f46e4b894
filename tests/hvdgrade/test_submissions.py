"""Broken and cheating submissions, each graded for real: its verdict, its stop cause, its sentence."""

import os
import tempfile
import tomllib
from pathlib import Path

import psutil
import pytest

from hvdgrade import cli

SUBMISSIONS = Path(__file__).parents[1] / "fixtures" / "submissions"


def leftovers() -> set[str]:
    """What a run could leave behind in the places for temporary files."""
    places = [tempfile.gettempdir(), "/dev/shm"]
    return {
        f"{place}/{name}"
        for place in places
        if os.path.isdir(place)
        for name in os.listdir(place)
        if name.startswith(("hvdgrade-", "prte", "ompi", "pmix", "sm_segment", "vader"))
    }


@pytest.mark.mpi
@pytest.mark.parametrize("name", sorted(p.name for p in SUBMISSIONS.iterdir() if p.is_dir()))
def test_each_mistake_gets_its_own_verdict(name, cifar10_folder, quick_rules, monkeypatch):
    monkeypatch.setenv("HVDLAB_DATA", str(cifar10_folder))
    expected = tomllib.loads((SUBMISSIONS / name / "expected.toml").read_text())
    before = leftovers()

    document = cli.grade(SUBMISSIONS / name, 2, quick_rules)

    checks = {check["id"]: check for check in document["checks"]}
    said = {
        "rationale": " ".join(check["rationale"] for check in checks.values()),
        "help": " ".join(check["help"] for check in checks.values()),
        "reason": document["reason"],
    }
    said["help_too"] = said["help"]
    assert document["status"] == expected.get("status", "graded"), said["reason"]
    assert document["verdict"] == expected.get("verdict")
    assert document["resources"].get("stop_cause") == expected.get("stop_cause"), said
    assert {id: checks[id]["state"] for id in expected.get("states", {})} == expected.get(
        "states", {}
    ), said
    for kind in said:
        assert expected.get(kind, "") in said[kind]

    assert psutil.Process().children(recursive=True) == []
    assert leftovers() <= before
    assert document["resources"].get("survivors", 0) == 0


def test_a_pickle_in_a_weights_file_is_not_executed(cifar10_folder, quick_rules, monkeypatch):
    monkeypatch.setenv("HVDLAB_DATA", str(cifar10_folder))
    cli.grade(SUBMISSIONS / "links_and_pickles", 2, quick_rules)
    assert not Path(tempfile.gettempdir(), "hvdgrade-was-here").exists()
