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

from hvdgrade.evidence.evidence import UNMOVED, Evidence, ProbeEvidence
from hvdgrade.evidence.observation import ProbeForm
from hvdgrade.judge import parallel_causes as causes
from hvdgrade.judge.check import Case, Finding, check, last_error, where_they_wait
from hvdgrade.judge.parallel_causes import likely
from hvdgrade.judge.run_checks import RECORD_THE_NETWORK
from hvdgrade.judge.traffic import (
    FEWEST_ROUNDS,
    ROUNDS_OF_FEW_STEPS,
    USUAL_BATCH,
    bytes_of_a_round,
    credible_steps,
    exchange_growth,
    exchanges,
    probed_exchange,
    sends_16_bits,
    shortage,
)
from hvdgrade.profiles import Profile
from hvdlab.probe_mode import FIRST, SECOND, SHORT_EPOCH

NOT_PROBED = Finding(
    "skipped",
    "not judged: the short run that measures it works only with batches of hvdlab's Batches, see below",
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
    # With many ranks there are few steps, if the records say so. Without a record the floor holds.
    few = ROUNDS_OF_FEW_STEPS * credible_steps(epochs[least], USUAL_BATCH)
    floor = min(rules.min_exchanges, few) if min(epochs[least].read) else rules.min_exchanges
    needed = max(floor, FEWEST_ROUNDS * steps[least])
    numbers = {"rounds": [round(r, 2) for r in rounds], "steps": steps, "needed": needed}
    mega = rounds[least] * bytes_of_a_round(seen.ranks, rules) / 1e6
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
    if nothing_learned(found, rules):
        rationale = (
            "in a short run nothing was learned: the probabilities of the classes did not change"
        )
        return Finding("fail", rationale, likely(case, *causes.NOTHING_LEARNED), numbers)
    much = learned_much(found, rules)
    each = [rank.others if much else rank.others_change for rank in found.flow]
    least = min(range(ranks), key=each.__getitem__)
    others = each[least]
    if others >= rules.min_flow:
        rationale = f"each rank learned classes that only other ranks were shown ({others:.0%})"
        return Finding("pass", rationale, evidence=numbers)
    rationale = (
        f"rank {least} learned {others:.1%} of what the classes that only other ranks were shown could "
        f"teach it, less than {rules.min_flow:.0%}"
    )
    return Finding("fail", rationale, likely(case, *causes.FLOW), numbers)


def learned_much(found: ProbeEvidence, rules: Profile) -> bool:
    """Return whether the class that no rank was shown has become unlikely, as training makes it."""
    return max(rank.test_class for rank in found.flow) <= rules.max_unseen


def nothing_learned(found: ProbeEvidence, rules: Profile) -> bool:
    """Return whether not even the change of the probabilities of classes shows that a rank learned."""
    little = bool(found.flow) and not learned_much(found, rules)
    return little and min(rank.learned for rank in found.flow) < rules.min_learned


@check("equivalence", title="N ranks train like a single process", depends_on=OF_PROBE)
def equivalence(case: Case) -> Finding:
    found, rules, ranks = case.evidence.probe, case.rules, case.evidence.ranks
    if found is None:
        return NOT_PROBED
    if stopped := did_not_finish(case):
        return Finding("fail", *stopped)
    less, growth = shortage(case.evidence, rules), exchange_growth(found.probe, rules)
    limit = tolerance(found, rules)
    numbers = {
        "distance": found.distance,
        "tolerance": limit,
        "difference_of_ranks": found.replicas,
        "updates_per_step": found.updates,
        "rounds_per_step": {
            name: probed_exchange(found.probe, name, rules) for name in found.probe.seen
        },
        "shortage": asdict(less) if less else None,
        "exchange_growth": growth,
    }
    if found.distance >= UNMOVED:
        rationale = "the weights do not move in a short run, so there is nothing to compare"
        return Finding("fail", rationale, likely(case, *causes.NOTHING_LEARNED), numbers)
    if growth and growth > rules.max_exchange_growth:
        rationale = (
            f"with batches {ranks} times as large the ranks exchange {growth:.1f} times as many bytes in a "
            "step"
        )
        return Finding("fail", rationale, likely(case, *causes.GROWS), numbers)
    if found.replicas > rules.replica_tolerance:
        rationale = (
            f"in the middle of an epoch, after step {found.differing_step} of a short run, the ranks have "
            f"different weights ({', '.join(found.differing[:3])}{', ...' * (len(found.differing) > 3)})"
        )
        return Finding("fail", rationale, likely(case, *causes.UNEQUAL), numbers)
    rationale = (
        f"the weights of {ranks} ranks with a batch each, and with all {ranks} batches each, differ by "
        f"{found.distance:.1%} of the distance that they move"
    )
    if found.distance > limit:
        rationale += f", more than {limit:.0%}"
        return Finding("fail", rationale, likely(case, *causes.EQUIVALENCE), numbers)
    if less:
        rationale += (
            f", but in the graded run the ranks exchanged only {less.rounds:.1f} rounds of all gradients in "
            f"the {less.steps:.0f} steps of epoch {less.epoch}. With the numbers that the script sends, at "
            f"least {less.needed:.1f} are needed"
        )
        return Finding("fail", rationale, likely(case, *causes.TOO_RARE), numbers)
    return Finding("pass", rationale, evidence=numbers)


def tolerance(found: ProbeEvidence, rules: Profile) -> float:
    """Return the largest distance that rounding of the numbers that the script sends explains."""
    return rules.rounding_tolerance if sends_16_bits(found, rules) else rules.equivalence_tolerance


def other_probes(evidence: Evidence, rules: Profile) -> list[ProbeForm]:
    """Return the forms in which to repeat a failed probe, for scripts that do not suit its first form."""
    found = evidence.probe
    steps, bits = found.probe.steps, found.probe.bits
    forms = []
    if found.compared and tolerance(found, rules) < found.distance < UNMOVED:
        forms.append(ProbeForm(steps, bits, in_turns_of=found.probe))
    early = found.replicas > rules.replica_tolerance and found.updates is None
    grows = (exchange_growth(found.probe, rules) or 0) > rules.max_exchange_growth
    if found.compared and (early or grows):
        # On a busy machine the grader may count the bytes of a run late, and a thread that reads ahead of the
        # training may record the weights early.
        forms.append(ProbeForm(steps, bits))
    if not steps and (nothing_learned(found, rules) or found.distance >= UNMOVED):
        # A script may read a whole epoch before it trains, or learn nothing in the first steps of a warmup.
        forms.append(ProbeForm(SHORT_EPOCH))
    # A script may send float32 gradients as float16, and float64 gradients as they are.
    less = found.compared and shortage(evidence, rules) is not None
    if bits == 64 and (less or may_suit_float32_only(found, rules)):
        forms.append(ProbeForm(steps, 32))
    return forms


def may_suit_float32_only(found: ProbeEvidence, rules: Profile) -> bool:
    """Return whether a probe failed as it does if the script treats float64 data as float32.

    Such sums are meaningless numbers, so the runs have an arbitrary distance from the first epoch on. (A
    probe that is right in its first epoch failed for another reason, and in float32 the second epoch is
    not compared.)
    """
    if found.probe.failed:
        return found.probe.failed.stop_cause in ("crashed", "killed")
    apart = tolerance(found, rules) < found.first_distance < UNMOVED
    return bool(found.refused) or apart


def did_not_finish(case: Case) -> tuple[str, str] | None:
    """Return (rationale, help) if the probe gave nothing to compare, else None."""
    found = case.evidence.probe
    if found.refused:
        return found.refused[0], RECORD_THE_NETWORK
    seen = found.probe.failed
    if seen is None:
        return None
    if seen.stop_cause == "ended":
        rationale = (
            f"a short run ended before its weights after steps {FIRST} and {SECOND} were recorded"
        )
    else:
        cause = seen.stop_cause.replace("_", " ")
        rationale = f"a short run did not finish ({cause}), although the graded run did"
    error = last_error(seen.output) or where_they_wait(seen)
    help = likely(case, *causes.PROBE_STOPPED)
    return rationale, f"{error}. {help}" if error else help
