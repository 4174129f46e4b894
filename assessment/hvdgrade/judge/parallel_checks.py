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
from hvdgrade.evidence.evidence import UNMOVED, Evidence, ProbeEvidence
from hvdgrade.evidence.hidden_data import alike
from hvdgrade.judge.check import Case, Finding, check, last_error, where_they_wait
from hvdgrade.judge.run_checks import RECORD_THE_NETWORK
from hvdgrade.judge.traffic import (
    FEWEST_ROUNDS,
    USUAL_BATCH,
    credible_steps,
    exchange_drop,
    exchange_growth,
    exchanges,
    gradient_bytes,
    probed_exchanges,
)
from hvdgrade.profiles import Profile

OFFICIAL_KERAS_MODULES = ("horovod.tensorflow.keras", "horovod.keras")
EVERY_BATCH = ", and no batch may be left out for its size"
ALONE = "one rank only: nothing to compare, and nothing distributed to give points for"
OF_PROBE = ("ran", "replicas", "exchange")


def likely_mistake(imports: frozenset[str]) -> str:
    """Return help about the most frequent reason why ranks train separately, judged by the imports."""
    if any(name.startswith(OFFICIAL_KERAS_MODULES) for name in imports):
        return (
            "horovod.tensorflow.keras does not average gradients on Keras 3 and says nothing: "
            "use 'import hvdlab.keras.horovod as hvd'"
        )
    roots = {name.split(".")[0] for name in imports}
    if "hvdlab.keras.horovod" not in imports and not roots & {"horovod", "mpi4py"}:
        return "the script never imports Horovod: each rank trains a model of its own"
    return (
        "all ranks must begin with rank 0's weights (broadcast the model and the optimizer) and "
        "apply averaged gradients (step with the optimizer that DistributedOptimizer returned)"
    )


@check("replicas", title="ranks train one model")
def replicas(case: Case) -> Finding:
    seen, epochs = case.evidence.observation, case.evidence.epochs
    if seen.ranks == 1:
        return Finding("skipped", ALONE)
    worst = max(epoch.difference for epoch in epochs)
    numbers = {
        "differences": {epoch.epoch: epoch.difference for epoch in epochs},
        "sha256": {
            epoch.epoch: [seen.of(rank)[epoch.epoch].sha256 for rank in range(seen.ranks)]
            for epoch in epochs
        },
    }
    if worst <= case.rules.replica_tolerance:
        rationale = f"weights of all {seen.ranks} ranks equal in all {len(epochs)} epochs"
        rationale += f" (to {worst:.1g})" if worst else ""
        return Finding("pass", rationale, evidence=numbers)
    first = next(e for e in epochs if e.difference > case.rules.replica_tolerance)
    rationale = (
        f"weights of ranks 0 and {first.differing_rank} differ by {first.difference:.1%} in "
        f"{first.differs_at} after epoch {first.epoch}"
    )
    return Finding("fail", rationale, likely_mistake(case.evidence.imports), numbers)


@check("exchange", title="gradients are exchanged")
def exchange(case: Case) -> Finding:
    seen, epochs, rules = case.evidence.observation, case.evidence.epochs, case.rules
    if seen.ranks == 1:
        return Finding("skipped", ALONE)
    rounds = exchanges(seen, [epoch.epoch for epoch in epochs], rules)
    if None in rounds:
        rationale = (
            "not measured: this host does not give a submission a network of its own, or the ranks "
            "do not use it. The two checks below say what is needed"
        )
        return Finding("skipped", rationale, applies=False)
    steps = [epoch.steps or 0 for epoch in epochs]
    # The first epoch includes the start-up traffic, so later epochs are used if there are any.
    later = range(1, len(epochs)) if len(epochs) > 1 else range(1)
    least = min(later, key=lambda i: rounds[i])
    needed = max(rules.min_exchanges, rules.min_exchange_share * steps[least])
    # With many ranks there are few steps. Gradients accumulated over four steps are accepted.
    needed = min(needed, FEWEST_ROUNDS * credible_steps(epochs[least], USUAL_BATCH))
    numbers = {"rounds": [round(r, 2) for r in rounds], "steps": steps, "needed": needed}
    mega = rounds[least] * 2 * (seen.ranks - 1) * gradient_bytes(rules.network) / 1e6
    rationale = (
        f"{mega:,.0f} MB between the ranks in epoch {epochs[least].epoch}: "
        f"{rounds[least]:.1f} rounds of all gradients in {steps[least]} steps"
    )
    if rounds[least] >= needed:
        return Finding("pass", rationale, evidence=numbers)
    if rounds[least] >= FEWEST_ROUNDS * steps[least] > 0:
        help = (
            f"of so few steps that is no proof: take at most {USUAL_BATCH} images in a rank's batch"
        )
    else:
        help = "gradients must be averaged in each step. " + likely_mistake(case.evidence.imports)
    return Finding("fail", rationale, help, numbers)


