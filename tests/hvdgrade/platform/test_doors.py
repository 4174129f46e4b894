"""The programs of the kits, as a platform starts them: with a server of the contract, and with the grader."""

import json
import time
from pathlib import Path

import jsonschema
import platform_kits
import psutil
import pytest
from submission_server import TOKEN, running

from hvdgrade.export import command
from hvdgrade.export.payload_files import text
from tests.hvdgrade.export.test_one_result import RESULTS, fits

SCRIPT = "print('hello')\n"
CODES = {"pass": 0, "fail": 1, "hang": 1, "not_gradable": 2, "grader_fault": 3}


def course(name: str) -> list[dict]:
    """Return the status documents of a submission that ends with this result."""
    state = "fault" if name == "grader_fault" else "done"
    end = {"state": state, "exit_code": CODES[name], "message": RESULTS[name]["reason"] or name}
    return [{"state": "queued", "place": 1}, end]


def payloads(name: str) -> dict[str, str | None]:
    """Return what the server gives each platform for this result."""
    formats = ("gradescope", "prairielearn", "classroom50", "junit")
    made = {format: command.FORMATS[format].payload(RESULTS[name]) for format in formats}
    return {format: payload and text(payload) for format, payload in made.items()}


# --- Gradescope ------------------------------------------------------------------------------------


def result_of(place: Path) -> dict | None:
    """Return the file that Gradescope gets; None without one."""
    path = place / "results" / "results.json"
    return fits(json.loads(path.read_text()), "gradescope") if path.exists() else None


def run_autograder(place: Path, **variables: str):
    return platform_kits.run(place / "run_autograder", place, cwd=place, **variables)


@pytest.mark.parametrize("name", CODES)
def test_gradescope_shows_what_the_server_found(name, tmp_path):
    with running(course(name), payloads=payloads(name)) as server:
        place = platform_kits.gradescope(tmp_path / "autograder", SCRIPT, server.url)
        answer = run_autograder(place)
    assert answer.returncode == (name == "grader_fault"), answer.stderr
    assert [(key, who) for key, (who, _) in server.submissions.items()] == [
        ("gradescope-123456", "ada@uni.edu")
    ]
    found = result_of(place)
    if name in ("pass", "fail", "hang"):
        assert found == json.loads(payloads(name)["gradescope"])
    elif name == "not_gradable":
        [failed] = found["tests"]
        assert failed["max_score"] == 0 and failed["output"] == RESULTS[name]["reason"]
    else:
        assert found is None and RESULTS[name]["reason"] in answer.stderr
    for private in ("results", "source"):
        assert (place / private).stat().st_mode & 0o777 == 0o700
    assert (place / "submission_metadata.json").stat().st_mode & 0o777 == 0o600


def test_gradescope_keeps_the_last_valid_result(tmp_path):
    graded = json.loads(payloads("fail")["gradescope"])
    older = json.loads(payloads("pass")["gradescope"])
    with running(course("not_gradable"), payloads=payloads("not_gradable")) as server:
        place = platform_kits.gradescope(tmp_path / "autograder", SCRIPT, server.url)
        previous = [
            {"submission_time": "2026-09-02T10:00:00Z", "score": 55, "results": graded},
            {"submission_time": "2026-09-01T10:00:00Z", "score": 100, "results": older},
            {"submission_time": "2026-09-03T10:00:00Z", "score": 0, "results": None},
        ]
        platform_kits.tell(place, previous)
        assert run_autograder(place).returncode == 0
        first = result_of(place)
        assert first["score"] == 55 and first["tests"] == graded["tests"]
        reason = RESULTS["not_gradable"]["reason"]
        assert first["output"].startswith(f"NOT GRADABLE: {reason}\n")
        assert first["output"].endswith(graded["output"])
        # The next one has this result as its last valid one. The reasons do not pile up.
        again = {"submission_time": "2026-09-04T10:00:00Z", "score": 55, "results": first}
        platform_kits.tell(place, [*previous, again])
        server.failures = [(403, "closed since 3 September")]
        assert run_autograder(place).returncode == 0
        second = result_of(place)
    assert second["score"] == 55 and "closed since 3 September" in second["output"]
    assert reason not in second["output"] and second["output"].endswith(graded["output"])


def test_gradescope_gets_no_result_while_the_server_is_down(tmp_path):
    place = platform_kits.gradescope(tmp_path / "autograder", SCRIPT, "http://127.0.0.1:1")
    platform_kits.change(place / "source" / "settings.json", limit_s=2)
    answer = run_autograder(place)
    assert answer.returncode == 1 and result_of(place) is None
    assert "no result for Gradescope: no answer in time" in answer.stderr
    with running([{"state": "queued", "place": 9, "estimate_s": 3000}]) as server:
        platform_kits.change(place / "source" / "settings.json", server=server.url, limit_s=540)
        answer = run_autograder(place)
    assert answer.returncode == 1 and result_of(place) is None
    assert "no result within the time limit" in answer.stderr and len(server.requests) == 1


