"""Check whether a script really trains data-parallel.

    replicas      all ranks have the same weights after every epoch               (graded run)
    exchange      the ranks exchanged as many bytes as gradients need             (kernel's counter)
    flow          each rank learned what only another rank was shown              (probe)
    equivalence   N ranks train like a single process with N times the batch      (probe)

A script can cheat each check alone, but not all of them together. It could pass replicas by a broadcast
at the end, exchange by sending arbitrary data, flow by averaging weights now and then, and equivalence
by letting every rank do all the work.
"""

from math import exp
from statistics import fmean

from hvdgrade.evidence.compare_ranks import EXACT
from hvdgrade.evidence.hidden_data import alike
from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.judge.check import Check, last_error, where_they_wait
from hvdgrade.judge.run_checks import RECORD_THE_NETWORK
from hvdgrade.judge.traffic import (
    FEWEST_ROUNDS,
    USUAL_BATCH,
    credible_steps,
    exchange_growth,
    exchanges,
    gradient_bytes,
    probed_exchanges,
)
from hvdgrade.profiles import Profile
from hvdgrade.submission.script import imported_modules

REPLICAS = "ranks train one model"
EXCHANGE = "gradients are exchanged"
FLOW = "ranks learn from each other"
EQUIVALENCE = "N ranks train as one would"

OFFICIAL_KERAS_MODULES = ("horovod.tensorflow.keras", "horovod.keras")
EVERY_BATCH = ", and no batch may be left out for its size"
UNMOVED = 1e9  # the distance of runs whose weights do not move
ALONE = "one rank only: nothing to compare, and nothing distributed to give points for"


def likely_mistake(source: bytes) -> str:
    """Return help about the most frequent reason why ranks train separately, judged by the imports."""
    modules = imported_modules(source)
    if any(name.startswith(OFFICIAL_KERAS_MODULES) for name in modules):
        return (
            "horovod.tensorflow.keras does not average gradients on Keras 3 and says nothing: "
            "use 'import hvdlab.keras.horovod as hvd'"
        )
    roots = {name.split(".")[0] for name in modules}
    if "hvdlab.keras.horovod" not in modules and not roots & {"horovod", "mpi4py"}:
        return "the script never imports Horovod: each rank trains a model of its own"
    return (
        "all ranks must begin with rank 0's weights (broadcast the model and the optimizer) and "
        "apply averaged gradients (step with the optimizer that DistributedOptimizer returned)"
    )


def check_replicas(source: bytes, seen: Observation, epochs: list[dict], rules: Profile) -> Check:
    points, depends = rules.points["replicas"], ["ran"]
    if seen.ranks == 1:
        return Check("replicas", REPLICAS, "skipped", points, ALONE, depends_on=depends)
    worst = max(epochs, key=lambda epoch: epoch["difference"])
    evidence = {
        "differences": {epoch["epoch"]: epoch["difference"] for epoch in epochs},
        "sha256": {
            epoch["epoch"]: [seen.of(rank)[epoch["epoch"]].sha256 for rank in range(seen.ranks)]
            for epoch in epochs
        },
    }
    if worst["difference"] <= rules.replica_tolerance:
        said = f"weights of all {seen.ranks} ranks equal in all {len(epochs)} epochs"
        if worst["difference"]:
            said += f" (to {worst['difference']:.1g})"
        return Check("replicas", REPLICAS, "pass", points, said, "", evidence, depends)
    first = next(e for e in epochs if e["difference"] > rules.replica_tolerance)
    said = (
        f"weights of ranks 0 and {first['differing_rank']} differ by {first['difference']:.1%} in "
        f"{first['differs_at']} after epoch {first['epoch']}"
    )
    help = likely_mistake(source)
    return Check("replicas", REPLICAS, "fail", points, said, help, evidence, depends)


