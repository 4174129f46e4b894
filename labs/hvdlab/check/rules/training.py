"""Mistakes in how the ranks train together: gradients, weights, batches, steps, collectives."""

import itertools
from collections.abc import Iterator

from hvdlab.check.call_sequences import difference
from hvdlab.check.replica_weights import divergence, pair
from hvdlab.check.run_events import Run
from hvdlab.check.source_facts import Facts
from hvdlab.hints.catalogue import Finding, finding
from hvdlab.script_analysis.legacy_keras import OLD_ARGUMENT

SAME_STEPS = 3  # fewer equal batches may be a coincidence


def wrapping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about optimizers that step without an average of the gradients by Horovod.

    Such an optimizer is not wrapped, or wrapped too late, or its wrapper never averages.

    Args:
        run: the events of the run.
        facts: the facts of the source.
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
            seen = f"On each rank {name} steps by the gradient of that rank only.{apart}"
            yield finding("optimizer-not-wrapped", line, seen)


def replicas(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about weights that differ between the ranks.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    for number in run.optimizers():
        step = divergence(run, number)
        if step is None:
            continue
        ranks, difference = pair(run, number, step)
        if step == 1 and not run.weights_broadcast():
            line, sent = _without_weights(run)
            yield finding(
                "no-broadcast",
                line,
                f"{sent}, and after step 1 the weights of ranks {ranks} differ. The norm of one tensor "
                f"differs by {difference:.1%}.",
            )
            continue
        rates = run.values(number, step, "rate")
        cause = ""
        if len(set(rates)) > 1:
            cause = f" The learning rates are {' and '.join(f'{rate:g}' for rate in rates)}."
        equal = f"are equal until step {step - 1} and " if step > 1 else ""
        yield finding(
            "replicas-diverged",
            run.step(0, number, step)["line"],
            f"The weights of ranks {ranks} {equal}differ after step {step}. The norm of one tensor "
            f"differs by {difference:.2g} (relative).{cause}",
        )


def _without_weights(run: Run) -> tuple[int | None, str]:
    """Return the line where a run should broadcast its weights, and what it does instead."""
    wrap = next(iter(run.rank0("wrap")), {"line": None})
    line = run.line("fit") or wrap["line"] or run.line("step")
    broadcasts = run.all("broadcast")
    for event in broadcasts:
        if event["what"] != "hvd.broadcast_optimizer_state":
            return (
                event["line"],
                f"{event['what']} gets no weights, because it gets an empty list, or "
                "variables of an optimizer, or a model that is not built yet",
            )
    return (
        line,
        "Only the state of the optimizer is broadcast"
        if broadcasts
        else "No weights are broadcast",
    )


def batches(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about two ranks that read the same batches.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    if run.split():
        return  # the ranks of a process set may read the same batch, and each compute a part of it
    for first, second in itertools.combinations(run.ranks, 2):
        both = list(zip(run.batches(first), run.batches(second), strict=False))
        if len(both) >= SAME_STEPS and all(one and one == other for one, other in both):
            loop = [event for event in run.all("loop") if not event["nested"]]
            line = next((event["made"] or event["line"] for event in loop), run.line("step"))
            seen = f"Ranks {first} and {second} read the same batch in each of {len(both)} steps."
            yield finding("identical-batches", line, seen)
            return


def stopping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a decision to stop that depends on different values on the ranks.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    if run.split():
        return
    for (line, text), values in run.decisions().items():
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
    """Yield a finding about ranks with different numbers of batches.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
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
    if run.crash():
        return
    for line, (rank, rounds, other, other_rounds) in run.left_early().items():
        yield finding(
            "unequal-steps",
            line,
            f"Rank {rank} reached the end of this loop after {rounds} rounds. Rank {other} started round "
            f"{other_rounds} and waits.",
        )
        return


def collectives(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a collective that some ranks call more often, or with another name.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    if run.crash() or not run.complete() or run.split():
        return
    found = difference(run, facts.guarded)
    if found:
        by_rank = ", ".join(f"{n} times by rank {rank}" for rank, n in found.counts.items())
        guard = facts.guarded.get(found.line)
        under = f" The test of line {guard} decides which ranks call it." if guard else ""
        seen = f"{found.call} was called {by_rank}.{under}{run.waiting()}"
        yield finding("collective-on-some-ranks", found.line, seen)


def clipping(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about gradients that are changed while Horovod averages them.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    for event in run.all("clip"):
        yield finding(
            "clip-before-average",
            event["line"],
            f"{event['what']} changes the gradients while Horovod's all-reduce of them runs, which "
            "`backward` has started. So clipped and unclipped gradients are averaged, or the average "
            "overwrites the clipped gradients.",
        )
        return


def orders(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a sampler that shuffles every epoch in the same order.

    Args:
        run: the events of the run.
        facts: the facts of the source.
    """
    for of_sampler in run.orders():
        last = of_sampler[-1]
        if len(of_sampler) > 1 and all(event["order"] == last["order"] for event in of_sampler):
            cause = (
                f"set_epoch has passed {last['epoch']} each time"
                if last["set_at"]
                else "set_epoch is never called"
            )
            yield finding(
                "same-order",
                last["set_at"] or last["made"],
                f"The sampler gave {len(of_sampler)} epochs the same order, because {cause}.",
            )
            return


RULES = wrapping, replicas, clipping, batches, orders, stopping, unequal, collectives
