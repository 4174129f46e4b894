"""Mistakes in what a script sets up: learning rate, files, batch norm, downloads."""

from collections.abc import Iterator
from functools import partial
from math import isclose

from hvdlab.check.norm_drift import drift
from hvdlab.check.run_events import Run
from hvdlab.check.static import Facts
from hvdlab.check.step_growth import LESS, Growth, growth
from hvdlab.mistakes import Finding, finding
from hvdlab.trace import records

close = partial(isclose, rel_tol=1e-3)  # learning rates, which Keras keeps as float32
FEW_STEPS = 3  # the learning rates of fewer steps show no warmup
DRIFT = 0.3  # standard deviations between the running means of two ranks
LARGE_SGD = 3.0  # learning rate / (1 - momentum)
LARGE_ADAPTIVE = 0.02
ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion")
# Their learning rates cannot be compared with those of SGD or Adam.
OTHER_SCALE = ("LARS", "LAMB", "NovoGrad", "LARC", "Adadelta", "Rprop")
NORMALISED = (*ADAPTIVE, *OTHER_SCALE)  # a factor of the gradient is no factor of their steps
WITHOUT_UNIT = ("Rprop",)  # a factor of its rate is no factor of its steps
TWICE = 1.75  # power of the number of ranks from which on a step is too large


