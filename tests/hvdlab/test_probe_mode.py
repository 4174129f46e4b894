"""The grader's probe: its two runs differ only in the data of the ranks, so their weights can be compared."""

import queue
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hvdlab import probe_mode
from hvdlab.data import batches as batches_module
from hvdlab.data.batches import Batches

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
LABELS = np.arange(60) % 10
TEST_IMAGES = np.random.default_rng(1).integers(0, 256, (30, 32, 32, 3), np.uint8)


def probe_batches(monkeypatch, given, dealt=1, batch_size=8, in_turns=0, steps=0, **how) -> Batches:
    """Return batches, in probe mode, of a set that has each image once per row of `given`.

    The script passes other arrays, because these must have no effect.
    """
    monkeypatch.setattr(probe_mode, "COPIES_IN_BATCH", dealt)
    monkeypatch.setattr(probe_mode, "IN_TURNS", in_turns)
    monkeypatch.setattr(probe_mode, "COPIES", len(given))
    monkeypatch.setattr(probe_mode, "STEPS", steps)
    images, labels = np.repeat(IMAGES, len(given), axis=0), np.stack(given, axis=1).ravel()
    own = SimpleNamespace(train_images=images, train_labels=labels, test_images=TEST_IMAGES)
    monkeypatch.setattr(batches_module, "_probe_data", lambda folder: own)
    return Batches(255 - IMAGES, LABELS[::-1], batch_size, **how)


def test_all_ranks_and_seeds_read_the_same_images(monkeypatch):
    one = probe_batches(monkeypatch, [LABELS] * 2, rank=0, size=2, seed=3, augment=True)
    other = probe_batches(monkeypatch, [LABELS] * 2, rank=1, size=2, seed=4, style="own")
    assert len(one) == len(other) == 4  # as in a graded run: 60 images, two ranks, 8 in a batch
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
    [(8, 2, 8), (257, 2, 257), (2048, 2, 2048), (128, 32, 128)]  # as requested
    + [(4096, 2, 2048), (2050, 2, 1025), (1024, 8, 512), (300, 64, 60), (96, 64, 32), (67, 64, 64)],
)
def test_only_very_large_batches_are_smaller_than_requested(asked, ranks, expected):
    """A batch is then an even part of the requested batch, so that a script can divide it as well."""
    assert probe_mode.batch_size(asked, 10_000, ranks) == expected


@pytest.mark.parametrize("batch_size, expected", [(1, 1), (8, 8), (12, 12), (13, 12), (5000, 12)])
def test_short_epochs_have_as_many_steps_for_any_batch_size(monkeypatch, batch_size, expected):
    batches = probe_batches(monkeypatch, [LABELS] * 2, batch_size=batch_size, steps=5)
    sizes = [len(labels) for _, labels in batches.epoch(0)]
    assert sizes == [expected] * 5


@pytest.mark.parametrize("batch_size, size, kept", [(7, 2, 60), (8, 1, 60), (8, 2, 57)])
def test_an_epoch_and_its_batches_have_the_sizes_of_the_graded_run(
    monkeypatch, batch_size, size, kept
):
    graded = Batches(IMAGES[:kept], LABELS[:kept], batch_size, rank=0, size=size)
    probe_batches(monkeypatch, [LABELS] * 2)
    probed = Batches(IMAGES[:kept], LABELS[:kept], batch_size, rank=0, size=size)
    sizes = [[len(labels) for _, labels in batches.epoch(0)] for batches in (graded, probed)]
    assert len(graded) == len(probed) == len(sizes[1])
    assert sizes[0][:-1] == sizes[1][:-1]  # the last batch of the graded run has what is left


@pytest.mark.parametrize("kept", [60, 57, 1])
def test_the_arrays_that_a_script_passes_have_no_effect(monkeypatch, kept):
    """It may have shuffled the images, or have received them from another rank."""
    expected = probe_batches(monkeypatch, [LABELS] * 2)
    order = np.random.default_rng(2).permutation(60)[:kept]
    shuffled = Batches(IMAGES[order], LABELS[order], 8, rank=1, size=2, augment=True)
    assert len(shuffled) == -(-kept // 16)  # it has the steps of what the script kept
    for one, other in zip(expected.epoch(1), shuffled.epoch(1), strict=False):
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

    for t in range(4):
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

    for t in range(4):
        step(apart, ranks, t)
        step(together, [both], t)
        pairs = zip(apart.trainable_variables, together.trainable_variables, strict=True)
        for mine, theirs in pairs:
            assert mine.dtype == "float64"
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9, atol=1e-12)


# --- weights in the middle of an epoch ---------------------------------------------------------------


def snapshots_of() -> tuple[list, probe_mode.Snapshots, dict]:
    """Return (steps, weight) of each snapshot so far, the object, and a model of one weight."""
    model, taken = {"weight": 0.0}, []
    snapshots = probe_mode.Snapshots(
        lambda step: taken.append((step, model["weight"])), lambda: model["weight"]
    )
    return taken, snapshots, model


def test_the_thread_that_trains_records_the_weights_between_two_steps():
    taken, snapshots, model = snapshots_of()
    for step in range(30):
        snapshots.before_batch(step)
        model["weight"] += 1
    assert taken == [(step, step) for step in probe_mode.SNAPSHOTS]


@pytest.mark.slow
def test_a_thread_that_reads_ahead_waits_for_the_training(monkeypatch):
    """The reader is up to six batches ahead of a training whose first step takes longer than all others."""
    monkeypatch.setattr(probe_mode, "QUIET_SECONDS", 0.3)
    taken, snapshots, model = snapshots_of()
    ahead = queue.Queue(maxsize=6)

    def read():
        for step in range(30):
            snapshots.before_batch(step)
            ahead.put(step)

    threading.Thread(target=read, daemon=True).start()
    for step in range(30):
        assert ahead.get(timeout=30) == step
        time.sleep(1.0 if step == 0 else 0.02)
        model["weight"] += 1
    assert taken == [(step, step) for step in probe_mode.SNAPSHOTS_OF_THREADS]


def test_ranks_that_average_every_k_steps_differ_in_a_snapshot():
    """For each k the weights of two ranks are equal only after a multiple of k steps."""
    for k in range(2, 200):
        assert any(step % k for step in probe_mode.SNAPSHOTS)
        assert any(step % k for step in probe_mode.SNAPSHOTS_OF_THREADS)
