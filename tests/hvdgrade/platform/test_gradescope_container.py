"""`run_autograder` of the kit for Gradescope, as root in a container like Docker's."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import docker_container
import platform_kits
import pytest
from container_attacks import Targets

from tests.hvdgrade.export.test_one_result import fits

ROOT = docker_container.ROOT
INSIDE = docker_container.INSIDE
pytestmark = [pytest.mark.mpi, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def container():
    if obstacle := docker_container.why_not():
        pytest.skip(obstacle)


@pytest.fixture
def autograder() -> Iterator[Path]:
    """Return a folder like /autograder for a kit that grades in the container, with data that are closed."""
    with tempfile.TemporaryDirectory(prefix="hvdlab-tests-") as name:
        Path(name).chmod(0o755)
        place = platform_kits.gradescope(Path(name) / "autograder", "")
        place.chmod(0o755)
        yield place


def run(place: Path, data: Path, profile: str, seconds: float, **container: bool) -> tuple:
    """Run `run_autograder` in a container; return its answer, and the file for Gradescope or None."""
    shutil.copytree(data, place / "data")
    (place / "data").chmod(0o700)
    environment = {"HVDLAB_DATA": str(INSIDE / "data")}
    settings = place / "source" / "settings.json"
    hvdgrade = str(platform_kits.GRADER)
    platform_kits.change(settings, hvdgrade=hvdgrade, environment=environment, profile=profile)
    platform_kits.change(settings, limit_s=seconds)
    program = ["python3", INSIDE / "run_autograder", INSIDE]
    answer = docker_container.run(place, program, seconds=seconds + 60, **container)
    result = place / "results" / "results.json"
    found = fits(json.loads(result.read_text()), "gradescope") if result.exists() else None
    return answer, found


@pytest.mark.parametrize("landlock", [True, False])
def test_a_hostile_submission_reaches_nothing_of_the_autograder(
    landlock, autograder, sample_folder
):
    targets = Targets(
        result="results/old.json",
        token="submission_metadata.json",  # has e-mail addresses and earlier results
        exporter="source/door.py",
    )
    (autograder / "submission" / "assessment.py").write_text(targets.submission(INSIDE))
    (autograder / "results" / "old.json").write_text('{"score": 12}')
    files = ("results/old.json", "submission_metadata.json", "source/door.py", "run_autograder")
    before = {name: (autograder / name).read_bytes() for name in files}
    answer, found = run(autograder, sample_folder, "dli", 280, landlock=landlock)
    assert found and found["output"].startswith("FAIL: "), answer.stdout + answer.stderr
    assert "reached: []" in answer.stdout and "Permission denied" in answer.stdout
    assert {name: (autograder / name).read_bytes() for name in files} == before
    results = {path.name for path in (autograder / "results").iterdir()}
    assert results == {"old.json", "results.json"}


@pytest.mark.thorough
@pytest.mark.grading
@pytest.mark.data
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("landlock", [True, False])
@pytest.mark.parametrize(
    "script, verdict",
    [
        ("assessment/solutions/torch/assessment.py", "PASS"),
        ("assessment/torch/assessment.py", "FAIL"),
    ],
)
def test_the_solution_passes_and_the_starter_fails(
    script, verdict, landlock, autograder, real_cifar10_folder
):
    shutil.copy(ROOT / script, autograder / "submission" / "assessment.py")
    answer, found = run(autograder, real_cifar10_folder, "cpu", 2340, landlock=landlock)
    assert answer.returncode == 0 and found, answer.stdout[-3000:] + answer.stderr[-3000:]
    assert found["output"].startswith(f"{verdict}: "), json.dumps(found, indent=1) + answer.stdout
    assert (found["score"] == 100) == (verdict == "PASS")
    tests = {test["tags"][0]: test.get("status") for test in found["tests"]}
    assert tests["ran"] == "passed"
    assert (tests["targets"] == "passed") == (verdict == "PASS")
