"""Evaluate the weights of a submission in a separate process: `python -m hvdgrade.evaluate < request`.

The module reads untrusted weight files. It accepts only plain arrays and checks their sizes and shapes before
it uses them. It recomputes the accuracies with the grader's copy of the network, and compares ranks and runs.
Standard input and output are JSON. The grader's main process never opens a submission's weight files.

The network decides on which device the evaluation runs; the device does not depend on which GPU is free. The
assessment network is small and runs on the CPU. A wide residual network uses the first GPU that the grader
sees, because a CPU would need minutes. On the GPU it computes in float32 without TF32. The results of two
machines then differ only by rounding, in a few of 10,000 images.
"""

import io
import json
import math
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from hvdgrade.output.text import printable
from hvdgrade.record_limits import weights_bytes
from hvdgrade.views import CLASSES, Secrets, classes_of, labels_of, probe_images
from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights
from hvdlab.data import load_cifar10
from hvdlab.record import is_statistic

SPARE_BYTES = 30 << 20  # what an unpacked file may hold in addition to the weights
# How many arrays of a file are read in addition to the weights: enough to name one that does not belong.
SPARE_ARRAYS = 80
MAX_EXAMPLES = 1_000_000
LEAST_FLOW_IMAGES = 100
EXACT = 1e-6  # a relative distance below this is too small to be float32 rounding
# The smallest scale to which differences of biases and of batch-norm weights are compared. These arrays may
# start with zeros only, so their median may be 0.
LEAST_SCALE = 1e-3
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def max_unpacked_bytes(network: str) -> int:
    """Return how many bytes a file with the weights of `network` may unpack to."""
    return weights_bytes(network) + SPARE_BYTES


def read_weights(
    path: Path, network: str = ASSESSMENT_NET
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Read one weight file; return its weights and the indices of the examples that the rank read.

    Args:
        path: the .npz file, which may hold anything.
        network: name of the network. Default: the assessment network.

    Returns:
        The weights (name -> float32 array with the shape that the network has), and the indices, an int64
        array of shape (n,).

    Raises:
        ValueError: the file is not acceptable; the message says what is wrong.
    """
    shapes, most = network_weights(network), max_unpacked_bytes(network)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > most:
                raise ValueError(f"it unpacks to more than {most} bytes")
            # With other compression methods Python unpacks whole blocks, even if the reader asks for
            # fewer bytes, so the size limit would not hold.
            if any(entry.compress_type not in PLAIN for entry in entries):
                raise ValueError("it is packed in another way than np.savez packs")
            arrays = {}
            for entry in entries[: len(shapes) + SPARE_ARRAYS]:
                with archive.open(entry) as file:
                    data = file.read(most)
                arrays[entry.filename.removesuffix(".npy")] = plain_array(data)
    except Exception as error:  # a malformed file can raise almost any exception
        said = printable(str(error))[:200]  # the message may quote bytes of the file
        raise ValueError(f"it is not a file of plain arrays ({said})") from None
    examples = arrays.pop("examples_read", np.zeros(0, np.int32))
    if examples.ndim != 1 or examples.dtype.kind not in "iu" or len(examples) > MAX_EXAMPLES:
        raise ValueError("examples_read is not a list of at most a million indices")
    for name, shape in shapes.items():
        if name not in arrays:
            raise ValueError(f"the weight {name} is missing")
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            came = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{name} is {came[:100]}, and the network has float32 {shape}")
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} is not finite: the training diverged")
    if extra := arrays.keys() - shapes.keys():
        raise ValueError(
            f"it has arrays that the network has not: {', '.join(map(ascii, sorted(extra)))[:200]}"
        )
    return arrays, examples.astype(np.int64)


def plain_array(data: bytes) -> np.ndarray:
    """Return the array in the bytes of an .npy file.

    NumPy's own reader allocates memory for any size that the header claims. This function instead requires
    that the size in the header equals the number of bytes that follow it.

    Args:
        data: the bytes of the file.

    Raises:
        ValueError: the array holds objects, or its size does not match the number of bytes.
    """
    file = io.BytesIO(data)
    header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, fortran_order, dtype = header[npy.read_magic(file)](file)
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise ValueError(f"{dtype} {shape} in {len(data)} bytes")
    flat = np.frombuffer(data[file.tell() :], dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C")


def difference(one: dict, other: dict) -> tuple[float, str]:
    """Return the largest relative difference between the trained weights of two ranks, and its array's name.

    The difference is relative to the weight itself or to the median absolute weight of its array, whichever
    is larger. It is not relative to the largest weight, because nothing may depend on that weight.

    Args:
        one: weights of the first rank, name -> array.
        other: weights of the second rank, with the same names and shapes.
    """
    largest, where = 0.0, ""
    for name, weights in one.items():
        if not is_statistic(name):
            mine = weights.astype(np.float64)
            least = LEAST_SCALE if mine.ndim == 1 else 1e-30
            scale = np.maximum(np.abs(mine), max(float(np.median(np.abs(mine))), least))
            part = float((np.abs(mine - other[name]) / scale).max())
            if part > largest:
                largest, where = part, name
    return largest, where


def reading(read: list[np.ndarray], examples: int) -> dict:
    """Return statistics of the examples that the ranks read in one epoch.

    Args:
        read: the indices that each rank read, one array of shape (n,) per rank.
        examples: size of the training set.

    Returns:
        A dict: `read`, the number of examples of each rank; `outside`, the number of examples of all ranks
        that are not in the training set, such as test images appended to it; `coverage`, the fraction of the
        training set that the ranks read together; `shared`, the largest fraction of one rank's examples that
        another rank also read; `same_order`, the largest fraction of positions at which two ranks read the
        same example.
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
        "outside": sum(map(len, read)) - sum(map(len, valid)),
        "coverage": float(marks.any(axis=0).mean()),
        "shared": float(shared),
        "same_order": float(same),
    }


