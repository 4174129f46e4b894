"""Which result counts, overrides, regrades, appeals and posts, on SQLite and PostgreSQL."""

import pytest
from service_class import RULES
from sqlalchemy import select

from hvdgrade import profiles
from hvdgrade.service import grades, intake, queue, regrade
from hvdgrade.service.models import Event, Grade, LineItem, Post, Submission

NEW_RULES = "b" * 64


def grade_of(course, number: int = 0) -> Grade:
    return course.session.get(Grade, (course.assignment.id, course.people[number].id))


def points(course) -> list[tuple]:
    """Return points, largest points and version of each person."""
    query = select(Grade).order_by(Grade.person_id).execution_options(populate_existing=True)
    course.session.flush()
    return [(g.points, g.max_score, g.grading_id) for g in course.session.scalars(query)]


def add_line_item(course) -> None:
    about = {"issuer": "https://lms", "client_id": "c", "url": "u", "token_url": "t"}
    course.session.add(LineItem(assignment_id=course.assignment.id, **about))


def posts(course) -> list[tuple]:
    query = select(Post).order_by(Post.id)
    return [(p.version, p.score, p.max_score, p.state) for p in course.session.scalars(query)]


@pytest.mark.parametrize(
    ("counts", "expected"), [("best", [40, 70, 70, 70]), ("last", [40, 70, 60, 70])]
)
def test_best_or_last_counts(course, clock, counts, expected):
    course.assignment.counts = counts
    seen = []
    for score in (40.0, 70.0, 60.0, 70.0):
        course.grade(0, score, clock.wait(60))
        seen.append(grade_of(course).points)
    assert seen == expected
    first_best = 2 if counts == "best" else 4  # of equal results the first one counts
    assert grade_of(course).grading.submission.number == first_best
    assert grade_of(course).version == len(
        [a for a, b in zip(expected, [None, *expected], strict=False) if a != b]
    )


def test_a_result_without_points_takes_none_away(course, clock):
    course.assignment.counts = "last"
    course.grade(0, 40.0)
    course.submit(0)
    lease = queue.claim(course.session, course.worker, clock.now)
    assert course.finish(lease, None, status="not_gradable", verdict=None, max_score=None)
    assert (grade_of(course).points, grade_of(course).version) == (40.0, 1)


def test_the_better_of_two_gradings_of_one_script_counts(course, clock):
    submission = course.grade(0, 60.0).submission
    for score in (80.0, 50.0, 80.0):
        grades.again(course.session, submission, "staff", clock.now)
        assert course.finish(queue.claim(course.session, course.worker, clock.now), score)
    assert [g.reason for g in course.gradings()] == ["first", "again", "again", "again"]
    assert (grade_of(course).points, grade_of(course).grading_id) == (
        80.0,
        2,
    )  # the first of equal ones


def test_points_of_unlike_profiles_are_compared_as_fractions(course, clock):
    course.grade(0, 60.0)
    course.submit(0)
    assert course.finish(
        queue.claim(course.session, course.worker, clock.now), 45.0, max_score=50.0
    )
    assert (grade_of(course).points, grade_of(course).max_score) == (45.0, 50.0)


def test_an_override_counts_until_it_is_withdrawn(course, session, clock):
    course.grade(0, 40.0)
    before = points(course)
    grades.override(session, course.assignment, course.people[0], 55.0, "ta", "bug", clock.wait(60))
    course.grade(0, 90.0, clock.now)
    grade = grade_of(course)
    assert (grade.points, grade.score, grade.version, grade.changed) == (55.0, 90.0, 2, clock.now)
    with pytest.raises(intake.Refused, match="from 0 to 100, not 100.5"):
        grades.override(session, course.assignment, course.people[0], 100.5, "ta", "", clock.now)
    with pytest.raises(intake.Refused, match="from 0 to 100, not nan"):
        grades.override(
            session, course.assignment, course.people[0], float("nan"), "ta", "", clock.now
        )
    grades.override(session, course.assignment, course.people[0], None, "ta", "", clock.wait(60))
    assert (grade.points, grade.version) == (90.0, 3)
    logged = session.execute(select(Event.who, Event.what, Event.detail).order_by(Event.id)).all()
    assert logged == [("ta", "override", "55.0: bug"), ("ta", "withdraw override", "None: ")]
    assert before


