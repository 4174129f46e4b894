"""The evaluation process: which weights files it accepts, and what it computes from weights and indices."""

import contextlib
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from hvdgrade.evidence import accuracy, evaluate
from hvdgrade.evidence.accuracy import flow
from hvdgrade.evidence.compare_ranks import (
    difference,
    distance,
    equal_replicas,
    reading,
    updates_per_step,
)
from hvdgrade.evidence.evidence import LearnedClasses
from hvdgrade.evidence.hidden_data import HiddenData, for_run
from hvdgrade.evidence.weights_file import read_weights
from hvdlab.assessment_networks import ASSESSMENT_NET, network_weights
from hvdlab.data import load_cifar10
from hvdlab.record import WEIGHTS

NETWORK = {"network": ASSESSMENT_NET}  # of a request


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in WEIGHTS.items()}


def test_reads_all_arrays_of_a_correct_file(tmp_path, weights):
    np.savez(tmp_path / "w.npz", examples_read=np.arange(5, dtype=np.int32), **weights)
    arrays, examples = read_weights(tmp_path / "w.npz")
    assert examples.tolist() == [0, 1, 2, 3, 4]
    for name in WEIGHTS:
        np.testing.assert_array_equal(arrays[name], weights[name])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"linear.bias": None}, "linear.bias is missing"),
        ({"linear.bias": np.zeros(11, np.float32)}, r"linear.bias is float32 \(11,\)"),
        ({"linear.bias": np.zeros(10)}, "linear.bias is float64"),
        ({"linear.bias": np.full(10, np.inf, np.float32)}, "linear.bias is not finite"),
        ({"more": np.zeros(3, np.float32)}, "arrays that the network has not: 'more'"),
        ({"\x1b]0;more": np.zeros(3, np.float32)}, r"has not: '\\x1b\]0;more'"),
        ({"linear.bias": np.array([print] * 10, object)}, "not a file of plain arrays"),
        ({"examples_read": np.zeros(1_000_001, np.int32)}, "not a list of at most a million"),
        ({"examples_read": np.zeros(3, np.float32)}, "not a list of at most a million"),
    ],
)
def test_refuses_other_files_with_a_reason(tmp_path, weights, change, message):
    arrays = {name: array for name, array in {**weights, **change}.items() if array is not None}
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read_weights(tmp_path / "w.npz")


def test_a_file_must_hold_the_network_of_the_profile(tmp_path, weights):
    shapes = network_weights("wrn-10-1")
    wide = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "wide.npz", examples_read=np.arange(5), **wide)
    np.savez(tmp_path / "small.npz", **weights)
    assert read_weights(tmp_path / "wide.npz", "wrn-10-1")[0].keys() == shapes.keys()
    with pytest.raises(ValueError, match="conv1.bias is missing|conv1.weight is float32"):
        read_weights(tmp_path / "wide.npz")
    with pytest.raises(ValueError, match="network has float32|is missing"):
        read_weights(tmp_path / "small.npz", "wrn-10-1")


def test_does_not_unpack_a_file_that_expands_to_gigabytes(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("linear.bias.npy", bytes(64 << 20))
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_weights(tmp_path / "bomb.npz")


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_refuses_compression_without_a_size_limit(tmp_path, weights, kind):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", kind) as archive:
        archive.writestr("linear.bias.npy", bytes(1 << 20))
    with pytest.raises(ValueError, match="packed in another way than np.savez packs"):
        read_weights(tmp_path / "bomb.npz")
    np.savez_compressed(tmp_path / "w.npz", **weights)
    assert read_weights(tmp_path / "w.npz")[0].keys() == WEIGHTS.keys()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"\x93NUMPY\x01\x00"])
def test_refuses_random_bytes(tmp_path, content):
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(ValueError, match="not a file of plain arrays"):
        read_weights(tmp_path / "w.npz")


