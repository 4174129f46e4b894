"""Evaluate the weights of a submission in a separate process.

    python -m hvdgrade.evidence.evaluate < request

The module reads untrusted weight files. It accepts only plain arrays and checks their sizes and shapes before
it uses them. It recomputes the accuracies with the grader's copy of the network, and compares ranks and runs.
Standard input and output are JSON. The grader's main process never opens a submission's weight files.

The network decides on which device the evaluation runs; the device does not depend on which GPU is free. The
assessment network is small and runs on the CPU. A wide residual network uses the first GPU that the grader
sees, because a CPU would need minutes. On the GPU it computes in float32 without TF32. The results of two
machines then differ only by rounding, in a few of 10,000 images.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

from hvdgrade.evidence.accuracy import accuracy, flow
from hvdgrade.evidence.compare_ranks import (
    difference,
    distance,
    equal_replicas,
    reading,
    recorded,
    updates_per_step,
)
from hvdgrade.evidence.evidence import UNMOVED, EpochEvidence
from hvdgrade.evidence.hidden_data import HiddenData
from hvdgrade.evidence.weights_file import read_weights
from hvdlab.data import Dataset, load_cifar10
from hvdlab.probe_mode import FIRST, SECOND

FLOW_IMAGES = 2000
CONSECUTIVE = range(FIRST, SECOND + 1)


def compare_probe(request: dict, data: Dataset, secrets: HiddenData) -> dict:
    """Compare the two runs of the probe; `request["probe"]` names the files of each run, step and rank.

    Returns:
        The fields of `ProbeEvidence` except `probe`; only `refused` if a file could not be read.
    """
    network, refused = request["network"], []
    runs: dict[str, dict[int, list[dict]]] = {name: {} for name in request["probe"]}
    for name, weights in runs.items():
        for step, paths in sorted((int(step), p) for step, p in request["probe"][name].items()):
            weights[step] = []
            for rank, path in enumerate(paths):
                try:
                    weights[step].append(read_weights(Path(path), network)[0])
                except ValueError as error:
                    refused.append(f"probe, rank {rank}, step {step}: {error}")
    if refused:
        return {"refused": refused}
    apart, together = runs["apart"], runs["together"]
    first, last = apart[min(apart)], apart[max(apart)]
    chosen = secrets.probe[:FLOW_IMAGES]
    images, labels = data.train_images[chosen], secrets.names[data.train_labels[chosen]]
    return {
        "flow": [
            asdict(flow(*weights, images, labels, rank, len(last), secrets, network))
            for rank, weights in enumerate(zip(first, last, strict=True))
        ],
        **equal_replicas(apart),
        "updates": updates_per_step(
            [apart[step][0] for step in sorted(apart) if step in CONSECUTIVE]
        ),
        "distance": min(distance(apart, together), UNMOVED),
        "first_distance": min(distance(apart, {min(together): together[min(together)]}), UNMOVED),
    }


def compare_ranks(request: dict) -> tuple[list[EpochEvidence], list[str]]:
    """Compare the ranks in each epoch; `request["epochs"]` lists one file per rank for each epoch.

    Returns:
        The epochs whose files could all be read, and a sentence for each file that could not.
    """
    epochs, refused = [], []
    for epoch, paths in sorted((int(epoch), paths) for epoch, paths in request["epochs"].items()):
        ranks, read = [], []
        for rank, path in enumerate(paths):
            try:
                weights, examples = read_weights(Path(path), request["network"])
                ranks.append(weights)
                read.append(examples)
            except ValueError as error:
                refused.append(f"rank {rank}, epoch {epoch}: {error}")
        if len(ranks) < len(paths):
            continue
        differences = [difference(ranks[0], other) for other in ranks[1:]] or [(0.0, "")]
        worst = max(range(len(differences)), key=lambda i: differences[i][0])
        record = Path(paths[0]).with_name("rank-0-record.jsonl")
        epochs.append(
            EpochEvidence(
                epoch=epoch,
                weights=paths[0],
                difference=differences[worst][0],
                differs_at=differences[worst][1],
                differing_rank=worst + 1,
                steps=recorded(record, epoch, "steps"),
                batch_size=recorded(record, epoch, "batch_size"),
                steps_can_be_seen=bool(recorded(record, epoch, "steps_can_be_seen")),
                **reading(read, request["examples"]),
            )
        )
    return epochs, refused


def recompute_accuracies(
    request: dict, data: Dataset, secrets: HiddenData
) -> list[tuple[float, float]]:
    """Return (training accuracy, held-out accuracy) of each file in `request["weights"]`.

    `compare_ranks` has read all of these files before.
    """
    # Each grading draws a new sample and uses it for all of its epochs.
    sample = np.random.default_rng([request["seed"], 2]).permutation(len(data.train_images))
    sample = np.sort(sample[: request["train_sample"]])
    train = data.train_images[sample], secrets.names[data.train_labels[sample]]
    hidden = data.test_images[secrets.hidden], secrets.names[data.test_labels[secrets.hidden]]
    network = request["network"]
    epochs = (read_weights(Path(path), network)[0] for path in request["weights"])
    return [
        (accuracy(weights, *train, network), accuracy(weights, *hidden, network))
        for weights in epochs
    ]


def main() -> None:
    request = json.load(sys.stdin)
    if "epochs" in request:
        epochs, refused = compare_ranks(request)
        answer = {"epochs": [asdict(epoch) for epoch in epochs], "refused": refused}
    else:
        data = load_cifar10(request["data"])
        secrets = HiddenData.draw(request["seed"], len(data.train_labels), len(data.test_labels))
        answer = {"accuracies": recompute_accuracies(request, data, secrets)}
        if request["probe"]:
            answer["probe"] = compare_probe(request, data, secrets)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
