"""From what the ranks did to the mistakes that explain it: a pure function of events and source.

    judge({0: [event, ...], 1: [...]}, facts) -> [Finding, ...]

Events are those of `events.Watch`. What a run shows comes first; the source answers only for what a
run of a few steps on this machine cannot show (a GPU that is not there, a file saved in epoch 10).
"""

from hvdlab.check.findings import EXPLAINS, Finding, finding
from hvdlab.check.run_facts import Run
from hvdlab.check.source import Facts

SAME_STEPS = 3  # equal batches that are no chance
DRIFT = 0.3  # standard deviations between the running means of two ranks
LARGE_SGD = 3.0  # rate / (1 - momentum)
LARGE_ADAPTIVE = 0.02
ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion")
LAYERWISE = ("LARS", "LAMB", "NovoGrad", "LARC")  # their rates are of another kind


def judge(events: dict[int, list[dict]], facts: Facts) -> list[Finding]:
    """Name the mistakes of a run, in the order of the script."""
    run = Run(events)
    if len(run.ranks) > 1 and not run.all("init"):
        failed = facts.init and run.crash()  # before it came to its hvd.init(): nothing is known
        return [] if failed else [_init_missing(run, facts)]
    found = [one for rule in RULES for one in rule(run, facts)]
    explained = set().union(*(EXPLAINS.get(one.id, set()) for one in found))
    kept = {one.id: one for one in reversed(found) if one.id not in explained}
    return sorted(kept.values(), key=lambda one: one.line or 0)


def _init_missing(run, facts):
    if facts.horovod is None:
        return finding(
            "init-missing",
            1,
            f"the script does not import Horovod: {len(run.ranks)} processes trained, each alone.",
        )
    errors = run.errors()
    said = f": rank {errors[0][0]} ended with {errors[0][1]}" if errors else ", and nobody met"
    return finding("init-missing", facts.horovod, f"no rank called hvd.init(){said}")


def device(run, facts):
    count = max((event["count"] for event in run.all("devices")), default=0)
    own = {event["visible"] for event in run.all("devices")}
    if count == 1 and len(own) == len(run.ranks):
        return  # the launcher has given each rank a GPU
    if facts.gpu and facts.pin == "rank":
        yield finding(
            "device-not-pinned",
            facts.gpu,
            "the device is chosen by hvd.rank(), which counts over all machines; local_rank() "
            "counts on one (read from the source).",
        )
    elif facts.gpu and facts.pin != "local_rank":
        here = f"{count} GPUs here" if count else "no GPU here, so read from the source"
        yield finding(
            "device-not-pinned",
            facts.gpu,
            f"the script uses a GPU and never chooses one by hvd.local_rank(): all ranks of a "
            f"machine take the first ({here}).",
        )


def wrapping(run, facts):
    """Optimizers that step, and were not wrapped, or wrapped when it was too late, or in vain."""
    wraps = run.rank0("wrap")
    for event in wraps:
        if not event["averages"]:
            step = run.first_difference()
            seen = f" and after step {step} the weights of the ranks differ" if step else ""
            yield finding(
                "gradients-not-averaged",
                event["line"],
                f"Horovod's own Keras module wrapped an optimizer of Keras 3, whose trainer goes "
                f"past it{seen}.",
            )
    if any(not event["averages"] for event in wraps):
        return
    made = {event["optimizer"]: event for event in run.rank0("optimizer")}
    plain = {
        event["optimizer"]
        for event in run.rank0("step") + run.rank0("compile")
        if not event["wrapped"]
    }
    plain -= {event["optimizer"] for event in run.rank0("step") if event["wrapped"]}
    for number in sorted(plain, key=lambda n: -1 if n is None else n):
        step = run.first_difference(number)
        if step is None and run.all("collective") and run.steps(number):
            continue  # equal without a wrapper: the script averages by itself
        apart = f"; after step {step} the weights of the ranks differ" if step else ""
        late = [event for event in wraps if event["optimizer"] == number]
        name = made.get(number, {}).get("name", "the optimizer")
        if late:
            yield finding(
                "wrapped-too-late",
                late[0]["line"],
                f"{name} was wrapped here, and it is the plain one that trains{apart}.",
            )
        else:
            line = made[number]["line"] if number in made else run.line("step")
            yield finding(
                "optimizer-not-wrapped", line, f"{name} steps by each rank's own gradient{apart}."
            )


