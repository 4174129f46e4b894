"""Mistakes in how the ranks train together: gradients, decisions, steps, collectives."""

import itertools
from collections import Counter
from collections.abc import Iterator

from hvdlab.check.call_sequences import difference
from hvdlab.check.replica_weights import divergence
from hvdlab.check.run_events import Run
from hvdlab.check.source_facts import Facts
from hvdlab.check.unequal_rounds import left_early, own_loops
from hvdlab.mistakes import Finding, finding
from hvdlab.script_analysis.collectives import GRADIENTS
from hvdlab.script_analysis.legacy_keras import OLD_ARGUMENT


def wrapping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about optimizers that step without an average of the gradients by Horovod.

    Such an optimizer is not wrapped, or wrapped too late, or its wrapper never averages.
    """
    if run.api() == "ddp":
        return  # see `process_groups.wrapping`
    wraps = run.rank0("wrap")
    for event in wraps:
        if not event["averages"]:
            step = divergence(run)
            old = (
                f" Keras 3 does not accept {OLD_ARGUMENT} in line {facts.old_argument}: remove it."
                if facts.old_argument
                else ""
            )
            seen = f" After step {step} the weights of the ranks differ." if step else ""
            yield finding(
                "gradients-not-averaged",
                event["line"],
                "Horovod's own Keras module wrapped an optimizer of Keras 3, whose trainer never calls "
                f"the wrapper.{seen}{old}",
            )
    if any(not event["averages"] for event in wraps):
        return
    step = divergence(run)
    tapes = any("Tape" in event["what"] for event in wraps)
    own_module = any(event["own_module"] for event in wraps)
    began_equal = step and (step > 1 or run.weights_broadcast())
    if run.api() == "tape" and own_module and not tapes and began_equal:
        yield finding(
            "gradients-not-averaged",
            facts.wrapped_at(wraps[0]),
            "Horovod's own Keras module wrapped an optimizer here. The wrapper averages in fit and minimize, "
            "and not the gradients that a loop passes to apply_gradients. After step "
            f"{step} the weights of the ranks differ.",
        )
        return
    created = {event["optimizer"]: event for event in run.rank0("optimizer")}
    for number in run.plain_optimizers():
        step = divergence(run, number)
        if step is None and run.exchanges():
            continue  # equal without a wrapper, or stepped on one rank: the script exchanges by itself
        apart = f" After step {step} the weights of the ranks differ." if step else ""
        late = [event for event in wraps if event["optimizer"] == number]
        name = created.get(number, {}).get("name", "the optimizer")
        if late:
            seen = f"{name} was wrapped here, but the plain optimizer trains.{apart}"
            yield finding("wrapped-too-late", late[0]["line"], seen)
        else:
            line = created[number]["line"] if number in created else run.line("step")
            if run.api() == "tape":
                line = (
                    (facts.wrapped and facts.plain_gradient) or facts.wrapped or facts.tape or line
                )
            if any("Tape" in event["what"] for event in wraps):
                apart = f" The gradients come from another tape than the distributed one.{apart}"
            seen = f"On each rank {name} steps by the gradient of that rank only.{apart}"
            yield finding("optimizer-not-wrapped", line, seen)


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
    reached = {(event["line"], event["text"]) for event in run.all("decision")}
    train = {event["line"] for event in run.all("loop") + run.all("pass")}
    for loop, line, text in facts.metric_stops:
        if loop in train and (line, text) not in reached:
            yield finding(
                "own-stop",
                line,
                f"The decision depends on `{text}`, which each rank computes alone (read from the source, "
                "because the run of a few steps did not reach this).",
            )
            return


def unequal(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about ranks with different numbers of batches, or with their own way out of a loop."""
    if facts.join or run.all("join") or run.split():
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
    train = {event["line"] for event in run.all("loop") + run.all("pass")}
    for loop, (line, test) in facts.own_breaks.items():
        if loop in train:
            seen = (
                f"Because of the test of line {test} only some ranks can leave the loop of line {loop} here. "
                "The others continue, and wait for them (read from the source)."
            )
            yield finding("own-stop", line, seen)
            return


def collectives(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a collective that some ranks call more often, or with another name."""
    if run.crash() or not run.complete() or run.split():
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


def _own_steps(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a training step that one rank makes under a test of the rank."""
    lines = {
        rank: {n for e in run.of(rank, "step") if e["wrapped"] for n in e["stack"]}
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

    AutoGraph runs a translated copy of a tf.function, so the events have only the line that calls it. The
    line of the collective comes from the source.
    """
    traced = run.traced()
    for (function, _), of_rank in traced.items():
        if function in GRADIENTS:  # where a rank saves the model, TensorFlow traces it again
            continue
        for rank, other in itertools.permutations(run.ranks, 2):
            events = of_rank.get(rank, [])
            more = Counter(e["op"] for e in events) - Counter(
                e["op"] for e in of_rank.get(other, [])
            )
            for op in more:
                lines = [n for n, name in facts.collectives.items() if f"hvd.{name}" == op]
                called = next(event["line"] for event in events if event["op"] == op)
                tested = next((n for n in [called, *lines] if n in facts.guarded), None)
                if not tested and other not in of_rank:
                    continue  # it has not come that far
                under = (
                    f" The test of line {facts.guarded[tested]} decides about it." if tested else ""
                )
                yield finding(
                    "collective-on-some-ranks",
                    tested or called,
                    f"While TensorFlow traced {function}, rank {rank} called {op} more often than rank "
                    f"{other}.{under}{run.waiting()}",
                )
                return


def clipping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about gradients that are changed while Horovod averages them."""
    if facts.changed_early and not run.all("clip"):
        line, average = facts.changed_early
        seen = (
            f"This changes the gradients of one rank, and line {average} averages them afterwards"
            if average
            else "This changes the gradients after `backward`, which has started Horovod's all-reduce of "
            "them, and nothing has waited for the average"
        )
        yield finding("clip-before-average", line, f"{seen} (read from the source).")
        return
    for event in run.all("clip"):
        yield finding(
            "clip-before-average",
            event["line"],
            f"{event['what']} changes the gradients while Horovod's all-reduce of them runs, which "
            "`backward` has started. So clipped and unclipped gradients are averaged, or the average "
            "overwrites the clipped gradients.",
        )
        return


RULES = wrapping, clipping, stopping, unequal, collectives
