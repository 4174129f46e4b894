"""The grader's own evaluation, in a process of its own: `python -m hvdgrade.evaluate < request`.

Reads untrusted weight files (plain arrays only, sizes and shapes checked before use), recomputes
accuracies with the grader's copy of the network, and compares ranks. Standard input and output are
JSON; the grader's process itself never opens a submission's files.
"""

import json
import sys
import zipfile
from pathlib import Path

import numpy as np

from hvdlab.data import load_cifar10
from hvdlab.record import WEIGHTS, is_statistic

MAX_UNPACKED_BYTES = 32 << 20
MAX_EXAMPLES = 1_000_000


def read_weights(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The weights in one file, and the indices of the examples that were read for them.

    Raises ValueError with what is wrong, in words.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_UNPACKED_BYTES:
                raise ValueError(f"it unpacks to more than {MAX_UNPACKED_BYTES} bytes")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, EOFError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ValueError(f"it is not a file of plain arrays ({error})") from None
    examples = arrays.pop("examples_read", np.zeros(0, np.int32))
    if examples.ndim != 1 or examples.dtype.kind not in "iu" or len(examples) > MAX_EXAMPLES:
        raise ValueError("examples_read is not a list of at most a million indices")
    for name, shape in WEIGHTS.items():
        if name not in arrays:
            raise ValueError(f"the weight {name} is missing")
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            came = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{name} is {came}, and the network has float32 {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not finite: the training diverged")
    if extra := arrays.keys() - WEIGHTS.keys():
        raise ValueError(
            f"it has arrays that the network has not: {', '.join(sorted(extra))[:200]}"
        )
    return arrays, examples.astype(np.int64)


def difference(one: dict, other: dict) -> tuple[float, str]:
    """Largest difference of two ranks' trained weights relative to the largest weight, and where."""
    largest, where = 0.0, ""
    for name in WEIGHTS:
        if not is_statistic(name):
            scale = max(float(np.abs(one[name]).max()), 1e-12)
            part = float(np.abs(one[name] - other[name]).max()) / scale
            if part > largest:
                largest, where = part, name
    return largest, where


def reading(read: list[np.ndarray], examples: int) -> dict:
    """What the ranks read in one epoch; `read` has the indices of each rank.

    Returns a dict: `read`, examples of each rank; `coverage`, all of them / the training set;
    `shared`, the largest part of a rank's examples that another rank read too; `same_order`, the
    largest part of positions at which two ranks read the very same example.
    """
    valid = [r[(r >= 0) & (r < examples)] for r in read]
    marks = np.zeros((len(valid), examples), bool)
    for mark, indices in zip(marks, valid, strict=True):
        mark[indices] = True
    shared = same = 0.0
    for i in range(len(valid)):
        for j in range(i):
            both = np.count_nonzero(marks[i] & marks[j])
            shared = max(shared, both / max(1, min(marks[i].sum(), marks[j].sum())))
            length = min(len(valid[i]), len(valid[j]))
            equal = np.count_nonzero(valid[i][:length] == valid[j][:length])
            same = max(same, equal / max(1, length))
    return {
        "read": [len(r) for r in read],
        "coverage": float(marks.any(axis=0).mean()),
        "shared": float(shared),
        "same_order": float(same),
    }


def accuracy_with_torch(arrays: dict, images: np.ndarray, labels: np.ndarray) -> float:
    """Part of `images` that the network with these weights classifies right."""
    import torch

    from hvdlab.torch import models

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = models.from_arrays(arrays).to(device).eval()
    right = 0
    with torch.inference_mode(), models.autocast(device):
        for start in range(0, len(images), 500):
            batch = torch.from_numpy(images[start : start + 500]).to(device)
            right += int(
                (model(batch).argmax(1).cpu().numpy() == labels[start : start + 500]).sum()
            )
    return right / len(images)


def accuracy_with_keras(arrays: dict, images: np.ndarray, labels: np.ndarray) -> float:
    """The same with the Keras network, for a machine without torch."""
    from hvdlab.keras import models

    logits = models.from_arrays(arrays).predict(images, batch_size=500, verbose=0)
    return float((logits.argmax(1) == labels).mean())


def main() -> None:
    request = json.load(sys.stdin)
    data = load_cifar10(request["data"])
    # A fresh sample for each grading, in a fixed order of epochs, so that all epochs see the same.
    sample = np.random.default_rng(request["seed"]).permutation(len(data.train_images))
    sample = np.sort(sample[: request["train_sample"]])
    train_images, train_labels = data.train_images[sample], data.train_labels[sample]
    try:
        import torch  # noqa: F401

        accuracy = accuracy_with_torch
    except ImportError:
        accuracy = accuracy_with_keras

    answer = {"epochs": [], "refused": []}
    for epoch, paths in sorted((int(epoch), paths) for epoch, paths in request["epochs"].items()):
        ranks, read = [], []
        for rank, path in enumerate(paths):
            try:
                weights, examples = read_weights(Path(path))
                ranks.append(weights)
                read.append(examples)
            except ValueError as error:
                answer["refused"].append(f"rank {rank}, epoch {epoch}: {error}")
        if len(ranks) < len(paths):
            continue
        differences = [difference(ranks[0], other) for other in ranks[1:]] or [(0.0, "")]
        worst = max(range(len(differences)), key=lambda i: differences[i][0])
        answer["epochs"].append(
            {
                "epoch": epoch,
                "train_accuracy": accuracy(ranks[0], train_images, train_labels),
                "heldout_accuracy": accuracy(ranks[0], data.test_images, data.test_labels),
                "difference": differences[worst][0],
                "differs_at": differences[worst][1],
                "differing_rank": worst + 1,
                **reading(read, len(data.train_images)),
            }
        )
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