def rate(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about a learning rate that is dropped, unscaled or scaled twice."""
    for event in run.rank0(records.Optimizer):
        used = run.rates(event.optimizer)
        dropped, default = event.dropped, event.default
        # If another rate than the default is in use, then a callback or the script has set it afterwards.
        if used and dropped and default and close(used[0], default) and not close(dropped, default):
            yield finding(
                "rate-dropped",
                event.line,
                f"{event.name} gets lr={dropped:g} and drops it. Its learning rate in step 1 is "
                f"{used[0]:g}.",
            )
    if run.split():
        return
    names = {event.optimizer: event.name for event in run.rank0(records.Optimizer)}
    for number in run.optimizers():
        grown = growth(run, number)
        name = names.get(number)
        if not grown or name in WITHOUT_UNIT:
            continue
        if name in NORMALISED:
            factor = grown.factor / (grown.total * grown.loss)
            grown = grown._replace(factor=factor, total=1.0, loss=1.0)
        if found := _of_growth(grown, run):
            yield found


def _of_growth(grown: Growth, run: Run) -> Finding | None:
    """Return what is wrong with the size of a step on all ranks, or None."""
    size, (one, now) = len(run.ranks), grown.rate
    rates = f"The learning rate is {one:g} with one rank, and {now:g} with {size} ranks"
    as_large = f"So a step is {grown.factor:.3g} times that of a single process."
    large = grown.factor >= size**TWICE
    whole = grown.batch is not None and grown.batch > LESS
    if not large and (grown.factor > 1.01 or not whole):
        return None
    if grown.loss not in (1, 1 / grown.total):
        done = "added" if grown.total > 1 else "averaged"
        return finding(
            "loss-scaled",
            grown.backward or grown.line,
            f"The loss is {grown.loss:.2g} times that of one rank here, and the gradients are {done}. "
            f"{rates}. {as_large}",
        )
    if large:
        adds = next((e.line for e in run.rank0(records.Wrap) if e.reduces == "Sum"), None)
        added = grown.total > 1
        sums = f", and the gradients of the {size} ranks are added" if added else ""
        line = (adds if added else None) or grown.line
        return finding("rate-scaled-twice", line, f"{rates}{sums}. {as_large}")
    again = ", and the average of the gradients is divided again" if grown.total < 1 else ""
    seen = f"{rates}{again}, although each of the {size} ranks reads a whole batch."
    return finding("rate-unscaled", grown.line, seen)


def warmup(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a large learning rate without a warmup."""
    rates = run.rates()
    name = next((event.name for event in run.rank0(records.Optimizer)), "")
    if len(rates) < FEW_STEPS or name in OTHER_SCALE or len(run.ranks) < 2:
        return
    momentum = run.rank0(records.Step)[0].momentum
    if name in ADAPTIVE:
        large = rates[0] > LARGE_ADAPTIVE
    else:
        large = rates[0] / max(1e-6, 1 - momentum) > LARGE_SGD
    if large and max(rates) <= rates[0] * 1.001:
        losses = [event.loss for event in run.rank0(records.Step) if event.loss is not None]
        loss = (
            f" The loss of rank 0 is {losses[0]:.3g} in step 1 and {max(losses):.3g} at most."
            if losses
            else ""
        )
        value = f"{rates[0]:g}" + (f" with momentum {momentum:g}" if momentum else "")
        yield finding(
            "no-warmup",
            run.rank0(records.Step)[0].rate_line or run.line(records.Optimizer),
            f"{name} starts with its full learning rate of {value}.{loss}",
        )


def files(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a file that several ranks write."""
    # What a download writes is judged by `downloads`.
    downloaded = {event.line for event in run.all(records.Download)} | set(facts.downloads)
    shared = {
        path: ranks
        for path, ranks in run.saves().items()
        if len(ranks) > 1 and downloaded.isdisjoint(ranks.values())
    }
    for path, ranks in shared.items():
        line = next(iter(ranks.values()))
        writers = " and ".join(map(str, sorted(ranks)))
        others = {next(iter(each.values())) for each in shared.values()} - {line}
        more = f" Also in line {' and '.join(map(str, sorted(others)))}." if others else ""
        yield finding("all-write-one-file", line, f"Ranks {writers} wrote {path}.{more}")
        return
    if facts.saves and not run.all(records.Save):
        yield finding(
            "all-write-one-file",
            facts.saves[0],
            "Every rank reaches this line, and the path is the same on all ranks (read from the source, "
            "because the run of a few steps did not reach the line).",
        )


def norms(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about running statistics of batch norm that drift apart."""
    if facts.norm_shared:
        return
    step, layer, score = drift(run)
    if score > DRIFT:
        yield finding(
            "batch-norm-drift",
            run.line(records.Norm) or run.line(records.Wrap),
            f"After step {step} the running means of batch norm layer {layer} differ by {score:.2f} "
            "standard deviations, because the ranks read different data. The ranks evaluate different "
            "networks.",
        )


def downloads(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a file that all ranks download at the same time."""
    requested = {event.line for event in run.all(records.Download)}
    requested -= {event.line for event in run.all(records.Download) if event.locked}
    for path, ranks in run.saves().items():
        if len(ranks) > 1 and requested & set(ranks.values()):
            line = next(iter(ranks.values()))
            seen = f"{len(ranks)} ranks downloaded {path}.{_above_init(line, facts)}"
            yield finding("download-race", line, seen)
            return
    for line in facts.downloads:
        if any(event.locked for event in run.all(records.Download) if event.line == line):
            continue
        yield finding(
            "download-race",
            line,
            "Every rank reaches this line, and downloads the file if it is not there yet (read from the "
            f"source: no lock, no test of the rank).{_above_init(line, facts)}",
        )
        return


def _above_init(line: int | None, facts: Facts) -> str:
    """Return a sentence about a download above the call that tells the ranks who they are, after a space."""
    if line and facts.init and line < facts.init and facts.horovod:
        return f" It stands above hvd.init(), line {facts.init}, which must come before hvd.local_rank()."
    return ""


def calls(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about calls without effect, and about a callback that only some ranks have."""
    if facts.uncalled:
        seen = (
            "Without parentheses this is the function itself, and not the number that it returns (read from "
            "the source)."
        )
        yield finding("function-not-called", facts.uncalled, seen)
    if facts.discarded:
        yield finding(
            "result-discarded",
            facts.discarded,
            "The argument of this call keeps the value of its rank, and the script uses it afterwards (read "
            "from the source).",
        )
    if run.split():
        return
    for name, by_rank in run.callbacks().items():
        if len(by_rank) < len(run.ranks):
            rank, line = next(iter(by_rank.items()))
            stops = "EarlyStopping" in name
            yield finding(
                "own-stop" if stops else "replicas-diverged",
                line,
                f"Only rank {rank} has this {name}: "
                + (
                    "it stops, and the others wait for it."
                    if stops
                    else "its learning rate will differ."
                ),
            )
            return


RULES = rate, warmup, files, norms, downloads, calls