def replicas(run, facts):
    for number in run.optimizers():
        step = run.first_difference(number)
        if step is None:
            continue
        broadcasts = run.rank0("broadcast")
        wraps = run.rank0("wrap")
        if not run.all("broadcast"):
            line = wraps[0]["line"] if wraps else run.line("fit") or run.line("step")
            ratio = run.difference(number, step)
            if step == 1:
                yield finding(
                    "no-broadcast",
                    run.line("fit") or line,
                    f"nothing is broadcast, and after step 1 the weights of ranks "
                    f"{run.pair(number, 1)} differ: the norm of one by {ratio:.1%}.",
                )
                continue
        if step == 1 and broadcasts and broadcasts[-1]["steps"] >= 1:
            step = run.first_difference(number, after=1)  # it is broadcast after the first step
            if step is None:
                continue
        rates = run.values(number, step, "rate")
        why = ""
        if len(set(rates)) > 1:
            why = f" The rates are {' and '.join(f'{rate:g}' for rate in rates)}."
        yield finding(
            "replicas-diverged",
            run.step(0, number, step)["line"],
            f"the weights of ranks {run.pair(number, step)} are the same "
            f"{f'until step {step - 1}' if step > 1 else 'nowhere'} and differ after step {step}, "
            f"the norm of one by {run.difference(number, step):.2g} of it.{why}",
        )


def batches(run, facts):
    for first, second in run.pairs():
        both = list(zip(run.batches(first), run.batches(second), strict=False))
        if len(both) >= SAME_STEPS and all(one and one == other for one, other in both):
            loop = [event for event in run.all("loop") if not event["nested"]]
            line = next((event["made"] or event["line"] for event in loop), run.line("step"))
            yield finding(
                "identical-batches",
                line,
                f"ranks {first} and {second} got the same batch in each of {len(both)} steps.",
            )
            return


def stopping(run, facts):
    for (line, text), values in run.decisions().items():
        for number, each in enumerate(zip(*values, strict=False), 1):
            if any(run.apart(each[0], other) for other in each[1:]):
                said = ", ".join(
                    f"rank {r} saw {v:.6g}" for r, v in zip(run.ranks, each, strict=True)
                )
                yield finding(
                    "own-stop", line, f"the decision depends on `{text}`: {said} (time {number})."
                )
                return


def unequal(run, facts):
    if facts.join or run.all("join"):
        return
    for line, lengths in run.lengths().items():
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"rank {rank} has {n}" for rank, n in sorted(lengths.items()))
            yield finding(
                "unequal-steps",
                line,
                f"batches of this loop in an epoch: {said}. The rank that has more will wait for "
                "ever in its next all-reduce.",
            )
            return
    if run.crash():
        return
    for line, (rank, mine, other, its) in run.left_early().items():
        yield finding(
            "unequal-steps",
            line,
            f"rank {rank} came to the end of this loop after {mine} rounds, rank {other} began "
            f"round {its} and waits.",
        )
        return


def collectives(run, facts):
    if run.crash() or not run.complete():
        return
    for op, counts in run.calls().items():
        if len(set(counts.values())) == 1:
            continue
        line = run.call_line(op, max(counts, key=counts.get), counts)
        said = ", ".join(f"rank {rank} {n} times" for rank, n in sorted(counts.items()))
        guard = facts.guarded.get(line)
        under = f" It is under the test of line {guard}." if guard else ""
        yield finding(
            "collective-on-some-ranks", line, f"{op} was called by {said}.{under}{run.waiting()}"
        )
        return