def test_difference_is_relative_and_leaves_statistics_out(weights):
    other = {name: array.copy() for name, array in weights.items()}
    assert difference(weights, other) == (0.0, "")
    other["norm2.running_mean"] += 1
    assert difference(weights, other) == (0.0, "")
    other["conv3.weight"][3, 2, 1, 0] += 0.5
    largest, where = difference(weights, other)
    assert where == "conv3.weight"
    own, median = (
        np.abs(weights["conv3.weight"][3, 2, 1, 0]),
        np.median(np.abs(weights["conv3.weight"])),
    )
    assert largest == pytest.approx(0.5 / max(own, median), rel=1e-5)


def test_an_unused_large_weight_does_not_hide_a_difference(weights):
    mine = {name: array.copy() for name, array in weights.items()}
    mine["conv3.weight"][7] = mine["norm3.bias"][7] = 1e6
    other = {name: array.copy() for name, array in mine.items()}
    other["conv3.weight"][3, 2, 1, 0] += 0.01
    # The difference is relative to the weight, if the weight is large.
    other["conv3.weight"][7] += 0.1
    largest, where = difference(mine, other)
    sizes = np.abs(mine["conv3.weight"].astype(np.float64))
    assert where == "conv3.weight"
    assert largest == pytest.approx(0.01 / max(sizes[3, 2, 1, 0], np.median(sizes)), rel=1e-4)
    # Weights before a batch norm may have any scale, so a difference of small weights counts like one of
    # large weights.
    tiny = {name: w * np.float32(1e-9) if w.ndim > 1 else w for name, w in weights.items()}
    theirs = {**tiny, "conv3.weight": tiny["conv3.weight"][::-1]}
    assert difference(tiny, theirs)[0] > 0.5
    # The biases of a batch norm start with 0.
    zero, small = ({**mine, "norm3.bias": np.full(128, by, np.float32)} for by in (0, 1e-9))
    assert difference(zero, small)[0] == pytest.approx(1e-6)


def test_finds_the_rank_that_differs_most(tmp_path, weights):
    paths = [tmp_path / f"{rank}.npz" for rank in range(4)]
    for path, by in zip(paths, (0, 0, 0.5, 0.25), strict=True):
        moved = {**weights, "linear.bias": weights["linear.bias"] + np.float32(by)}
        np.savez(path, examples_read=np.zeros(1, np.int32), **moved)
    request = {"epochs": {"0": paths}, "examples": 8, **NETWORK}
    (epoch,), _ = evaluate.compare_ranks(request)
    assert (epoch.differing_rank, epoch.differs_at) == (2, "linear.bias")
    sizes = np.abs(weights["linear.bias"])
    assert epoch.difference == pytest.approx(0.5 / np.median(sizes), rel=1e-6)


@pytest.mark.parametrize(
    "ranks, expected",
    [
        # (coverage, shared, same order), counted by hand on a set of 8 examples
        ([[0, 1, 2, 3], [4, 5, 6, 7]], (1.0, 0.0, 0.0)),
        ([[0, 1, 2, 3], [0, 1, 2, 3]], (0.5, 1.0, 1.0)),
        ([[0, 1, 2, 3], [3, 2, 1, 0]], (0.5, 1.0, 0.0)),
        ([[0, 1, 2, 3], [0, 4, 5, 6]], (7 / 8, 0.25, 0.25)),
        ([[0, 0, 1, 1], [2, 3, 4, 5]], (6 / 8, 0.0, 0.0)),
        ([[0, 1], [2, 3], [0, 4]], (5 / 8, 0.5, 0.5)),
        ([[-1, 99, 0, 1], [2, 3, 4, 5]], (6 / 8, 0.0, 0.0)),
        ([[], []], (0.0, 0.0, 0.0)),
    ],
)
def test_counts_the_examples_that_ranks_read(ranks, expected):
    seen = reading([np.array(rank, np.int64) for rank in ranks], 8)
    assert (seen["coverage"], seen["shared"], seen["same_order"]) == pytest.approx(expected)
    assert seen["read"] == [len(rank) for rank in ranks]
    assert seen["outside"] == sum(not 0 <= each < 8 for rank in ranks for each in rank)


