"""A hostile submission in a container like Docker's, graded by root, with and without Landlock.

The container resembles that of an autograder. The submission tries to reach what belongs to the grader:
earlier results, a token, the programs around the grader, and process 1.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker_container
import pytest
from container_attacks import EACH, Targets

from hvdgrade.run_command import FAIL, GRADER_FAULT

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

HELPERS = Path(docker_container.__file__).parent
GRADER_SECONDS = 280
RESULT, TOKEN, PROGRAM = '{"score": 12}', "a secret token", "exit 0\n"


@pytest.fixture(scope="module", autouse=True)
def container():
    if obstacle := docker_container.why_not():
        pytest.skip(obstacle)


@pytest.fixture
def place(sample_folder) -> Iterator[Path]:
    """Return the folder of an autograder, which the container sees."""
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(sample_folder, folder / ".cache" / "hvdlab")  # of root's home
        for private in (".cache", "results"):
            (folder / private).mkdir(exist_ok=True)
            (folder / private).chmod(0o700)
        for file, text, mode in (
            ("results/ada.json", RESULT, 0o644),
            ("token", TOKEN, 0o600),
            ("run_autograder", PROGRAM, 0o755),
            ("export", PROGRAM, 0o755),
            ("assessment.py", Targets().submission(docker_container.INSIDE), 0o644),
        ):
            (folder / file).write_text(text)
            (folder / file).chmod(mode)
        yield folder


def graded(place: Path, *options: str, **container: bool) -> tuple[int, dict]:
    """Grade the hostile submission in a container; return the exit code and the result."""
    inside = docker_container.INSIDE
    grader = [sys.executable, "-m", "hvdgrade.cli", "run", inside / "assessment.py", "-np", "1"]
    grader += ["--profile", "dli", "--json", inside / "results" / "bob.json", *options]
    program = [sys.executable, HELPERS / "autograder.py", inside / "signals", GRADER_SECONDS]
    answer = docker_container.run(place, [*program, *grader], **container)
    result = place / "results" / "bob.json"
    assert result.exists(), answer.stdout + answer.stderr
    return answer.returncode, json.loads(result.read_text())


def succeeded(place: Path, result: dict) -> set[str]:
    """Return the names of the attacks that succeeded."""
    said = result["output"]
    changes = {
        "list": "ada.json" in said.replace("results/ada.json", ""),
        "read result": RESULT in said,
        "read token": TOKEN in said,
        "write result": (place / "results" / "ada.json").read_text() != RESULT,
        "change script": (place / "run_autograder").read_text() != PROGRAM,
        "change exporter": (place / "export").read_text() != PROGRAM,
        "signal": bool((place / "signals").read_text()),
    }
    return {name for name, happened in changes.items() if happened}


@pytest.mark.parametrize("landlock, tier", [(True, "landlock"), (False, "user")])
def test_root_in_a_container_withstands_the_attacks(landlock, tier, place):
    code, result = graded(place, landlock=landlock)
    assert (code, result["grader"]["sandbox_tier"]) == (FAIL, tier), result["reason"]
    assert result["grader"]["sandbox"]["uid_dropped"]
    assert "Permission denied" in result["output"] and succeeded(place, result) == set()


def test_a_submission_is_root_only_if_the_instructor_says_so(place):
    """Where Landlock is refused and Python is root's own, a submission can have no other user."""
    container = {"landlock": False, "python_for_all": False}
    code, result = graded(place, **container)
    closed = docker_container.ROOT.parent
    assert code == GRADER_FAULT and succeeded(place, result) == set()
    assert result["reason"].startswith("the submission would run as root, because")
    assert f"or run `chmod a+x {closed}`" in result["reason"]
    assert "add --require-sandbox rlimits" in result["reason"]

    code, result = graded(place, "--require-sandbox", "rlimits", **container)
    assert (code, result["grader"]["sandbox_tier"]) == (FAIL, "rlimits"), result["reason"]
    assert succeeded(place, result) == EACH  # so the attacks of the other test can succeed


def test_the_doctor_says_which_level_is_used_and_why_no_stronger_one_is(place):
    report = docker_container.INSIDE / "doctor.json"
    doctor = [sys.executable, "-m", "hvdgrade.cli", "doctor", "--json", report]
    answer = docker_container.run(place, doctor, landlock=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads((place / "doctor.json").read_text())
    assert found["chosen"] == "user" and found["hello"]["works"]
    reasons = {level["name"]: level["reason"] for level in found["tiers"] if not level["works"]}
    assert list(reasons) == ["bubblewrap+cgroup", "bubblewrap", "landlock"]
    assert "Landlock: Operation not permitted" in reasons["landlock"]
    assert all(f"{name}: {reason}" in answer.stdout for name, reason in reasons.items())
    assert "A grading on this host uses user." in answer.stdout