@check("flow", title="ranks learn from each other", depends_on=OF_PROBE)
def flow(case: Case) -> Finding:
    found, rules, ranks = case.evidence.probe, case.rules, case.evidence.ranks
    if stopped := did_not_finish(found):
        return Finding("fail", *stopped)
    numbers = {
        "ranks": [{"learned": rank.learned, "others": rank.others} for rank in found.flow],
        "views_enforced": found.probe.views_enforced,
    }
    least = min(range(ranks), key=lambda rank: found.flow[rank].others)
    others = found.flow[least].others
    learned = fmean(rank.learned for rank in found.flow)
    if learned < rules.min_learned / alike(ranks):
        rationale = (
            "in a short run nothing was learned: a class is only "
            f"{exp(learned):.2f} times as likely on images with its label as on others"
        )
        help = (
            f"the schedule must begin to learn within the first passes over the data{EVERY_BATCH}"
        )
        return Finding("fail", rationale, help, numbers)
    if others >= rules.min_flow:
        rationale = (
            f"each rank knows classes that only others were shown ({others:.0%} of a full share)"
        )
        return Finding("pass", rationale, evidence=numbers)
    rationale = (
        f"rank {least} knows nothing of classes that only others were shown "
        f"({others:.1%} of a full share)"
    )
    return Finding("fail", rationale, likely_mistake(case.evidence.imports), numbers)


@check("equivalence", title="N ranks train like a single process", depends_on=OF_PROBE)
def equivalence(case: Case) -> Finding:
    found, rules, ranks = case.evidence.probe, case.rules, case.evidence.ranks
    if stopped := did_not_finish(found):
        return Finding("fail", *stopped)
    drop = exchange_drop(case.evidence.observation, case.evidence.epochs, found.probe, rules)
    growth = exchange_growth(found.probe, rules)
    numbers = {
        "distance": found.distance,
        "difference_of_ranks": found.replicas,
        "exchange_drop": drop,
        "exchange_growth": growth,
        "rounds_a_step": {
            name: probed_exchanges(found.probe, name, rules) for name in found.probe.seen
        },
    }
    if found.distance >= UNMOVED:
        rationale = "the weights do not move in a short run, so there is nothing to compare"
        help = f"the schedule must begin to learn within the first steps{EVERY_BATCH}"
        return Finding("fail", rationale, help, numbers)
    rationale = (
        f"weights of {ranks} ranks with a batch each, and with all {ranks} batches each, differ by "
        f"{found.distance:.1%} of the way they go"
    )
    if found.distance > rules.equivalence_tolerance:
        rationale += f", more than {rules.equivalence_tolerance:.0%}"
        return Finding("fail", rationale, why_different(case.evidence, rules), numbers)
    # While the learning rate is small, ranks that train separately and average their weights now and then
    # reach nearly the same weights as with averaged gradients. A script that accumulates gradients over
    # several steps reaches them exactly, and may begin to accumulate after the steps of the probe.
    exact = found.distance <= EXACT
    if drop and drop > (rules.max_exact_drop if exact else rules.max_exchange_drop):
        rationale += (
            f"; but they exchange {drop:.0f} times as much a step there as in the run that counts"
        )
        help = "average gradients in each step, not weights now and then"
        return Finding("fail", rationale, help, numbers)
    if growth and growth > rules.max_exchange_growth:
        rationale = (
            f"with batches {ranks} times as large the ranks exchange {growth:.1f} times as much "
            "in a step"
        )
        help = "exchange gradients, which are as many for any batch, not images: each rank trains on its own"
        return Finding("fail", rationale, help, numbers)
    return Finding("pass", rationale, evidence=numbers)


def why_different(evidence: Evidence, rules: Profile) -> str:
    """Return help for ranks that do not reach the weights of a single process."""
    if evidence.names_adasum:
        return "Adasum does not average gradients, so it is not what one process would do: use op=Average"
    if evidence.probe.replicas > rules.replica_tolerance:
        return likely_mistake(evidence.imports)
    return (
        "average gradients in each step, not weights now and then. Randomness of your own "
        "(noise, mixing of images, dropout) has the same effect, and so has training on data "
        "that does not come from hvdlab's Batches, a loss that is no mean over the images of its batch "
        "(there are fewer or more than you asked for), or leaving out batches of another size"
    )


def other_probes(found: ProbeEvidence, rules: Profile) -> list[dict]:
    """Return the options for repeating a failed probe, for scripts that do not suit its first form."""
    apart = found.compared and rules.equivalence_tolerance < found.distance < UNMOVED
    options = [{"in_turns_of": found.probe}] if apart else []
    return options + ([{"bits": 32}] if may_suit_float32_only(found, rules) else [])


def may_suit_float32_only(found: ProbeEvidence, rules: Profile) -> bool:
    """Return whether a probe failed as it does if the script treats float64 data as float32.

    Such sums are meaningless numbers, so the runs have an arbitrary distance from the first epoch on. (A
    probe that is right in its first epoch failed for another reason, and in float32 the second epoch is
    not compared.)
    """
    if found.probe.failed:
        return found.probe.failed.stop_cause in ("crashed", "killed")
    apart = rules.equivalence_tolerance < found.first_distance < UNMOVED
    return bool(found.refused) or apart


def did_not_finish(found: ProbeEvidence) -> tuple[str, str] | None:
    """Return (rationale, help) if the probe gave nothing to compare, else None."""
    if found.refused:
        return found.refused[0], RECORD_THE_NETWORK
    seen = found.probe.failed
    if seen is None:
        return None
    rationale = (
        f"a short run on few images did not come through ({seen.stop_cause.replace('_', ' ')})"
    )
    help = last_error(seen.output) or where_they_wait(seen)
    return (
        rationale,
        help or "the script must work with any number of images, and record each epoch",
    )
