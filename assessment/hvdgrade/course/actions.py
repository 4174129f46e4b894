"""What `hvdgrade course` does. Each action changes the database and returns what the command prints."""

import argparse
import getpass
from collections import Counter
from collections.abc import Callable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hvdgrade import HvdgradeError, profiles
from hvdgrade.course.arguments import ACTIONS
from hvdgrade.service import (
    assignments,
    class_folder,
    grades,
    poster,
    regrade,
    roster,
    wait_times,
)
from hvdgrade.service.models import Assignment, Course, Extension, Grading, Regrade, Submission
from hvdgrade.service.server import now


class Wrong(HvdgradeError):
    """The arguments do not fit together. The message says why in one sentence."""


def new(session: Session, args: argparse.Namespace) -> str:
    """Make a course."""
    if session.query(Course).filter_by(slug=args.course).first():
        raise Wrong(f"there is a course {args.course} already.")
    session.add(Course(slug=args.course, title=args.title))
    return f"The course {args.course} is empty: add people with `hvdgrade course roster {args.course} CSV`."


def enrol(session: Session, args: argparse.Namespace) -> str:
    """Add people."""
    rows = roster.read(args.file)
    added = roster.enrol(session, roster.course_of(session, args.course), rows)
    return f"{len(rows)} people, {added} of them new in {args.course}"


def open_assignment(session: Session, args: argparse.Namespace) -> str:
    """Make an assignment or change its settings, and pin its rules if nothing has been graded by others."""
    found = session.query(Assignment).filter_by(slug=args.assignment).first()
    if found is None and not args.course:
        raise Wrong(f"there is no assignment {args.assignment}: name the --course to make it in.")
    if found is None:
        course = roster.course_of(session, args.course)
        found = Assignment(slug=args.assignment, course=course, opens=now())
        session.add(found)
        session.flush()
    elif args.course and args.course != found.course.slug:
        raise Wrong(f"the assignment {found.slug} is in the course {found.course.slug}.")
    names = [
        options.get("dest") or names[0].lstrip("-").replace("-", "_")
        for names, options in ACTIONS["open"][1]
    ]
    values = {name: getattr(args, name) for name in {*names} - {"assignment", "course", "exam"}}
    values = {name: value for name, value in values.items() if value is not None}
    values = (assignments.EXAM if args.exam else {}) | values
    rules = profiles.load(values.get("profile", found.profile)).rules_sha256
    if not session.query(Grading).join(Submission).filter_by(assignment_id=found.id).first():
        values["rules_sha256"] = rules
    assignments.change(session, found, values, getpass.getuser(), now())
    if found.rules_sha256 == rules:
        return f"{found.slug} is set. Its rules are those of this version: {rules[:12]}"
    return (
        f"{found.slug} is set. It keeps the rules {found.rules_sha256[:12]}, because submissions have been "
        "graded by them: `hvdgrade course regrade --rules` changes them."
    )


def extend(session: Session, args: argparse.Namespace) -> str:
    """Give an extension."""
    names = ("due", "closes", "attempts")
    given = {name: getattr(args, name) for name in names if getattr(args, name)}
    if not given:
        raise Wrong("name --due, --closes or --attempts.")
    assignment = roster.assignment_of(session, args.assignment)
    person = roster.person_of(session, assignment.course, args.person)
    by = {"by": getpass.getuser(), "reason": args.reason}
    own = Extension(assignment_id=assignment.id, person_id=person.id, **given, **by)
    grades.extend(session, own, now())
    return f"{args.person}: " + ", ".join(f"{name} {value}" for name, value in given.items())


def status(session: Session, args: argparse.Namespace) -> str:
    """Return a line per assignment and per pool."""
    course = roster.course_of(session, args.course)
    found = session.query(Assignment).filter_by(course_id=course.id).order_by(Assignment.slug).all()
    if not found:
        return f"{course.slug} has no assignment: make one with `hvdgrade course open`."
    lines = []
    for one in found:
        counts = select(Grading.state, func.count()).join(Submission).group_by(Grading.state)
        rows = session.execute(counts.where(Submission.assignment_id == one.id)).all()
        states = ", ".join(f"{number} {state}" for state, number in sorted(rows))
        due = f"due {one.due:%Y-%m-%d %H:%M} UTC" if one.due else "no deadline"
        lines.append(f"{one.slug}: {due}; {states or 'nothing was handed in'}")
    for pool in sorted({one.pool for one in found}):
        lines.append(f"pool {pool}: {wait_times.slots_online(session, pool, now())} slots online")
    return "\n".join(lines)


