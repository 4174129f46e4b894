"""The schedules of a pipeline against the formulas of lab 14 and the solution of its exercise."""

import pytest
from lab_functions import solution

from hvdlab.scaling.pipeline import bubble, held, most_held, simulate

each_size = pytest.mark.parametrize(
    ("stages", "micro_batches"), [(1, 3), (2, 1), (4, 8), (4, 2), (7, 5)]
)


@each_size
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_the_bubble_and_the_activations_follow_the_formulas(schedule, stages, micro_batches):
    p, m = stages, micro_batches
    passes = simulate(schedule, p, m)
    assert max(each.end for each in passes) == 3 * (m + p - 1)
    assert bubble(passes, p) == pytest.approx((p - 1) / (m + p - 1))
    for stage in range(p):
        assert most_held(passes, stage) == (m if schedule == "GPipe" else min(m, p - stage))
        assert held(passes, stage)[-1][1] == 0


@each_size
@pytest.mark.parametrize("schedule", ["GPipe", "1F1B"])
def test_every_pass_waits_for_what_it_needs(schedule, stages, micro_batches):
    passes = simulate(schedule, stages, micro_batches, forward=2, backward=3)
    by_name = {(each.stage, each.kind, each.micro_batch): each for each in passes}
    assert len(by_name) == len(passes) == 2 * stages * micro_batches
    for (stage, kind, m), each in by_name.items():
        assert each.end - each.start == (2 if kind == "forward" else 3)
        if kind == "backward":
            assert each.start >= by_name[stage, "forward", m].end
        source = by_name.get((stage - 1 if kind == "forward" else stage + 1, kind, m))
        assert source is None or each.start >= source.end
    for stage in range(stages):
        mine = sorted((each.start, each.end) for each in passes if each.stage == stage)
        assert all(end <= start for (_, end), (start, _) in zip(mine, mine[1:], strict=False))


def test_the_bubble_agrees_with_the_solution_of_lab_14():
    passes = simulate("1F1B", 4, 6, forward=1, backward=1.5)
    events = [(each.stage, each.kind, each.micro_batch, each.start, each.end) for each in passes]
    assert bubble(passes, 4) == pytest.approx(solution(14, "bubble")(events, 4))


def test_arguments_out_of_range_are_refused():
    for schedule, stages, micro_batches, forward in (
        ("2F2B", 2, 2, 1),
        ("GPipe", 0, 2, 1),
        ("GPipe", 2, 0, 1),
        ("1F1B", 2, 2, 0),
    ):
        with pytest.raises(ValueError, match="simulate needs the schedule GPipe or 1F1B"):
            simulate(schedule, stages, micro_batches, forward)
