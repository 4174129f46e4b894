"""Scores reach a strict learning platform (a real HTTP server), whatever breaks in between."""

import datetime
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, timedelta
from pathlib import Path

import jwt
import pytest
from lms import Lms
from sqlalchemy import select

from hvdgrade.service import poster
from hvdgrade.service.database import connect, transaction
from hvdgrade.service.lti import BadKey, Keys, Scores, Target
from hvdgrade.service.models import (
    Assignment,
    Base,
    Course,
    Grade,
    Grading,
    Identity,
    LineItem,
    Person,
    Post,
    Submission,
)
from hvdgrade.service.poster import Poster

pytestmark = pytest.mark.slow  # each test starts a server
NOW = datetime.datetime(2026, 3, 2, 12, tzinfo=UTC)
KEY_CHOICES = ("new.pem", "old.pem")
DOCUMENT = {
    "verdict": "fail",
    "checks": [
        {"title": "Accuracy", "state": "pass"},
        {"title": "Gradients are averaged", "state": "fail"},
        {"title": "Memory", "state": "skipped"},
    ],
}


@pytest.fixture(scope="module")
def key_files(tmp_path_factory) -> list[Path]:
    place = tmp_path_factory.mktemp("keys")
    files = [place / name for name in KEY_CHOICES]
    for file in files:
        Keys([file])
    return files


@pytest.fixture
def lms(key_files):
    lms = Lms({"sub-1": "Ada", "sub-2": "Bob"})
    lms.tool_keys = Keys(key_files).jwks
    with lms.serving():
        yield lms


class Class:
    """Two people, one assignment with a column in the LMS, and the database in a file."""

    def __init__(self, file, tables, lms):
        shutil.copy(tables, file)
        self.engine = connect(f"sqlite:///{file}")
        with transaction(self.engine) as session:
            course = Course(slug="ml")
            session.add(Assignment(id=1, slug="hw1", course=course))
            for number in (1, 2):
                session.add(Person(id=number))
                session.add(Identity(issuer="lms", subject=f"sub-{number}", person_id=number))
                session.add(Grade(assignment_id=1, person_id=number, changed=NOW))
            session.flush()
            session.add(
                LineItem(
                    assignment_id=1,
                    issuer="lms",
                    client_id=lms.client,
                    url=lms.line_item(),
                    token_url=f"{lms.url}/token",
                )
            )

    def grade(self, person, version, score, at=NOW, state="waiting"):
        """Write what a changed grade writes."""
        with transaction(self.engine) as session:
            post = Post(assignment_id=1, person_id=person, version=version, state=state)
            post.score, post.max_score, post.timestamp, post.next_at = score, 100.0, at, at
            session.add(post)

    def states(self, person=1) -> list[str]:
        return [post.state for post in self.posts(person)]

    def posts(self, person=1) -> list[Post]:
        with transaction(self.engine) as session:
            query = select(Post).where(Post.person_id == person).order_by(Post.version)
            posts = session.scalars(query).all()
            session.expunge_all()
            return posts


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """Return a database without rows, which is copied for each test."""
    file = tmp_path_factory.mktemp("tables") / "service.db"
    engine = connect(f"sqlite:///{file}")
    Base.metadata.create_all(engine)
    engine.dispose()
    return file


@pytest.fixture
def course(tmp_path, tables, lms):
    course = Class(tmp_path / "service.db", tables, lms)
    yield course
    course.engine.dispose()


@pytest.fixture
def sender(course, key_files):
    return Poster(course.engine, Scores(Keys(key_files)))


def send_all(sender, now=NOW) -> int:
    sent = 0
    while sender.send_next(now):
        sent += 1
    return sent


def test_sends_the_newest_score_of_each_person_once(course, sender, lms):
    course.grade(1, 1, 40.0)
    course.grade(1, 2, 70.0, NOW + timedelta(minutes=1))
    course.grade(2, 1, 0.0)
    later = NOW + timedelta(hours=1)
    assert send_all(sender, later) == 2 and send_all(sender, later) == 0
    assert [lms.score_of("sub-1"), lms.score_of("sub-2")] == [70.0, 0.0]
    assert len(lms.seen) == 2 and lms.tokens_given == 1 and lms.refused == []
    assert course.states() == ["replaced", "sent"] and course.states(2) == ["sent"]
    (score,) = lms.scores["1", "sub-1"]
    assert score["timestamp"] == "2026-03-02T12:01:00.000Z"
    assert (score["activityProgress"], score["gradingProgress"]) == ("Completed", "FullyGraded")
    assert (score["scoreMaximum"], score["comment"]) == (100.0, "")

    course.grade(1, 3, 60.0, NOW + timedelta(minutes=2))  # lower, after a regrade
    assert send_all(sender, later) == 1 and lms.score_of("sub-1") == 60.0


