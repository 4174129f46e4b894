"""Make courses and assignments of the service, and regrade, release and export their results.

A time has a time zone: "2026-12-01 23:59 Europe/Berlin" or "2026-12-01T23:59+01:00". The roster is a CSV file
with the column email, and if you like name, role (learner, ta, instructor) and a column per issuer of names,
such as hub or github:OWNER_ID.
"""

import argparse
import datetime
import getpass
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdgrade import HvdgradeError, profiles
from hvdgrade.course.arguments import ACTIONS, add_arguments
from hvdgrade.db.command import guarded, opened
from hvdgrade.output.text import printable

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["EPILOG", "add_arguments", "main"]
EPILOG = """\
example:
  hvdgrade course new deep-learning
  hvdgrade course roster deep-learning people.csv
  hvdgrade course open cifar --course deep-learning --profile cpu --due "2026-12-01 23:59 Europe/Berlin"
  hvdgrade course extend cifar ada@example.edu --due "2026-12-03 23:59 Europe/Berlin" --reason illness
  hvdgrade course regrade cifar --rules --reason "new points"     # then --table N, --apply N or --undo N
  hvdgrade course export cifar --out graded/

exit codes: 0 done, 2 nothing was changed
"""


class Wrong(HvdgradeError):
    """The arguments do not fit together. The message says why in one sentence."""


def main(args: argparse.Namespace) -> int:
    """Do what was asked.

    Returns:
        The exit code: 0 done, 2 nothing was changed.
    """

    def act() -> None:
        from hvdgrade.service import database

        with database.transaction(opened(args)) as session:
            said = DO[args.action](session, args, datetime.datetime.now(datetime.UTC))
        print(printable_lines(said))

    return guarded(f"course {args.action}", act)


def printable_lines(text: str) -> str:
    """Return text for a terminal."""
    return "\n".join(map(printable, text.splitlines()))


