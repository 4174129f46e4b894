"""Mistakes in what a script sets up: learning rate, files, batch norm, downloads.

Each rule takes the run and the facts of the source, and yields findings.
"""

from hvdlab.check.catalogue import finding

FEW_STEPS = 3  # rates of fewer steps say nothing about a warmup
DRIFT = 0.3  # standard deviations between the running means of two ranks
LARGE_SGD = 3.0  # rate / (1 - momentum)
LARGE_ADAPTIVE = 0.02
ADAPTIVE = ("Adam", "AdamW", "Adamax", "Nadam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Lion")
OF_THEIR_OWN = ("LARS", "LAMB", "NovoGrad", "LARC", "Adadelta", "Rprop")  # rates of another kind


def rate(run, facts):
    wraps = run.rank0("wrap")
    if not wraps:
        return
    size, said = len(run.ranks), facts.rates
    seen = run.rates()
    now = f" It is {seen[0]:g} in step 1." if seen else ""
    if said.power >= 1.75:
        yield finding(
            "rate-scaled-twice",
            said.last,
            f"the rate grows like the number of ranks to the power {said.power:g}: "
            f"{size**said.power:g} times the one-process rate on {size} ranks.{now}",
        )
    adasum = any(event["reduces"] == "Adasum" for event in wraps)
    if said.line and said.power <= 0 and said.batch_power >= 0 and not adasum:
        yield finding(
            "rate-unscaled",
            said.line,
            f"no factor of hvd.size() comes to the rate, and each of {size} ranks reads a whole "
            f"batch.{now}",
        )


def warmup(run, facts):
    rates = run.rates()
    name = next((event["name"] for event in run.rank0("optimizer")), "")
    if len(rates) < FEW_STEPS or name in OF_THEIR_OWN or len(run.ranks) < 2:
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
    if facts.saves and not run.all("save"):
        yield finding(
            "all-write-one-file",
            facts.saves[0],
            "every rank will come to this line, and nothing in the path tells the ranks apart "
            "(read from the source: the run of a few steps did not come to it).",
        )


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


RULES = rate, warmup, files, norms, downloads