def recorded(path: Path, epoch: int, name: str) -> int | None:
    """Return the number that a rank's record claims for `epoch`, or None if it is missing or not plausible.

    Args:
        path: the record of the rank, with one JSON object per line.
        epoch: number of the epoch.
        name: which number to return, for example "steps".
    """
    try:
        for line in path.read_text(errors="replace").splitlines():
            entry = json.loads(line)
            if isinstance(entry, dict) and entry.get("epoch") == epoch:
                number = entry.get(name)
                return number if type(number) is int and 0 < number <= MAX_EXAMPLES else None
    except (OSError, ValueError, RecursionError):
        pass
    return None


def logits_with_torch(
    arrays: dict, images: np.ndarray, own_statistics: bool, network: str
) -> np.ndarray:
    """Return the logits of the network with these weights for `images`: shape (n, 10)."""
    import torch

    from hvdlab.torch import models

    torch.set_flush_denormal(True)  # with denormal weights a CPU is thirty times slower
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    on_gpu = network != ASSESSMENT_NET and torch.cuda.is_available()
    device = "cuda:0" if on_gpu else "cpu"
    model = models.from_arrays(arrays, network).to(device).train(own_statistics)
    with torch.inference_mode(), nullcontext() if on_gpu else models.autocast("cpu"):
        batches = (torch.from_numpy(images[i : i + 500]) for i in range(0, len(images), 500))
        return torch.cat([model(batch.to(device)).float().cpu() for batch in batches]).numpy()


def logits_with_keras(
    arrays: dict, images: np.ndarray, own_statistics: bool, network: str
) -> np.ndarray:
    """Return the same logits from the Keras network, for a machine without PyTorch."""
    from hvdlab.keras import models

    with models.keras.device("cpu:0") if network == ASSESSMENT_NET else nullcontext():
        model = models.from_arrays(arrays, network=network)
        batches = (images[i : i + 500] for i in range(0, len(images), 500))
        each = [np.asarray(model(batch, training=own_statistics)) for batch in batches]
    return np.concatenate(each)


def logits(
    arrays: dict, images: np.ndarray, own_statistics: bool = False, network: str = ASSESSMENT_NET
) -> np.ndarray:
    """Return the logits of the network for `images`; uses PyTorch if it is installed and otherwise Keras.

    Args:
        arrays: the weights, name -> array.
        images: array of n images.
        own_statistics: whether batch norm normalises with the statistics of `images`, in batches of 500,
            instead of its running statistics. Default: False.
        network: name of the network. Default: the assessment network.

    Returns:
        Array of shape (n, 10).
    """
    try:
        import torch  # noqa: F401
    except ImportError:
        return logits_with_keras(arrays, images, own_statistics, network)
    return logits_with_torch(arrays, images, own_statistics, network)


