"""Mistakes in the data that the ranks read: splits, shards, orders, and the evaluation of a shard."""

import itertools
from collections.abc import Iterator

from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.mistakes import Finding, finding
from hvdlab.trace import records

SAME_STEPS = 3  # fewer equal batches may be a coincidence


def batches(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about two ranks that read the same batches."""
    if run.split():
        return  # the ranks of a process set may read the same batch, and each compute a part of it
    for first, second in itertools.combinations(run.ranks, 2):
        both = list(zip(run.batches(first), run.batches(second), strict=False))
        if len(both) >= SAME_STEPS and all(one and one == other for one, other in both):
            loop = [event for event in run.all(records.Loop) if not event.nested]
            line = next((event.made or event.line for event in loop), run.line(records.Step))
            samplers = (e.sampler for e in run.rank0(records.Reads) if e.made == line)
            line = next(filter(None, samplers), line)
            seen = f"Ranks {first} and {second} read the same batch in each of {len(both)} steps."
            yield finding("identical-batches", line, seen)
            return


def whole(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about ranks that all read all of the data in each epoch, each in its own order."""
    if run.split() or facts.other or run.plans_less() or len(run.ranks) < 2:
        return
    read = [
        {event.made: event for event in reversed(run.of(rank, records.Reads))} for rank in run.ranks
    ]
    epochs = [
        (event.made, [loaders.get(event.made) for loaders in read])
        for event in run.rank0(records.Loop)
        if event.made in read[0]
        and event.length == read[0][event.made].batches
        and event.line not in facts.counted
    ]
    fits = zip(*(run.of(rank, records.Fit) for rank in run.ranks), strict=False)
    epochs += [(events[0].line, list(events)) for events in fits]
    for line, events in epochs:
        contents = {event and event.content for event in events}
        if len(contents) == 1 and None not in contents:
            yield finding(
                "identical-batches",
                line,
                f"Each rank reads all samples in every epoch, in its own order. So {len(run.ranks)} ranks "
                "need as many steps for an epoch as a single process.",
            )
            return


def orders(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a sampler that shuffles every epoch in the same order."""
    for of_sampler in run.orders():
        last = of_sampler[-1]
        single = [*run.lengths(nested=True).values()] == [
            dict.fromkeys(run.ranks, 1)
        ]  # for _ in range(1)
        if len(of_sampler) == 1 and not facts.new_orders and run.in_epochs() and not single:
            yield finding(
                "same-order",
                last.made,
                "This sampler shuffles by the number of the epoch, and the script never calls set_epoch. So "
                "each epoch has the same order (read from the source).",
            )
        if len(of_sampler) > 1 and all(event.order == last.order for event in of_sampler):
            cause = (
                f"set_epoch has passed {last.epoch} each time"
                if last.set_at
                else "set_epoch is never called"
            )
            yield finding(
                "same-order",
                last.set_at or last.made,
                f"The sampler gave {len(of_sampler)} epochs the same order, because {cause}.",
            )
            return


def splits(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a random split of all data that differs between the ranks.

    A rank may split its own shard as it likes. So only a split of equal data counts, or one that a
    DistributedSampler samples.
    """
    sampled = {event.split for event in run.all(records.Sampler) if event.replicas > 1}
    for events in zip(*(run.of(rank, records.Split) for rank in run.ranks), strict=False):
        equal = events[0].of and len({event.of for event in events}) == 1
        orders = {event.order for event in events}
        if (equal or events[0].line in sampled) and len(orders) > 1 and None not in orders:
            yield finding(
                "different-splits",
                events[0].line,
                "This random split put other samples into its parts on each rank. So a rank trains with "
                "samples that are for validation on another one.",
            )
            return


def parts(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about ranks that take the same part of data, a part of a part, or of other orders."""
    if run.split() or len(run.ranks) < 2:
        return  # the ranks of a process set may compute parts of one batch
    if facts.local_shard:
        yield finding(
            "wrong-shard",
            facts.local_shard,
            "The number of a rank on its machine chooses one of as many shards as there are ranks on all "
            "machines (read from the source). On two machines two ranks take the same shard, and no rank "
            "reads the last ones.",
        )
        return
    for events in zip(*(run.of(rank, records.Part) for rank in run.ranks), strict=False):
        if len({event.line for event in events}) == 1 and (mistake := _of_part(events, run)):
            yield finding(mistake[0], events[0].line, mistake[1])
            return


def _of_part(events: tuple[records.Part, ...], run: Run) -> tuple[str, str] | None:
    """Return what is wrong with the parts that the ranks take in one line, and the sentence about it."""
    first = events[0]
    whole = len({event.content for event in events}) == 1
    orders, which = ({str(getattr(e, name)) for e in events} for name in ("order", "which"))
    if whole and first.which and len(which) == 1:
        return (
            "wrong-shard",
            "All ranks take the same part of the data here, so no rank reads the rest.",
        )
    if first.again and (first.which or len(orders) > 1) or _cut_before(events, run):
        return (
            "wrong-shard",
            "What is divided here is already the part of one rank. So each rank takes a part of its part, "
            "and no rank reads the rest. Leave out one of the two.",
        )
    if whole and len(orders) > 1:
        return (
            "different-splits",
            "Each rank takes its part of the same data here, but in another order. So several ranks read "
            "some of the data, and no rank reads others.",
        )
    return None


def _cut_before(events: tuple[records.Part, ...], run: Run) -> bool:
    """Return whether the ranks divide other data each, which they have got as parts of an earlier whole."""
    contents = {event.content for event in events}
    if None in contents or len({str(event.which) for event in events}) < len(contents):
        return False
    ranks, items = len(run.ranks), events[0].items
    before = [e.items for e in run.rank0(records.Part) if e.at < events[0].at and e.items]
    fits = items is None or any(abs(items * ranks - whole) <= ranks for whole in before)
    return fits and len(contents) == ranks


def samplers(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a DistributedSampler that no DataLoader gets."""
    ended = all(run.of(rank, records.End) for rank in run.ranks) and not run.crash()
    used = {event.made for event in run.all(records.Sampled)}
    trains = {event.made for event in run.rank0(records.Loop)}
    unsampled = {
        event.data: event.made
        for event in run.rank0(records.Reads)
        if event.made in trains and not event.sampled
    }
    for event in run.rank0(records.Sampler) if run.all(records.Step) else ():
        if event.replicas > 1 and event.line not in used:
            seen = (
                "No DataLoader got this sampler until the end of the run, and nothing else read it."
            )
            if loader := unsampled.get(event.data):
                seen = (
                    f"The DataLoader of line {loader} reads all of the data, without this sampler."
                )
            elif not ended:  # a line that uses it may come later
                continue
            yield finding("sampler-unused", event.line, seen)
            return


def evaluation(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about results on one rank's shard that are combined with those of no other rank."""
    if run.split() or facts.other not in (None, "mpi4py"):
        return
    own = {rank: _evaluated_shards(run, rank) for rank in run.ranks}
    tested = {rank: {*map(_place, run.of(rank, records.Evaluate))} for rank in run.ranks}
    for event, after in run.evaluations():
        unused = event.made is None and event.line in facts.unused
        if after is records.Collective or unused or (run.crash() and after is not records.Step):
            continue
        ranks = [rank for rank in run.ranks if _place(event) in tested[rank]]
        if all(_writes_its_own(run, rank, event.steps) for rank in run.ranks):
            continue  # somebody may combine the files
        if all(_place(event) in own[rank] for rank in ranks):
            until = "next step" if after is records.Step else "end of the script"
            yield _not_combined(event, len(ranks) == len(run.ranks), until, facts)
            return


def _writes_its_own(run: Run, rank: int, steps: int) -> bool:
    """Return whether a rank writes a file, which no other rank writes, after some steps."""
    by_path = run.saves()
    saves = run.of(rank, records.Save)
    return any(save.steps >= steps and [*by_path.get(save.path, ())] == [rank] for save in saves)


def _not_combined(event: records.Evaluate, by_all: bool, until: str, facts: Facts) -> Finding:
    """Return the finding of an evaluation on one rank's shard.

    Args:
        by_all: whether all ranks evaluate there.
        until: what comes before any collective combines the results.
    """
    shown = facts.results.get(event.loops[-1][0]) if event.loops else None
    where = f"in line {event.line}" if shown else "here"
    who = f"Each rank evaluates its own shard {where}"
    if not by_all:
        who = f"Only some ranks evaluate {where}, and only their own shards"
    loader = f" (the loader of line {event.made})" if event.made else ""
    seen = f"{who}{loader}, and no collective combines the results of the ranks before the {until}."
    return finding("metric-of-one-rank", shown or event.line, seen)


def _place(event: records.Evaluate) -> tuple[int | None, int | None]:
    """Return the line of an evaluation, and the line of the loader that it reads."""
    return event.line, event.made


def _evaluated_shards(run: Run, rank: int) -> set[tuple[int | None, int | None]]:
    """Return the evaluations (see `_place`) of a shard: of data that another rank does not evaluate."""
    found = {_place(event) for event in run.of(rank, records.Evaluate) if event.sharded}
    by_rank = [run.of(other, records.Evaluate) for other in run.ranks]
    for events in zip(*by_rank, strict=False):
        same = len({_place(event) for event in events}) == 1
        contents = {event.content for event in events}
        if same and None not in contents and len(contents) > 1:
            found.add(_place(events[0]))
    return found


RULES = batches, whole, orders, splits, parts, samplers, evaluation
