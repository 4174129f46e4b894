"""The grader's own evaluation, in a process of its own: `python -m hvdgrade.evaluate < request`.

Reads untrusted weight files (plain arrays only, sizes and shapes checked before use), recomputes
accuracies with the grader's copy of the network, and compares ranks and runs. Standard input and
output are JSON; the grader's process itself never opens a submission's files.

The device follows from the network, never from what happens to be free: the assessment network is small and
runs on the processor. A wide residual network takes the first GPU that the grader sees, because a processor
would need minutes, and there it computes in float32 without TF32. Two machines then differ by rounding, in a
few of 10,000 images.
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

from hvdgrade.export import printable
from hvdgrade.record_limits import weights_bytes
from hvdgrade.views import CLASSES, Secrets, classes_of, labels_of, probe_images
from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights
from hvdlab.data import load_cifar10
from hvdlab.record import is_statistic

SPARE_BYTES = 30 << 20  # of an unpacked file, beyond the weights
SPARE_ARRAYS = 80  # in a file, beyond the weights: enough to name one that does not belong there
MAX_EXAMPLES = 1_000_000
LEAST_FLOW_IMAGES = 100
EXACT = 1e-6  # of the way: smaller differences are not from float32
LEAST_SCALE = 1e-3  # of biases, and of a batch norm's weights, which may all begin with 0
PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def max_unpacked_bytes(network: str) -> int:
    """Bytes that a file of the network's weights may unpack to."""
    return weights_bytes(network) + SPARE_BYTES


def read_weights(
    path: Path, network: str = ASSESSMENT_NET
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The weights in one file, and the indices of the examples that were read for them.

    Raises ValueError with what is wrong, in words, whatever the file holds.
    """
    shapes, most = network_weights(network), max_unpacked_bytes(network)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > most:
                raise ValueError(f"it unpacks to more than {most} bytes")
            # Of the other kinds Python unpacks whole blocks, whatever size we ask for.
            if any(entry.compress_type not in PLAIN for entry in entries):
                raise ValueError("it is packed in another way than np.savez packs")
            arrays = {}
            for entry in entries[: len(shapes) + SPARE_ARRAYS]:
                with archive.open(entry) as file:
                    data = file.read(most)
                arrays[entry.filename.removesuffix(".npy")] = plain_array(data)
    except Exception as error:  # there is no end of ways in which such a file can be broken
        said = printable(str(error))[:200]  # it may quote the file
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
    """The array in the bytes of an .npy file.

    NumPy's own reader makes room for whatever size the header claims. Here the bytes decide.
    """
    file = io.BytesIO(data)
    header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, fortran_order, dtype = header[npy.read_magic(file)](file)
    if dtype.hasobject or dtype.itemsize * math.prod(shape) != len(data) - file.tell():
        raise ValueError(f"{dtype} {shape} in {len(data)} bytes")
    flat = np.frombuffer(data[file.tell() :], dtype)
    return flat.reshape(shape, order="F" if fortran_order else "C")


def difference(one: dict, other: dict) -> tuple[float, str]:
    """Largest difference of two ranks' trained weights, relative to the weight or the median one, and where.

    Not to the largest: that may be one which nothing depends on.
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
    """What the ranks read in one epoch; `read` has the indices of each rank.

    Returns a dict: `read`, examples of each rank; `outside`, those of all ranks that are not in the
    training set, such as test images behind it; `coverage`, all of them / the training set;
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
        "outside": sum(map(len, read)) - sum(map(len, valid)),
        "coverage": float(marks.any(axis=0).mean()),
        "shared": float(shared),
        "same_order": float(same),
    }


def recorded(path: Path, epoch: int, name: str) -> int | None:
    """The number, as of "steps", that a rank's record claims for `epoch`; None if it is not sensible."""
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
    """What the network with these weights says about `images`: (n, 10)."""
    import torch

    from hvdlab.torch import models

    torch.set_flush_denormal(True)  # with such weights a processor is thirty times as slow
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
    """The same with the Keras network, for a machine without torch."""
    from hvdlab.keras import models

    with models.keras.device("cpu:0") if network == ASSESSMENT_NET else nullcontext():
        model = models.from_arrays(arrays, network=network)
        batches = (images[i : i + 500] for i in range(0, len(images), 500))
        each = [np.asarray(model(batch, training=own_statistics)) for batch in batches]
    return np.concatenate(each)


def logits(
    arrays: dict, images: np.ndarray, own_statistics: bool = False, network: str = ASSESSMENT_NET
) -> np.ndarray:
    """Logits, by batch norm's running statistics or by those of `images` in batches of 500."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return logits_with_keras(arrays, images, own_statistics, network)
    return logits_with_torch(arrays, images, own_statistics, network)


def accuracy(
    arrays: dict, images: np.ndarray, labels: np.ndarray, network: str = ASSESSMENT_NET
) -> float:
    """Part of `images` that the network with these weights classifies right."""
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
    """What `rank`'s weights learned of the labels of the probe, and know of other ranks' classes.

    Returns a dict: `learned`, how much likelier the rank's own classes are on images with their label
    than on others, mean logarithm (an accuracy says less: after a few steps one class is often ahead
    on all images); `others`, the part of its probability on other ranks' classes, relative to an even
    division: 0 if it heard nothing of them, 1 if it learned as much from each rank as from itself.
    """
    # After so few steps the running statistics lag behind.
    says = logits(arrays, images, own_statistics=True, network=network)
    if not np.isfinite(says).all():  # of weights near the largest float, which are no training's
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
    """How far the runs of the probe are apart / how far the first of them goes in its second epoch.

    Of the last layer, as its gradient is a smooth function of all weights before it. (A float16
    gradient can change which of two nearly equal values a max pooling takes: that moves the weights
    before it by a jump.) Both have the weights of each epoch and rank; the rank that is furthest off
    counts, after the first epoch. Where that is off by no rounding at all the second counts too: who
    averages gradients only at the beginning is found there. (Of a network of one's own, in float32,
    rounding had grown from 0.000002 .. 0.02 after the first to 0.01 .. 0.15 after the second.)
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
    """Compare the runs of the probe; `request["probe"]` names the files of each epoch and rank."""
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
    chosen = secrets.probe[: max(LEAST_FLOW_IMAGES, len(shown))]  # the first ones are shown
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
    """Compare the ranks of each epoch; `request["epochs"]` has, for each, a file from every rank."""
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
    """The accuracies of each file of `request["weights"]`, all of which `judge_ranks` has read."""
    # A fresh sample for each grading, the same for all of its epochs.
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