def test_somebody_who_handed_in_nothing_can_get_points_and_lose_them(course, session, clock):
    most = sum(profiles.load("cpu").points.values())
    grades.override(session, course.assignment, course.people[2], 7.0, "ta", "by mail", clock.now)
    assert points(course) == [(7.0, most, None)]
    grades.override(session, course.assignment, course.people[2], None, "ta", "", clock.now)
    assert points(course) == [(None, None, None)]


def test_a_change_of_points_writes_one_post_where_an_lms_takes_scores(course, session, clock):
    course.grade(0, 40.0)
    assert posts(course) == []
    add_line_item(course)
    course.grade(0, 30.0, clock.wait(1))  # the best stays: nothing to send
    assert posts(course) == []
    course.grade(0, 70.0, clock.wait(1))
    grades.override(session, course.assignment, course.people[0], 80.0, "ta", "", clock.wait(1))
    assert posts(course) == [(2, 70.0, 100.0, "waiting"), (3, 80.0, 100.0, "waiting")]
    assert session.scalars(select(Post.timestamp)).all()[-1] == clock.now


def test_nothing_is_posted_before_the_results_are_released(course, session, clock):
    course.assignment.released = False
    add_line_item(course)
    course.grade(0, 40.0)
    course.grade(0, 70.0, clock.wait(1))
    assert posts(course) == []
    for _ in range(2):  # the second time changes nothing
        grades.release(session, course.assignment, "staff", clock.now)
        assert posts(course) == [(2, 70.0, 100.0, "waiting")]


def regraded(
    course, clock, scores: dict[str, float], rules: str = RULES, ids=None
) -> regrade.Regrade:
    """Regrade submissions; `scores` has the new points of each."""
    chosen = [course.session.get(Submission, id) for id in ids or scores]
    made = regrade.begin(
        course.session, course.assignment, chosen, "staff", "new points", clock.now, rules
    )
    worker = course.worker
    worker.rules = {"cpu": rules}
    while lease := queue.claim(course.session, worker, clock.now):
        assert course.finish(
            lease, scores[lease.submission], clock.now, grader={"rules_sha256": rules}
        )
    worker.rules = {"cpu": RULES}
    return made


def test_a_regrade_changes_nothing_before_it_is_applied_and_undo_is_exact(course, session, clock):
    first = [course.grade(0, score, clock.wait(1)).submission.id for score in (70.0, 60.0)]
    other = course.grade(1, 50.0, clock.wait(1)).submission.id
    grades.override(session, course.assignment, course.people[2], 5.0, "ta", "", clock.now)
    before = points(course)
    made = regraded(course, clock, {first[0]: 20.0, first[1]: 65.0, other: 90.0}, NEW_RULES)
    assert points(course) == before
    assert all(g.held for g in course.gradings()[3:])
    rows = regrade.table(session, made)
    assert [(r.before.score, r.after.score, dict(r.states)) for r in rows] == [
        (70.0, 65.0, {"done": 2}), (50.0, 90.0, {"done": 1}),
    ]  # fmt: skip
    regrade.apply(session, made, "staff", clock.wait(1))
    assert [p for p, *_ in points(course)] == [65.0, 90.0, 5.0]
    assert intake.rules_of(session, course.assignment) == NEW_RULES
    assert not any(g.held for g in course.gradings())
    with pytest.raises(intake.Refused, match="applied already"):
        regrade.apply(session, made, "staff", clock.now)
    assert [(r.before.score, r.after.score) for r in regrade.table(session, made)] == [
        (70, 65),
        (50, 90),
    ]
    regrade.undo(session, made, "staff", clock.wait(1))
    assert points(course) == before
    assert intake.rules_of(session, course.assignment) == RULES
    with pytest.raises(intake.Refused, match="not applied"):
        regrade.undo(session, made, "staff", clock.now)


def test_the_regrade_that_was_applied_last_counts_whatever_is_undone(course, session, clock):
    id = course.grade(0, 70.0).submission.id
    made = [regraded(course, clock, {id: score}) for score in (10.0, 20.0, 30.0)]
    seen = []
    for step in (
        "apply 1",
        "apply 0",
        "apply 2",
        "undo 0",
        "undo 2",
        "apply 0",
        "undo 1",
        "undo 0",
    ):
        name, number = step.split()
        getattr(regrade, name)(session, made[int(number)], "staff", clock.wait(1))
        seen.append(grade_of(course).points)
    assert seen == [20.0, 10.0, 30.0, 30.0, 20.0, 10.0, 10.0, 70.0]


