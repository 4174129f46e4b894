"""The list of a course, a CSV file, and who is meant by an e-mail address or another name.

    email,name,role,github:1234
    ada@example.edu,Ada Lovelace,,ada-repository
    grace@example.edu,Grace Hopper,instructor,

Each column other than name and role is an issuer and holds what it calls the person: `email` an address,
`hub` a name of JupyterHub, `github:OWNER_ID` a repository, `gitlab:HOST` a login. Only `email` is needed.
"""

import csv
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from hvdgrade import HvdgradeError
from hvdgrade.output.text import printable
from hvdgrade.service.models import LEARNER, ROLES, Assignment, Course, Identity, Member, Person

MAIL = "mail"  # issuer of the column `email`


class BadRoster(HvdgradeError):
    """A list of a course, or a name of a person, cannot be used. The message says why in one sentence."""


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a list: column -> value.

    Raises:
        BadRoster: it cannot be read, or is no such list.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file, restkey="", restval=""))
    except OSError as error:
        raise BadRoster(f"{path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRoster(f"{path} must be CSV in UTF-8: {error}.") from None
    if not rows or "email" not in rows[0]:
        raise BadRoster(
            f"{path} must begin with a line of column names, one of them email, and have a person."
        )
    for number, row in enumerate(rows, 2):
        if "" in row or "@" not in row["email"]:
            raise BadRoster(
                f"{path}, line {number}: expected one e-mail address and a value per column."
            )
        if row.get("role", "").strip().lower() not in ("", *ROLES):
            raise BadRoster(f"{path}, line {number}: the role is one of {', '.join(ROLES)}.")
    return rows


def enrol(session: Session, course: Course, rows: list[dict[str, str]]) -> int:
    """Add the people of a list to a course, or change those it has. Nobody is removed.

    Returns:
        The number of people who were not members before.

    Raises:
        BadRoster: two people have the same name at one issuer.
    """
    added = 0
    for row in rows:
        names = {
            (
                MAIL if column == "email" else column,
                value.strip().lower() if column == "email" else value.strip(),
            )
            for column, value in row.items()
            if column not in ("name", "role") and value.strip()
        }
        found = {i.person for name in names if (i := session.get(Identity, name))}
        if len(found) > 1:
            raise BadRoster(f"{printable(row['email'])}: these names belong to two people.")
        person = found.pop() if found else Person()
        session.add(person)
        person.email = row["email"].strip().lower()
        person.name = row.get("name", "").strip() or person.name or ""
        session.flush()
        for issuer, subject in names:
            session.merge(Identity(issuer=issuer, subject=subject, person_id=person.id))
        member = session.get(Member, (course.id, person.id))
        added += member is None
        role = row.get("role", "").strip().lower() or (member.role if member else LEARNER)
        session.merge(Member(course_id=course.id, person_id=person.id, role=role))
        session.flush()
    return added


def person_of(session: Session, course: Course, name: str) -> Person:
    """Return the one member of a course with this address or name at any issuer, or raise BadRoster."""
    query = (
        select(Person)
        .join(Member, Member.person_id == Person.id)
        .join(Identity, Identity.person_id == Person.id)
        .where(Member.course_id == course.id, Identity.subject.in_((name, name.lower())))
    )
    found = session.scalars(query.distinct()).all()
    if len(found) != 1:
        number = "no member" if not found else f"{len(found)} members"
        raise BadRoster(f"{course.slug} has {number} with the name {printable(name)}.")
    return found[0]


def course_of(session: Session, slug: str) -> Course:
    """Return the course with this slug, or raise BadRoster."""
    return _by_slug(session, Course, slug)


def assignment_of(session: Session, slug: str) -> Assignment:
    """Return the assignment with this slug, or raise BadRoster."""
    return _by_slug(session, Assignment, slug)


def _by_slug(session: Session, table: type, slug: str):
    found = session.scalar(select(table).where(table.slug == slug))
    if found is None:
        have = ", ".join(session.scalars(select(table.slug).order_by(table.slug)).all()) or "none"
        name = table.__tablename__
        raise BadRoster(f"there is no {name} {printable(slug)}; the database has: {have}.")
    return found
