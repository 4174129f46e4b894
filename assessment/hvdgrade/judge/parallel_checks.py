"""Check whether a script really trains data-parallel.

    replicas      all ranks have the same weights after every epoch               (graded run)
    exchange      the ranks exchanged as many bytes as gradients need             (kernel's counter)
    flow          each rank learned what only another rank was shown              (probe)
    equivalence   N ranks train like a single process with N times the batch      (probe)

A script can cheat each check alone, but not all of them together. It could pass replicas by a broadcast
at the end, exchange by sending arbitrary data, flow by averaging weights now and then, and equivalence
by letting every rank do all the work.
"""

from dataclasses import asdict
from math import exp
from statistics import fmean

from hvdgrade.evidence.evidence import UNMOVED, Evidence, ProbeEvidence
from hvdgrade.evidence.hidden_data import alike
from hvdgrade.judge import causes
from hvdgrade.judge.causes import likely
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

NOT_PROBED = Finding(
    "skipped",
    "not judged: the short run that measures it works only with batches of hvdlab's Batches, see below",
    applies=False,
)
ALONE = "one rank only: nothing to compare, and nothing distributed to give points for"
OF_PROBE = ("ran", "replicas", "exchange")


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
    return Finding("fail", rationale, likely(case, *causes.REPLICAS), numbers)


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
        rationale += ", too few steps to prove it"
        help = (
            f"Use at most {USUAL_BATCH} images in a rank's batch, so that an epoch has more steps"
        )
    else:
        rationale += f"; averaging gradients needs at least {needed:.1f} rounds"
        help = likely(case, *causes.EXCHANGE)
    return Finding("fail", rationale, help, numbers)


@check("flow", title="ranks learn from each other", depends_on=OF_PROBE)
def flow(case: Case) -> Finding:
    found, rules, ranks = case.evidence.probe, case.rules, case.evidence.ranks
    if found is None:
        return NOT_PROBED
    if stopped := did_not_finish(case):
        return Finding("fail", *stopped)
    numbers = {
        "ranks": [asdict(rank) for rank in found.flow],
        "views_enforced": found.probe.views_enforced,
    }
    least = min(range(ranks), key=lambda rank: found.flow[rank].others)
    others = found.flow[least].others
    learned = fmean(rank.learned for rank in found.flow)
    # Training makes the class that no rank was shown unlikely, long before images are told apart.
    unseen = max(rank.test_class for rank in found.flow)
    if learned < rules.min_learned / alike(ranks) and unseen > rules.max_unseen:
        rationale = (
            f"in a short run nothing was learned: a class is only {exp(learned):.2f} "
            "times as likely on images with its label as on others"
        )
        return Finding("fail", rationale, likely(case, *causes.NOTHING_LEARNED), numbers)
    if others >= rules.min_flow:
        rationale = f"each rank learned classes that only other ranks were shown ({others:.0%})"
        return Finding("pass", rationale, evidence=numbers)
    rationale = (
        f"rank {least} learned {others:.1%} of what the classes that only other ranks were shown could "
        f"teach it, less than {rules.min_flow:.0%}"
    )
    return Finding("fail", rationale, likely(case, *causes.FLOW), numbers)


@check("equivalence", title="N ranks train like a single process", depends_on=OF_PROBE)
def equivalence(case: Case) -> Finding:
    found, rules, ranks = case.evidence.probe, case.rules, case.evidence.ranks
    if found is None:
        return NOT_PROBED
    if stopped := did_not_finish(case):
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
        return Finding("fail", rationale, likely(case, *causes.NOTHING_LEARNED), numbers)
    rationale = (
        f"the weights of {ranks} ranks with a batch each, and with all {ranks} batches each, differ by "
        f"{found.distance:.1%} of the distance that they move"
    )
    if found.distance > rules.equivalence_tolerance:
        rationale += f", more than {rules.equivalence_tolerance:.0%}"
        return Finding("fail", rationale, likely(case, *causes.EQUIVALENCE), numbers)
    # While the learning rate is small, ranks that train separately and average their weights now and then
    # reach nearly the same weights as with averaged gradients. A script can also recognise the probe.
    if drop and drop > rules.max_exchange_drop:
        rationale += (
            f", but in each step there they exchange {drop:.1f} times as many bytes as in the graded run, "
            f"more than {rules.max_exchange_drop:g} times"
        )
        return Finding("fail", rationale, likely(case, *causes.MORE_IN_THE_PROBE), numbers)
    if growth and growth > rules.max_exchange_growth:
        rationale = (
            f"with batches {ranks} times as large the ranks exchange {growth:.1f} times as many bytes in a "
            "step"
        )
        return Finding("fail", rationale, likely(case, *causes.GROWS), numbers)
    return Finding("pass", rationale, evidence=numbers)


def other_probes(evidence: Evidence, rules: Profile) -> list[dict]:
    """Return the options for repeating a failed probe, for scripts that do not suit its first form."""
    found = evidence.probe
    apart = found.compared and rules.equivalence_tolerance < found.distance < UNMOVED
    options = [{"in_turns_of": found.probe}] if apart else []
    drop = exchange_drop(evidence.observation, evidence.epochs, found.probe, rules)
    # A script may send float32 gradients as float16, and float64 gradients as they are.
    less = found.compared and drop is not None and drop > rules.max_exchange_drop
    return options + ([{"bits": 32}] if less or may_suit_float32_only(found, rules) else [])


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


def did_not_finish(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if the probe gave nothing to compare, else None."""
    found = case.evidence.probe
    if found.refused:
        return found.refused[0], RECORD_THE_NETWORK
    seen = found.probe.failed
    if seen is None:
        return None
    rationale = (
        f"a short run on few images did not finish ({seen.stop_cause.replace('_', ' ')}), "
        "although the graded run did"
    )
    error = last_error(seen.output) or where_they_wait(seen)
    help = likely(case, *causes.PROBE_STOPPED)
    return rationale, f"{error}. {help}" if error else help
