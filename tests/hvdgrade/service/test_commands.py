"""The commands db, course and token, on a real database, and what they say about wrong input."""

import csv
import datetime
import hashlib
import json
import os
import stat
import subprocess
import sys

import exported
import pytest
from service_class import NOW, document
from sqlalchemy import select

from hvdgrade import cli, profiles
from hvdgrade.batch.id_table import read_students
from hvdgrade.batch.layout import Settings, Task, read_result
from hvdgrade.batch.results import load
from hvdgrade.batch.worker import is_kept
from hvdgrade.service import database, grades, intake, queue
from hvdgrade.service.models import (
    Assignment,
    Course,
    Extension,
    Grade,
    LineItem,
    Member,
    Person,
    Post,
    Token,
    Worker,
)

RULES = profiles.load("cpu").rules_sha256


@pytest.fixture
def command(url, capsys):
    """Return a function that runs a command on the database and returns what it printed."""

    def run(*words: str, code: int = 0) -> str:
        assert cli.main([*words, "--database", url]) == code
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        if code:
            assert said.err.count("\n") == 1
        return said.err if code else said.out

    return run


@pytest.fixture
def dl(command, tmp_path):
    """Make a course with an assignment by commands, and return the function that runs commands."""
    people = ("Ada@Example.edu,Ada,,ada-repo", "bob@example.edu,Bob,,", "ta@example.edu,,ta,")
    roster = "\n".join(("email,name,role,github:77", *people))
    (tmp_path / "people.csv").write_text(roster, encoding="utf-8-sig")
    command("course", "new", "dl", "--title", "Deep learning")
    assert "3 people, 3 of them new" in command(
        "course", "roster", "dl", str(tmp_path / "people.csv")
    )
    words = ["--course", "dl", "--due", "2026-12-01 23:59 Europe/Berlin", "--attempts", "3"]
    assert RULES[:12] in command("course", "open", "cifar", *words)
    return command


def handed_in(session, email: str, script: bytes, score: float | None) -> str:
    """Hand in, grade unless there is no score, and return the submission's id."""
    assignment = session.scalars(select(Assignment)).one()
    person = session.scalars(select(Person).filter_by(email=email)).one()
    assignment.opens = None
    now = session.info.setdefault("now", NOW)
    receipt = intake.submit(session, assignment, person, "page", script.decode(), script, now)
    if score is not None:
        worker = session.scalars(select(Worker)).first()
        if worker is None:
            session.add(token := Token(sha256="w", kind="worker", created=NOW))
            session.flush()
            worker = Worker(
                token_id=token.id, name="w", pool="default", rules={"cpu": RULES}, seen=NOW
            )
            session.add(worker)
            session.flush()
        lease = queue.claim(session, worker, now)
        assert lease.submission == receipt.submission.id
        complete = json.loads((exported.FIXTURES / "results" / "ada.json").read_text())
        result = complete | document(script, score, RULES)
        assert queue.finish(session, lease.grading, lease.token, result, "log", now)
    return receipt.submission.id


def test_a_course_and_an_assignment_are_made_and_changed(dl, engine, tmp_path):
    with database.reading(engine) as session:
        one = session.scalars(select(Assignment)).one()
        assert (one.slug, one.attempts, one.rules_sha256) == ("cifar", 3, RULES)
        assert one.due == datetime.datetime(2026, 12, 1, 22, 59, tzinfo=datetime.UTC)
        roles = dict(session.execute(select(Person.email, Member.role).join(Member)).all())
        assert roles == {
            "ada@example.edu": "learner",
            "bob@example.edu": "learner",
            "ta@example.edu": "ta",
        }
    (tmp_path / "more.csv").write_text(
        "email,name,role\nada@example.edu,Ada L.,\neve@example.edu,Eve,ta\n"
    )
    assert "2 people, 1 of them new" in dl("course", "roster", "dl", str(tmp_path / "more.csv"))
    dl("course", "open", "cifar", "--counts", "last", "--hold")
    with database.reading(engine) as session:
        one = session.scalars(select(Assignment)).one()
        assert (one.counts, one.released, one.attempts) == ("last", False, 3)
        assert session.scalars(select(Person.name).filter_by(email="ada@example.edu")).all() == [
            "Ada L."
        ]