def test_the_distance_is_the_largest_gap_over_the_movement_of_the_first_rank(weights):
    """Only the last layer differs: by 2 on rank 1, and then rank 0 moves on by 8."""

    def moved(by: float) -> dict:
        bias = weights["linear.bias"].copy()
        bias[4] += by
        elsewhere = weights["conv1.weight"] + np.float32(100 * by)
        return {**weights, "linear.bias": bias, "conv1.weight": elsewhere}

    steps = {4: [moved(1), moved(1)], 8: [moved(9), moved(50)]}
    off, exact = [moved(1), moved(3)], [moved(1), moved(1)]
    later, same = [moved(13), moved(50)], [moved(9), moved(50)]
    for apart in (steps, steps | {5: [moved(7), moved(7)], 23: [moved(0), moved(0)]}):
        assert distance(apart, {4: off}) == pytest.approx(2 / 8, rel=1e-5)
        assert distance(apart, {4: off, 8: same}) == pytest.approx(2 / 8, rel=1e-5)
        # The rank that differed moves further away.
        assert distance(apart, {4: off, 8: later}) == pytest.approx(2 / 8, rel=1e-5)
        assert distance(apart, {4: exact, 8: same}) == 0
        assert distance(apart, {4: exact, 8: later}) == pytest.approx(4 / 8, rel=1e-5)
        assert distance(apart, {4: exact}) == 0
    assert distance({4: [moved(1)], 8: [moved(1)]}, {4: [moved(3)]}) == float("inf")


def test_finds_the_first_step_and_the_layers_in_which_ranks_differ(weights):
    other = {**weights, "conv3.weight": 1.5 * weights["conv3.weight"], "norm2.running_mean": 7.0}
    steps = {4: [weights, weights], 5: [weights, other], 6: [weights, weights]}
    assert equal_replicas(steps) == {
        "replicas": pytest.approx(0.5, rel=1e-5),
        "differing_step": 5,
        "differing": ["conv3.weight"],
    }
    nothing = {"replicas": 0.0, "differing_step": None, "differing": []}
    assert equal_replicas({4: [weights, weights]}) == nothing


