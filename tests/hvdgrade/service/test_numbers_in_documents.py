"""What the leaderboard and the cost read of results inside the database, on SQLite and PostgreSQL."""

from service_class import NOW
from starlette.datastructures import FormData

from hvdgrade.service import board, cost, queue
from hvdgrade.service.staff_forms import Form


def test_both_databases_find_the_numbers_and_survive_results_without_them(course):
    session, assignment = course.session, course.assignment
    resources = {"grading_wall": 1800.0, "devices": ["processor", "GPU-1"]}
    whole = {"budget": {"seconds": 50.0}, "flags": [], "resources": resources}
    for person, about in ((0, whole), (1, {}), (2, {"budget": None, "resources": None})):
        course.submit(person)
        lease = queue.claim(session, course.worker, NOW)
        assert course.finish(lease, seconds_to_target=12.5, **about)
        board.appear(session, assignment, course.people[person].id, f"pseudonym {person}")
    session.flush()
    assert board.lines(session, assignment) == [
        board.Line(1, "pseudonym 0", 0.25, course.people[0].id)
    ]
    found = cost.found(Form(session, assignment, FormData({"core_price": "2"}), "", NOW))
    assert found["used"] == cost.Cost(1, core_hours=1.0, gpu_hours=0.5, price=2.0)
