"""Mistakes in how the ranks train together: gradients, decisions, steps, collectives."""

import itertools
from collections import Counter
from collections.abc import Iterator

from hvdlab.check.call_sequences import difference
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.check.unequal_rounds import left_early, own_loops
from hvdlab.mistakes import Finding, finding
from hvdlab.script_analysis.collectives import GRADIENTS
from hvdlab.trace import records


def stopping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a decision to stop that depends on different values on the ranks."""
    if run.split():
        return
    for (line, text, _), values in run.decisions().items():
        for number, by_rank in enumerate(zip(*values, strict=False), 1):
            if any(run.apart(by_rank[0], other) for other in by_rank[1:]):
                measured = ", ".join(
                    f"{value:.6g} on rank {rank}"
                    for rank, value in zip(run.ranks, by_rank, strict=True)
                )
                seen = f"The decision depends on `{text}`, which in round {number} is {measured}."
                yield finding("own-stop", line, seen)
                return


def unequal(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about ranks with different numbers of batches, or with their own way out of a loop."""
    if run.all(records.Join) or run.split():
        return
    for line, lengths in run.lengths().items():
        if len(set(lengths.values())) > 1 and line not in facts.counted:
            counts = ", ".join(f"{n} on rank {rank}" for rank, n in sorted(lengths.items()))
            yield finding(
                "unequal-steps",
                line,
                f"The numbers of batches per epoch in this loop differ: {counts}. The rank with more "
                "batches will wait for ever in its next all-reduce.",
            )
            return
    for line, lengths in run.lengths(nested=True).items():
        if len(lengths) == len(run.ranks) and len(set(lengths.values())) > 1:
            counts = ", ".join(f"{n} on rank {rank}" for rank, n in sorted(lengths.items()))
            seen = (
                f"Each round of this loop trains, and the numbers of its rounds differ: {counts}."
            )
            yield finding("unequal-steps", line, seen)
            return
    if run.crash():
        return
    for left in left_early(run):
        how = f"reached the end of this loop after {left.rounds} rounds"
        if left.at:
            how = f"left the loop of line {left.loop} here, in round {left.rounds}"
        seen = f"Rank {left.rank} {how}. Rank {left.other} started round {left.other_rounds} and waits."
        if left.at:
            seen += " If a test decides about it, it needs a value that is equal on all ranks."
        yield finding("unequal-steps", left.at or left.loop, seen)
        return
    if run.waiting():
        for line, own, steps in own_loops(run):
            counts = ", ".join(
                f"{n} on rank {rank} (line {own[rank]})" for rank, n in steps.items()
            )
            seen = f"In one round of the loop of line {line} the numbers of steps differ: {counts}."
            yield finding("unequal-steps", own[max(steps, key=steps.get)], seen + run.waiting())
            return


def collectives(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a collective that some ranks call more often, or with another name."""
    if run.crash() or not run.complete() or run.split():
        return
    if own := _own_wait(run, facts):
        yield own
        return
    found = difference(run, facts.guarded)
    if not found:
        yield from itertools.islice((*_in_graphs(run, facts), *_own_steps(run, facts)), 1)
    else:
        by_rank = ", ".join(f"{n} times by rank {rank}" for rank, n in found.counts.items())
        guard = facts.guarded.get(found.line)
        under = f" The test of line {guard} decides which ranks call it." if guard else ""
        seen = f"{found.call} was called {by_rank}.{under}{run.waiting()}"
        yield finding("collective-on-some-ranks", found.line, seen)


def _own_wait(run: Run, facts: Facts) -> Finding | None:
    """Return the finding of a rank that waits for ever under a test of the rank, or None."""
    kinds = records.Collective | records.Step | records.Waiting
    lines = {rank: {n for e in run.of(rank, kinds) for n in e.stack} for rank in run.ranks}
    for rank in run.ranks:
        waiting = run.last_state(rank, records.Waiting)
        others = set().union(*(lines[other] for other in run.ranks if other != rank))
        for line in waiting.stack if waiting else ():
            if line in facts.guarded and line not in others:
                return finding(
                    "collective-on-some-ranks",
                    line,
                    f"Only rank {rank} comes to this line, because of the test of line "
                    f"{facts.guarded[line]}, and waits for the others.{run.waiting()}",
                )
    return None


def _own_steps(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a training step that one rank makes under a test of the rank."""
    lines = {
        rank: {n for e in run.of(rank, records.Step) if run.all(records.Wrap) for n in e.stack}
        for rank in run.ranks
    }
    for rank, other in itertools.permutations(run.ranks, 2):
        tests = {facts.guarded.get(line) for line in lines[other] - lines[rank]}
        for line in sorted(lines[rank] - lines[other]):
            test = facts.guarded.get(line)
            if test and test not in tests:  # the other rank makes none in another branch
                yield finding(
                    "collective-on-some-ranks",
                    line,
                    f"Rank {rank} makes a training step here, in which its optimizer waits for the others, "
                    f"and rank {other} does not. The test of line {test} decides about it.{run.waiting()}",
                )


def _in_graphs(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a collective that only some ranks have in their graphs of TensorFlow.

    Where AutoGraph has translated the function, the line is that of the collective.
    """
    traced = run.traced()
    for (function, _), of_rank in traced.items():
        if function in GRADIENTS:  # where a rank saves the model, TensorFlow traces it again
            continue
        for rank, other in itertools.permutations(run.ranks, 2):
            events = of_rank.get(rank, [])
            calls, others = (
                Counter((e.op, e.line) for e in each) for each in (events, of_rank.get(other, []))
            )
            for op, line in calls - others:
                tested = line if line in facts.guarded else None
                if not tested and other not in of_rank:
                    continue  # it has not come that far
                under = (
                    f" The test of line {facts.guarded[tested]} decides about it." if tested else ""
                )
                yield finding(
                    "collective-on-some-ranks",
                    line,
                    f"While TensorFlow traced {function}, rank {rank} called {op} more often than rank "
                    f"{other}.{under}{run.waiting()}",
                )
                return


RULES = stopping, unequal, collectives