def check_exchange(source: bytes, seen: Observation, epochs: list[dict], rules: Profile) -> Check:
    points, depends = rules.points["exchange"], ["ran"]
    if seen.ranks == 1:
        return Check("exchange", EXCHANGE, "skipped", points, ALONE, depends_on=depends)
    rounds = exchanges(seen, epochs, rules)
    if None in rounds:
        said = (
            "not measured: this host does not give a submission a network of its own, or the ranks "
            "do not use it. The two checks below say what is needed"
        )
        return Check("exchange", EXCHANGE, "skipped", 0, said, depends_on=depends)
    steps = [epoch["steps"] or 0 for epoch in epochs]
    # The first epoch includes the start-up traffic, so later epochs are used if there are any.
    later = range(1, len(epochs)) if len(epochs) > 1 else range(1)
    least = min(later, key=lambda i: rounds[i])
    needed = max(rules.min_exchanges, rules.min_exchange_share * steps[least])
    # With many ranks there are few steps. Gradients accumulated over four steps are accepted.
    needed = min(needed, FEWEST_ROUNDS * credible_steps(epochs[least], USUAL_BATCH))
    evidence = {"rounds": [round(r, 2) for r in rounds], "steps": steps, "needed": needed}
    mega = rounds[least] * 2 * (seen.ranks - 1) * gradient_bytes(rules.network) / 1e6
    said = (
        f"{mega:,.0f} MB between the ranks in epoch {epochs[least]['epoch']}: "
        f"{rounds[least]:.1f} rounds of all gradients in {steps[least]} steps"
    )
    if rounds[least] >= needed:
        return Check("exchange", EXCHANGE, "pass", points, said, "", evidence, depends)
    if rounds[least] >= FEWEST_ROUNDS * steps[least] > 0:
        help = (
            f"of so few steps that is no proof: take at most {USUAL_BATCH} images in a rank's batch"
        )
    else:
        help = "gradients must be averaged in each step. " + likely_mistake(source)
    return Check("exchange", EXCHANGE, "fail", points, said, help, evidence, depends)


def check_flow(source: bytes, probe: Probe, found: dict, ranks: int, rules: Profile) -> Check:
    points, depends = rules.points["flow"], ["ran", "replicas", "exchange"]
    if stopped := did_not_come_through(probe, found):
        return Check("flow", FLOW, "fail", points, *stopped, {}, depends)
    evidence = {"ranks": found["flow"], "views_enforced": probe.views_enforced}
    least = min(range(ranks), key=lambda rank: found["flow"][rank]["others"])
    others = found["flow"][least]["others"]
    learned = fmean(rank["learned"] for rank in found["flow"])
    if learned < rules.min_learned / alike(ranks):
        said = (
            "in a short run nothing was learned: a class is only "
            f"{exp(learned):.2f} times as likely on images with its label as on others"
        )
        help = (
            f"the schedule must begin to learn within the first passes over the data{EVERY_BATCH}"
        )
        return Check("flow", FLOW, "fail", points, said, help, evidence, depends)
    if others >= rules.min_flow:
        said = f"each rank knows classes that only others were shown ({others:.0%} of a full share)"
        return Check("flow", FLOW, "pass", points, said, "", evidence, depends)
    said = (
        f"rank {least} knows nothing of classes that only others were shown "
        f"({others:.1%} of a full share)"
    )
    return Check("flow", FLOW, "fail", points, said, likely_mistake(source), evidence, depends)


