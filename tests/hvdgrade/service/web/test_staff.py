"""What instructors change on the pages, each checked in the database and in what the learner then sees."""

import csv
import datetime
import io
import zipfile
from pathlib import Path

import pytest
from service_site import ON_BOTH
from sqlalchemy import select

from hvdgrade.batch import layout, worker
from hvdgrade.batch.id_table import read_students
from hvdgrade.batch.layout import Settings, Task
from hvdgrade.batch.results import load
from hvdgrade.service.models import Appeal, Assignment, Event, Extension, Grade, Person, Submission

SETTINGS = {
    "title": "New title",
    "opens": "",
    "due": "2026-07-01T18:00",
    "closes": "2026-12-01T18:00",
    "zone": "Europe/Berlin",
    "attempts": "7",
    "cooldown_s": "90",
    "limit_s": "300",
    "counts": "last",
    "feedback": "verdict",
}


def assignment(site) -> Assignment:
    with site.transaction() as session:
        found = session.scalar(select(Assignment).filter_by(slug="cifar"))
        session.expunge(found)
        return found


def events(site) -> list[str]:
    with site.transaction() as session:
        return list(session.scalars(select(Event.what).order_by(Event.id)))


def points(site, who: str = "ada") -> float | None:
    with site.transaction() as session:
        grade = session.get(Grade, (1, site.ids[who]))
        return grade and grade.points


@ON_BOTH
def test_settings_are_in_the_time_zone_of_the_form(site):
    assert site.post("ines", "/i/cifar/settings", **SETTINGS).status_code == 303
    now = assignment(site)
    utc = datetime.UTC
    assert now.due == datetime.datetime(2026, 7, 1, 16, tzinfo=utc)  # summer time, two hours ahead
    assert now.closes == datetime.datetime(2026, 12, 1, 17, tzinfo=utc)
    assert (now.opens, now.attempts, now.cooldown_s, now.limit_s) == (None, 7, 90.0, 300.0)
    assert (now.title, now.counts, now.feedback) == ("New title", "last", "verdict")
    page = site.browser("ines")
    page.cookies.set("zone", "America/New_York")
    text = page.get("/i/cifar/settings").text
    assert 'value="2026-07-01T12:00"' in text and "America/New_York" in text
    assert "2026-07-01T16:00:00+00:00" in site.browser("ada").get("/a/cifar").text
    assert events(site) == ["settings"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"due": "tomorrow"}, "is no date and time"),
        ({"due": "9999-12-31T23:59", "zone": "America/New_York"}, "is no date and time"),
        ({"due": "2026-10-25T02:30"}, "is twice"),
        ({"zone": "Mars/Olympus"}, "is no time zone"),
        ({"due": "2027-01-01T00:00"}, "must not close before it is due"),
        ({"attempts": "many"}, "Attempts must be a number from 1"),
        ({"attempts": "nan"}, "Attempts must be a number"),
        ({"limit_s": "5"}, "Limit_s must be a number from 60"),
        ({"counts": "worst"}, "Counts must be one of best, last"),
    ],
)
def test_wrong_settings_change_nothing(site, wrong, words):
    before = assignment(site)
    answer = site.post("ines", "/i/cifar/settings", **(SETTINGS | wrong))
    assert answer.status_code == 400 and words in answer.text
    after = assignment(site)
    assert (before.due, before.title, before.counts) == (after.due, after.title, after.counts)


def test_what_counts_is_computed_again_when_the_rule_changes(site):
    site.graded(name="pass")
    site.graded(name="fail")
    assert points(site) == 100
    site.post("ines", "/i/cifar/settings", **(SETTINGS | {"closes": "", "due": ""}))
    assert points(site) == 55


def test_an_extension_is_for_one_person(site):
    site.post("ines", "/i/cifar/settings", **(SETTINGS | {"closes": "2020-01-01T00:00", "due": ""}))
    assert site.submit("ada").status_code == site.submit("bob").status_code == 403
    sent = {"person": site.ids["ada"], "closes": "2099-01-01T00:00", "zone": "UTC", "reason": "ill"}
    assert site.post("ines", "/i/cifar/extension", **sent).status_code == 303
    assert (site.submit("ada").status_code, site.submit("bob").status_code) == (201, 403)
    with site.transaction() as session:
        given = session.scalar(select(Extension))
        assert (given.by, given.reason, given.attempts) == ("Ines", "ill", None)


