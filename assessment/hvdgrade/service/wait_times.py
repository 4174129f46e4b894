"""How long a grading of a queue waits: its place, the time of others, and the workers that are online."""

import datetime
import statistics

from sqlalchemy import and_, func, select, tuple_
from sqlalchemy.orm import Session

from hvdgrade.service.models import DONE, LEASED, QUEUED, Grading, Worker

ONLINE_SECONDS = 60  # after its last request a worker counts as online
LAST_GRADINGS = 50  # of which the median is taken for the estimate
FIRST_GUESS_SECONDS = 120.0  # of a grading, in a pool without results


def place(session: Session, grading: int) -> int:
    """Return the place of a grading that waits in its pool: 1 is the next; 0 if it does not wait."""
    own = session.get(Grading, grading)
    if own is None or own.state != QUEUED:
        return 0
    before = tuple_(Grading.rank, Grading.id) <= tuple_(own.rank, own.id)
    query = select(func.count()).where(Grading.state == QUEUED, Grading.pool == own.pool, before)
    return session.scalar(query)


def estimate(session: Session, grading: int, now: datetime.datetime) -> float | None:
    """Return the seconds until the result of a grading; None if no worker of its pool is online.

    It is the median of the last gradings of the pool x gradings ahead (with those that run) / slots online.
    """
    own = session.get(Grading, grading)
    slots = own and slots_online(session, own.pool, now)
    if not slots:
        return None
    median = median_seconds(session, own.pool)
    if own.state == LEASED:
        return max(0.0, median - (now - own.started).total_seconds())
    run = select(func.count()).where(Grading.state == LEASED, Grading.pool == own.pool)
    return median * max(1.0, (session.scalar(run) + place(session, grading)) / slots)


def median_seconds(session: Session, pool: str) -> float:
    """Return the median time of the last gradings of a pool, or a guess for a pool without results."""
    ended = select(Grading.started, Grading.finished).where(
        Grading.state == DONE, Grading.pool == pool, Grading.started.is_not(None)
    )  # fmt: skip
    rows = session.execute(ended.order_by(Grading.finished.desc()).limit(LAST_GRADINGS)).all()
    seconds = [(finished - started).total_seconds() for started, finished in rows]
    return statistics.median(seconds) if seconds else FIRST_GUESS_SECONDS


def slots_online(session: Session, pool: str, now: datetime.datetime) -> int:
    """Return how many gradings the workers of a pool that are online can do at the same time."""
    live = and_(Worker.pool == pool, Worker.seen > online_since(now), Worker.refused == "")
    return session.scalar(select(func.coalesce(func.sum(Worker.slots), 0)).where(live))


def online_since(now: datetime.datetime) -> datetime.datetime:
    """Return the moment since which a worker that is online was seen."""
    return now - datetime.timedelta(seconds=ONLINE_SECONDS)