def test_the_grader_in_gradescopes_container_says_why_a_script_is_not_gradable(tmp_path):
    place = platform_kits.gradescope(tmp_path / "autograder", "def (")
    settings = {"hvdgrade": str(platform_kits.GRADER), "environment": {}}
    platform_kits.change(place / "source" / "settings.json", **settings)
    answer = run_autograder(place)
    assert answer.returncode == 0, answer.stderr
    [failed] = result_of(place)["tests"]
    assert "not valid Python, line 1" in failed["output"]
    # A profile that is not known is a mistake of the kit, and no result.
    (place / "results" / "results.json").unlink()
    platform_kits.change(place / "source" / "settings.json", profile="hard")
    answer = run_autograder(place)
    assert answer.returncode == 1 and result_of(place) is None


@pytest.mark.mpi
@pytest.mark.slow
def test_a_grading_is_ended_with_all_its_processes_before_the_platform_ends_it(
    tmp_path, sample_folder
):
    place = platform_kits.gradescope(tmp_path / "autograder", "import time\ntime.sleep(600)\n")
    settings = {"hvdgrade": str(platform_kits.GRADER), "profile": "dli", "limit_s": 15}
    settings |= {"environment": {"HVDLAB_DATA": str(sample_folder)}, "require_sandbox": "landlock"}
    platform_kits.change(place / "source" / "settings.json", **settings)
    before = time.time()
    answer = run_autograder(place)
    assert answer.returncode == 1 and result_of(place) is None
    assert "no result within the time limit of 15 s" in answer.stderr
    started = [
        p for p in psutil.process_iter(["cmdline", "create_time"]) if p.create_time() > before
    ]
    left = [p.info["cmdline"] for p in started if str(place) in " ".join(p.info["cmdline"] or [])]
    assert left == []


# --- PrairieLearn ----------------------------------------------------------------------------------


@pytest.fixture
def question(tmp_path) -> Path:
    """Return a folder like /grade, with a submission; `server` is set in each test."""
    return platform_kits.prairielearn(tmp_path / "grade", SCRIPT, "http://127.0.0.1:1")


@pytest.mark.parametrize("name", CODES)
def test_prairielearn_shows_what_the_server_found(name, question):
    results = question / "results" / "results.json"
    with running(course(name), payloads=payloads(name)) as server:
        platform_kits.change(question / "tests" / "settings.json", server=server.url)
        answer = platform_kits.run(question / "tests" / "grade.py", question, cwd=question)
        assert answer.returncode == (name == "grader_fault"), answer.stderr
        assert results.exists() == (name != "grader_fault")
        if results.exists():
            found = fits(json.loads(results.read_text()), "prairielearn")
            assert found == json.loads(payloads(name)["prairielearn"])
        # The same script of the same student is the same submission.
        platform_kits.run(question / "tests" / "grade.py", question, cwd=question)
    [(_, (learner, _))] = server.submissions.items()
    assert learner.startswith("prairielearn-") and len(learner) > 40


def test_prairielearn_takes_no_attempt_for_what_the_server_refuses(question):
    with running(course("pass"), failures=[(403, "closed since 3 September")]) as server:
        platform_kits.change(question / "tests" / "settings.json", server=server.url)
        answer = platform_kits.run(question / "tests" / "grade.py", question, cwd=question)
    assert answer.returncode == 0, answer.stderr
    found = json.loads((question / "results" / "results.json").read_text())
    assert not fits(found, "prairielearn")["gradable"] and "closed" in found["format_errors"][0]


# --- Classroom 50 ----------------------------------------------------------------------------------

VARIABLES = {
    "CLASSROOM": "dl", "ASSIGNMENT": "cifar", "ASSIGNMENT_TYPE": "individual", "OWNER": "ada",
    "USERNAME": "ada", "SUBMISSION_TAG": "submit/2026-09-01T12-00-00Z-a1b2c3d",
    "COMMIT_URL": "https://github.com/o/r/commit/1", "RELEASE_URL": "https://github.com/o/r/releases/1",
    "REVIEW_URL": "https://github.com/o/r/compare/0...1", "GITHUB_SHA": "a1b2", "GITHUB_REPOSITORY_ID": "7",
    "HVDGRADE_ID_TOKEN": TOKEN,
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_classroom50_gets_a_result_that_its_schema_accepts(name, tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "assessment.py").write_text(SCRIPT)
    secret = tmp_path / "secret"
    secret.write_text("of the runner")
    (checkout / "result.json").symlink_to(secret)  # a student may commit anything
    with running(course(name), payloads=payloads(name)) as server:
        kit = platform_kits.make("classroom50", tmp_path / "kit", server.url)
        answer = platform_kits.run(kit / "autograder.py", cwd=checkout, **VARIABLES)
    graded = name in ("pass", "fail", "hang")
    assert answer.returncode == (not graded), answer.stderr
    assert list(server.submissions) == ["github-7-a1b2"]
    assert secret.read_text() == "of the runner"
    if graded:
        found = fits(json.loads((checkout / "result.json").read_text()), "classroom50")
        assert found["score"] == RESULTS[name]["score"] and found["owner"] == "ada"
        with pytest.raises(jsonschema.ValidationError):
            fits(found | {"score": 0.5}, "classroom50")
    else:
        assert not (checkout / "result.json").exists()
        assert f"::error::{' '.join(RESULTS[name]['reason'].split())}" in answer.stderr
