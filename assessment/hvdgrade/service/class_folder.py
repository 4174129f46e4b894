"""An assignment as the output folder of a batch, so that `hvdgrade batch` and `export` continue from it.

Each person has the submission that counts, or else the newest one. `hvdgrade batch OUT/handed-in --out OUT
--ids OUT/ids.csv` keeps the results and grades what has none.
"""

import csv
import io
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade.batch.id_table import STUDENTS, Student, write_students
from hvdgrade.batch.layout import FOLDERS, OUT_MODE, Settings, Task, key, write, write_result
from hvdgrade.batch.submissions import safe_name
from hvdgrade.report.pages import report_page
from hvdgrade.result_document import ResultDocument
from hvdgrade.service.models import LEARNER, Assignment, Grade, Grading, Member, Person, Submission

IDS, HANDED_IN = "ids.csv", "handed-in"
# What an export reads of a document, for points that staff set without any grading.
EMPTY = {
    **dict.fromkeys(("verdict", "score", "max_score", "seconds_to_target", "budget")),
    "submission": {},
    "checks": [],
    "flags": [],
    "timeline": [],
    "resources": {},
    "reason": "",
}


def write_folder(session: Session, assignment: Assignment, out: Path) -> list[str]:
    """Write the folder, and return a sentence about each person whose result it cannot hold.

    Points that staff set take the place of the score, and a flag says so.

    Raises:
        OSError: a file cannot be written.
    """
    for folder in (out, *(out / name for name in (*FOLDERS, HANDED_IN))):
        folder.mkdir(mode=OUT_MODE, parents=True, exist_ok=True)
    students, messages = {}, []
    for person_id in session.scalars(_learners(assignment)):
        grade = session.get(Grade, (assignment.id, person_id))
        grading = grade and grade.grading
        submission = grading.submission if grading else _newest(session, assignment, person_id)
        if submission:
            name = f"person-{person_id}"  # a name at a door may be any text
            students[name] = student_of(submission.person)
            for place in ("submissions", HANDED_IN):
                write(out / place / f"{name}.py", submission.script)
        if grading:
            _write_result(out, name, assignment, grade, grading)
        elif grade and grade.override is not None:
            what = "a submission without a result" if submission else "no submission"
            messages.append(f"{grade.person.email}: {grade.points:g} points by staff, and {what}.")
    write(out / STUDENTS, write_students(students))
    table = io.StringIO()
    csv.writer(table).writerows((name, student.id) for name, student in students.items())
    write(out / IDS, table.getvalue().encode())
    return messages


def _write_result(
    out: Path, name: str, assignment: Assignment, grade: Grade, grading: Grading
) -> None:
    """Write the result, the report and the log of a person as a batch does."""
    rules, limit, script = grading.rules_sha256, assignment.limit_s, grading.submission.script
    settings = Settings(out, assignment.ranks, assignment.profile, rules, limit, call="service")
    document = document_of(grade)
    document["submission"]["sha256"] = grading.submission.sha256
    task = Task(document["submission"]["id"], name, key(script, settings))
    document["batch"] = {
        "key": task.key, "name": task.name, "finished": f"{grading.finished:%Y-%m-%dT%H:%M:%S.000Z}",
        "attempts": grading.tries, "call": settings.call,
    }  # fmt: skip
    write(out / "logs" / f"{name}.log", grading.log.encode())
    write(out / "reports" / f"{name}.html", report_page(document, script).encode())
    write_result(document, task, settings)


def document_of(grade: Grade) -> ResultDocument:
    """Return the result that counts for a person, with the points that staff set and a flag that says so."""
    document = EMPTY | dict(grade.grading.document or {}) if grade.grading else dict(EMPTY)
    student = student_of(grade.person)
    about = {"id": student.id, "name": student.name, "email": student.email}
    document["submission"] = document["submission"] | about | {"student": student.shown}
    document["batch"] = {"name": safe_name(student.id)}
    if grade.override is not None:
        before = "" if grade.score is None else f" in place of {grade.score:g}"
        text = f"{grade.by} set {grade.override:g} points{before}: {grade.reason}"
        flag = {"kind": "override", "line": None, "text": text}
        points = {"score": grade.override, "max_score": grade.max_score, "status": "graded"}
        document |= points | {"reason": grade.reason, "flags": [*document["flags"], flag]}
    return document


def student_of(person: Person) -> Student:
    """Return what exports need of a person."""
    return Student(person.email or f"person-{person.id}", person.name, person.email)


def _learners(assignment: Assignment):
    members = select(Member.person_id).where(Member.course_id == assignment.course_id)
    return members.where(Member.role == LEARNER).order_by(Member.person_id)


def _newest(session: Session, assignment: Assignment, person_id: int) -> Submission | None:
    query = select(Submission).filter_by(assignment_id=assignment.id, person_id=person_id)
    return session.scalar(query.order_by(Submission.number.desc()).limit(1))