def test_a_grade_without_points_takes_the_points_back(course, sender, lms):
    course.grade(1, 1, 40.0)
    send_all(sender)
    course.grade(1, 2, None, NOW + timedelta(minutes=1))
    assert send_all(sender, NOW + timedelta(hours=1)) == 1
    last = lms.scores["1", "sub-1"][-1]
    assert "scoreGiven" not in last and last["gradingProgress"] == "Pending"


@pytest.mark.parametrize("held", [1, 2])
def test_sends_nothing_of_a_person_on_hold(course, sender, lms, held):
    for version in (1, 2):
        course.grade(1, version, 40.0, state="held" if version == held else "waiting")
    assert send_all(sender) == 0 and lms.seen == []
    course.grade(2, 1, 40.0)
    assert send_all(sender) == 1


def test_waits_longer_after_each_failure(course, sender, lms):
    course.grade(1, 1, 40.0)
    pauses, clock = [], NOW
    for trouble in ("break", 500, 503, 429, "break", 502, 502, 502):
        lms.trouble = [trouble]
        before = datetime.datetime.now(UTC)
        assert sender.send_next(clock)
        (post,) = course.posts()
        assert post.state == "waiting" and post.answer
        pauses.append(round((post.next_at - before).total_seconds() / 60))
        clock = post.next_at
        assert not sender.send_next(clock - timedelta(seconds=1))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert sender.send_next(clock) and course.states() == ["sent"]
    assert lms.scores["1", "sub-1"][0]["timestamp"] == "2026-03-02T12:00:00.000Z"


def test_shows_why_the_lms_refuses(course, sender, lms):
    lms.users.pop("sub-1")
    course.grade(1, 1, 40.0)
    assert send_all(sender) == 1
    (post,) = course.posts()
    assert post.state == "refused"
    assert post.answer == '404 {"error": "User sub-1 is not enrolled"}'


@pytest.mark.parametrize(
    "trouble, state", [(400, "refused"), (401, "refused"), (503, "waiting"), ("break", "waiting")]
)
def test_no_access_token(course, sender, lms, trouble, state):
    lms.token_trouble = [trouble]
    course.grade(1, 1, 40.0)
    send_all(sender)
    (post,) = course.posts()
    assert post.state == state and (trouble == "break" or f"trouble {trouble}" in post.answer)
    assert lms.seen == []


def test_gets_a_new_access_token_if_the_lms_forgot_the_old_one(course, sender, lms):
    course.grade(1, 1, 40.0)
    send_all(sender)
    lms.tokens.clear()
    course.grade(1, 2, 50.0, NOW + timedelta(minutes=1))
    send_all(sender, NOW + timedelta(hours=1))
    assert lms.score_of("sub-1") == 50.0 and lms.tokens_given == 2


def test_repeats_an_older_score_once_with_the_present_time(course, sender, lms):
    newer = {"timestamp": "2026-03-02T12:30:00Z", "scoreGiven": 99.0}  # of somebody else's clock
    lms.scores["1", "sub-1"] = [newer]
    course.grade(1, 1, 40.0)
    began = datetime.datetime.now(UTC) - timedelta(seconds=1)
    send_all(sender)
    assert course.states() == ["sent"] and lms.score_of("sub-1") == 40.0
    assert [status for status, _ in lms.refused] == [409]
    assert course.posts()[0].timestamp > began

    lms.scores["1", "sub-1"] = [{"timestamp": "2999-01-01T00:00:00Z", "scoreGiven": 99.0}]
    course.grade(1, 2, 50.0, NOW + timedelta(minutes=1))
    send_all(sender, datetime.datetime.now(UTC))
    assert course.states() == ["sent", "refused"] and lms.score_of("sub-1") == 99.0
    assert course.posts()[1].answer == '409 {"error": "there is a newer score"}'
    assert [status for status, _ in lms.refused] == [409, 409, 409]


def test_does_not_repeat_an_older_score_over_a_newer_one(course, sender, lms):
    """A second server has sent the next version while this one was under way."""
    course.grade(1, 1, 40.0)
    with transaction(course.engine) as session:
        letter = poster.take(session, {}, NOW)
    course.grade(1, 2, 70.0, NOW + timedelta(minutes=1))
    assert send_all(sender, NOW + timedelta(hours=1)) == 1
    sender._send(letter)
    assert lms.score_of("sub-1") == 70.0 and course.states() == ["replaced", "sent"]
    assert len(lms.seen) == 2


def test_says_that_nobody_came_from_the_lms(course, sender, lms):
    with transaction(course.engine) as session:
        session.delete(session.get(Identity, ("lms", "sub-1")))
    course.grade(1, 1, 40.0)
    assert send_all(sender) == 1 and lms.seen == []
    assert course.posts()[0].state == "refused"
    assert "open the assignment from the LMS once" in course.posts()[0].answer