def begin_or_change_regrade(session: Session, args: argparse.Namespace) -> str:
    """Begin a regrade, show it, apply it or take it back."""
    assignment, by = roster.assignment_of(session, args.assignment), getpass.getuser()
    if number := args.table or args.apply or args.undo:
        one = session.query(Regrade).filter_by(id=number, assignment_id=assignment.id).first()
        if one is None:
            raise Wrong(f"{assignment.slug} has no regrade {number}.")
        if args.apply:
            regrade.apply(session, one, by, now())
        elif args.undo:
            regrade.undo(session, one, by, now())
        return "\n".join(map(_line, regrade.table(session, one)))
    every = session.query(Submission).filter_by(assignment_id=assignment.id, replaced_by=None)
    chosen = every.all() if args.all else regrade.counting(session, assignment)
    rules = profiles.load(assignment.profile).rules_sha256 if args.rules else ""
    one = regrade.begin(session, assignment, chosen, by, args.reason, now(), rules)
    return f"Regrade {one.id} waits behind all submissions. Compare with --table {one.id}."


def _line(row: regrade.Row) -> str:
    """Return a line of the table of a regrade."""
    before, after = (f"{each.score:g}" if each else "none" for each in (row.before, row.after))
    states = ", ".join(f"{number} {state}" for state, number in sorted(row.states.items()))
    return f"{row.person.email or row.person.id}: {before} -> {after} ({states})"


def release(session: Session, args: argparse.Namespace) -> str:
    """Show the results."""
    assignment = roster.assignment_of(session, args.assignment)
    if args.feedback:
        values = {"feedback": args.feedback}
        assignments.change(session, assignment, values, getpass.getuser(), now())
    grades.release(session, assignment, getpass.getuser(), now())
    if assignment.feedback == "none":
        return f"Learners see no results of {assignment.slug} before you add --feedback verdict or full."
    return f"Learners see the results of {assignment.slug}."


def post(session: Session, args: argparse.Namespace) -> str:
    """Return which scores the LMS got, after what is asked was done."""
    assignment = roster.assignment_of(session, args.assignment)
    found = poster.newest(session, assignment)
    pressed = [("send", each) for each, _ in found if args.again and each.state == poster.REFUSED]
    for button, name in (("hold", args.hold), ("send", args.send)):
        person = roster.person_of(session, assignment.course, name) if name else None
        chosen = [each for each, whose in found if whose == person]
        if name and not chosen:
            raise Wrong(f"{assignment.slug} has no score of {name} for an LMS.")
        pressed += [(button, each) for each in chosen]
    for button, one in pressed:
        poster.change(session, one, button, getpass.getuser(), now())
    states = Counter(each.state for each, _ in found)
    counts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    why = [f"{p.email or p.id}: {each.answer}" for each, p in found if each.state == poster.REFUSED]
    return "\n".join([f"{assignment.slug}: {counts or 'no score for an LMS'}", *why])


def export(session: Session, args: argparse.Namespace) -> str:
    """Write the folder."""
    assignment = roster.assignment_of(session, args.assignment)
    messages = class_folder.write_folder(session, assignment, args.out)
    folder = f"{args.out}/{class_folder.HANDED_IN}"
    how = f"`hvdgrade batch {folder} --out {args.out} --ids {args.out}/{class_folder.IDS}`"
    written = f"{args.out} is written: {how} makes its pages and grades what is left."
    return "\n".join([*messages, written])


DO: dict[str, Callable[[Session, argparse.Namespace], str]] = {
    "new": new,
    "roster": enrol,
    "open": open_assignment,
    "extend": extend,
    "status": status,
    "regrade": begin_or_change_regrade,
    "release": release,
    "post": post,
    "export": export,
}