def test_counts_the_updates_of_accumulated_gradients(weights):
    """A script that averages every k-th step changes its weights once in k steps."""
    for k, expected in ((1, 1.0), (2, 0.5), (4, 0.25)):
        after = [{**weights, "linear.bias": weights["linear.bias"] + n // k} for n in range(4, 9)]
        for number, each in enumerate(after):
            each["norm2.running_mean"] = (
                weights["norm2.running_mean"] + number
            )  # changes in each step
        assert updates_per_step(after) == expected
    assert updates_per_step(after[:3]) is None


def test_flow_is_finite_for_logits_near_the_largest_float(monkeypatch):
    """The logits are finite in float32, but their differences are not."""
    rng = np.random.default_rng(1)
    says = (3e38 * rng.choice([-1, 1], (100, 10))).astype(np.float32)
    monkeypatch.setattr(accuracy, "logits", lambda *given, **how: says)
    found = accuracy.flow({}, {}, np.zeros(100), np.arange(100) % 10, 0, 2, HiddenData.draw(1))
    assert np.isfinite([found.learned, found.others]).all()


@pytest.mark.slow
def test_accuracies_of_a_constant_network(tmp_path, weights, cifar10_folder):
    """A network that always predicts class 3 is right on the tenth of the images that have class 3."""
    constant = {name: np.zeros(shape, np.float32) for name, shape in WEIGHTS.items()}
    constant["linear.bias"][3] = 1
    for name in WEIGHTS:
        if name.endswith("running_var"):
            constant[name][:] = 1
    for rank in range(2):
        np.savez(tmp_path / f"{rank}.npz", examples_read=np.arange(4), **constant)
    np.savez(tmp_path / "bad.npz", x=np.zeros(1))
    epochs = {
        "10": [str(tmp_path / "0.npz"), str(tmp_path / "1.npz")],
        "9": [str(tmp_path / "0.npz"), str(tmp_path / "bad.npz")],
    }
    result = ask({"epochs": epochs, "examples": 8, **NETWORK})
    (epoch,) = result["epochs"]
    assert epoch["epoch"] == 10 and epoch["difference"] == 0.0 and epoch["coverage"] == 0.5
    (refused,) = result["refused"]
    assert refused.startswith("rank 1, epoch 9: ")

    request = {"data": str(cifar10_folder), "seed": 1, "train_sample": 2000, "probe": {}, **NETWORK}
    ((train, heldout),) = ask({**request, "weights": [epoch["weights"]]})["accuracies"]
    # On the hidden half of the test images, by the class names of this grading.
    data = load_cifar10(cifar10_folder)
    secrets = HiddenData.draw(1, len(data.train_labels), len(data.test_labels))
    hidden = secrets.names[data.test_labels[secrets.hidden]]
    assert heldout == pytest.approx((hidden == 3).mean())
    assert train == pytest.approx(0.1, abs=0.03)  # 4 standard errors of 2000


def test_both_frameworks_agree_with_stored_and_batch_statistics(weights, monkeypatch):
    """The stored batch-norm statistics are used if the request says so, and otherwise have no effect."""
    torch_models = pytest.importorskip("hvdlab.torch.models")
    pytest.importorskip("hvdlab.keras.models")
    monkeypatch.setattr(torch_models, "autocast", lambda device: contextlib.nullcontext())
    arrays = {name: abs(w) + 0.5 if "var" in name else 0.1 * w for name, w in weights.items()}
    moved = {**arrays, "norm3.running_mean": arrays["norm3.running_mean"] + 1}
    images = np.random.default_rng(1).integers(0, 256, (16, 32, 32, 3), np.uint8)
    say = [accuracy.logits_with_torch, accuracy.logits_with_keras]
    for own_statistics in (False, True):
        torchs, kerass = (says(arrays, images, own_statistics, ASSESSMENT_NET) for says in say)
        np.testing.assert_allclose(kerass, torchs, rtol=1e-4, atol=1e-4)
        for says, before in zip(say, (torchs, kerass), strict=True):
            change = abs(says(moved, images, own_statistics, ASSESSMENT_NET) - before).max()
            assert (change < 1e-5) == own_statistics, (own_statistics, change)


@pytest.fixture
def sample(sample_folder):
    return load_cifar10(sample_folder)


def test_accuracies_use_hidden_images_and_renamed_classes(sample, weights, tmp_path, monkeypatch):
    """The visible test images of the run do not count, and the training images are drawn again."""
    asked = []
    monkeypatch.setattr(evaluate, "accuracy", lambda arrays, *given: asked.append(given))
    np.savez(tmp_path / "w.npz", **weights)
    whole = {
        image.tobytes(): label
        for image, label in zip(
            np.concatenate([sample.train_images, sample.test_images]),
            np.concatenate([sample.train_labels, sample.test_labels]),
            strict=True,
        )
    }
    drawn = []
    for seed in (1, 2):
        secrets = HiddenData.draw(seed, len(sample.train_labels), len(sample.test_labels))
        weights = [str(tmp_path / "w.npz")]
        request = {"seed": seed, "train_sample": 400, "weights": weights, **NETWORK}
        evaluate.recompute_accuracies(request, sample, secrets)
        (train, train_labels, _), (hidden, hidden_labels, _) = asked[-2:]
        shown = load_cifar10(for_run(sample, secrets, tmp_path / str(seed)))
        known = {image.tobytes() for image in shown.test_images}
        assert len(hidden) == len(sample.test_labels) / 2
        assert not known & {image.tobytes() for image in hidden}
        for images, labels in ((train, train_labels), (hidden, hidden_labels)):
            real = np.array([whole[image.tobytes()] for image in images])
            np.testing.assert_array_equal(labels, secrets.names[real])
        assert not np.array_equal(secrets.names, np.arange(10))
        drawn.append({image.tobytes() for image in train})
        assert len(drawn[-1]) == 400
    assert len(drawn[0] & drawn[1]) < 200


def test_the_probe_uses_all_steps_and_the_worst_rank(sample, weights, tmp_path, monkeypatch):
    """The last of three ranks differs after the first steps, and all ranks have moved after the second."""

    def saved(name, by):
        moved = {**weights, "linear.bias": weights["linear.bias"] + np.float32(by)}
        np.savez(tmp_path / name, **moved)
        return str(tmp_path / name)

    runs = {
        "apart": {
            "4": [saved("a.npz", 0), saved("b.npz", 0), saved("c.npz", 0.5)],
            "8": [saved("d.npz", 1), saved("e.npz", 2), saved("f.npz", 3)],
        },
        "together": {"4": [saved("g.npz", 0)] * 3, "8": [saved("h.npz", 1)] * 3},
    }
    secrets = HiddenData.draw(1, len(sample.train_labels), len(sample.test_labels))
    asked = []

    def flow(*given):
        asked.append(given)
        return LearnedClasses(0.0, 0.0)

    monkeypatch.setattr(evaluate, "flow", flow)
    answer = evaluate.compare_probe({"probe": runs, **NETWORK}, sample, secrets)
    # After 8 steps the ranks differ by 2, relative to the median or to the weight itself.
    bias = weights["linear.bias"].astype(np.float64) + 1
    scale = np.maximum(np.abs(bias), np.median(np.abs(bias)))
    assert answer["replicas"] == pytest.approx((2 / scale).max(), rel=1e-5)
    assert (answer["differing_step"], answer["differing"]) == (4, ["linear.bias"])
    # After 4 steps the third rank differs by 0.5, and until step 8 the first rank moves by 1.
    assert answer["first_distance"] == answer["distance"] == pytest.approx(0.5, rel=1e-5)
    # After 4 steps no rank differs, and after 8 the third rank differs by 2.
    later = {
        "apart": runs["apart"],
        "together": {"4": runs["apart"]["4"], "8": runs["together"]["8"]},
    }
    answer = evaluate.compare_probe({"probe": later, **NETWORK}, sample, secrets)
    assert (answer["first_distance"], answer["distance"]) == pytest.approx((0, 2), rel=1e-5)
    del asked[3:]
    biases = [
        [arrays["linear.bias"] - weights["linear.bias"] for arrays in given[:2]] for given in asked
    ]
    expected = [[[0.0] * 10, [1.0] * 10], [[0.0] * 10, [2.0] * 10], [[0.5] * 10, [3.0] * 10]]
    np.testing.assert_allclose(biases, expected, rtol=1e-5, atol=1e-7)
    assert [given[4:6] for given in asked] == [(0, 3), (1, 3), (2, 3)]
    for _, _, images, labels, *_, given, _ in asked:
        np.testing.assert_array_equal(given.splits, secrets.splits)
        shown = secrets.probe[:2000]
        np.testing.assert_array_equal(images, sample.train_images[shown])
        np.testing.assert_array_equal(labels, secrets.names[sample.train_labels[shown]])


def ask(request: dict) -> dict:
    """Run the evaluation in its own process, and return its answer."""
    answer = subprocess.run(
        [sys.executable, "-m", "hvdgrade.evidence.evaluate"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


# --- what a rank learned in the probe ---------------------------------------------------------------

LABELS = np.arange(200) % 10
SECRETS = HiddenData.draw(1)


@pytest.fixture
def says(monkeypatch):
    """Return a function that computes `flow` for a rank, by default the first of two, from given logits.

    Before, all classes had the same probability, unless `before` has other logits.
    """

    def found(logits, rank=0, ranks=2, before=None):
        given = {"before": np.zeros((len(LABELS), 10)) if before is None else before, "now": logits}
        monkeypatch.setattr(accuracy, "logits", lambda name, *_, **__: given[name])
        return flow("before", "now", np.empty(len(LABELS)), LABELS, rank, ranks, SECRETS)

    return found


def of_classes(rank=None, by=1.0, test=0.0, ranks=2):
    """Return logits that are `by` for the classes of a rank or of all, and `test` for the test images."""
    logits = np.zeros(10)
    for each in range(ranks) if rank is None else [rank]:
        logits[SECRETS.classes_of(each, ranks)] = by
    logits[SECRETS.test_class] = test
    return np.tile(logits, (len(LABELS), 1))


@pytest.mark.parametrize("by", [1e-4, 0.1, 3.0])
def test_flow_distinguishes_learning_from_all_ranks_from_learning_from_one(says, by):
    """A class of which nothing was learned changes like the class that no training image has."""
    both, one = says(of_classes(by=by)), says(of_classes(0, by=by))
    for found in (both, one):
        assert found.learned == pytest.approx(by, rel=1e-6)
    assert both.others_change == pytest.approx(1) and one.others_change == pytest.approx(
        0, abs=1e-9
    )
    half = says(of_classes(0, by=by) + of_classes(1, by=by / 2))
    assert half.others_change == pytest.approx(0.5)
    # The probabilities before do not count.
    before = np.random.default_rng(1).normal(size=10) * np.ones((len(LABELS), 1))
    moved = says(before + of_classes(by=by), before=before)
    assert moved.others_change == pytest.approx(1) and moved.learned == pytest.approx(by, rel=1e-6)


def test_flow_of_weights_that_do_not_move_is_nothing(says):
    found = says(of_classes(by=0.0))
    assert (found.learned, found.others_change) == (0.0, 0.0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 64])
def test_flow_of_an_even_division_is_the_full_value(says, ranks):
    for rank in range(ranks):
        assert says(of_classes(by=0.0), rank, ranks).others == pytest.approx(1)
        own = of_classes(rank, np.log(4), ranks=ranks)  # four times as likely as another class
        several = len(SECRETS.classes_of(rank, ranks))
        # By hand: of nine classes in training sets, what is left to the classes of other ranks.
        part = (9 - several) / (9 - several + 4 * several)
        found = says(own, rank, ranks)
        assert found.others == pytest.approx(part / (1 - several / 9))
        assert found.others_change == pytest.approx(0, abs=1e-9)


def test_only_training_on_test_images_makes_their_class_likely(says):
    assert says(of_classes(by=0.0)).test_class == pytest.approx(1)
    likely = says(of_classes(by=0.0, test=np.log(4)))
    assert likely.test_class == pytest.approx(10 * 4 / 13)
    assert likely.learned == pytest.approx(np.log(4)) and likely.others_change == pytest.approx(1)
    assert says(of_classes(by=0.0, test=-50)).test_class == pytest.approx(0)


def test_flow_is_zero_if_a_rank_learned_only_its_own_labels(says):
    found = says(of_classes(0, by=6.0))
    assert found.learned > 0.5 and found.others < 0.04 and abs(found.others_change) < 1e-9


@pytest.mark.parametrize("overflow", [np.inf, -np.inf, np.nan])
def test_weights_whose_logits_overflow_have_learned_nothing(says, overflow):
    """The result must be a number, because JSON has no NaN."""
    logits = of_classes()
    logits[7, 3] = overflow
    assert says(logits) == LearnedClasses(0.0, 0.0, 0.0)
