"""Whether a submission is accepted, and where it waits, on SQLite and PostgreSQL."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from service_class import ServiceClass
from sqlalchemy import func, select

from hvdgrade.service import database, grades, intake, queue
from hvdgrade.service.models import CANCELLED, Assignment, Extension, Grading, Person, Submission

HOUR = datetime.timedelta(hours=1)


def refused(status: int, words: str):
    """Return a context that expects a refusal with this status and these words."""
    return pytest.raises(intake.Refused, match=words, check=lambda error: error.status == status)


def test_the_same_key_gives_the_same_submission_also_after_the_deadline(course, clock):
    first = course.submit(0, key="k", script=b"a")
    course.assignment.closes = clock.now
    again = course.submit(0, clock.wait(3600), key="k", script=b"a")
    assert (first.created, again.created) == (True, False)
    assert again.submission is first.submission
    assert len(course.gradings()) == 1


def test_a_key_that_another_submission_has_is_refused(course):
    course.submit(0, key="k", script=b"a")
    for number, script in ((1, b"a"), (0, b"b")):
        with refused(409, "'k' belongs to another submission"):
            course.submit(number, key="k", script=script)
    assert course.submit(1, key="k", script=b"a", door="gradescope").created  # keys of another door


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"key": ""}, 400, "1 to 100 characters"),
        ({"key": "k" * 101}, 400, "1 to 100 characters"),
        ({"script": b"x" * 64_001}, 413, "at most 64,000 bytes, and this one has 64,001"),
    ],
)
def test_requests_of_wrong_sizes_are_refused(course, change, status, words):
    with refused(status, words):
        course.submit(0, **change)
    assert course.submit(0, key="k" * 100, script=b"x" * 64_000).created


def test_only_members_hand_in(course, session):
    session.add(stranger := Person(name="Eve"))
    session.flush()
    with refused(403, "not a member of the course of cifar"):
        course.submit(0, person=stranger)


def test_nothing_is_accepted_before_an_assignment_opens_or_after_it_closes(course, clock):
    course.assignment.opens = clock.now + HOUR
    course.assignment.due = clock.now + 2 * HOUR
    course.assignment.closes = clock.now + 3 * HOUR
    with refused(403, "cifar opens on 2026-11-02 at 13:00 UTC"):
        course.submit(0)
    late = [course.submit(0, clock.wait(seconds)).submission.late for seconds in (3600, 3600, 1)]
    assert late == [False, False, True]
    clock.wait(3599)
    with refused(403, "cifar closed on 2026-11-02 at 15:00 UTC"):
        course.submit(0, clock.wait(1))


def test_an_extension_moves_both_deadlines_and_the_marks_of_what_was_late(course, session, clock):
    course.assignment.due = course.assignment.closes = clock.now
    course.assignment.attempts = 1
    own = Extension(
        assignment_id=course.assignment.id,
        person_id=course.people[0].id,
        due=clock.now + HOUR,
        attempts=2,
        by="staff",
        reason="ill",
    )
    grades.extend(session, own, clock.now)
    assert not course.submit(0, clock.wait(1800)).submission.late
    course.worker.pool = "other"  # nothing is replaced below
    with refused(403, "closed"):
        course.submit(1, clock.now)
    course.assignment.closes = None
    assert course.submit(1, clock.now).submission.late
    other = Extension(
        assignment_id=course.assignment.id, person_id=course.people[1].id, due=clock.now + HOUR
    )
    grades.extend(session, other, clock.now)
    assert session.scalars(select(Submission.late)).all() == [False, False]


def test_a_newer_submission_takes_the_place_of_an_older_one_that_waits(course):
    first, other = course.submit(0).submission, course.submit(1).submission
    second = course.submit(0).submission
    assert [g.submission_id for g in course.gradings()] == [second.id, other.id]
    assert (first.replaced_by, second.number) == (second.id, 2)
    lease = queue.claim(course.session, course.worker, first.received)
    assert lease.submission == second.id


def test_a_newer_submission_waits_for_an_older_one_that_runs(course, clock):
    first = course.submit(0).submission
    lease = queue.claim(course.session, course.worker, clock.now)
    second = course.submit(0).submission
    assert first.replaced_by is None
    assert (
        queue.claim(course.session, course.worker, clock.now) is None
    )  # one that runs, one that waits
    assert course.finish(lease)
    assert queue.claim(course.session, course.worker, clock.now).submission == second.id


def test_the_tries_of_an_older_script_are_not_those_of_the_newer_one(course, clock):
    course.submit(0)
    for _ in range(queue.MOST_TRIES - 1):
        queue.claim(course.session, course.worker, clock.now)
        queue.expire(course.session, clock.wait(queue.LEASE_SECONDS + 1))
    newer = course.submit(0, clock.now).submission
    (row,) = course.gradings()
    assert (row.submission_id, row.tries, row.started, row.error) == (newer.id, 0, None, "")
    assert row.rank == 0


def test_a_late_submission_does_not_take_the_place_of_one_in_time(course, clock):
    course.assignment.due = clock.now
    in_time = course.submit(0).submission
    late = course.submit(0, clock.wait(1)).submission
    later = course.submit(0, clock.wait(1)).submission
    assert [g.submission_id for g in course.gradings()] == [in_time.id, later.id]
    assert (in_time.replaced_by, late.replaced_by) == (None, later.id)


def test_attempts_are_used_up_but_not_by_replaced_submissions_nor_by_faults(course, clock):
    course.assignment.attempts = 2
    for _ in range(3):  # each takes the place of the one before
        course.submit(0)
    for _ in range(queue.MOST_TRIES):
        lease = queue.claim(course.session, course.worker, clock.now)
        queue.expire(course.session, clock.wait(queue.LEASE_SECONDS + 1))
    assert [g.state for g in course.gradings()] == ["fault"]
    assert intake.attempts_used(course.session, course.assignment, course.people[0]) == 0
    course.grade(0, 10.0)
    course.submit(0)
    assert course.submit(0).created  # replaces the second attempt
    lease = queue.claim(course.session, course.worker, clock.now)
    with refused(429, "used all 2 attempts for cifar"):
        course.submit(0)
    assert queue.cancel(course.session, lease.grading, clock.now)
    assert course.submit(0).created


def test_a_cool_down_says_how_long_to_wait(course, clock):
    course.assignment.cooldown_s = 60
    course.submit(0)
    with refused(429, "wait 30 s") as error:
        course.submit(0, clock.wait(30.5))
    assert error.value.retry_after == 30
    assert course.submit(1, clock.now).created
    assert course.submit(0, clock.wait(29.5)).created


def test_rank_counts_what_a_person_has_started_and_regrades_come_last(course, clock):
    for score in range(11):
        course.grade(0, float(score), clock.wait(1))
    course.submit(0, clock.now)
    course.submit(1, clock.now)
    ranks = [(g.rank, g.state) for g in course.gradings()]
    assert [rank for rank, state in ranks if state == "done"] == [*range(10), 9]
    assert [rank for rank, state in ranks if state == "queued"] == [9, 0]
    assert queue.claim(course.session, course.worker, clock.now).submission[
        :1
    ]  # the other person's first
    first, last = course.gradings()[-1], course.gradings()[-2]
    assert (first.state, last.state) == ("leased", "queued")


def test_requests_of_one_person_at_the_same_moment_do_not_pass_the_limits(engine):
    with database.transaction(engine) as session:
        course = ServiceClass(session)
        course.assignment.attempts = 1
        ids = course.assignment.id, course.people[0].id

    def request(number: int) -> bool:
        with database.transaction(engine) as session:
            assignment, person = session.get(Assignment, ids[0]), session.get(Person, ids[1])
            key, script = f"key {number % 4}", b"%d" % (number % 4)
            return intake.submit(
                session, assignment, person, "page", key, script, course_now
            ).created

    course_now = datetime.datetime(2026, 11, 2, 12, tzinfo=datetime.UTC)
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(request, range(16)))
    assert sum(created) == 4  # each key once; each submission replaced the one before
    with database.reading(engine) as session:
        assert session.scalar(select(func.count(Grading.id))) == 1
        numbers = session.scalars(select(Submission.number).order_by(Submission.number)).all()
        assert numbers == [1, 2, 3, 4]


def test_two_people_with_one_key_at_the_same_moment(engine):
    with database.transaction(engine) as session:
        course = ServiceClass(session, learners=8)
        assignment_id, people = course.assignment.id, [p.id for p in course.people]

    def request(id: int) -> int:
        try:
            with database.transaction(engine) as session:
                assignment, person = session.get(Assignment, assignment_id), session.get(Person, id)
                now = datetime.datetime(2026, 11, 2, 12, tzinfo=datetime.UTC)
                intake.submit(session, assignment, person, "page", "k", b"x", now)
                return 201
        except intake.Refused as error:
            return error.status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(request, people)) == [201] + [409] * 7


def test_grading_again_is_refused_while_a_grading_is_open(course, clock):
    submission = course.submit(0).submission
    with refused(409, "waits in the queue"):
        grades.again(course.session, submission, "staff", clock.now)
    queue.cancel(course.session, course.gradings()[0].id, clock.now)
    again = grades.again(course.session, submission, "staff", clock.now)
    assert (again.reason, course.gradings()[0].state) == ("again", CANCELLED)
    course.submit(0)  # what staff asked for keeps its place
    assert [g.submission_id for g in course.gradings()][1] == submission.id
