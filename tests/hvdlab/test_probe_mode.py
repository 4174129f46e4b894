"""The grader's probe: its two runs differ only in the data of the ranks, so their weights can be compared."""

from types import SimpleNamespace

import numpy as np
import pytest

from hvdlab import probe_mode
from hvdlab.data import batches as batches_module
from hvdlab.data.batches import Batches

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
LABELS = np.arange(60) % 10
TEST_IMAGES = np.random.default_rng(1).integers(0, 256, (30, 32, 32, 3), np.uint8)


def probe_batches(monkeypatch, given, dealt=1, batch_size=8, in_turns=0, **how) -> Batches:
    """Return batches, in probe mode, of a set that has each image once per row of `given`.

    The script passes other arrays, because these must have no effect.
    """
    monkeypatch.setattr(probe_mode, "COPIES_IN_BATCH", dealt)
    monkeypatch.setattr(probe_mode, "IN_TURNS", in_turns)
    monkeypatch.setattr(probe_mode, "COPIES", len(given))
    monkeypatch.setattr(probe_mode, "STEPS", 5)
    images, labels = np.repeat(IMAGES, len(given), axis=0), np.stack(given, axis=1).ravel()
    own = SimpleNamespace(train_images=images, train_labels=labels, test_images=TEST_IMAGES)
    monkeypatch.setattr(batches_module, "load_cifar10", lambda folder: own)
    return Batches(255 - IMAGES, LABELS[::-1], batch_size, **how)


def test_all_ranks_and_seeds_read_the_same_images(monkeypatch):
    one = probe_batches(monkeypatch, [LABELS] * 2, rank=0, size=2, seed=3, augment=True)
    other = probe_batches(monkeypatch, [LABELS] * 2, rank=1, size=2, seed=4, style="own")
    assert len(one) == len(other) == probe_mode.STEPS
    for epoch in range(3):
        for mine, theirs in zip(one.epoch(epoch), other.epoch(epoch), strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])
        assert one.examples_read(epoch).tolist() == other.examples_read(epoch).tolist()


def test_copies_of_an_image_follow_each_other_in_a_batch(monkeypatch):
    """There are three copies of each image, and the label is the number of the copy."""
    apart = probe_batches(monkeypatch, [np.zeros(60, int)] * 3)
    together = probe_batches(monkeypatch, [np.full(60, copy) for copy in range(3)], dealt=3)
    assert len(apart.images) == len(
        together.images
    )  # a script that counts its steps gets the same number
    for (images, _), (whole, labels) in zip(apart.epoch(1), together.epoch(1), strict=True):
        assert labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
        np.testing.assert_array_equal(whole, np.concatenate([images] * 3))


def test_reports_the_requested_batch_size(monkeypatch):
    """The learning rate of a script may depend on the batch size, so it must be the same in both runs."""
    for dealt in (1, 3):
        assert probe_batches(monkeypatch, [LABELS] * 3, dealt=dealt, batch_size=8).batch_size == 8


def test_each_micro_batch_has_all_copies_of_its_images(monkeypatch):
    apart = probe_batches(monkeypatch, [np.zeros(60, int)] * 3)
    together = probe_batches(
        monkeypatch, [np.full(60, copy) for copy in range(3)], dealt=3, in_turns=1
    )
    for (images, _), (whole, labels) in zip(apart.epoch(1), together.epoch(1), strict=True):
        assert labels.tolist() == [0, 1, 2] * 8
        np.testing.assert_array_equal(whole, np.repeat(images, 3, axis=0))


@pytest.mark.parametrize(
    "asked, ranks, expected",
    [(8, 2, 8), (128, 2, 128), (200, 2, 100), (256, 2, 128), (257, 2, 128), (1000, 2, 125)]
    + [(1024, 2, 128), (2048, 2, 128), (128, 8, 64), (100, 8, 50)]
    + [(96, 2, 96), (96, 8, 32), (160, 2, 80), (128, 16, 32), (128, 32, 16), (128, 64, 8)],
)
def test_a_batch_of_the_probe_is_an_even_part_of_the_requested_batch(
    monkeypatch, asked, ranks, expected
):
    monkeypatch.setattr(probe_mode, "COPIES", ranks)
    assert probe_mode.batch_size(asked, 10_000) == expected


