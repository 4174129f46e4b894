"""What staff see of the scores that the LMS gets, and how they hold one, or send it again."""

import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.exceptions import HTTPException

from hvdgrade.service.models import Assignment, LineItem, Person, Post
from hvdgrade.service.poster import HELD, REFUSED, SENT, WAITING

# What a button does: the states in which there is one, and the state that follows.
CHANGES = {"hold": ({WAITING, SENT, REFUSED}, HELD), "send": ({SENT, REFUSED, HELD}, WAITING)}


def posts(session: Session, assignment: Assignment, now: datetime.datetime) -> dict[str, Any]:
    """Return the newest score of each person, those that were refused first."""
    newest = (
        select(func.max(Post.id))
        .where(Post.assignment_id == assignment.id)
        .group_by(Post.person_id)
    )
    rows = session.execute(
        select(Post, Person)
        .join(Person, Person.id == Post.person_id)
        .where(Post.id.in_(newest))
        .order_by(Post.state != REFUSED, Post.state == SENT, Person.name, Person.id)
    )
    item = session.get(LineItem, assignment.id)
    return {"rows": [tuple(row) for row in rows], "issuer": item and item.issuer}


def change(post: Post, button: str, now: datetime.datetime) -> None:
    """Hold a score, or send it again.

    Raises:
        HTTPException: 409, the score is in another state.
    """
    states, after = CHANGES.get(button, ((), ""))
    if post.state not in states:
        raise HTTPException(409, f"This score is {post.state}. Reload the page.")
    post.state, post.tries, post.next_at, post.answer = after, 0, now, ""
