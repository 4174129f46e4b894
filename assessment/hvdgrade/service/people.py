"""Which person it is that another server names, and what its learning platform says of them."""

from collections.abc import Iterable

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from hvdgrade.service import grades, poster
from hvdgrade.service.lti import Launch
from hvdgrade.service.models import (
    LEARNER,
    Assignment,
    Grade,
    Identity,
    LineItem,
    Member,
    Person,
    Post,
)
from hvdgrade.service.roster import MAIL


def find(session: Session, subjects: Iterable[tuple[str, str]]) -> int | None:
    """Return the person of the first known identity (issuer and subject); None if none is known."""
    for subject in subjects:
        if identity := session.get(Identity, subject):
            return identity.person_id
    return None


def find_or_add(
    session: Session, subjects: list[tuple[str, str]], name: str, email: str = ""
) -> int:
    """Return the person of these identities, who is added if none is known. All of them are stored."""
    person = find(session, subjects)
    for issuer, subject in subjects:
        if session.get(Identity, (issuer, subject)):
            continue
        try:
            with session.begin_nested():
                if person is None:
                    new = Person(name=name[:200], email=email[:200])
                    session.add(new)
                    session.flush()
                session.add(Identity(issuer=issuer, subject=subject, person_id=person or new.id))
        except IntegrityError:  # a second request of the same person was faster
            session.expire_all()
        person = person or session.get_one(Identity, (issuer, subject)).person_id
    return person


def learner_at_door(session: Session, door: str, where: Assignment, who: str, name: str) -> Person:
    """Return the person for whom a door hands in, and add them to the course if they are new.

    Args:
        who: e-mail address or user id; upper and lower case are the same. One that cannot be used gets 400.
    """
    subject = who.strip().lower()
    if not subject or len(subject) > 200:
        raise HTTPException(
            400, "The header Hvdgrade-Learner must name the learner, with at most 200 characters."
        )
    issuer, email = (MAIL, subject) if "@" in subject else (f"door:{door}", "")
    id = find_or_add(session, [(issuer, subject)], name.strip() or subject, email)
    if session.get(Member, (where.course_id, id)) is None:
        session.add(Member(course_id=where.course_id, person_id=id, role=LEARNER))
    return session.get_one(Person, id)


def remember_launch(
    session: Session, launch: Launch, person: int, client: str, token_url: str
) -> None:
    """Store where the LMS takes the scores of the assignment from which somebody came.

    The launch of a learner sets what is missing; that of staff also changes it, because a link that was made
    again in the LMS has another column. Scores that had nowhere to go then wait again.

    Args:
        client: the service's client in this LMS, which must be that of the launch.
    """
    session.execute(
        update(Post)
        .where(Post.person_id == person, Post.state == poster.REFUSED, Post.answer == poster.NOBODY)
        .values(state=poster.WAITING)
    )
    assignment = session.scalar(select(Assignment).where(Assignment.slug == launch.slug))
    if not assignment or not launch.line_item or launch.client != client:
        return
    member = session.get(Member, (assignment.course_id, person))
    item = session.get(LineItem, assignment.id)
    if member is None or (item and (item.url == launch.line_item or member.role == LEARNER)):
        return
    item = item or LineItem(assignment_id=assignment.id)
    item.issuer, item.client_id = launch.issuer, launch.client
    item.url, item.token_url = launch.line_item, token_url
    session.add(item)
    session.flush()
    ended = (poster.SENT, poster.REFUSED)  # to another column, if to any
    mine = update(Post).where(Post.assignment_id == assignment.id, Post.state.in_(ended))
    session.execute(mine.values(state=poster.WAITING))
    if assignment.released:
        for grade in session.scalars(select(Grade).filter_by(assignment_id=assignment.id)):
            grades.post(session, grade)
