"""An assignment as the output folder of a batch, so that `hvdgrade batch` and `export` continue from it.

Each person has the submission that counts, or else the newest one. `hvdgrade batch OUT/handed-in --out OUT
--ids OUT/ids.csv` keeps the results and grades what has none.
"""

import csv
import io
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade.batch.id_table import STUDENTS, Student, write_students
from hvdgrade.batch.layout import FOLDERS, OUT_MODE, Settings, Task, key, write, write_result
from hvdgrade.report.pages import report_page
from hvdgrade.service.models import LEARNER, Assignment, Grade, Grading, Member, Submission

IDS, HANDED_IN = "ids.csv", "handed-in"


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
            student = students[name] = _student(submission)
            _write(out, Task(student.id, name, ""), assignment, submission, grade, grading)
        elif grade and grade.override is not None:
            messages.append(
                f"{grade.person.email}: {grade.points:g} points by staff, and no submission."
            )
    write(out / STUDENTS, write_students(students))
    table = io.StringIO()
    csv.writer(table).writerows((name, student.id) for name, student in students.items())
    write(out / IDS, table.getvalue().encode())
    return messages


def _write(
    out: Path,
    task: Task,
    assignment: Assignment,
    submission: Submission,
    grade: Grade | None,
    grading: Grading | None,
) -> None:
    for folder in ("submissions", HANDED_IN):
        write(out / folder / f"{task.name}.py", submission.script)
    if grading is None:
        return
    settings = Settings(
        out,
        assignment.ranks,
        assignment.profile,
        grading.rules_sha256,
        assignment.limit_s,
        call="service",
    )
    document = dict(grading.document)
    about = {"id": task.id, "student": task.id, "sha256": submission.sha256}
    document["submission"] = {**document["submission"], **about}
    if grade.override is not None:
        text = f"{grade.by} set {grade.override:g} points in place of {grading.score:g}: {grade.reason}"
        flag = {"kind": "override", "line": None, "text": text}
        document |= {"score": grade.override, "flags": [*document.get("flags", []), flag]}
    task = replace(task, key=key(submission.script, settings))
    document["batch"] = {
        "key": task.key, "name": task.name, "finished": f"{grading.finished:%Y-%m-%dT%H:%M:%S.000Z}",
        "attempts": grading.tries, "call": settings.call,
    }  # fmt: skip
    write(out / "logs" / f"{task.name}.log", grading.log.encode())
    write(out / "reports" / f"{task.name}.html", report_page(document, submission.script).encode())
    write_result(document, task, settings)


def _learners(assignment: Assignment):
    members = select(Member.person_id).where(Member.course_id == assignment.course_id)
    return members.where(Member.role == LEARNER).order_by(Member.person_id)


def _newest(session: Session, assignment: Assignment, person_id: int) -> Submission | None:
    query = select(Submission).filter_by(assignment_id=assignment.id, person_id=person_id)
    return session.scalar(query.order_by(Submission.number.desc()).limit(1))


def _student(submission: Submission) -> Student:
    person = submission.person
    return Student(person.email or f"person-{person.id}", person.name, person.email)