def test_a_person_is_found_by_any_name_for_an_extension(dl, engine):
    dl(
        "course",
        "extend",
        "cifar",
        "ada-repo",
        "--due",
        "2026-12-03T23:59+01:00",
        "--reason",
        "ill",
    )
    dl("course", "extend", "cifar", "ADA@example.edu", "--attempts", "5")
    with database.reading(engine) as session:
        own = session.scalars(select(Extension)).one()
        assert (own.person_id, own.attempts, own.due.day, own.due.hour) == (1, 5, 3, 22)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("course new dl", "there is a course dl already"),
        ("course open other", "name the --course"),
        ("course open other --course x", "there is no course x; the database has: dl"),
        ("course open cifar --closes 2026-01-01T00:00Z", "must not close before it is due"),
        ("course open cifar --profile x", "no profile 'x'"),
        ("course extend cifar eve@example.edu --attempts 2", "dl has no member with the name eve@"),
        ("course extend cifar bob@example.edu", "name --due, --closes or --attempts"),
        ("course extend nothing bob@example.edu --attempts 2", "there is no assignment nothing"),
        ("course regrade cifar", "no submission of cifar can be graded again"),
        ("course regrade cifar --apply 7", "cifar has no regrade 7"),
        ("course status x", "there is no course x"),
        ("token new --door gradescope", "need --assignment"),
        ("token new --worker p --days 99999999", "ends after the year 9999"),
        ("token new --person eve --assignment cifar", "no member with the name eve"),
        ("token revoke 99", "there is no token 99"),
        ("db purge x", "there is no course x"),
        ("db backup /no/such/folder/x", "No such file or directory"),
    ],
)
def test_wrong_input_is_one_sentence_and_changes_nothing(dl, engine, words, said):
    assert said in dl(*words.split(), code=2)
    with database.reading(engine) as session:
        assert session.scalars(select(Course.slug)).all() == ["dl"]
        assert session.scalars(select(Assignment.closes)).all() == [None]


@pytest.mark.parametrize(
    "text", ["2026-10-25 02:30 Europe/Berlin", "2026-12-01", "2026-12-01 23:59"]
)
def test_a_time_without_meaning_is_refused_by_the_arguments(text, capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["course", "open", "cifar", "--due", text])
    assert error.value.code == 2
    assert "argument --due: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name\nAda\n", "must begin with a line of column names, one of them email"),
        (b"", "must begin with a line of column names"),
        (b"email\nada\n", "line 2: expected one e-mail address"),
        (b"email,role\na@b.de,boss\n", "line 2: the role is one of learner, ta, instructor"),
        (b"email\na@b.de,more\n", "line 2: expected"),
        (b"email\n\xff@b.de\n", "must be CSV in UTF-8"),
        (
            b"email,github:77\nbob@example.edu,ada-repo\n",
            "bob@example.edu: these names belong to two people",
        ),
    ],
)
def test_a_wrong_roster_is_one_sentence(dl, tmp_path, content, said):
    (tmp_path / "wrong.csv").write_bytes(content)
    assert said in dl("course", "roster", "dl", str(tmp_path / "wrong.csv"), code=2)


def test_each_person_of_a_list_gets_a_link_and_a_wrong_list_gets_none(dl, engine, tmp_path):
    words = ["--assignment", "cifar", "--server", "https://grade.example.edu/", "--days", "7"]
    rows = list(
        csv.DictReader(dl("token", "links", str(tmp_path / "people.csv"), *words).splitlines())
    )
    with database.reading(engine) as session:
        for row, email in zip(rows, ("ada", "bob", "ta"), strict=True):
            address, _, secret = row["link"].partition("?token=")
            assert address == "https://grade.example.edu/login"
            token = session.get(Token, int(row["token"]))
            assert token.sha256 == hashlib.sha256(secret.encode()).hexdigest()
            assert token.person.email == row["email"] == f"{email}@example.edu"
            assert (token.expires - token.created).days == 7
    (tmp_path / "more.csv").write_text("email\nada@example.edu\neve@example.edu\n")
    said = dl("token", "links", str(tmp_path / "more.csv"), *words, code=2)
    assert "no member with the name eve@example.edu" in said
    with database.reading(engine) as session:
        assert len(session.scalars(select(Token)).all()) == 3


