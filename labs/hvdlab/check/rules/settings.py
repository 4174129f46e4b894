"""Mistakes in what a script sets up: learning rate, files, batch norm, downloads."""

from collections.abc import Iterator
from functools import partial
from math import isclose

from hvdlab.check.norm_drift import drift
from hvdlab.check.run_events import Run
from hvdlab.check.source_facts import Facts
from hvdlab.mistakes import Finding, finding

close = partial(isclose, rel_tol=1e-3)  # learning rates, which Keras keeps as float32
FEW_STEPS = 3  # the learning rates of fewer steps show no warmup
# Errors of Horovod's own callbacks under legacy Keras: see `hvdlab.script_analysis.legacy_keras`.
LEGACY_ERRORS = ("module 'keras.backend' has no", "'float' object has no attribute 'dtype'")
DRIFT = 0.3  # standard deviations between the running means of two ranks
LARGE_SGD = 3.0  # learning rate / (1 - momentum)
LARGE_ADAPTIVE = 0.02
ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion")
# Their learning rates cannot be compared with those of SGD or Adam.
OTHER_SCALE = ("LARS", "LAMB", "NovoGrad", "LARC", "Adadelta", "Rprop")


def rate(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about a learning rate that is dropped, unscaled or scaled twice."""
    for event in run.rank0("optimizer"):
        used = run.rates(event["optimizer"])
        dropped, default = event.get("dropped"), event.get("default")
        # If another rate than the default is in use, then a callback or the script has set it afterwards.
        if used and dropped and default and close(used[0], default) and not close(dropped, default):
            yield finding(
                "rate-dropped",
                event["line"],
                f"{event['name']} gets lr={dropped:g} and drops it. Its learning rate in step 1 is "
                f"{used[0]:g}.",
            )
    wraps = run.rank0("wrap")
    if not wraps or run.split():
        return
    size, scaled = len(run.ranks), facts.rates
    rates = run.rates()
    now = f" It is {rates[0]:g} in step 1." if rates else ""
    adds = next((event for event in wraps if event["reduces"] == "Sum"), None)
    adds = None if scaled.loss_divided else adds
    if scaled.power >= 1.75:
        yield finding(
            "rate-scaled-twice",
            scaled.last,
            f"The learning rate grows like the number of ranks to the power {scaled.power:g}: on {size} "
            f"ranks it is {size**scaled.power:g} times the learning rate of a single process.{now}",
        )
    elif adds and scaled.power >= 0.5:
        yield finding(
            "rate-scaled-twice",
            facts.wrapped_at(adds),
            f"op=hvd.Sum adds the gradients of the {size} ranks here, and line {scaled.last} scales the "
            f"learning rate too, so a step is {size ** (scaled.power + 1):.3g} times that of a single "
            f"process.{now}",
        )
    adasum = any(event["reduces"] == "Adasum" for event in wraps)
    # The source may create other optimizers, which this run does not use.
    used = [e for e in run.rank0("optimizer") if e["optimizer"] in run.optimizers()[:1]]
    power = next(
        (scaled.powers[e["line"]] for e in used if e["line"] in scaled.powers), scaled.power
    )
    if scaled.power > 0 and facts.rates_of_all.power <= 0 and not adds and not adasum:
        yield finding(
            "rate-unscaled",
            scaled.last,
            "The learning rate is multiplied by hvd.local_size(), which counts the ranks of one machine only "
            f"(read from the source).{now}",
        )
    unscaled = min(power, scaled.power) <= 0 and scaled.batch_power >= 0
    if scaled.line and unscaled and not adds and not adasum:
        what = "This replaces the learning rate of the optimizer by one that"
        yield finding(
            "rate-unscaled",
            next((scaled.lines[e["line"]] for e in used if e["line"] in scaled.lines), scaled.line),
            f"{what if scaled.replaced else 'The learning rate'} is not multiplied by {run.size_call}, "
            f"although each of the {size} ranks reads a whole batch.{now}",
        )


def warmup(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a large learning rate without a warmup."""
    rates = run.rates()
    name = next((event["name"] for event in run.rank0("optimizer")), "")
    if len(rates) < FEW_STEPS or name in OTHER_SCALE or len(run.ranks) < 2:
        return
    momentum = run.rank0("step")[0]["momentum"]
    if name in ADAPTIVE:
        large = rates[0] > LARGE_ADAPTIVE
    else:
        large = rates[0] / max(1e-6, 1 - momentum) > LARGE_SGD
    if large and max(rates) <= rates[0] * 1.001:
        losses = [event["loss"] for event in run.rank0("step") if event["loss"] is not None]
        loss = (
            f" The loss of rank 0 is {losses[0]:.3g} in step 1 and {max(losses):.3g} at most."
            if losses
            else ""
        )
        value = f"{rates[0]:g}" + (f" with momentum {momentum:g}" if momentum else "")
        yield finding(
            "no-warmup",
            facts.rates.line or run.line("optimizer"),
            f"{name} starts with its full learning rate of {value}.{loss}",
        )


def files(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a file that several ranks write."""
    # What a download writes is judged by `downloads`.
    downloaded = {event["line"] for event in run.all("download")} | set(facts.downloads)
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
    if facts.saves and not run.all("save"):
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
            facts.norm or run.line("wrap"),
            f"After step {step} the running means of batch norm layer {layer} differ by {score:.2f} "
            "standard deviations, because the ranks read different data. The ranks evaluate different "
            "networks.",
        )


def downloads(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a file that all ranks download at the same time."""
    requested = {event["line"] for event in run.all("download")}
    requested -= {event["line"] for event in run.all("download") if event["locked"]}
    for path, ranks in run.saves().items():
        if len(ranks) > 1 and requested & set(ranks.values()):
            line = next(iter(ranks.values()))
            seen = f"{len(ranks)} ranks downloaded {path}.{_above_init(line, facts)}"
            yield finding("download-race", line, seen)
            return
    for line in facts.downloads:
        if any(event["locked"] for event in run.all("download") if event["line"] == line):
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


def callbacks(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield a finding about a callback of Horovod's own Keras module that fails under legacy Keras."""
    for event in run.all("end"):
        if event["made"] and any(text in (event["error"] or "") for text in LEGACY_ERRORS):
            seen = f'This callback ended with "{event["error"]}".'
            yield finding("legacy-callback", event["made"], seen)
            return


def calls(run: Run, facts: Facts) -> Iterator[Finding]:
    """Yield findings about calls without effect, and about a schedule that only some ranks follow."""
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
    if facts.own_schedule and not run.split():
        line, test = facts.own_schedule
        decides = f"The test of line {test} decides which ranks"
        yield finding(
            "own-stop" if facts.own_stopper else "replicas-diverged",
            line,
            f"{decides} stop by this callback, and the others will wait for them (read from the source)."
            if facts.own_stopper
            else f"{decides} change their learning rate here, so it will differ (read from the source).",
        )


RULES = rate, warmup, files, norms, downloads, callbacks, calls