def test_points_of_staff_replace_those_of_the_grader_until_they_are_withdrawn(site):
    site.graded(name="fail")
    about = {"person": site.ids["ada"], "reason": "agreed in the office hour"}
    path = "/i/cifar/override"
    assert site.post("ines", path, **about, points="101").status_code == 400
    assert site.post("ines", path, person=site.ids["ada"], points="80").status_code == 400
    assert site.post("ines", path, **about, points="80").status_code == 303
    assert points(site) == 80
    page = site.browser("ada").get("/a/cifar").text
    assert "80 of 100 points, set by staff: agreed in the office hour" in page
    assert site.post("ines", path, **about, points="").status_code == 303
    assert points(site) == 55
    assert events(site) == ["override", "withdraw override"]


def test_release(site):
    site.change(released=False)
    id = site.graded(name="fail")
    assert "55 of 100" not in site.browser("ada").get("/a/cifar").text
    assert site.post("ines", "/i/cifar/release", released="yes").status_code == 303
    assert site.status(id)["score"] == 55
    assert site.post("ines", "/i/cifar/release", released="no").status_code == 303
    assert site.status(id)["score"] is None


def test_an_exam_is_one_attempt_whose_result_is_released_by_hand(site):
    assert site.post("ines", "/i/cifar/exam").status_code == 303
    now = assignment(site)
    assert (now.attempts, now.feedback, now.released) == (1, "none", False)
    assert "This is an exam" in site.browser("ines").get("/i/cifar/settings").text
    id = site.graded(name="fail")
    assert site.submit("ada").status_code == 429
    assert site.status(id)["message"].strip() == "It was graded."
    page = site.browser("ada").get(f"/s/{id}").text
    assert "55 of 100" not in page and site.browser("ada").get(f"/s/{id}/report").status_code == 404
    site.post("ines", "/i/cifar/release", released="yes", feedback="verdict")
    assert site.status(id)["score"] == 55
    assert "This is an exam" not in site.browser("ines").get("/i/cifar/settings").text
    assert events(site) == ["settings", "settings", "release"]


def test_grade_again_and_take_out_of_the_queue(site):
    id = site.graded(name="fail")
    assert site.post("ines", "/i/cifar/cancel", submission=id).status_code == 409
    assert site.post("ines", "/i/cifar/again", submission=id).status_code == 303
    assert site.post("ines", "/i/cifar/again", submission=id).status_code == 409
    assert site.post("ines", "/i/cifar/cancel", submission=id).status_code == 303
    assert site.gradings(id) == [("first", "done"), ("again", "cancelled")]
    site.post("ines", "/i/cifar/again", submission=id)
    site.result(site.claim().json(), "pass")
    assert (points(site), site.status(id)["score"]) == (100, 100)


@ON_BOTH
def test_an_appeal_shows_its_evidence_and_the_learner_sees_the_answer(site):
    script = b"import horovod.torch as hvd\n" * 60
    id = site.graded(name="fail", script=script)
    for who in ("bob", "ines"):
        assert site.post(who, f"/s/{id}/appeal", text="hm").status_code in (403, 404)
    assert site.post("ada", f"/s/{id}/appeal", text="").status_code == 400
    assert site.post("ada", f"/s/{id}/appeal", text="One second too late!").status_code == 303
    assert site.post("ada", f"/s/{id}/appeal", text="Again").status_code == 409
    page = site.browser("ines").get("/i/cifar/appeals").text
    assert "appeals (1)" in page and "One second too late!" in page
    assert "N ranks train like a single process" in page  # the first check that failed
    assert "images per second in one process" in page
    answer = {"appeal": "1", "state": "kept", "text": "The machine was quiet."}
    assert site.post("ines", "/i/cifar/answer", **answer).status_code == 303
    assert site.post("ines", "/i/cifar/answer", **answer).status_code == 409
    assert "The machine was quiet." in site.browser("ada").get(f"/s/{id}").text
    assert site.scalar(select(Appeal.state)) == "kept"


@ON_BOTH
def test_a_regrade_changes_nothing_until_it_is_applied_and_can_be_undone(site):
    id = site.graded(name="fail")
    site.graded("bob", "pass")
    begun = site.post("ines", "/i/cifar/regrade", which="failed", reason="the machine was busy")
    assert begun.status_code == 303
    assert site.gradings(id) == [("first", "done"), ("regrade", "queued")]
    assert site.status(id)["state"] == "done"  # the learner does not see it wait
    assert site.post("ines", "/i/cifar/apply", regrade="1").status_code == 409
    site.result(site.claim().json(), "pass")
    assert site.claim().status_code == 204  # Bob passed, so he is not in it
    assert (points(site), site.status(id)["score"]) == (55, 55)
    table = site.browser("ines").get("/i/cifar/regrade").text
    assert "55 of 100" in table and "100 of 100" in table
    assert site.post("ines", "/i/cifar/apply", regrade="1").status_code == 303
    assert (points(site), site.status(id)["score"]) == (100, 100)
    assert site.post("ines", "/i/cifar/undo", regrade="1").status_code == 303
    assert (points(site), site.status(id)["score"]) == (55, 55)
    nobody = site.post("ines", "/i/cifar/regrade", which="no such check", reason="x")
    assert nobody.status_code == 409