def rate(run, facts):
    wraps = run.rank0("wrap")
    if not wraps:
        return
    size, said = len(run.ranks), facts.rates
    seen = run.rates()
    line = said.line or run.line("optimizer")
    now = f" It is {seen[0]:g} in step 1." if seen else ""
    if said.power >= 1.75:
        yield finding(
            "rate-scaled-twice",
            said.last or line,
            f"the rate grows like the number of ranks to the power {said.power:g}: "
            f"{size**said.power:g} times the one-process rate on {size} ranks.{now}",
        )
    adasum = any(event["reduces"] == "Adasum" for event in wraps)
    if said.power <= 0 and said.batch_power >= 0 and not adasum:
        yield finding(
            "rate-unscaled",
            line,
            f"no factor of hvd.size() comes to the rate, and each of {size} ranks reads a whole "
            f"batch.{now}",
        )


def warmup(run, facts):
    rates = run.rates()
    name = next((event["name"] for event in run.rank0("optimizer")), "")
    if len(rates) < SAME_STEPS or name in LAYERWISE or len(run.ranks) < 2:
        return
    momentum = run.rank0("step")[0]["momentum"]
    if name in ADAPTIVE:
        large = rates[0] > LARGE_ADAPTIVE
    else:
        large = rates[0] / max(1e-6, 1 - momentum) > LARGE_SGD
    if large and max(rates) <= rates[0] * 1.001:
        losses = [event["loss"] for event in run.rank0("step") if event["loss"] is not None]
        told = (
            f" The loss of rank 0: {losses[0]:.3g}, then up to {max(losses):.3g}." if losses else ""
        )
        what = f"{rates[0]:g}" + (f" with momentum {momentum:g}" if momentum else "")
        yield finding(
            "no-warmup",
            facts.rates.line or run.line("optimizer"),
            f"{name} begins with its full rate of {what}.{told}",
        )


def files(run, facts):
    for path, ranks in run.saves().items():
        if len(ranks) > 1:
            line = next(iter(ranks.values()))
            who = " and ".join(map(str, sorted(ranks)))
            yield finding("all-write-one-file", line, f"ranks {who} wrote {path}.")
            return
    reached = {event["line"] for event in run.all("save")}
    for line in facts.saves:
        if line not in reached and not run.all("save"):
            yield finding(
                "all-write-one-file",
                line,
                "every rank will come to this line, and nothing in the path tells the ranks apart "
                "(read from the source: the run of a few steps did not come to it).",
            )
            return


def norms(run, facts):
    if facts.norm_shared:
        return
    step, layer, score = run.drift()
    if score > DRIFT:
        yield finding(
            "batch-norm-drift",
            facts.norm or run.line("wrap"),
            f"after step {step} the running means of batch norm layer {layer} are {score:.2f} "
            "standard deviations apart: the ranks see different data, and evaluate different "
            "networks.",
        )


def downloads(run, facts):
    asked: dict[str, dict[int, dict]] = {}
    for rank in run.ranks:
        for event in run.of(rank, "download"):
            asked.setdefault(event["url"], {})[rank] = event
    for url, ranks in asked.items():
        if len(ranks) > 1 and not any(event["locked"] for event in ranks.values()):
            line = next(iter(ranks.values()))["line"]
            yield finding("download-race", line, f"{len(ranks)} ranks asked for {url} at once.")
            return
    for line in facts.downloads:
        if any(event["locked"] for event in run.all("download") if event["line"] == line):
            continue
        yield finding(
            "download-race",
            line,
            "every rank comes to this line, and fetches the file if it is not there (read from the "
            "source: no lock, no test of the rank).",
        )
        return


RULES = (
    *(device, wrapping, replicas, batches, stopping, unequal, collectives),
    *(rate, warmup, files, norms, downloads),
)
