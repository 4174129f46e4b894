"""Leases, results, places and estimates, on SQLite and PostgreSQL."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from service_class import NOW, RULES, ServiceClass, document

from hvdgrade.result_document import NotAResult
from hvdgrade.service import database, grades, queue, wait_times
from hvdgrade.service.models import Grading, Worker


def claim(course, clock, worker=None):
    return queue.claim(course.session, worker or course.worker, clock.now)


def test_a_lease_has_all_that_a_worker_needs(course, clock):
    course.assignment.require_sandbox, course.assignment.ranks = "landlock", 3
    submission = course.submit(0, script=b"pass").submission
    lease = claim(course, clock)
    assert lease == queue.Lease(
        1, lease.token, submission.id, b"pass", "cpu", 3, 2400.0, "landlock", hints=True, rank=0
    )
    row = course.gradings()[0]
    assert lease.token not in (row.token_sha256, row.progress) and len(row.token_sha256) == 64
    assert (row.state, row.tries, row.worker_id) == ("leased", 1, course.worker.id)
    assert row.lease_until == clock.now + datetime.timedelta(seconds=60)
    assert claim(course, clock) is None


def test_a_result_is_stored_once_and_repeating_it_is_no_error(course, clock):
    course.submit(0)
    lease = claim(course, clock)
    assert course.finish(lease, 90.0, clock.wait(30))
    assert course.finish(lease, 10.0, clock.wait(1))  # the first one stays
    row = course.gradings()[0]
    stored = (row.state, row.verdict, row.score, row.max_score, row.seconds_to_target)
    assert stored == ("done", "pass", 90.0, 100.0, 12.5)
    assert row.document == document(lease.script, 90.0)
    assert (row.finished - row.started).total_seconds() == 30
    assert not queue.beat(course.session, lease.grading, lease.token, "", clock.now)
    assert not queue.give_back(
        course.session, lease.grading, lease.token, "it must", False, clock.now
    )


def test_a_wrong_token_changes_nothing(course, clock):
    course.submit(0)
    lease = claim(course, clock)
    for token in ("", "wrong", lease.token[:-1], "\ud800"):
        assert not queue.beat(course.session, lease.grading, token, "x", clock.now)
        assert not queue.finish(course.session, lease.grading, token, document(b""), "", clock.now)
        assert not queue.give_back(
            course.session, lease.grading, token, "it must", False, clock.now
        )
    assert not queue.beat(course.session, lease.grading + 1, lease.token, "x", clock.now)
    assert course.gradings()[0].state == "leased"


def test_beats_keep_a_lease_and_silence_loses_it(course, clock):
    course.submit(0)
    lease = claim(course, clock)
    for _ in range(10):
        assert queue.beat(course.session, lease.grading, lease.token, "epoch", clock.wait(59))
        assert queue.expire(course.session, clock.now) == 0
    clock.wait(61)
    assert queue.expire(course.session, clock.now) == 1
    assert not queue.beat(course.session, lease.grading, lease.token, "", clock.now)
    assert not course.finish(lease)
    other = claim(course, clock)
    assert (other.grading, other.submission) == (lease.grading, lease.submission)
    assert other.token != lease.token and course.gradings()[0].tries == 2
    assert not course.finish(lease)
    assert course.finish(other)


def test_the_last_lines_and_the_log_are_short_and_harmless(course, clock):
    course.submit(0)
    lease = claim(course, clock)
    hostile = "x" * 9000 + "\0\ud800\x1b[2Jend"
    assert queue.beat(course.session, lease.grading, lease.token, hostile, clock.now)
    progress = course.gradings()[0].progress
    assert progress.endswith("\ufffd\ufffd\ufffd[2Jend") and len(progress) == 4096
    result = document(lease.script, reason="a\ud800\0b")
    assert queue.finish(course.session, lease.grading, lease.token, result, hostile * 9, clock.now)
    assert len(course.gradings()[0].log) == 20_000


@pytest.mark.parametrize("fault", ["expire", "give_back", "infrastructure", "grade_again"])
def test_the_third_try_without_a_result_is_a_fault(course, clock, fault):
    course.submit(0)
    for tries in (1, 2, 3):
        lease = claim(course, clock)
        clock.wait(61)
        if fault == "expire":
            assert queue.expire(course.session, clock.now) == 1
        elif fault == "give_back":
            assert queue.give_back(
                course.session, lease.grading, lease.token, "it must", False, clock.now
            )
        else:
            about = {
                "infrastructure": {"status": "infrastructure_error"},
                "grade_again": {"status": "not_gradable", "grade_again": True},
            }[fault]
            about |= {"reason": "no disk", "verdict": None}
            assert course.finish(lease, None, clock.now, **about)
            assert course.finish(lease, None, clock.now, **about)  # repeated: taken already
        row = course.gradings()[0]
        assert row.tries == tries
        assert row.state == ("queued" if tries < 3 else "fault")
    assert claim(course, clock) is None
    assert (row.finished, row.score, row.document) == (clock.now, None, None)
    assert row.error
    again = grades.again(course.session, row.submission, "staff", clock.now)
    assert (again.reason, again.state) == ("fault", "queued")


def test_workers_that_were_told_to_end_use_up_no_try(course, clock):
    course.submit(0)
    for ends in (True, False, True, True, False, True):
        lease = claim(course, clock)
        assert queue.give_back(
            course.session, lease.grading, lease.token, "it must", ends, clock.wait(1)
        )
        assert not queue.give_back(
            course.session, lease.grading, lease.token, "it must", ends, clock.now
        )
    row = course.gradings()[0]
    assert (row.state, row.tries, row.error) == (
        "queued",
        2,
        "its worker gave it back, because it must",
    )
    assert course.finish(claim(course, clock))


def test_a_script_that_is_not_gradable_has_a_result_without_points(course, clock):
    course.submit(0)
    about = {
        "status": "not_gradable",
        "reason": "no assessment.py",
        "verdict": None,
        "max_score": None,
    }
    assert course.finish(claim(course, clock), None, **about)
    row = course.gradings()[0]
    assert (row.state, row.score, row.document["reason"]) == ("done", None, "no assessment.py")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"submission": {"id": "s", "sha256": "b" * 64}}, "another script"),
        ({"grader": {"rules_sha256": "b" * 64}}, "other rules"),
        ({"seconds_to_target": float("nan")}, "not finite"),
    ],
)
def test_a_result_that_cannot_be_of_this_lease_is_refused(course, clock, change, words):
    course.submit(0)
    lease = claim(course, clock)
    with pytest.raises(NotAResult, match=words):
        course.finish(lease, **change)
    assert course.gradings()[0].state == "leased"
    assert course.finish(lease)


def test_a_worker_that_fits_nothing_is_told_why(course, clock):
    course.assignment.require_sandbox = "landlock"
    course.submit(0)
    old = course.new_worker("old", rules={"cpu": "b" * 64}, version="0.0.9")
    weak = course.new_worker("weak", tier="user")
    away = course.new_worker("away", pool="gpu")
    other = course.new_worker("other", rules={"gpu": "b" * 64})
    assert [claim(course, clock, worker) for worker in (old, weak, away, other)] == [None] * 4
    assert "has the profile cpu, which this worker cannot grade" in other.refused
    assert "opened with other rules of the profile cpu" in old.refused and "0.0.9" in old.refused
    assert "needs the isolation level landlock, and this worker has user" in weak.refused
    assert away.refused == ""
    assert wait_times.slots_online(course.session, "default", clock.now) == 1
    assert claim(course, clock, course.new_worker("good", tier="landlock"))
    assert claim(course, clock, weak) is None and weak.refused == ""  # nothing waits


def test_a_person_whose_grading_runs_is_no_reason_to_refuse_a_worker(course, clock):
    course.submit(0)
    assert claim(course, clock)
    course.submit(0)
    assert claim(course, clock) is None and course.worker.refused == ""


def test_places_follow_rank_and_then_the_order_of_arrival(course, clock):
    course.grade(0, 50.0)
    receipts = [course.submit(number) for number in (0, 1, 2)]
    rows = {row.submission_id: row.id for row in course.gradings()}
    places = [wait_times.place(course.session, rows[r.submission.id]) for r in receipts]
    assert places == [3, 1, 2]
    order = [claim(course, clock).submission for _ in receipts]
    assert order == [receipts[i].submission.id for i in (1, 2, 0)]
    assert wait_times.place(course.session, rows[order[0]]) == 0


def test_the_estimate_follows_durations_slots_and_who_is_online(course, clock):
    course.worker.seen = clock.now - datetime.timedelta(minutes=2)
    course.submit(0)
    waiting = course.gradings()[0].id
    assert wait_times.estimate(course.session, waiting, clock.now) is None
    course.worker.seen = clock.now
    assert wait_times.estimate(course.session, waiting, clock.now) == wait_times.FIRST_GUESS_SECONDS
    for seconds in (10, 20, 90):
        lease = claim(course, clock)
        assert course.finish(lease, 50.0, clock.wait(seconds))
        course.submit(0)
    course.submit(1)
    course.submit(2)
    lease = claim(course, clock)  # person 1; person 2 and then person 0 wait
    rows = {row.submission.person_id: row.id for row in course.gradings()}
    estimates = [
        wait_times.estimate(course.session, rows[p.id], clock.wait(5)) for p in course.people
    ]
    assert estimates == [60.0, 10.0, 40.0]  # median 20 x (1 running + place), and 20 - 10 left
    course.new_worker("second", slots=3, seen=clock.now)
    assert wait_times.estimate(course.session, rows[course.people[0].id], clock.now) == 20.0
    assert lease


def test_workers_at_the_same_moment_get_different_people(engine):
    with database.transaction(engine) as session:
        course = ServiceClass(session, learners=12)
        for number in range(12):  # a second one that waits for each person
            course.submit(number)
            queue.claim(session, course.worker, NOW)
            course.submit(number)
        for row in course.gradings():
            if row.state == "leased":
                queue.cancel(session, row.id, NOW)
                grades.again(session, row.submission, "staff", NOW)
        workers = [course.new_worker(f"worker {n}").id for n in range(16)]

    def one(worker: int) -> int | None:
        with database.transaction(engine) as session:
            lease = queue.claim(session, session.get(Worker, worker), NOW)
            return lease and session.get(Grading, lease.grading).submission.person_id

    with ThreadPoolExecutor(16) as pool:
        people = [person for person in pool.map(one, workers) if person]
    with ThreadPoolExecutor(
        16
    ) as pool:  # a claim may pass over rows that another one held just then
        people += [person for person in pool.map(one, workers) if person]
    assert sorted(people) == sorted(set(people)) and len(people) == 12


def test_cancel_ends_what_is_open_only(course, clock):
    course.submit(0)
    lease = claim(course, clock)
    assert queue.cancel(course.session, lease.grading, clock.now)
    assert not queue.cancel(course.session, lease.grading, clock.now)
    assert not course.finish(lease) and course.gradings()[0].state == "cancelled"
    assert not queue.cancel(course.session, 99, clock.now)
    assert RULES == course.gradings()[0].rules_sha256