def accuracy(
    arrays: dict, images: np.ndarray, labels: np.ndarray, network: str = ASSESSMENT_NET
) -> float:
    """Return the fraction of `images` that the network with these weights classifies correctly."""
    return float((logits(arrays, images, network=network).argmax(1) == labels).mean())


def flow(
    arrays: dict,
    images: np.ndarray,
    labels: np.ndarray,
    rank: int,
    ranks: int,
    splits: np.ndarray,
    network: str = ASSESSMENT_NET,
) -> dict:
    """Measure what the weights of `rank` learned in the probe about its own classes and those of other ranks.

    In the probe, each rank sees only labels of its own classes.

    Args:
        arrays: the weights of `rank`, name -> array.
        images: n images of the probe.
        labels: their labels, shape (n,).
        rank: the rank that recorded the weights.
        ranks: number of ranks.
        splits: the secret numbers from which `views.labels_of` makes the labels of each rank.
        network: name of the network. Default: the assessment network.

    Returns:
        A dict with two numbers. `learned` is the mean log probability of the rank's own classes on images
        with that label, minus that on images with another label, averaged over the classes. An accuracy is
        less informative, because after a few steps one class often has the highest probability on all
        images. `others` is the probability that the weights give to the classes of other ranks, relative to
        a uniform distribution over all classes. It is 0 if the rank received nothing about them, and 1 if it
        learned as much from each other rank as from its own data.
    """
    # After so few steps, the running statistics of batch norm are still far from those of the data.
    says = logits(arrays, images, own_statistics=True, network=network)
    # Weights near the largest float give infinite logits. No training produces such weights.
    if not np.isfinite(says).all():
        return {"learned": 0.0, "others": 0.0}
    says = says.astype(np.float64)
    says = says - says.max(1, keepdims=True)
    likely = says - np.log(np.exp(says).sum(1, keepdims=True))
    own = classes_of(rank, ranks)
    given = labels_of(rank, ranks, labels, splits)
    learned = [
        likely[given == c, c].mean() - likely[given != c, c].mean()
        for c in own
        if 0 < (given == c).sum() < len(given)
    ]
    others = 1 - np.exp(likely[:, own]).sum(1).mean()
    return {"learned": float(np.mean(learned)), "others": float(others / (1 - len(own) / CLASSES))}


def distance(apart: list[list[dict]], together: list[list[dict]]) -> float:
    """Return the distance between the two runs of the probe, relative to the first run's own movement.

    The unit is the distance that rank 0 of the first run moves in its second epoch. Only the weights of the
    last layer count, because their gradient is a smooth function of all weights before it. In contrast, a
    float16 gradient can change which of two nearly equal values a max pooling takes, and then the weights
    before the pooling change abruptly.

    The rank with the largest distance counts, after the first epoch. If that distance is too small to be
    rounding (at most EXACT), the second epoch counts too. It reveals a script that averages gradients only at
    the beginning. The second epoch does not always count, because rounding errors grow: for a network of the
    submission's own, in float32, they had grown from 0.000002 .. 0.02 after the first epoch to 0.01 .. 0.15
    after the second.

    Args:
        apart: weights of the first run, `apart[epoch][rank]` with name -> array; at least two epochs.
        together: weights of the second run, in the same form.

    Returns:
        The relative distance; infinity if the first run did not move in its second epoch.
    """

    def norm(one, other):
        names = ("linear.weight", "linear.bias")
        return sum(float(((one[n].astype(np.float64) - other[n]) ** 2).sum()) for n in names) ** 0.5

    first, second = apart[:2]
    if not (way := norm(second[0], first[0])):
        return float("inf")
    epochs = zip(apart, together, strict=False)
    gaps = [max(norm(*pair) for pair in zip(*epoch, strict=True)) / way for epoch in epochs]
    return gaps[0] if gaps[0] > EXACT else max(gaps)


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