def new(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Make a course."""
    from hvdgrade.service.models import Course

    if session.query(Course).filter_by(slug=args.course).first():
        raise Wrong(f"there is a course {args.course} already.")
    session.add(Course(slug=args.course, title=args.title))
    return f"The course {args.course} is empty: add people with `hvdgrade course roster {args.course} CSV`."


def enrol(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Add people."""
    from hvdgrade.service import roster

    rows = roster.read(args.file)
    added = roster.enrol(session, roster.course_of(session, args.course), rows)
    return f"{len(rows)} people, {added} of them new in {args.course}"


def open_assignment(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Make an assignment or change its settings, and pin its rules if nothing has been graded by others."""
    from hvdgrade.service import grades, roster
    from hvdgrade.service.models import Assignment, Grading, Submission

    found = session.query(Assignment).filter_by(slug=args.assignment).first()
    if found is None and not args.course:
        raise Wrong(f"there is no assignment {args.assignment}: name the --course to make it in.")
    if found is None:
        course = roster.course_of(session, args.course)
        found = Assignment(slug=args.assignment, course=course, opens=now)
        session.add(found)
        session.flush()
    elif args.course and args.course != found.course.slug:
        raise Wrong(f"the assignment {found.slug} is in the course {found.course.slug}.")
    changed = {}
    for names, options in ACTIONS["open"][1]:
        name = options.get("dest") or names[0].lstrip("-").replace("-", "_")
        value = getattr(args, name)
        if name not in ("assignment", "course") and value is not None:
            setattr(found, name, value)
            changed[name] = value
    if found.due and found.closes and found.closes < found.due:
        raise Wrong("it must not close before it is due.")
    rules = profiles.load(found.profile).rules_sha256
    graded = (
        session.query(Grading).join(Submission).filter(Submission.assignment_id == found.id).first()
    )
    if not graded:
        found.rules_sha256 = rules
    detail = ", ".join(f"{name} {value}" for name, value in changed.items())
    grades.record(session, found, getpass.getuser(), "settings", found.slug, detail, now)
    if found.rules_sha256 == rules:
        return f"{found.slug} is set. Its rules are those of this version: {rules[:12]}"
    return (
        f"{found.slug} is set. It keeps the rules {found.rules_sha256[:12]}, because submissions have been "
        "graded by them: `hvdgrade course regrade --rules` changes them."
    )


def extend(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Give an extension."""
    from hvdgrade.service import grades, roster
    from hvdgrade.service.models import Extension

    given = {
        name: getattr(args, name) for name in ("due", "closes", "attempts") if getattr(args, name)
    }
    if not given:
        raise Wrong("name --due, --closes or --attempts.")
    assignment = roster.assignment_of(session, args.assignment)
    person = roster.person_of(session, assignment.course, args.person)
    by = {"by": getpass.getuser(), "reason": args.reason}
    own = Extension(assignment_id=assignment.id, person_id=person.id, **given, **by)
    grades.extend(session, own, now)
    return f"{args.person}: " + ", ".join(f"{name} {value}" for name, value in given.items())


def status(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Return a line per assignment and per pool."""
    from sqlalchemy import func, select

    from hvdgrade.service import queue, roster
    from hvdgrade.service.models import Assignment, Grading, Submission

    course, lines, pools = roster.course_of(session, args.course), [], set()
    for one in session.query(Assignment).filter_by(course_id=course.id).order_by(Assignment.slug):
        counts = Counter(dict(session.execute(
            select(Grading.state, func.count()).join(Submission)
            .where(Submission.assignment_id == one.id).group_by(Grading.state)
        ).all()))  # fmt: skip
        states = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
        due = f"due {one.due:%Y-%m-%d %H:%M} UTC" if one.due else "no deadline"
        lines.append(f"{one.slug}: {due}; {states or 'nothing was handed in'}")
        pools.add(one.pool)
    lines += [
        f"pool {pool}: {queue.slots_online(session, pool, now)} slots online"
        for pool in sorted(pools)
    ]
    return (
        "\n".join(lines)
        or f"{course.slug} has no assignment: make one with `hvdgrade course open`."
    )


def regrade(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Begin a regrade, show it, apply it or take it back."""
    from hvdgrade.service import regrade, roster
    from hvdgrade.service.models import Regrade, Submission

    assignment, by = roster.assignment_of(session, args.assignment), getpass.getuser()
    if number := args.table or args.apply or args.undo:
        one = session.query(Regrade).filter_by(id=number, assignment_id=assignment.id).first()
        if one is None:
            raise Wrong(f"{assignment.slug} has no regrade {number}.")
        if args.apply:
            regrade.apply(session, one, by, now)
        elif args.undo:
            regrade.undo(session, one, by, now)
        return "\n".join(map(_line, regrade.table(session, one)))
    chosen = regrade.counting(session, assignment)
    if args.all:
        chosen = (
            session.query(Submission).filter_by(assignment_id=assignment.id, replaced_by=None).all()
        )
    rules = profiles.load(assignment.profile).rules_sha256 if args.rules else ""
    one = regrade.begin(session, assignment, chosen, by, args.reason, now, rules)
    return f"Regrade {one.id} waits behind all submissions. Compare with --table {one.id}."


def _line(row) -> str:
    """Return a line of the table of a regrade."""
    before, after = (f"{each.score:g}" if each else "none" for each in (row.before, row.after))
    states = ", ".join(f"{number} {state}" for state, number in sorted(row.states.items()))
    return f"{row.person.email or row.person.id}: {before} -> {after} ({states})"


def release(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Show the results."""
    from hvdgrade.service import grades, roster

    assignment = roster.assignment_of(session, args.assignment)
    grades.release(session, assignment, getpass.getuser(), now)
    return f"Learners see the results of {assignment.slug}."


def export(session: "Session", args: argparse.Namespace, now: datetime.datetime) -> str:
    """Write the folder."""
    from hvdgrade.service import class_folder, roster

    assignment = roster.assignment_of(session, args.assignment)
    messages = class_folder.write_folder(session, assignment, args.out)
    folder = f"{args.out}/{class_folder.HANDED_IN}"
    how = f"`hvdgrade batch {folder} --out {args.out} --ids {args.out}/{class_folder.IDS}`"
    return "\n".join(
        [*messages, f"{args.out} is written: {how} makes its pages and grades what is left."]
    )


DO: dict[str, Callable[["Session", argparse.Namespace, datetime.datetime], str]] = {
    "new": new, "roster": enrol, "open": open_assignment, "extend": extend, "status": status,
    "regrade": regrade, "release": release, "export": export,
}  # fmt: skip
