"""Evidence of runs in which all is well, but for what a test changes, and what the judge says of it."""

import dataclasses
from pathlib import Path

from hvdgrade import profiles
from hvdgrade.evidence import observation
from hvdgrade.evidence.evidence import (
    EpochEvidence,
    Evidence,
    LearnedClasses,
    ProbeEvidence,
)
from hvdgrade.judge import check, timeline
from hvdgrade.judge.verdict import Judgement, judge
from hvdgrade.submission.script_facts import ScriptFacts

RULES = dataclasses.replace(profiles.load("dli"), train_accuracy=0.75, heldout_accuracy=0.70)


def entry(epoch, seconds, train, heldout) -> timeline.Entry:
    return timeline.Entry(seconds, epoch, train, heldout)


STEPS = 100


ROUND = 2 * 392_106 * 4  # bytes that two ranks send to average 392,106 gradients once


def seen(rounds: float | None = STEPS, **changes) -> observation.Observation:
    """Return an observation of two ranks and two epochs.

    The weights of rank 0 arrive at 10 and 20 s, and those of rank 1 half a second later. In each epoch
    `rounds` all-reduces of all gradients were sent.
    """
    weights = [
        observation.Weights(
            *(rank, epoch, 10.0 * (epoch + 1) + 0.5 * rank, Path("x"), f"{rank}{epoch}"),
            *([None, 0] if rounds is None else [int((epoch + 1) * rounds * ROUND)] * 2),
        )
        for rank in range(2)
        for epoch in range(2)
    ]
    return dataclasses.replace(
        observation.Observation(2, exit_code=0, seconds=25.0, weights=weights), **changes
    )


def epochs(only=None, **changes) -> list[EpochEvidence]:
    """Two epochs in which all is well, but for `changes` in both, or in `only` one of them."""
    well = EpochEvidence(
        epoch=0,
        weights="x",
        train_accuracy=0.8,
        heldout_accuracy=0.75,
        difference=0.0,
        differs_at="",
        differing_rank=1,
        read=[25_000, 25_000],
        outside=0,
        coverage=1.0,
        shared=0.0,
        same_order=0.0,
        steps=STEPS,
        batch_size=250,
    )
    return [
        dataclasses.replace(well, epoch=epoch, **(changes if only in (None, epoch) else {}))
        for epoch in range(2)
    ]


def learned(*others: float, own: float = 2.0) -> list[LearnedClasses]:
    return [LearnedClasses(own, rank, rank, test_class=0.1) for rank in others or (1.0, 1.0)]


def probed(run: observation.Probe | None = None, **changes) -> ProbeEvidence:
    """A probe in which two ranks reach nearly the weights of a single process, but for `changes`."""
    well = {"flow": learned(), "distance": 1e-7, "first_distance": 1e-7}
    return ProbeEvidence(run or observation.Probe(), **{**well, **changes})


def evidence(run=None, epochs_=None, imports=("horovod.torch",), **more) -> Evidence:
    given = epochs() if epochs_ is None else epochs_
    return Evidence(run or seen(), given, script=ScriptFacts(frozenset(imports)), **more)


def states(judgement: Judgement) -> dict[str, str]:
    return {check.id: check.state for check in judgement.checks}


def verdict(
    seen_=None, epochs_=None, budget=30.0, imports=("horovod.torch",), probe_=None, **found
) -> Judgement:
    probe = probed(probe_, **found)
    return judge(evidence(seen_, epochs_, imports, probe=probe), RULES, budget)


def run_check(id: str, given: Evidence) -> check.Check:
    """The result of one check, as if the checks on which it depends had passed."""
    passed = {base: check.Check(base, "", "pass", 1, "") for base in RULES.points if base != id}
    return check.run_check(id, check.Case(given, RULES, 30.0), passed)


def run_of_probe(*rounds: float) -> observation.Observation:
    """Return a run in which two ranks exchange so many rounds of gradients in each epoch."""
    sent = [int(sum(rounds[: epoch + 1]) * ROUND) for epoch in range(len(rounds))]
    weights = [
        observation.Weights(rank, epoch, 1.0, Path("x"), "", sent[epoch], sent[epoch])
        for rank in range(2)
        for epoch in range(len(rounds))
    ]
    return observation.Observation(2, weights=weights)