def test_tokens_are_printed_once_and_stored_as_hashes(dl, engine):
    made = [
        dl("token", "new", "--worker", "default"),
        dl("token", "new", "--door", "gradescope", "--assignment", "cifar"),
        dl("token", "new", "--person", "bob@example.edu", "--assignment", "cifar", "--days", "7"),
    ]
    assert "revoked" in dl("token", "revoke", "2")
    with database.reading(engine) as session:
        rows = session.scalars(select(Token).order_by(Token.id)).all()
        hashes = [hashlib.sha256(secret.strip().encode()).hexdigest() for secret in made]
        assert [row.sha256 for row in rows] == hashes
        assert [(row.kind, row.pool, row.door) for row in rows] == [
            ("worker", "default", ""), ("door", "", "gradescope"), ("person", "", ""),
        ]  # fmt: skip
        assert [row.assignment_id for row in rows] == [None, 1, None]
        assert (
            rows[2].person.email == "bob@example.edu"
            and (rows[2].expires - rows[2].created).days == 7
        )
        assert [bool(row.revoked) for row in rows] == [False, True, False]


def test_status_regrade_and_release(dl, engine):
    with database.transaction(engine) as session:
        handed_in(session, "ada@example.edu", b"a", 70.0)
        handed_in(session, "bob@example.edu", b"b", None)
    said = dl("course", "status", "dl")
    assert "cifar: due 2026-12-01 22:59 UTC; 1 done, 1 queued" in said
    assert "pool default: 0 slots online" in said
    assert "Regrade 1 waits" in dl("course", "regrade", "cifar", "--reason", "new points")
    assert "ada@example.edu: 70 -> 70 (1 queued)" in dl(
        "course", "regrade", "cifar", "--table", "1"
    )
    assert "1 gradings of regrade 1 have not ended" in dl(
        "course", "regrade", "cifar", "--apply", "1", code=2
    )
    with database.transaction(engine) as session:
        worker = session.scalars(select(Worker)).one()
        for score in (20.0, 90.0):  # Bob's first one comes before the regrade
            lease = queue.claim(session, worker, NOW)
            result = document(lease.script, score, RULES)
            assert queue.finish(session, lease.grading, lease.token, result, "", NOW)
    assert "ada@example.edu: 70 -> 90 (1 done)" in dl("course", "regrade", "cifar", "--apply", "1")
    dl("course", "regrade", "cifar", "--undo", "1")
    assert "Learners see the results" in dl("course", "release", "cifar")
    assert "It keeps the rules" not in dl("course", "open", "cifar")


def test_an_exam_is_opened_and_released_with_what_learners_then_see(dl, engine):
    dl("course", "open", "exam", "--course", "dl", "--exam", "--board")
    dl("course", "open", "exam", "--no-board")
    with database.reading(engine) as session:
        exam = session.scalars(select(Assignment).filter_by(slug="exam")).one()
        now = (exam.attempts, exam.feedback, exam.released, exam.board)
        assert now == (1, "none", False, False)
    assert "Learners see no results of exam before" in dl("course", "release", "exam")
    assert "Learners see the results" in dl("course", "release", "exam", "--feedback", "verdict")


def test_the_scores_for_an_lms_are_shown_held_and_sent_again(dl, engine):
    assert "cifar: no score for an LMS" in dl("course", "post", "cifar")
    with database.transaction(engine) as session:
        session.add(LineItem(assignment_id=1, issuer="i", client_id="c", url="u", token_url="t"))
        for email in ("ada@example.edu", "bob@example.edu"):
            handed_in(session, email, email.encode(), 70.0)
        for post in session.scalars(select(Post)):
            post.state, post.answer = "refused", "404 no such user"
    why = "ada@example.edu: 404 no such user\nbob@example.edu: 404 no such user\n"
    assert dl("course", "post", "cifar") == f"cifar: 2 refused\n{why}"
    assert "1 held, 1 refused" in dl("course", "post", "cifar", "--hold", "ada@example.edu")
    assert dl("course", "post", "cifar", "--again") == "cifar: 1 held, 1 waiting\n"
    assert dl("course", "post", "cifar", "--send", "ada-repo") == "cifar: 2 waiting\n"
    assert "this score is waiting" in dl("course", "post", "cifar", "--send", "ada-repo", code=2)
    assert "no score of ta@" in dl("course", "post", "cifar", "--hold", "ta@example.edu", code=2)


def test_what_counts_is_computed_again_when_the_command_changes_the_rule(dl, engine):
    with database.transaction(engine) as session:
        for script, score in ((b"a", 90.0), (b"b", 40.0)):
            handed_in(session, "ada@example.edu", script, score)
    for rule, score in (("last", 40.0), ("best", 90.0)):
        dl("course", "open", "cifar", "--counts", rule)
        with database.reading(engine) as session:
            assert session.get(Grade, (1, 1)).score == score