def test_what_is_graded_after_a_regrade_counts_with_it(course, session, clock):
    submission = course.grade(0, 70.0).submission
    regrade.apply(session, regraded(course, clock, {submission.id: 10.0}), "staff", clock.now)
    grades.again(session, submission, "staff", clock.now)
    assert course.finish(queue.claim(session, course.worker, clock.now), 30.0)
    assert grade_of(course).points == 30.0  # not 70, which the regrade replaced
    course.grade(0, 20.0)
    assert grade_of(course).points == 30.0


def test_submissions_after_an_applied_regrade_are_graded_by_its_rules(course, session, clock):
    id = course.grade(0, 70.0).submission.id
    made = regraded(course, clock, {id: 80.0}, NEW_RULES)
    course.submit(1)
    regrade.apply(session, made, "staff", clock.now)
    course.submit(2)
    assert [g.rules_sha256 for g in course.gradings()] == [RULES, NEW_RULES, RULES, NEW_RULES]


def test_a_regrade_waits_behind_everything_and_leaves_out_what_is_open(course, session, clock):
    ids = [course.grade(number, 50.0, clock.wait(1)).submission.id for number in (0, 1)]
    waiting = course.submit(2).submission
    made = regraded_open(course, [*ids, waiting.id], clock)
    assert [(g.submission_id, g.rank) for g in course.gradings()[3:]] == [
        (ids[0], 10),
        (ids[1], 10),
    ]
    with pytest.raises(intake.Refused, match="2 gradings of regrade 1 have not ended"):
        regrade.apply(session, made, "staff", clock.now)
    assert queue.claim(session, course.worker, clock.now).submission == waiting.id
    course.submit(0)  # takes no place of a regrade
    assert queue.claim(session, course.worker, clock.now).submission != ids[0]
    with pytest.raises(intake.Refused, match="no submission of cifar can be graded again"):
        regraded_open(course, [waiting.id], clock)


def regraded_open(course, ids, clock) -> regrade.Regrade:
    chosen = [course.session.get(Submission, id) for id in ids]
    return regrade.begin(course.session, course.assignment, chosen, "staff", "", clock.now)


def test_a_regrade_that_ends_in_a_fault_leaves_the_result(course, session, clock):
    id = course.grade(0, 70.0).submission.id
    made = regraded_open(course, [id], clock)
    for _ in range(queue.MOST_TRIES):
        lease = queue.claim(session, course.worker, clock.now)
        queue.give_back(session, lease.grading, lease.token, "it must", False, clock.now)
    (row,) = regrade.table(session, made)
    assert (row.before.score, row.after.score, dict(row.states)) == (70.0, 70.0, {"fault": 1})
    regrade.apply(session, made, "staff", clock.now)
    assert grade_of(course).points == 70.0


def test_the_usual_selection_is_what_counts(course, session, clock):
    best = course.grade(0, 70.0).submission
    course.grade(0, 60.0)
    assert regrade.counting(session, course.assignment) == [best]


def test_an_appeal_is_open_once_and_answered_once(course, session, clock):
    submission = course.grade(0, 60.0).submission
    with pytest.raises(intake.Refused, match="say in a sentence"):
        grades.appeal(session, submission, " ", clock.now)
    asked = grades.appeal(session, submission, "My epochs\0 were slow.", clock.now)
    assert (asked.text, asked.state) == ("My epochs\ufffd were slow.", "open")
    with pytest.raises(intake.Refused, match="is open"):
        grades.appeal(session, submission, "Again", clock.now)
    with pytest.raises(intake.Refused, match="'kept' or 'changed'"):
        grades.answer(session, asked, "perhaps", "", "ta", clock.now)
    grades.answer(session, asked, "kept", "The limit is 60 s.", "ta", clock.now)
    assert (asked.state, asked.answer, asked.by) == ("kept", "The limit is 60 s.", "ta")
    with pytest.raises(intake.Refused):
        grades.answer(session, asked, "changed", "", "ta", clock.now)
    assert grades.appeal(session, submission, "But still", clock.now).state == "open"
    assert session.scalars(select(Event.what)).all() == ["appeal kept"]
