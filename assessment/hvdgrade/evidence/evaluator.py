"""Start the process that reads the weights of a run, and turn its answers into evidence."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from hvdgrade import HvdgradeError
from hvdgrade.evidence.evidence import EpochEvidence, Evidence, LearnedClasses, ProbeEvidence
from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.profiles import Profile

EPOCH_SECONDS = 15.0  # time limit of the evaluation per epoch, in addition to its fixed limit


class GraderFault(HvdgradeError):
    """The grader itself failed; the submission must not get zero points for that."""


def compare(
    seen: Observation, rules: Profile, examples: int
) -> tuple[list[EpochEvidence], list[str]]:
    """Compare the weights and data of the ranks in each epoch that every rank recorded.

    Returns:
        The epochs without accuracies, and a sentence for each weight file that could not be read.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    epochs: dict[int, list[str]] = {}
    for epoch in sorted({w.epoch for w in seen.weights}):
        of_ranks = [seen.of(rank).get(epoch) for rank in range(seen.ranks)]
        if all(of_ranks):
            epochs[epoch] = [str(weights.path) for weights in of_ranks]
    if not epochs:
        return [], []
    request = {"epochs": epochs, "examples": examples, "network": rules.network}
    answer = ask(request, rules, len(epochs))
    return [EpochEvidence(**epoch) for epoch in answer["epochs"]], answer["refused"]


def recompute(
    evidence: Evidence, probe: Probe | None, rules: Profile, data: Path, seed: int
) -> Evidence:
    """Return `evidence` with the accuracies of each epoch and the comparison of the probe's runs.

    Args:
        probe: the two runs of the probe; None if there was no probe.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    if not evidence.epochs:
        return evidence
    answer = evaluate([epoch.weights for epoch in evidence.epochs], probe, rules, data, seed)
    epochs = [
        replace(epoch, train_accuracy=train, heldout_accuracy=heldout)
        for epoch, (train, heldout) in zip(evidence.epochs, answer["accuracies"], strict=True)
    ]
    found = None if probe is None else probe_evidence(probe, answer)
    return replace(evidence, epochs=epochs, probe=found)


def compare_probe(probe: Probe, rules: Profile, data: Path, seed: int) -> ProbeEvidence:
    """Return the comparison of a probe's runs, without accuracies. The arguments are those of `recompute`.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    return probe_evidence(probe, {} if probe.failed else evaluate([], probe, rules, data, seed))


def probe_evidence(probe: Probe, answer: dict) -> ProbeEvidence:
    found = answer.get("probe", {})
    learned = [LearnedClasses(**rank) for rank in found.pop("flow", [])]
    return ProbeEvidence(probe, flow=learned, **found)


def evaluate(
    weights: list[str], probe: Probe | None, rules: Profile, data: Path, seed: int
) -> dict:
    request = {
        "data": str(data),
        "seed": seed,
        "network": rules.network,
        "train_sample": rules.train_sample if weights else 0,
        "weights": weights,
        "probe": {} if probe is None or probe.failed else probe.runs,
        "batch_size": probe.batch_size if probe else 0,
    }
    return ask(request, rules, len(weights))


def ask(request: dict, rules: Profile, epochs: int) -> dict:
    """Run `hvdgrade.evidence.evaluate` in a new process and return its answer.

    Args:
        epochs: number of epochs to evaluate; each of them adds EPOCH_SECONDS to the time limit.

    Raises:
        GraderFault: the process failed, took too long, or returned no JSON.
    """
    seconds = rules.evaluation_seconds + EPOCH_SECONDS * epochs
    try:
        process = subprocess.run(
            # -P: do not import modules from the current folder, which may be a student's.
            [sys.executable, "-P", "-m", "hvdgrade.evidence.evaluate"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if process.returncode:
            raise GraderFault(f"the evaluation failed: {process.stderr.strip()[-500:]}")
        return json.loads(process.stdout)
    except subprocess.TimeoutExpired:
        raise GraderFault(f"the evaluation took over {seconds:.0f} s") from None
    except json.JSONDecodeError:
        raise GraderFault("the evaluation gave no answer") from None