def test_rules_stay_once_something_is_graded_by_them(dl, engine):
    with database.transaction(engine) as session:
        session.scalars(select(Assignment)).one().rules_sha256 = "b" * 64
    assert "Its rules are those of this version" in dl("course", "open", "cifar")
    with database.transaction(engine) as session:
        handed_in(session, "ada@example.edu", b"a", None)
        session.scalars(select(Assignment)).one().rules_sha256 = "b" * 64
    assert "It keeps the rules bbbbbbbbbbbb" in dl("course", "open", "cifar", "--attempts", "9")


def test_a_batch_continues_the_exported_folder(dl, engine, tmp_path):
    out = tmp_path / "graded"
    with database.transaction(engine) as session:
        first = handed_in(session, "ada@example.edu", b"print('a')", 70.0)
        handed_in(session, "bob@example.edu", b"print('b')", None)
        one, staff = session.scalars(select(Assignment)).one(), session.get(Person, 3)
        session.get(Member, (1, 3)).role = "learner"
        grades.override(session, one, session.get(Person, 1), 75.0, "staff", "bug", NOW)
        grades.override(session, one, staff, 5.0, "staff", "oral", NOW)
    said = dl("course", "export", "cifar", "--out", str(out))
    assert "ta@example.edu: 5 points by staff, and no submission" in said and first
    (ada,) = load(out)
    assert (ada["submission"]["id"], ada["score"]) == ("ada@example.edu", 75.0)
    assert ada["flags"][-1]["text"] == "staff set 75 points in place of 70: bug"
    students = {student.id: name for name, student in read_students(out).items()}
    assert set(students) == {"ada@example.edu", "bob@example.edu"}
    name = students["ada@example.edu"]
    settings = Settings(out, 2, "cpu", RULES, 2400.0)
    assert is_kept(Task("ada@example.edu", name, ada["batch"]["key"]), settings)
    assert (out / "submissions" / f"{name}.py").read_bytes() == b"print('a')"
    assert "<!doctype html>" in (out / "reports" / f"{name}.html").read_text(encoding="utf-8")
    assert read_result(out, students["bob@example.edu"]) == {}
    with open(out / "ids.csv", newline="", encoding="utf-8") as file:
        assert {id: name for name, id in csv.reader(file)} == students


@pytest.mark.mpi
def test_the_batch_itself_keeps_the_exported_results(dl, engine, tmp_path, cifar10_folder):
    out = tmp_path / "graded"
    with database.transaction(engine) as session:
        handed_in(session, "ada@example.edu", b"print('a')", 70.0)
    dl("course", "export", "cifar", "--out", str(out))
    answer = subprocess.run(
        [sys.executable, "-m", "hvdgrade.cli", "batch", str(out / "handed-in"), "--out", str(out),
         "--ids", str(out / "ids.csv"), "--profile", "cpu", "-np", "2", "--workers", "1"],
        env=os.environ | {"HVDLAB_DATA": str(cifar10_folder)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "1 of 1 are graded already and kept" in answer.stderr, answer.stderr
    assert answer.returncode == 0
    assert (
        json.loads((out / "results" / next((out / "results").iterdir()).name).read_text())["score"]
        == 70.0
    )


def test_db_makes_a_database_in_the_usual_folder_that_others_cannot_read(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HVDGRADE_DATABASE", raising=False)
    assert cli.main(["course", "status", "dl"]) == 2
    assert "cannot be opened: No such file or directory" in capsys.readouterr().err
    assert cli.main(["db", "upgrade"]) == 0
    file = tmp_path / "runs" / "service" / "service.db"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert cli.main(["course", "new", "dl"]) == 0
    assert cli.main(["db", "backup", "copy.db"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("HVDGRADE_DATABASE", "sqlite:///copy.db")
    assert cli.main(["course", "status", "dl"]) == 0
    assert "dl has no assignment" in capsys.readouterr().out
    assert cli.main(["db", "purge", "dl"]) == 0
    assert capsys.readouterr().out.startswith("0 people have no name any more; 0 keep")


def test_a_file_that_is_no_database_is_one_sentence(tmp_path, capsys):
    (tmp_path / "a.db").write_text("not a database at all, but long enough" * 100)
    assert cli.main(["db", "upgrade", "--database", f"sqlite:///{tmp_path}/a.db"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
