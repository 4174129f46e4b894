"""The collectives that the ranks called, and the first call in which two ranks differ: see `difference`."""

from collections import Counter
from collections.abc import Collection
from itertools import combinations, zip_longest
from typing import NamedTuple

from hvdlab.check.run_events import Run, label
from hvdlab.trace import records


class Difference(NamedTuple):
    """A collective that one of two ranks calls more often than the other.

    Attributes:
        call: the collective, with the name that the script gives to its tensor.
        counts: rank -> number of calls.
        line: of the script, where a person has to change it.
    """

    call: str
    counts: dict[int, int]
    line: int | None


def difference(run: Run, guarded: Collection[int]) -> Difference | None:
    """Return the first difference between the collectives of two ranks.

    Horovod matches the calls of the ranks by their names. So ranks that make different calls wait for each
    other, also if both calls are of the same kind. Ranks may make one call in different lines, for example
    the broadcast in the two branches of an `if`.

    Returns:
        The difference, or None if all ranks made the same calls.
    """
    for ranks in combinations(run.ranks, 2):
        calls = [run.of(rank, records.Collective) for rank in ranks]
        counts = [Counter(map(label, of_rank)) for of_rank in calls]
        if counts[0] != counts[1]:
            steps = [[step.stack for step in run.of(rank, records.Step)] for rank in ranks]
            call, line = _first(*calls, steps, guarded)
            by_rank = {rank: _count(run, rank, call) for rank in run.ranks}
            return Difference(label(call), by_rank, line)
    return None


def _count(run: Run, rank: int, call: records.Collective) -> int:
    """Return how often a rank makes a call."""
    return sum(label(each) == label(call) for each in run.of(rank, records.Collective))


def _first(
    one: list[records.Collective],
    other: list[records.Collective],
    steps: list[list[list[int]]],
    guarded: Collection[int],
) -> tuple[dict, int | None]:
    """Return the first call that one of two ranks makes and the other does not, and its line.

    If a test of the rank decides about a call of a function that makes it, that is the line of the call
    under the test, and not the line inside the function.

    Args:
        other: those of the second one.
        steps: the lines that were running in each step of an optimizer, of both ranks.
    """
    stacks = [
        [call.stack for call in calls] + of_steps
        for calls, of_steps in zip((one, other), steps, strict=True)
    ]
    for pair in zip_longest(one, other):
        equal = None not in pair and label(pair[0]) == label(pair[1])
        own = [
            _own(call.stack, others) if call else []
            for call, others in zip(pair, reversed(stacks), strict=True)
        ]
        tested = [next((line for line in lines if line in guarded), None) for lines in own]
        if equal and all(tested):  # in each branch of one test
            continue
        for call, line in zip(pair, tested, strict=True):
            if line:
                return call, line
        if not equal:  # no test of the rank decides
            counts = [Counter(map(label, calls)) for calls in (one, other)]
            for call, calls, others in zip(pair, (one, other), reversed(stacks), strict=True):
                if call and counts[0][label(call)] != counts[1][label(call)]:
                    # Where the other rank has ended, the call that it left out may come earlier.
                    same = [each for each in calls if label(each) == label(call)]
                    lines = (
                        _own(each.stack, others) for each in (same if None in pair else [call])
                    )
                    return call, next(filter(None, lines), [call.line])[0]
    raise ValueError("the ranks make the same calls")


def _own(stack: list[int], others: list[list[int]]) -> list[int]:
    """Return the lines of a stack that lead to no call of the other rank, the outermost first."""
    return [
        line
        for depth, line in enumerate(stack, 1)
        if all(other[:depth] != stack[:depth] for other in others)
    ]
