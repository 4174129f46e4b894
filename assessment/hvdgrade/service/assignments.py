"""The settings of an assignment: what pages and commands may change, and what follows from a change."""

import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade.service import grades
from hvdgrade.service.intake import Refused
from hvdgrade.service.models import Assignment, Member, Person

CHOICES = {"counts": ("best", "last"), "feedback": ("full", "verdict", "none")}
# Learners have one attempt, and see only that it was graded, until staff release the results.
EXAM = {"attempts": 1, "feedback": "none", "released": False}


def change(
    session: Session,
    assignment: Assignment,
    values: dict[str, Any],
    who: str,
    now: datetime.datetime,
) -> None:
    """Change settings, and compute the grades again if another result counts.

    Args:
        values: name of a column -> value.

    Raises:
        Refused: a value is none of `CHOICES`, or the assignment would close before it is due.
    """
    before = {name: getattr(assignment, name) for name in values}
    for name, value in values.items():
        if value not in CHOICES.get(name, (value,)):
            raise Refused(400, f"{name} must be one of {', '.join(CHOICES[name])}.")
        setattr(assignment, name, value)
    if assignment.due and assignment.closes and assignment.closes < assignment.due:
        raise Refused(400, "it must not close before it is due.")
    changed = [
        f"{name} {old} -> {values[name]}" for name, old in before.items() if old != values[name]
    ]
    grades.record(session, assignment, who, "settings", assignment.slug, "; ".join(changed), now)
    if before.get("counts", assignment.counts) != assignment.counts:
        members = select(Person).join(Member).where(Member.course_id == assignment.course_id)
        for person in session.scalars(members.order_by(Person.id)):
            grades.settle(session, assignment, person, now)