# --- downloads ----------------------------------------------------------------------------------------


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"))))


def test_a_table_has_the_points_that_count_and_runs_nothing(site):
    site.graded(name="fail")
    about = {"person": site.ids["bob"], "reason": "=1+1", "points": "30"}
    site.post("ines", "/i/cifar/override", **about)
    with site.transaction() as session:
        session.get(Person, site.ids["ada"]).name = "=HYPERLINK(1)"
    answer = site.browser("ines").get("/i/cifar/download/csv")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="cifar.csv"'
    ada, bob = sorted(table(answer.text), key=lambda row: row["student"])
    assert (ada["student"], ada["score"], ada["name"]) == (
        "ada@example.edu", "55", "'=HYPERLINK(1)",
    )  # fmt: skip
    assert (bob["student"], bob["score"], bob["reason"]) == ("bob@example.edu", "30.0", "'=1+1")


def test_the_folder_is_one_that_a_batch_continues(site, tmp_path):
    id = site.graded(name="fail")
    data = site.browser("ines").get("/i/cifar/download/zip").content
    zipfile.ZipFile(io.BytesIO(data)).extractall(tmp_path)
    (document,) = load(tmp_path)
    assert (document["score"], document["submission"]["email"]) == (55, "ada@example.edu")
    (name, student), *_ = read_students(tmp_path).items()
    assert student.name == "Ada"
    script = site.scalar(select(Submission.script).filter_by(id=id))
    assert (tmp_path / "submissions" / f"{name}.py").read_bytes() == script
    rules = document["grader"]["rules_sha256"]
    settings = Settings(tmp_path, ranks=2, profile="cpu", rules_sha256=rules, limit=1.0)
    task = Task(student.id, name, layout.key(script, settings))
    assert worker.is_kept(task, settings)
    assert not worker.is_kept(Task(student.id, name, layout.key(b"x", settings)), settings)
    assert "not reached" in (tmp_path / "reports" / f"{name}.html").read_text()
    assert (tmp_path / "logs" / f"{name}.log").read_text() == "the log"


CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Lab (12)
    Points Possible,,,,,50
"Ada",1,,ada@example.edu,1,
"Bob",2,,bob@example.edu,1,
"""
MOODLE = """\
Identifier,Full name,Email address,Grade,Maximum grade
Participant 7,Ada,ada@example.edu,,10
"""


@pytest.mark.parametrize(
    ("name", "content", "column", "filled"),
    [("canvas", CANVAS, "Lab (12)", ",27.5\n"), ("moodle", MOODLE, "", ",5.5,10\n")],
)
def test_a_gradebook_is_filled(site, name, content, column, filled):
    site.graded(name="fail")
    sent = {"csrf": site.csrf("ines"), "column": column}
    files = {"file": ("book.csv", content.encode())}
    path = f"/i/cifar/download/{name}"
    answer = site.browser("ines").post(path, data=sent, files=files)
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert filled in archive.read(f"{name}.csv").decode()
    assert "filled: 1" in archive.read("messages.txt").decode()
    wrong = site.browser("ines").post(path, data=sent, files={"file": ("x.csv", b"a,b\n")})
    assert wrong.status_code == 400 and "This did not work" in wrong.text
    large = {"file": ("x.csv", b"x" * 4_100_000)}
    assert site.browser("ines").post(path, data=sent, files=large).status_code == 413


def test_similar_scripts(site):
    script = (
        Path(__file__).parents[4] / "tests/fixtures/submissions/right_legacy_keras/assessment.py"
    )
    source = script.read_bytes()
    site.submit("ada", source)
    site.submit("bob", source.replace(b"epoch", b"round"))
    assert "%" not in site.browser("ines").get("/i/cifar/similar").text
    page = site.browser("ines").get("/i/cifar/similar?compare=1").text
    row = page[page.index("<tr><td") :]
    assert "Ada" in row and "Bob" in row and " %" in row


@ON_BOTH
def test_the_queue_shows_no_names_of_other_courses(site):
    site.change("foreign", pool="default")
    site.submit("oscar", slug="foreign")
    site.submit("ada")
    page = site.browser("ines").get("/i/cifar/queue").text
    assert "another course" in page and "Oscar" not in page and "Ada" in page


def test_the_page_of_workers_says_why_one_gets_nothing(site):
    site.submit()
    site.change(require_sandbox="landlock")
    assert "No worker has come yet" in site.browser("tom").get("/i/cifar/workers").text
    site.claim(tier="rlimits")
    page = site.browser("tom").get("/i/cifar/workers").text
    assert "gets nothing" in page and "needs the isolation level landlock" in page
