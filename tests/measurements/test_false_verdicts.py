"""Rounds from several machines are counted together; rounds by other rules are not counted."""

import json
import sys
from pathlib import Path

import pytest

from hvdgrade.profiles import load
from tests.measurements import false_verdicts

PASS = Path(__file__).parents[1] / "fixtures" / "results" / "pass.json"
NAMES = ("right_torch", "sleeps")


@pytest.fixture
def count(tmp_path, monkeypatch, capsys):
    """Count `runs` rounds whose results are in `graded`; return the printed text."""
    monkeypatch.setattr(false_verdicts, "NAMES", sorted(NAMES))
    monkeypatch.setattr(false_verdicts, "ROUNDS", tmp_path / "rounds.jsonl")

    def main(out, runs, status=0):
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path / out), "--runs", str(runs)])
        assert false_verdicts.main() == status
        return capsys.readouterr().out

    return main


def graded(folder, name, distance=0.01, deviations=(), rules=None) -> None:
    document = json.loads(PASS.read_text())
    document["grader"]["rules_sha256"] = rules or load("dli").rules_sha256
    evidence = {"distance": distance, "tolerance": 0.07, "exchange_growth": None}
    evidence["difference_of_ranks"] = 0.0
    for check in document["checks"]:
        check["evidence"] = evidence if check["id"] == "equivalence" else {}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"document": document, "deviations": list(deviations)})
    (folder / f"{name}.json").write_text(text)


def line(printed: str, beginning: str) -> list[str]:
    [found] = [line for line in printed.splitlines() if line.strip().startswith(beginning)]
    return found.strip().removeprefix(beginning).split()


def test_counts_the_rounds_of_two_machines_together(count, tmp_path):
    for number, (near, far) in enumerate([(0.06, 0.2), (0.01, 0.09)], 1):
        graded(tmp_path / "one" / str(number), "right_torch", near)
        graded(tmp_path / "one" / str(number), "sleeps", far)
    printed = count("one", 2)
    assert "2 rounds, 4 gradings, 0 deviations" in printed
    wanted = ["0.07", "0.06", "right_torch", "0.09", "sleeps"]
    assert line(printed, "equivalence: distance") == wanted
    assert count("one", 2) == printed  # nothing is missing, so nothing is counted twice

    graded(tmp_path / "another" / "3", "right_torch", 0.065)
    graded(tmp_path / "another" / "3", "sleeps", 0.3)
    printed = count("another", 3)
    assert "3 rounds, 6 gradings, 0 deviations" in printed
    assert line(printed, "equivalence: distance")[1:4] == ["0.065", "right_torch", "0.09"]
    assert line(printed, "sleeps")[-2:] == ["1", "1"]  # the table shows the results on this machine


def test_deviations_of_earlier_rounds_stay_in_the_count(count, tmp_path):
    graded(tmp_path / "one" / "1", "right_torch", deviations=["verdict: fail, not pass"])
    graded(tmp_path / "one" / "1", "sleeps")
    for out in ("one", "another"):
        printed = count(out, 1, status=1)
        assert "1 rounds, 2 gradings, 1 deviations" in printed
        assert "round 1, right_torch: verdict: fail, not pass" in printed


def test_grades_submissions_that_are_missing_or_graded_by_other_rules(count, tmp_path, monkeypatch):
    graded(tmp_path / "one" / "1", "right_torch", rules="others")
    asked = []

    def grade(names, folder, workers):
        asked.append((list(names), workers))
        graded(folder, "right_torch")  # the grader has written no result for the other submission

    monkeypatch.setattr(false_verdicts, "grade", grade)
    other = {"rules_sha256": "others", "gradings": 2, "deviations": [["sleeps", "?"]]}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(other | {"margins": []}) + "\n")
    printed = count("one", 1, status=1)
    assert asked == [(list(NAMES), 1)]
    assert "1 rounds, 1 gradings, 1 deviations" in printed
    assert "round 1, sleeps: no result" in printed


@pytest.mark.slow
def test_a_round_that_pytest_does_not_end_is_given_up(tmp_path):
    """Otherwise submissions that were not graded would be recorded as deviations."""
    with pytest.raises(SystemExit, match=r"exit code \d before all submissions were graded"):
        false_verdicts.grade(["unknown_to_pytest"], tmp_path, 1)
