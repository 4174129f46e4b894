"""What the gradings of an assignment have used of the machines, and what they will use."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hvdgrade.service import wait_times
from hvdgrade.service.models import LEARNER, Assignment, Grading, Member, Submission
from hvdgrade.service.staff_forms import Form

NO_GPU = {"processor", "unknown"}  # what run/rank_devices.py writes of a rank without a known GPU


@dataclass(frozen=True)
class Cost:
    """A number of gradings, their hours, and their price if the reader gave one per hour."""

    gradings: float
    core_hours: float
    gpu_hours: float
    price: float | None


def found(form: Form) -> dict[str, Any]:
    """Return what was used so far, and a forecast: people x attempts x median time of a grading.

    A grading has a core per rank. The form may hold `attempts` of a person, by default as many as the
    assignment allows, else the mean so far; and `core_price` and `gpu_price` of an hour, without a default.
    """
    session, assignment = form.session, form.assignment
    prices = [form.number(name, 0, 1e6) for name in ("core_price", "gpu_price")]
    runs = _runs(session, assignment)

    def cost(gradings: float, seconds: float, gpu_seconds: float) -> Cost:
        hours = seconds * assignment.ranks / 3600, gpu_seconds / 3600
        pairs = zip(hours, prices, strict=True)
        parts = [each * price for each, price in pairs if price is not None]
        return Cost(gradings, *hours, sum(parts) if parts else None)

    used = cost(len(runs), sum(s for s, _ in runs), sum(s * gpus for s, gpus in runs))
    of_course = (Member.course_id == assignment.course_id, Member.role == LEARNER)
    people = session.scalar(select(func.count()).select_from(Member).where(*of_course))
    slots = wait_times.slots_online(session, assignment.pool, form.now)
    mean = len(runs) / people if people else None
    attempts = form.number("attempts", 0, 1000) or assignment.attempts or mean
    about = {"used": used, "people": people, "slots": slots, "attempts": attempts, "forecast": None}
    if runs and people and attempts:
        seconds, gpus = (median(column) for column in zip(*runs, strict=True))
        gradings = people * attempts
        about["median_s"] = seconds
        about["forecast"] = cost(gradings, gradings * seconds, gradings * seconds * gpus)
        left = max(0.0, gradings - len(runs)) * seconds
        about["hours_left"] = left / slots / 3600 if slots else None
    return about | dict(zip(("core_price", "gpu_price"), prices, strict=True))


def _runs(session: Session, assignment: Assignment) -> list[tuple[float, int]]:
    """Return the seconds and the number of GPUs of each grading that has a result."""
    seconds = Grading.document[("resources", "grading_wall")].as_float()
    devices = Grading.document[("resources", "devices")].as_json()
    of_this = select(seconds, devices).join(Submission, Submission.id == Grading.submission_id)
    rows = session.execute(of_this.where(Submission.assignment_id == assignment.id))
    return [
        (wall, len(set(names) - NO_GPU) if isinstance(names, list) else 0)
        for wall, names in rows
        if wall is not None
    ]