def check_equivalence(
    source: bytes,
    probe: Probe,
    found: dict,
    ranks: int,
    rules: Profile,
    drop: float | None = None,
) -> Check:
    """Return the equivalence check. `drop` is the result of `exchange_drop`."""
    points, depends = rules.points["equivalence"], ["ran", "replicas", "exchange"]
    if stopped := did_not_come_through(probe, found):
        return Check("equivalence", EQUIVALENCE, "fail", points, *stopped, {}, depends)
    evidence = {
        "distance": found["distance"],
        "difference_of_ranks": found["replicas"],
        "exchange_drop": drop,
        "exchange_growth": (growth := exchange_growth(probe, rules)),
        "rounds_a_step": {name: probed_exchanges(probe, name, rules) for name in probe.seen},
    }
    if found["distance"] >= UNMOVED:
        said = "the weights do not move in a short run, so there is nothing to compare"
        help = f"the schedule must begin to learn within the first steps{EVERY_BATCH}"
        return Check("equivalence", EQUIVALENCE, "fail", points, said, help, evidence, depends)
    said = (
        f"weights of {ranks} ranks with a batch each, and with all {ranks} batches each, differ by "
        f"{found['distance']:.1%} of the way they go"
    )
    close = found["distance"] <= rules.equivalence_tolerance
    # While the learning rate is small, ranks that train separately and average their weights now and then
    # reach nearly the same weights as with averaged gradients. A script that accumulates gradients over
    # several steps reaches them exactly, and may begin to accumulate after the steps of the probe.
    exact = found["distance"] <= EXACT
    if close and drop and drop > (rules.max_exact_drop if exact else rules.max_exchange_drop):
        said += (
            f"; but they exchange {drop:.0f} times as much a step there as in the run that counts"
        )
        help = "average gradients in each step, not weights now and then"
        return Check("equivalence", EQUIVALENCE, "fail", points, said, help, evidence, depends)
    if close and growth and growth > rules.max_exchange_growth:
        said = f"with batches {ranks} times as large the ranks exchange {growth:.1f} times as much in a step"
        help = "exchange gradients, which are as many for any batch, not images: each rank trains on its own"
        return Check("equivalence", EQUIVALENCE, "fail", points, said, help, evidence, depends)
    if close:
        return Check("equivalence", EQUIVALENCE, "pass", points, said, "", evidence, depends)
    said += f", more than {rules.equivalence_tolerance:.0%}"
    if "Adasum" in source.decode(errors="replace"):
        help = "Adasum does not average gradients, so it is not what one process would do: use op=Average"
    elif found["replicas"] > rules.replica_tolerance:
        help = likely_mistake(source)
    else:
        help = (
            "average gradients in each step, not weights now and then. Randomness of your own "
            "(noise, mixing of images, dropout) has the same effect, and so has training on data "
            "that does not come from hvdlab's Batches, a loss that is no mean over the images of its batch "
            "(there are fewer or more than you asked for), or leaving out batches of another size"
        )
    return Check("equivalence", EQUIVALENCE, "fail", points, said, help, evidence, depends)


def other_probes(probe: Probe, found: dict, rules: Profile) -> list[dict]:
    """Return the options for repeating a failed probe, for scripts that do not suit its first form."""
    apart = rules.equivalence_tolerance < found.get("distance", 0.0) < UNMOVED
    ways = [{"in_turns_of": probe}] if apart else []
    return ways + ([{"bits": 32}] if may_suit_float32_only(probe, found, rules) else [])


def may_suit_float32_only(probe: Probe, found: dict, rules: Profile) -> bool:
    """Return whether a probe failed as it does if the script treats float64 data as float32.

    Such sums are meaningless numbers, so the runs have an arbitrary distance from the first epoch on. (A
    probe that is right in its first epoch failed for another reason, and in float32 the second epoch is
    not compared.)
    """
    if probe.failed:
        return probe.failed.stop_cause in ("crashed", "killed")
    apart = rules.equivalence_tolerance < found.get("first_distance", 0.0) < UNMOVED
    return bool(found.get("refused")) or apart


def did_not_come_through(probe: Probe, found: dict) -> tuple[str, str] | None:
    """Return (rationale, help) if the probe gave nothing to compare, else None."""
    if found.get("refused"):
        return found["refused"][0], RECORD_THE_NETWORK
    seen = probe.failed
    if seen is None:
        return None
    said = f"a short run on few images did not come through ({seen.stop_cause.replace('_', ' ')})"
    help = last_error(seen.output) or where_they_wait(seen)
    return said, help or "the script must work with any number of images, and record each epoch"