@pytest.mark.parametrize("batch_size, expected", [(1, 1), (8, 8), (12, 12), (13, 12), (5000, 12)])
def test_the_number_of_steps_does_not_depend_on_the_batch_size(monkeypatch, batch_size, expected):
    batches = probe_batches(monkeypatch, [LABELS] * 2, batch_size=batch_size)
    sizes = [len(labels) for _, labels in batches.epoch(0)]
    assert sizes == [min(expected, 60 // probe_mode.STEPS)] * probe_mode.STEPS


@pytest.mark.parametrize("kept", [60, 57, 1])
def test_the_arrays_that_a_script_passes_have_no_effect(monkeypatch, kept):
    """It may have shuffled the images, or have received them from another rank."""
    expected = probe_batches(monkeypatch, [LABELS] * 2)
    order = np.random.default_rng(2).permutation(60)[:kept]
    shuffled = Batches(IMAGES[order], LABELS[order], 8, rank=1, size=2, augment=True)
    for one, other in zip(expected.epoch(1), shuffled.epoch(1), strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_batches_of_test_images_keep_their_arrays(monkeypatch):
    probe_batches(monkeypatch, [LABELS] * 2)
    order = np.random.default_rng(2).permutation(30)
    batches = Batches(TEST_IMAGES[order], np.full(30, 7), 3)
    rows = {image.tobytes() for image in TEST_IMAGES}
    for images, labels in batches.epoch(0):
        assert {image.tobytes() for image in images} <= rows and set(labels.tolist()) == {7}


def test_nothing_changes_without_probe_mode():
    assert probe_mode.COPIES == 0  # the environment of the tests does not have the variable
    batches = Batches(IMAGES, LABELS, 8, rank=1, size=2)
    assert len(batches) == 4 and sum(len(labels) for _, labels in batches.epoch(0)) == 30


def labels_by_rank():
    """Return labels in which each rank has its own classes for the same images."""
    return [LABELS % 5 * 2, LABELS % 5 * 2 + 1]


def test_two_ranks_equal_a_single_process_with_torch(monkeypatch):
    """Compare averaged gradients of two ranks' batches with the gradient of both batches together."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    from hvdlab.torch.models import AssessmentNet, autocast

    one, other = labels_by_rank()
    both = probe_batches(monkeypatch, [one, other], dealt=2)
    ranks = [probe_batches(monkeypatch, [labels] * 2) for labels in (one, other)]
    apart, together = AssessmentNet(), AssessmentNet()
    for mine, theirs in zip(apart.parameters(), together.parameters(), strict=True):
        assert torch.equal(mine, theirs) and mine.dtype == torch.float64

    def step(model, dealt, t):
        optimizer = torch.optim.SGD(model.parameters(), 0.3)
        for batches in dealt:
            images, labels = batches.get(0, t)
            with autocast():
                logits = model(torch.from_numpy(images))
            (F.cross_entropy(logits, torch.from_numpy(labels)) / len(dealt)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for t in range(probe_mode.STEPS):
        step(apart, ranks, t)
        step(together, [both], t)
        for mine, theirs in zip(apart.parameters(), together.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_two_ranks_equal_a_single_process_with_keras(monkeypatch):
    keras = pytest.importorskip("keras")
    tf = pytest.importorskip("tensorflow")
    from hvdlab.keras.models import AssessmentNet, fast_policy

    one, other = labels_by_rank()
    both = probe_batches(monkeypatch, [one, other], dealt=2)
    ranks = [probe_batches(monkeypatch, [labels] * 2) for labels in (one, other)]
    assert fast_policy() == "float64"
    apart, together = AssessmentNet(fast_policy()), AssessmentNet()

    def step(model, dealt, t):
        sums = [0.0] * len(model.trainable_variables)
        for batches in dealt:
            images, labels = batches.get(0, t)
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                losses = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            sums = [s + g / len(dealt) for s, g in zip(sums, gradients, strict=True)]
        for variable, gradient in zip(model.trainable_variables, sums, strict=True):
            variable.assign(variable.value - 0.3 * gradient)

    for t in range(probe_mode.STEPS):
        step(apart, ranks, t)
        step(together, [both], t)
        pairs = zip(apart.trainable_variables, together.trainable_variables, strict=True)
        for mine, theirs in pairs:
            assert mine.dtype == "float64"
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)
