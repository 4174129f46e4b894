"""Sends the scores that wait in the table `post` to the learning platform (LMS), one after another.

All state is in the rows, so the process may die at any moment. A row that is being sent is put off by
`LEASE`; if the process dies meanwhile, the score is sent again. Only the newest version of a person's grade
is sent, and nothing of a person whom staff put on hold.
"""

import datetime
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

from hvdgrade.output.text import plain
from hvdgrade.service import grades
from hvdgrade.service.database import transaction
from hvdgrade.service.intake import Refused
from hvdgrade.service.lti import Scores, Target
from hvdgrade.service.models import Assignment, Grade, Identity, LineItem, Person, Post
from hvdgrade.service.outgoing import Answer, NoAnswer

WAITING, SENT, REFUSED, HELD, REPLACED = "waiting", "sent", "refused", "held", "replaced"
# What a button does: the states in which there is one, and the state that follows.
CHANGES = {"hold": ({WAITING, SENT, REFUSED}, HELD), "send": ({SENT, REFUSED, HELD}, WAITING)}
LEASE = datetime.timedelta(seconds=120)  # longer than two attempts, each with a new access token
PAUSE_S, LONGEST_PAUSE_S = 60, 3600
POLL_S = 5.0
MOST_CHARACTERS = 500  # of what the LMS answered
TRY_AGAIN = {408, 425, 429}  # the answers 4xx that say "later"
NOBODY = (
    "The LMS has not sent this person here yet. They must open the assignment from the LMS once."
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Letter:
    """A score that is to be sent: its row, where it goes, and what is sent."""

    post: int
    tries: int
    target: Target
    score: dict[str, Any]


class Poster:
    """Sends the scores of a database.

    Args:
        audiences: for an LMS (by `iss`) that expects another audience than its token address, that audience.
    """

    def __init__(self, engine: Engine, scores: Scores, audiences: Mapping[str, str] | None = None):
        self.engine, self.scores, self.audiences = engine, scores, audiences or {}

    def run(self, stop: threading.Event) -> None:
        """Send what is due, until `stop` is set."""
        while not stop.is_set():
            try:
                while self.send_next(datetime.datetime.now(datetime.UTC)) and not stop.is_set():
                    pass
            except DBAPIError as error:
                log.warning("scores wait, because the database gives an error: %s", error.orig)
            stop.wait(POLL_S)

    def send_next(self, now: datetime.datetime) -> bool:
        """Send the score that is due for the longest time; return whether there was one."""
        with transaction(self.engine) as session:
            found = take(session, self.audiences, now)
        if isinstance(found, Letter):
            self._send(found)
        return found is not None

    def _send(self, letter: Letter) -> None:
        """Send a score and write the answer into its row."""
        try:
            answer = self.scores.send(letter.target, letter.score)
            if answer.status == 409 and (score := self._newer(letter)):
                answer = self.scores.send(letter.target, score)
        except NoAnswer as error:
            self._write(letter.post, state=WAITING, answer=str(error), next_at=_later(letter.tries))
            return
        words = _words(answer)
        if 200 <= answer.status < 300:
            self._write(letter.post, state=SENT, answer=words)
        elif answer.status >= 500 or answer.status in TRY_AGAIN:
            self._write(letter.post, state=WAITING, answer=words, next_at=_later(letter.tries))
        else:
            self._write(letter.post, state=REFUSED, answer=words)

    def _newer(self, letter: Letter) -> dict[str, Any] | None:
        """Return the score with the present time; None if it is not the newest any more."""
        now = datetime.datetime.now(datetime.UTC)
        with transaction(self.engine) as session:
            post = session.get(Post, letter.post)
            _replace_older(session)
            session.refresh(post)
            if post.state != WAITING:
                return None
            post.timestamp = now
        return letter.score | {"timestamp": _text(now)}

    def _write(self, post: int, **values: Any) -> None:
        """Change a row that still waits: staff may have put it on hold meanwhile."""
        with transaction(self.engine) as session:
            session.execute(
                update(Post).where(Post.id == post, Post.state == WAITING).values(**values)
            )


def take(
    session: Session, audiences: Mapping[str, str], now: datetime.datetime
) -> Letter | str | None:
    """Put the next score that is due off by `LEASE`, and return it, or why it was refused here, or None."""
    _replace_older(session)
    other = aliased(Post)
    on_hold = select(other.id).where(
        other.assignment_id == Post.assignment_id,
        other.person_id == Post.person_id,
        other.state == HELD,
    )
    post = session.scalar(
        select(Post)
        .where(Post.state == WAITING, Post.next_at <= now, ~on_hold.exists())
        .order_by(Post.next_at, Post.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if post is None:
        return None
    post.tries += 1
    post.next_at = now + LEASE
    item = session.get(LineItem, post.assignment_id)
    user = item and session.scalar(
        select(Identity.subject).where(
            Identity.issuer == item.issuer, Identity.person_id == post.person_id
        )
    )
    if not user:
        post.state, post.answer = REFUSED, NOBODY
        return NOBODY
    audience = audiences.get(item.issuer, item.token_url)
    target = Target(item.url, item.client_id, item.token_url, audience)
    return Letter(post.id, post.tries, target, _score(session, post, user))


def change(session: Session, post: Post, button: str, who: str, now: datetime.datetime) -> None:
    """Do what a button of staff says: hold a score, or send it again."""
    states, after = CHANGES.get(button, ((), ""))
    if post.state not in states:
        raise Refused(409, f"this score is {post.state}: reload the page.")
    post.state, post.tries, post.next_at, post.answer = after, 0, now, ""
    assignment, on = session.get_one(Assignment, post.assignment_id), f"person {post.person_id}"
    grades.record(session, assignment, who, f"{button} score", on, "", now)


def newest(session: Session, assignment: Assignment) -> list[tuple[Post, Person]]:
    """Return the newest score of each person, those that were refused first."""
    ids = select(func.max(Post.id)).where(Post.assignment_id == assignment.id)
    rows = session.execute(
        select(Post, Person)
        .join(Person, Person.id == Post.person_id)
        .where(Post.id.in_(ids.group_by(Post.person_id)))
        .order_by(Post.state != REFUSED, Post.state == SENT, Person.name, Person.id)
    )
    return [(post, person) for post, person in rows]


def _replace_older(session: Session) -> None:
    """Give up the scores for whose person and assignment there is a newer version."""
    newer = aliased(Post)
    there_is_one = select(newer.id).where(
        newer.assignment_id == Post.assignment_id,
        newer.person_id == Post.person_id,
        newer.version > Post.version,
    )
    session.execute(
        update(Post)
        .where(Post.state == WAITING, there_is_one.exists())
        .values(state=REPLACED)
        .execution_options(synchronize_session=False)
    )


def _score(session: Session, post: Post, user: str) -> dict[str, Any]:
    """Return the score as the LMS gets it. One without points takes back the points that the LMS has."""
    score = {
        "userId": user,
        "timestamp": _text(post.timestamp),
        "activityProgress": "Completed",
        "gradingProgress": "FullyGraded" if post.score is not None else "Pending",
        "comment": _comment(session, post),
    }
    if post.score is not None:
        score |= {"scoreGiven": post.score, "scoreMaximum": post.max_score}
    return score


def _comment(session: Session, post: Post) -> str:
    """Return the text next to the score: as much as the assignment shows to its learners."""
    assignment = session.get(Assignment, post.assignment_id)
    grade = session.get(Grade, (post.assignment_id, post.person_id))
    document = grade.grading.document if grade and grade.grading else None
    if not document or grade.override is not None or assignment.feedback == "none":
        return ""
    lost = [c["title"] for c in document["checks"] if c["state"] in ("fail", "partial", "error")]
    looked = f"; look at: {', '.join(lost)}" if lost and assignment.feedback == "full" else ""
    return f"{document['verdict']}{looked}"


def _text(moment: datetime.datetime) -> str:
    """Return a moment as RFC 3339 text in UTC."""
    text = moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _later(tries: int) -> datetime.datetime:
    """Return when a score is sent again: after 1 minute, then 2, 4 and so on, at most an hour."""
    pause = min(PAUSE_S * 2 ** min(tries - 1, 10), LONGEST_PAUSE_S)
    return datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=pause)


def _words(answer: Answer) -> str:
    """Return what the LMS answered, in one line."""
    text = " ".join(plain(answer.body.decode("utf-8", "replace"), MOST_CHARACTERS).split())
    return f"{answer.status} {text}".strip()
