"""The instructor's page of what a class did in the labs, and the same as a CSV table.

As the pages of reports, it is one file that loads and runs nothing, and text of learners is only data.
"""

import csv
import datetime
import io
from collections.abc import Sequence
from functools import cache

from jinja2 import ChoiceLoader, Environment, PackageLoader

from hvdgrade.batch.csv_table import BOM, safe
from hvdgrade.labs import class_progress as numbers
from hvdgrade.labs.class_progress import LearnerProgress
from hvdgrade.output.text import plain
from hvdgrade.report import pages as report
from hvdgrade.report.class_rows import told_apart
from hvdlab.course.lab_source import LabSource
from hvdlab.course.progress import NEAR

QUIET = datetime.timedelta(days=7)  # without an entry, while others had some


def page(class_: Sequence[LearnerProgress], labs: Sequence[LabSource], title: str) -> str:
    """Return the HTML page of a class.

    Args:
        labs: the labs in the order of the progress of each learner.
    """
    there = [one for one in class_ if not one.learner.problem]
    begun = [
        place
        for place, lab in enumerate(labs)
        if any(numbers.has_begun(one, lab.number) for one in there)
    ]
    shown = [labs[place] for place in begun]
    learners = [one.learner for one in there]
    latest = max((one.last for one in there if one.last), default=None)
    keys = {str(place): one for place, one in enumerate(class_)}
    apart = told_apart(
        {key: plain(one.name) for key, one in keys.items()},
        {key: one.learner.student.id for key, one in keys.items()},
    )
    rows = [
        {
            "name": plain(one.name),
            "apart": apart.get(key, "").rpartition(", files")[0],
            "problem": plain(one.learner.problem),
            "solved": [f"{len(one.labs[i].solved)} of {len(labs[i].exercises)}" for i in begun],
            "last": one.last,
            "quiet": bool(one.last and latest and latest - one.last > QUIET),
            "stuck": one.stuck,
        }
        for key, one in keys.items()
    ]
    return (
        environment()
        .get_template("labs.html.j2")
        .render(
            title=plain(title),
            tiles=tiles(rows),
            labs=[row for row in numbers.lab_rows(there, labs) if row["begun"]],
            columns=[lab.number for lab in shown],
            rows=sorted(rows, key=lambda row: row["name"].casefold()),
            questions=numbers.question_rows(learners, labs),
            predictions=numbers.prediction_rows(learners, labs),
            near=round(100 * NEAR),
        )
    )


def tiles(rows: Sequence[dict]) -> list[dict]:
    """Return the numbers at the top of the page, for the macro `tiles_of`."""
    counts = (
        ("pass", "✓", "learners with answers", sum(not row["problem"] for row in rows)),
        ("partial", "◐", "stuck somewhere", sum(bool(row["stuck"]) for row in rows)),
        ("skipped", "–", "quiet for a week", sum(row["quiet"] for row in rows)),
        (
            "error",
            "!",
            "without a file that can be used",
            sum(bool(row["problem"]) for row in rows),
        ),
    )
    return [dict(zip(("css", "sign", "word", "count"), each, strict=True)) for each in counts]


def table(class_: Sequence[LearnerProgress], labs: Sequence[LabSource]) -> bytes:
    """Return a CSV file with a row per learner, in which no spreadsheet finds a formula."""
    head = ["id", "name", "email", "problem", "last entry", "solved", "exercises", "stuck"]
    for lab in labs:
        head += [
            f"lab {lab.number} solved",
            f"lab {lab.number} right",
            f"lab {lab.number} predicted",
        ]
    file = io.StringIO(newline="")
    file.write(BOM)
    writer = csv.writer(file)
    writer.writerow(head)
    for one in class_:
        student = one.learner.student
        row = [
            safe(text) for text in (student.id, student.name, student.email, one.learner.problem)
        ]
        row.append(one.last.isoformat() if one.last else "")
        row += [solved_of(one), exercises_of(one), safe("; ".join(one.stuck))]
        for lab in one.labs:
            row += [len(lab.solved), lab.right, lab.reasoned]
        writer.writerow(row)
    return file.getvalue().encode()


def solved_of(one: LearnerProgress) -> int:
    """Return how many exercises a learner solved."""
    return sum(len(lab.solved) for lab in one.labs)


def exercises_of(one: LearnerProgress) -> int:
    """Return how many exercises the labs have."""
    return sum(len(lab.lab.exercises) for lab in one.labs)


@cache
def environment() -> Environment:
    """Return the template of this page, and the parts of the pages of reports."""
    loader = ChoiceLoader([PackageLoader("hvdgrade.labs"), PackageLoader("hvdgrade.report")])
    return report.environment().overlay(loader=loader)
