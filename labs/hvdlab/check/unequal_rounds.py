"""The training loops of which the ranks make unequal numbers of rounds."""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from hvdlab.check.run_events import Run
from hvdlab.trace import records

NOT_WAITING = records.Waiting(op="", loops=[], at=math.inf)


class Departure(NamedTuple):
    """A training loop that one rank left while another rank continued.

    Attributes:
        loop: line of the loop.
        rank: the rank that left it.
        rounds: that it had started.
        other: the rank that continued.
        other_rounds: that this one had started.
        at: line of the `break` or `return`; None if the loop reached its end.
    """

    loop: int
    rank: int
    rounds: int
    other: int
    other_rounds: int
    at: int | None


def left_early(run: Run) -> Iterator[Departure]:
    """Yield how a rank left a training loop that another rank continued.

    The loop ended there, or a `break` or `return` ended it while the other rank waits inside it.
    """
    # Line of the loop -> rank -> [(rounds, how the loop ended, line that left it)].
    rounds: dict[int, dict[int, list]] = {}
    for rank in run.ranks:
        waiting = run.last_state(rank, records.Waiting) or NOT_WAITING
        failed = any(event.error for event in run.of(rank, records.End))
        for event in run.of(rank, records.Pass):
            of_line = rounds.setdefault(event.line, {}).setdefault(rank, [])
            # A rank whose wait ends with an error, because another rank is gone, leaves all its loops.
            broken = event.left == "early" and (failed or event.at > waiting.at)
            left = "by an error" if broken else event.left
            of_line.append((event.iterations, left, event.leaves))
        for line, iteration in waiting.loops:
            rounds.setdefault(line, {}).setdefault(rank, []).append((iteration, "inside", None))
    for line, of_rank in rounds.items():
        for rank, other in itertools.permutations(of_rank, 2):
            pairs = zip(of_rank[rank], of_rank[other], strict=False)
            for (own, left, at), (others, now, _) in pairs:
                waits = left == "early" and now == "inside" and others >= own
                if waits or (left == "at its end" and others > own):
                    yield Departure(line, rank, own, other, others, at if waits else None)


def own_loops(run: Run) -> Iterator[tuple[int, dict[int, int], dict[int, int]]]:
    """Yield the rounds of a loop in which the ranks made unequal numbers of steps, each in its own loop.

    Yields:
        Line of the loop that all ranks share, rank -> line of its own loop, rank -> steps in one round.
    """
    rounds: dict[tuple[int, int], dict[int, list]] = {}  # (line, iteration) -> rank -> own loops
    for rank in run.ranks:
        for event in run.of(rank, records.Step):
            for outer, inner in itertools.pairwise(event.loops):
                rounds.setdefault((*outer,), {}).setdefault(rank, []).append(inner[0])
    for (line, iteration), own in rounds.items():
        steps = {rank: len(lines) for rank, lines in own.items()}
        each = {rank: lines[-1] for rank, lines in own.items()}
        ended = {
            rank: sum(
                event.line == each[rank] and event.left == "at its end"
                for event in run.of(rank, records.Pass)
            )
            for rank in own
        }
        complete = len(own) == len(run.ranks) and min(ended.values()) >= iteration
        if complete and len(set(each.values())) > 1 and len(set(steps.values())) > 1:
            yield line, each, steps
