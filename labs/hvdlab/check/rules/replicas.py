"""Mistakes in the weights: ranks that start with different ones, or whose weights part during training."""

from collections.abc import Iterator

from hvdlab.check.replica_weights import apart_before, divergence, pair
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding
from hvdlab.trace import records


def replicas(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about weights that differ between the ranks."""
    for number in run.optimizers():
        step = divergence(run, number)
        if step is None or run.joins_in_ddp():
            continue
        ranks, difference = pair(run, number, step)
        sent = run.weights_broadcast()
        early = [event for event in sent if event.at < run.step(0, number, 1).at]
        if step == 1 and early and apart_before(run, number):
            yield finding("no-broadcast", *_changed_after(early[-1], run))
            continue
        if step == 1 and not sent:
            line, missing = _without_weights(run, facts)
            yield finding(
                "no-broadcast",
                line,
                f"{missing}, and after step 1 the weights of ranks {ranks} differ. The norm of one tensor "
                f"differs by {difference:.1%}.",
            )
            continue
        rates = [event.rate for event in run.steps(number)[step - 1]]
        cause = ""
        if len(set(rates)) > 1:
            cause = f" The learning rates are {' and '.join(f'{rate:g}' for rate in rates)}."
        equal = f"are equal until step {step - 1} and " if step > 1 else ""
        if loaded := _loaded_between(number, step, run):
            rank, line = loaded
            yield finding(
                "replicas-diverged",
                line,
                f"Only rank {rank} loads a state here, before step {step}. The weights of ranks {ranks} "
                f"{equal}differ after step {step}.",
            )
            continue
        yield finding(
            "replicas-diverged",
            run.step(0, number, step).line,
            f"The weights of ranks {ranks} {equal}differ after step {step}. The norm of one tensor "
            f"differs by {difference:.2g} (relative).{cause}",
        )


def _loaded_between(number: int | None, step: int, run: Run) -> tuple[int, int | None] | None:
    """Return the only rank that loads a state between two steps of an optimizer, and the line, or None.

    Before the first step only what follows the last broadcast counts.

    Args:
        step: the later one, from 1.
    """
    steps = run.steps(number)
    loads = {}
    for place, rank in enumerate(run.ranks):
        last = steps[step - 1][place].at
        sent = [e.at for e in run.of(rank, records.Broadcast) if e.at <= last]
        first = steps[step - 2][place].at if step > 1 else max(sent, default=0)
        loads[rank] = [e.line for e in run.of(rank, records.Load) if first <= e.at <= last]
    own = [rank for rank, lines in loads.items() if lines]
    return (own[0], loads[own[0]][0]) if len(own) == 1 else None


def _changed_after(sent: records.Broadcast, run: Run) -> tuple[int | None, str]:
    """Return where weights were changed between a broadcast and the first step, and what was observed.

    If no change was seen (Keras), the line is that of the broadcast.
    """
    loads: dict[int, int] = {}  # rank -> line of its first load after the broadcast
    for rank in run.ranks:
        early = [
            e
            for e in run.of(rank, records.Broadcast) + run.of(rank, records.Load)
            if e.steps <= sent.steps
        ]
        for event in sorted(early, key=lambda e: e.at):
            if isinstance(event, records.Load):
                loads.setdefault(rank, event.line)
            elif event.weights != 0:
                loads.pop(rank, None)
    differ = "The weights of the ranks differ before step 1."
    if loads:
        only = f"Only rank {next(iter(loads))} changes" if len(loads) == 1 else "The ranks change"
        seen = f"{differ} {only} weights here, after {sent.what} of line {sent.line}."
        return next(iter(loads.values())), seen
    seen = (
        f"{differ} This is the last {sent.what} before it: code below it changes the weights, or it "
        "sends those of another model."
    )
    return sent.line, seen


def _without_weights(run: Run, facts: Facts) -> tuple[int | None, str]:
    """Return the line where a run should broadcast its weights, and what it does instead."""
    if not run.all(records.Broadcast):
        for name, called in facts.broadcasts:
            return called, f"The run did not reach this hvd.{name}, so no weights are broadcast"
    wraps = run.rank0(records.Wrap)
    line = run.line(records.Fit) or (wraps[0].line if wraps else run.line(records.Step))
    broadcasts = run.all(records.Broadcast)
    for event in broadcasts:
        if event.what != "hvd.broadcast_optimizer_state":
            return (
                event.line,
                f"{event.what} gets no weights, because it gets an empty list, or "
                "variables of an optimizer, or a model that is not built yet",
            )
    return (
        line,
        "Only the state of the optimizer is broadcast"
        if broadcasts
        else "No weights are broadcast",
    )


def loading(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about weights that only some ranks load after the wrapper has sent them."""
    loads = {rank: [e for e in run.of(rank, records.Load) if e.wrapped] for rank in run.ranks}
    loading_ranks = [rank for rank, events in loads.items() if events]
    if loading_ranks and len(loading_ranks) < len(run.ranks) and divergence(run):
        ranks = " and ".join(map(str, loading_ranks))
        yield finding(
            "loaded-on-some-ranks",
            loads[loading_ranks[0]][0].line,
            f"Only rank {ranks} loads weights here, after DistributedDataParallel has sent those of rank 0, "
            f"and after step {divergence(run)} the weights of the ranks differ.",
        )


RULES = replicas, loading
