"""The collective that is named where the ranks make different calls."""

import pytest
from check_events import as_run

from hvdlab.check.call_sequences import difference
from hvdlab.trace import records


def ranks(*calls):
    """Return a run in which each rank makes some calls, each "OPERATION or OPERATION/NAME" and its stack."""
    events = {}
    for rank, of_rank in enumerate(calls):
        named = [(*call.split("/"), None)[:2] for call, _ in of_rank]
        events[rank] = [
            {"kind": "collective", "op": op, "name": name, "stack": stack, "line": stack[-1]}
            for (op, name), (_, stack) in zip(named, of_rank, strict=True)
        ]
    return as_run(events)


@pytest.mark.parametrize(
    "calls, guarded, line",
    [
        # All ranks average in line 40 of a function, which only rank 0 calls in line 8.
        ([[("mean", [8, 40]), ("mean", [9, 40])], [("mean", [9, 40])]], {8}, 8),
        ([[("mean/a", [8, 40])], [("mean/b", [9, 40])]], {8}, 8),  # each waits for the other
        ([[("mean/a", [8, 40])], [("mean/b", [9, 40])]], {}, 8),
        ([[("mean", [7, 8, 40])], [("mean", [7, 9, 40]), ("mean", [7, 8, 40])]], {}, 9),
        # Rank 0 waits in its broadcast, and rank 1 in the next one.
        ([[("parameters", [5])], [("state", [6])]], {5}, 5),
        ([[("state", [6])], [("parameters", [5])]], {5}, 5),
        # An own call in each branch of an `if`, and later a call of rank 0 alone.
        ([[("send", [3]), ("mean", [8])], [("send", [5])]], {3, 5, 8}, 8),
        ([[("mean", [4]), ("mean", [4])], [("mean", [4])]], {}, 4),  # in a loop
    ],
)
def test_the_outermost_line_that_leads_to_a_call_of_one_rank_only(calls, guarded, line):
    found = difference(ranks(*calls), guarded)
    assert found.line == line
    assert len(set(found.counts.values())) > 1


@pytest.mark.parametrize(
    "calls",
    [
        [[("send", [3])], [("send", [5])]],  # in each branch of an `if`
        [[("mean/a", [3]), ("mean/b", [4])]] * 2,
        # Names decide what belongs together, so asynchronous calls may come in any order.
        [[("mean/a", [3]), ("mean/b", [4])], [("mean/b", [4]), ("mean/a", [3])]],
    ],
)
def test_ranks_that_make_the_same_calls_do_not_differ(calls):
    assert difference(ranks(*calls), {3, 5}) is None


def test_a_function_in_which_both_ranks_step_is_not_the_line():
    """The test around the call of rank 0 asks for an object that only this rank has."""
    run = ranks([("mean", [20, 42])], [])
    assert difference(run, {}).line == 20
    for events in run.events.values():
        events.append(
            records.Step(optimizer=0, wrapped=True, loops=[], rate=0.1, weights=[], stack=[20, 40])
        )
    assert difference(run, {}).line == 42
