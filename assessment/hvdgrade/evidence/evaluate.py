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
from pathlib import Path

import numpy as np

from hvdgrade.evidence.accuracy import LEAST_FLOW_IMAGES, accuracy, flow
from hvdgrade.evidence.compare_ranks import difference, distance, reading, recorded
from hvdgrade.evidence.hidden_data import Secrets, probe_images
from hvdgrade.evidence.weights_file import read_weights
from hvdlab.data import load_cifar10


def judge_probe(request: dict, data, secrets: Secrets) -> dict:
    """Compare the two runs of the probe; `request["probe"]` names the files of each run, epoch and rank."""
    answer, network = {"refused": []}, request["network"]
    runs: dict[str, list[list[dict]]] = {name: [] for name in request["probe"]}
    for name, weights in runs.items():
        for epoch, paths in enumerate(request["probe"][name]):
            weights.append([])
            for rank, path in enumerate(paths):
                try:
                    weights[-1].append(read_weights(Path(path), network)[0])
                except ValueError as error:
                    answer["refused"].append(f"probe, rank {rank}, epoch {epoch}: {error}")
    if answer["refused"]:
        return answer
    first, last = runs["apart"][0], runs["apart"][-1]
    shown = probe_images(secrets, len(last), request["batch_size"])
    # The probe showed the first of these images to the ranks.
    chosen = secrets.probe[: max(LEAST_FLOW_IMAGES, len(shown))]
    images, labels = data.train_images[chosen], secrets.names[data.train_labels[chosen]]
    answer["flow"] = [
        flow(weights, images, labels, rank, len(last), secrets.splits, network)
        for rank, weights in enumerate(last)
    ]
    answer["replicas"] = max((difference(first[0], other)[0] for other in first[1:]), default=0.0)
    answer["distance"] = min(distance(runs["apart"], runs["together"]), 1e9)
    answer["first_distance"] = min(distance(runs["apart"], runs["together"][:1]), 1e9)
    return answer


def judge_ranks(request: dict) -> dict:
    """Compare the ranks in each epoch; `request["epochs"]` lists one file per rank for each epoch."""
    answer = {"epochs": [], "refused": []}
    for epoch, paths in sorted((int(epoch), paths) for epoch, paths in request["epochs"].items()):
        ranks, read = [], []
        for rank, path in enumerate(paths):
            try:
                weights, examples = read_weights(Path(path), request["network"])
                ranks.append(weights)
                read.append(examples)
            except ValueError as error:
                answer["refused"].append(f"rank {rank}, epoch {epoch}: {error}")
        if len(ranks) < len(paths):
            continue
        differences = [difference(ranks[0], other) for other in ranks[1:]] or [(0.0, "")]
        worst = max(range(len(differences)), key=lambda i: differences[i][0])
        record = Path(paths[0]).with_name("rank-0-record.jsonl")
        answer["epochs"].append(
            {
                "epoch": epoch,
                "weights": paths[0],
                "difference": differences[worst][0],
                "differs_at": differences[worst][1],
                "differing_rank": worst + 1,
                "steps": recorded(record, epoch, "steps"),
                "batch_size": recorded(record, epoch, "batch_size"),
                **reading(read, request["examples"]),
            }
        )
    return answer


def judge_accuracies(request: dict, data, secrets: Secrets) -> list[dict]:
    """Return the accuracies of each file in `request["weights"]`, all of which `judge_ranks` has read."""
    # Each grading draws a new sample and uses it for all of its epochs.
    sample = np.random.default_rng([request["seed"], 2]).permutation(len(data.train_images))
    sample = np.sort(sample[: request["train_sample"]])
    train = data.train_images[sample], secrets.names[data.train_labels[sample]]
    hidden = data.test_images[secrets.hidden], secrets.names[data.test_labels[secrets.hidden]]
    network = request["network"]
    epochs = (read_weights(Path(path), network)[0] for path in request["weights"])
    return [
        {
            "train_accuracy": accuracy(weights, *train, network),
            "heldout_accuracy": accuracy(weights, *hidden, network),
        }
        for weights in epochs
    ]


def main() -> None:
    request = json.load(sys.stdin)
    if "epochs" in request:
        answer = judge_ranks(request)
    else:
        data = load_cifar10(request["data"])
        secrets = Secrets.draw(request["seed"], len(data.train_labels), len(data.test_labels))
        answer = {"accuracies": judge_accuracies(request, data, secrets)}
        if request["probe"]:
            answer["probe"] = judge_probe(request, data, secrets)
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
