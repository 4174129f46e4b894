"""A state machine compares the service, step by step, with a model in plain Python, on both databases."""

import datetime
from dataclasses import dataclass

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from service_class import NOW, ServiceClass
from sqlalchemy.orm import Session

from hvdgrade.service import grades, intake, queue, regrade
from hvdgrade.service.models import Grade, Grading, Submission, Worker

PEOPLE = 3
OPEN = ("queued", "leased")


@dataclass
class Entry:
    """What the model knows of a grading. `moved` is its submission."""

    submission: str
    person: int
    number: int
    reason: str
    rank: int
    regrade: int = -1
    state: str = "queued"
    tries: int = 0
    started: bool = False
    until: datetime.datetime = NOW
    token: str = ""
    score: float | None = None


class Queue(RuleBasedStateMachine):
    """The rules are what people, workers and staff do."""

    engine = None

    def __init__(self) -> None:
        super().__init__()
        self.connection = self.engine.connect()
        self.transaction = self.connection.begin()
        self.session = Session(self.connection)
        self.course = ServiceClass(self.session, PEOPLE)
        self.now = NOW
        self.entries: dict[int, Entry] = {}  # grading -> entry
        self.count = [0] * PEOPLE
        self.applied: dict[int, int] = {}  # regrade -> order in which it was applied
        self.leases: list[queue.Lease] = []

    def teardown(self) -> None:
        self.session.close()
        self.transaction.rollback()
        self.connection.close()

    # What the model expects.

    def first(self) -> int | None:
        busy = {e.person for e in self.entries.values() if e.state == "leased"}
        waiting = [
            (e.rank, id)
            for id, e in self.entries.items()
            if e.state == "queued" and e.person not in busy
        ]
        return min(waiting)[1] if waiting else None

    def rank(self, person: int) -> int:
        return min(
            9,
            sum(
                e.started and e.reason != "regrade"
                for e in self.entries.values()
                if e.person == person
            ),
        )

    def grade(self, person: int) -> float | None:
        best = []
        for submission in {e.submission for e in self.entries.values() if e.person == person}:
            scored = {
                i: e
                for i, e in self.entries.items()
                if e.submission == submission and e.score is not None
            }
            results = {i: e.score for i, e in scored.items() if e.regrade < 0}
            counting = [
                (self.applied[e.regrade], i) for i, e in scored.items() if e.regrade in self.applied
            ]
            if counting:
                last = max(counting)[1]
                results = {i: score for i, score in results.items() if i > last} | {
                    last: scored[last].score
                }
            best += results.values()
        return max(best, default=None)

    def lose(self, entry: Entry) -> None:
        entry.state = "queued" if entry.tries < 3 else "fault"

    # The rules.

    @rule(person=st.integers(0, PEOPLE - 1), seconds=st.integers(0, 100))
    def submit(self, person: int, seconds: int) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        made = self.course.submit(person, self.now).submission
        self.count[person] += 1
        assert made.number == self.count[person]
        waiting = [
            e for _, e in sorted(self.entries.items())
            if e.person == person and e.state == "queued" and e.reason in ("first", "fault")
        ]  # fmt: skip
        if waiting:
            old = waiting[0]
            assert self.session.get(Submission, old.submission).replaced_by == made.id
            old.submission, old.number, old.reason = made.id, made.number, "first"
            old.tries, old.started, old.token = 0, False, ""
        else:
            new = self.course.gradings()[-1]
            self.entries[new.id] = Entry(made.id, person, made.number, "first", self.rank(person))

    @rule()
    def claim(self) -> None:
        lease = queue.claim(self.session, self.session.get(Worker, self.course.worker.id), self.now)
        expected = self.first()
        assert (lease and lease.grading) == expected
        if lease:
            entry = self.entries[expected]
            assert lease.submission == entry.submission
            entry.state, entry.token, entry.started = "leased", lease.token, True
            entry.tries += 1
            entry.until = self.now + datetime.timedelta(seconds=60)
            self.leases.append(lease)

    @rule(which=st.integers(0, 9), seconds=st.integers(0, 40))
    def beat(self, which: int, seconds: int) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        if lease := self.lease(which):
            entry = self.entries[lease.grading]
            held = entry.state == "leased" and entry.token == lease.token
            assert queue.beat(self.session, lease.grading, lease.token, "epoch", self.now) == held
            if held:
                entry.until = self.now + datetime.timedelta(seconds=60)

    @rule(which=st.integers(0, 9), score=st.sampled_from([0.0, 10.0, 50.0, 90.0, None]))
    def finish(self, which: int, score: float | None) -> None:
        if lease := self.lease(which):
            entry = self.entries[lease.grading]
            known, held = entry.token == lease.token, entry.state == "leased"
            about = (
                {} if score is not None else {"status": "infrastructure_error", "reason": "disk"}
            )
            assert self.course.finish(lease, score, self.now, **about) == known
            if known and held:
                entry.score, entry.state = score, "done"
                if score is None:
                    self.lose(entry)

    @rule(which=st.integers(0, 9), ends=st.booleans())
    def give_back(self, which: int, ends: bool) -> None:
        if lease := self.lease(which):
            entry = self.entries[lease.grading]
            held = entry.state == "leased" and entry.token == lease.token
            back = queue.give_back(
                self.session, lease.grading, lease.token, "it must", ends, self.now
            )
            assert back == held
            if held:
                entry.token, entry.tries = "", entry.tries - ends
                self.lose(entry)

    @rule(seconds=st.integers(0, 120))
    def expire(self, seconds: int) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        lost = [e for e in self.entries.values() if e.state == "leased" and e.until < self.now]
        assert queue.expire(self.session, self.now) == len(lost)
        for entry in lost:
            entry.token = ""
            self.lose(entry)

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        if self.entries:
            id = sorted(self.entries)[which % len(self.entries)]
            was_open = self.entries[id].state in OPEN
            assert queue.cancel(self.session, id, self.now) == was_open
            if was_open:
                self.entries[id].state, self.entries[id].token = "cancelled", ""

    @rule(which=st.integers(0, 9))
    def again(self, which: int) -> None:
        names = sorted({(e.person, e.number, e.submission) for e in self.entries.values()})
        if not names:
            return
        person, number, name = names[which % len(names)]
        own = [e for _, e in sorted(self.entries.items()) if e.submission == name]
        submission = self.session.get(Submission, name)
        if any(e.state in OPEN for e in own):
            with pytest.raises(intake.Refused):
                grades.again(self.session, submission, "staff", self.now)
            return
        reason = "fault" if own[-1].state == "fault" else "again"
        rank = self.rank(person)
        made = grades.again(self.session, submission, "staff", self.now)
        self.entries[made.id] = Entry(name, person, number, reason, rank)

    @rule()
    def begin_regrade(self) -> None:
        names = {e.submission: e for e in self.entries.values()}
        busy = {e.submission for e in self.entries.values() if e.state in OPEN}
        chosen = [self.session.get(Submission, name) for name in names]
        if not names.keys() - busy:
            return
        before = set(self.entries)
        made = regrade.begin(self.session, self.course.assignment, chosen, "staff", "", self.now)
        new = [row for row in self.course.gradings() if row.id not in before]
        assert {row.submission_id for row in new} == names.keys() - busy
        for row in new:
            old = names[row.submission_id]
            self.entries[row.id] = Entry(
                old.submission, old.person, old.number, "regrade", 10, made.id
            )

    @rule(which=st.integers(0, 9), undo=st.booleans())
    def change_regrade(self, which: int, undo: bool) -> None:
        known = sorted({e.regrade for e in self.entries.values()} - {-1})
        if not known:
            return
        self.now += datetime.timedelta(seconds=1)
        id = known[which % len(known)]
        one = self.session.get(regrade.Regrade, id)
        left = any(e.state in OPEN for e in self.entries.values() if e.regrade == id)
        change = regrade.undo if undo else regrade.apply
        if undo == (id in self.applied) and (undo or not left):
            change(self.session, one, "staff", self.now)
            if undo:
                del self.applied[id]
            else:
                self.applied[id] = max(self.applied.values(), default=0) + 1
        else:
            with pytest.raises(intake.Refused):
                change(self.session, one, "staff", self.now)

    def lease(self, which: int) -> queue.Lease | None:
        return self.leases[-1 - which % len(self.leases)] if self.leases else None

    @invariant()
    def the_tables_are_as_the_model(self) -> None:
        self.session.flush()
        self.session.expire_all()
        for id, entry in self.entries.items():
            row = self.session.get(Grading, id)
            found = (row.state, row.submission_id, row.reason, row.rank, row.tries, row.score)
            expected = (
                entry.state,
                entry.submission,
                entry.reason,
                entry.rank,
                entry.tries,
                entry.score,
            )
            assert found == expected
        running = [e.person for e in self.entries.values() if e.state == "leased"]
        assert len(running) == len(set(running))
        for number, person in enumerate(self.course.people):
            grade = self.session.get(Grade, (self.course.assignment.id, person.id))
            assert (grade.points if grade else None) == self.grade(number)


@pytest.mark.slow
def test_the_queue_does_what_the_model_does(engine):
    run(engine, 15)


@pytest.mark.thorough
def test_the_queue_does_what_the_model_does_for_long(engine):
    run(engine, 500)


def run(engine, examples: int) -> None:
    settings = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=examples < 100,  # CI draws the same steps each time
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    run_state_machine_as_test(
        type("OnThisDatabase", (Queue,), {"engine": engine}), settings=settings
    )