@pytest.mark.parametrize(
    "feedback, override, comment",
    [
        ("full", None, "fail; look at: Gradients are averaged"),
        ("verdict", None, "fail"),
        ("none", None, ""),
        ("full", 90.0, ""),
    ],
)
def test_comments_no_more_than_the_assignment_shows(
    course, sender, lms, feedback, override, comment
):
    with transaction(course.engine) as session:
        session.get(Assignment, 1).feedback = feedback
        submission = Submission(id="s", assignment_id=1, person_id=1, number=1, door="page")
        submission.key, submission.sha256, submission.script, submission.received = (
            "k",
            "",
            b"",
            NOW,
        )
        session.add(submission)
        session.flush()
        grading = Grading(submission_id="s", pool="default", queued=NOW, document=DOCUMENT)
        session.add(grading)
        session.flush()
        grade = session.get(Grade, (1, 1))
        grade.grading_id, grade.override = grading.id, override
    course.grade(1, 1, 40.0)
    send_all(sender)
    assert lms.scores["1", "sub-1"][0]["comment"] == comment


SEND = """
import sys, threading
from pathlib import Path
from hvdgrade.service.database import connect
from hvdgrade.service.lti import Keys, Scores
from hvdgrade.service.poster import Poster
Poster(connect(sys.argv[1]), Scores(Keys([Path(sys.argv[2])]))).run(threading.Event())
"""


def test_a_killed_process_loses_no_score(tmp_path, course, lms, key_files):
    """kill -9 while the LMS has the score and has not answered; the next process sends it again."""
    arrived, go_on = threading.Event(), threading.Event()
    original = lms._score

    def slow(*arguments):
        answer = original(*arguments)
        arrived.set()
        go_on.wait(60)
        return answer

    lms._score = slow
    course.grade(1, 1, 40.0)
    command = [sys.executable, "-c", SEND, f"sqlite:///{tmp_path}/service.db", str(key_files[0])]
    process = subprocess.Popen(command)
    try:
        assert arrived.wait(60)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
        go_on.set()
    lms._score = original
    assert course.states() == ["waiting"]
    sender = Poster(course.engine, Scores(Keys(key_files)))
    assert send_all(sender, datetime.datetime.now(UTC)) == 0  # the dead process has it for a while
    with transaction(course.engine) as session:
        session.scalars(select(Post)).one().next_at = NOW
    assert send_all(sender) == 1 and course.states() == ["sent"]
    assert [score["scoreGiven"] for score in lms.scores["1", "sub-1"]] == [40.0, 40.0]


def test_runs_until_it_is_stopped(course, sender, lms):
    stop = threading.Event()
    course.grade(1, 1, 40.0)
    thread = threading.Thread(target=sender.run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 60
    while course.states() != ["sent"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()


# --- keys -------------------------------------------------------------------------------------------


def test_two_keys_while_they_are_changed(lms, key_files):
    """The LMS knows both; the first one signs. After the change it knows only the new one."""
    both, (new, old) = Keys(key_files), [Keys([file]) for file in key_files]
    numbers = [key["kid"] for key in both.jwks()["keys"]]
    assert len(set(numbers)) == 2 and numbers[0] == new.jwks()["keys"][0]["kid"]
    assertion = both.assertion("client-1", "https://lms/token")
    assert jwt.get_unverified_header(assertion)["kid"] == numbers[0]
    for key in both.jwks()["keys"]:
        assert set(key) == {"kty", "use", "alg", "n", "e", "kid"}  # nothing private
    target = Target(lms.line_item(), lms.client, f"{lms.url}/token", f"{lms.url}/token")
    score = {name: "" for name in ("activityProgress", "gradingProgress", "comment")}
    score |= {"userId": "sub-1", "scoreGiven": 1, "scoreMaximum": 2}
    for number, (keys, status) in enumerate([(both, 200), (old, 200), (new, 200)]):
        moment = f"2026-03-02T12:00:0{number}Z"
        assert Scores(keys).send(target, score | {"timestamp": moment}).status == status
    lms.tool_keys = new.jwks
    assert Scores(old).send(target, score).status == 400
    assert "invalid_client" in lms.refused[-1][1]


def test_keys_are_private(tmp_path):
    made = tmp_path / "lti.pem"
    number = Keys([made]).jwks()["keys"][0]["kid"]
    assert made.stat().st_mode & 0o777 == 0o600
    assert Keys([made]).jwks()["keys"][0]["kid"] == number
    made.chmod(0o640)
    with pytest.raises(BadKey, match="chmod 600"):
        Keys([made])
    other = tmp_path / "other.pem"
    other.write_text("no key")
    other.chmod(0o600)
    with pytest.raises(BadKey, match="RSA key of 2048 bits"):
        Keys([other])
    with pytest.raises(BadKey, match="cannot be read: No such file"):
        made.chmod(0o600) or Keys([made, tmp_path / "missing.pem"])
    with pytest.raises(BadKey, match="cannot be written"):
        Keys([tmp_path / "no" / "folder.pem"])


def test_an_lms_with_another_audience(course, key_files, lms):
    lms.audience = "https://api.example/auth"
    course.grade(1, 1, 40.0)
    audiences = {"lms": "https://api.example/auth"}
    send_all(Poster(course.engine, Scores(Keys(key_files)), audiences))
    assert course.states() == ["sent"]
