"""Start the process that reads the weights of a run."""

import json
import subprocess
import sys
from pathlib import Path

from hvdgrade.evidence.observation import Observation, Probe
from hvdgrade.profiles import Profile

EPOCH_SECONDS = 15.0  # time limit of the evaluation per epoch, in addition to its fixed limit


class GraderFault(Exception):
    """The grader itself failed; the submission must not get zero points for that."""


def compare(seen: Observation, profile: Profile, examples: int) -> dict:
    """Compare the weights and data of the ranks in each epoch that every rank recorded.

    Args:
        seen: what was observed of the run.
        profile: the thresholds.
        examples: size of the training set that the run was given.

    Returns:
        {"epochs": [...], "refused": [...]}, as `evaluate.judge_ranks` returns it.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    epochs: dict[int, list[str]] = {}
    for epoch in sorted({w.epoch for w in seen.weights}):
        of_ranks = [seen.of(rank).get(epoch) for rank in range(seen.ranks)]
        if all(of_ranks):
            epochs[epoch] = [str(weights.path) for weights in of_ranks]
    if not epochs:
        return {"epochs": [], "refused": []}
    request = {"epochs": epochs, "examples": examples, "network": profile.network}
    return ask(request, profile, len(epochs))


def recompute(
    evaluation: dict, probe: Probe | None, profile: Profile, data: Path, seed: int
) -> tuple[dict, dict]:
    """Return the evaluation from `compare` with the accuracies of each epoch, and the results of the probe.

    The results of the probe are empty if there is no probe or if one of its runs did not finish.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    epochs, runs = evaluation["epochs"], {} if probe is None or probe.failed else probe.runs
    if not epochs:
        return evaluation, {}
    request = {
        "data": str(data),
        "seed": seed,
        "network": profile.network,
        "train_sample": profile.train_sample,
        "weights": [epoch["weights"] for epoch in epochs],
        "probe": runs,
        "batch_size": probe.batch_size if probe else 0,
    }
    answer = ask(request, profile, len(epochs))
    epochs = [one | two for one, two in zip(epochs, answer["accuracies"], strict=True)]
    return {**evaluation, "epochs": epochs}, answer.get("probe", {})


def examine(probe: Probe, profile: Profile, data: Path, seed: int) -> dict:
    """Return the results of a probe without accuracies; empty if one of its runs did not finish.

    Raises:
        GraderFault: the evaluation failed or took too long.
    """
    if probe.failed:
        return {}
    request = {
        "data": str(data),
        "seed": seed,
        "network": profile.network,
        "train_sample": 0,
        "weights": [],
        "probe": probe.runs,
        "batch_size": probe.batch_size,
    }
    return ask(request, profile, 0).get("probe", {})


def ask(request: dict, profile: Profile, epochs: int) -> dict:
    """Run `hvdgrade.evidence.evaluate` in a new process and return its answer.

    Args:
        request: the request, which is sent as JSON.
        profile: the thresholds, with the fixed time limit of the evaluation.
        epochs: number of epochs to evaluate; each of them adds EPOCH_SECONDS to the time limit.

    Raises:
        GraderFault: the process failed, took too long, or returned no JSON.
    """
    seconds = profile.evaluation_seconds + EPOCH_SECONDS * epochs
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
