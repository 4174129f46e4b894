"""A graded run sees no hidden image, and the classes have new numbers."""

import numpy as np
import pytest

from hvdgrade.evidence import hidden_data
from hvdlab.data import load_cifar10
from hvdlab.data.batches import steps as steps_of
from hvdlab.probe_mode import SHORT_EPOCH


@pytest.fixture(scope="module")
def whole(sample_folder):
    return load_cifar10(sample_folder)


@pytest.fixture(scope="module")
def secrets(whole):
    return hidden_data.HiddenData.draw(7, len(whole.train_labels), len(whole.test_labels))


def as_rows(images) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_reads_back_a_written_sample(whole, cifar10_folder):
    real = load_cifar10(cifar10_folder)
    np.testing.assert_array_equal(whole.train_images, real.train_images[:3000])
    np.testing.assert_array_equal(whole.test_labels, real.test_labels[:1000])
    assert whole.class_names == real.class_names


def test_a_run_sees_no_hidden_image(whole, secrets, tmp_path):
    shown = load_cifar10(hidden_data.for_run(whole, secrets, tmp_path / "run"))
    hidden = as_rows(whole.test_images[secrets.hidden])
    assert len(secrets.hidden) == 500
    assert not hidden & as_rows(shown.train_images) - as_rows(whole.train_images)
    assert not hidden & as_rows(shown.test_images)
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o004  # readable for a submission that runs as another user


def test_keeps_training_images_and_renumbers_their_classes(whole, secrets, tmp_path):
    shown = load_cifar10(hidden_data.for_run(whole, secrets, tmp_path / "run"))
    np.testing.assert_array_equal(shown.train_images, whole.train_images)
    assert sorted(secrets.names) == list(range(10))
    assert (shown.train_labels != whole.train_labels).any()
    # The name of the class as text stays with the image.
    before = [whole.class_names[label] for label in whole.train_labels]
    assert [shown.class_names[label] for label in shown.train_labels] == before
    pairs = set(zip(whole.train_labels.tolist(), shown.train_labels.tolist(), strict=True))
    assert len(pairs) == 10


def test_the_hidden_data_depend_only_on_the_seed():
    one, other, again = (hidden_data.HiddenData.draw(seed) for seed in (1, 2, 1))
    assert (one.names != other.names).any() and (one.hidden != other.hidden).any()
    np.testing.assert_array_equal(one.names, again.names)
    np.testing.assert_array_equal(one.hidden, again.hidden)
    assert len(one.hidden) == 5000


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13])
def test_classes_are_divided_among_the_ranks(secrets, ranks):
    own = [set(secrets.classes_of(rank, ranks).tolist()) for rank in range(ranks)]
    assert set.union(*own) == set(range(10)) - {secrets.test_class} and min(map(len, own)) >= 2
    groups = min(ranks, 4)
    for i in range(groups):
        for j in range(i):
            assert not own[i] & own[j]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_few_ranks_have_different_classes(secrets, ranks):
    names = np.arange(10)
    for rank in range(ranks):
        own = secrets.classes_of(rank, ranks)
        given = secrets.labels_of(rank, ranks, names)
        np.testing.assert_array_equal(given, own[names % len(own)])


@pytest.mark.parametrize("ranks", [6, 10, 16, 64])
def test_many_ranks_have_different_labels(secrets, ranks):
    """One half of the ranks must not have the labels of the other half."""
    names = np.arange(10)
    told = [secrets.labels_of(rank, ranks, names) for rank in range(ranks)]
    for rank, labels in enumerate(told):
        own = secrets.classes_of(rank, ranks)
        counts = np.unique(labels, return_counts=True)
        assert counts[0].tolist() == own.tolist() and max(counts[1]) - min(counts[1]) <= 1
    assert len({labels.tobytes() for labels in told}) >= 0.9 * ranks  # two may be equal by chance


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, short", [(1, 4), (100, 4), (700, 4), (5000, 4), (64, 0)])
def test_the_probe_gives_all_ranks_the_same_images_with_different_labels(
    whole, secrets, tmp_path, batch_size, short
):
    apart, together = hidden_data.for_probe(whole, secrets, 3, batch_size, tmp_path, short)
    sets, both = [load_cifar10(folder) for folder in apart], load_cifar10(together)
    if (
        short
    ):  # a script that counts its steps counts four, or fewer if four would need too many images
        steps = steps_of(len(both.train_images), 3, batch_size)
        assert steps == 4 if batch_size < 682 else 1 <= steps <= 4
        assert len(both.test_images) >= min(len(both.train_images), 3 * batch_size)
    else:  # as in the graded run
        for one in (*sets, both):
            assert one.train_images.shape == whole.train_images.shape
            assert one.test_images.shape == whole.test_images.shape
    for rank, one in enumerate(sets):
        np.testing.assert_array_equal(one.train_images, both.train_images)
        # The copies of an image follow each other; in the rank's own data each has one label.
        np.testing.assert_array_equal(*(one.train_images[at::3] for at in (0, 2)))
        np.testing.assert_array_equal(*(one.train_labels[at::3] for at in (0, 2)))
        np.testing.assert_array_equal(one.train_labels[::3], both.train_labels[rank::3])
    hidden = as_rows(whole.test_images[secrets.hidden])
    for one in (*sets, both):
        assert not as_rows(one.test_images) & (hidden | as_rows(one.train_images))
        assert set(one.test_labels.tolist()) == {secrets.test_class}
        assert secrets.test_class not in one.train_labels
    shown = np.resize(secrets.probe, len(both.train_images) // 3)
    np.testing.assert_array_equal(both.train_images[::3], whole.train_images[shown])
    for rank, one in enumerate(sets):
        assert set(one.train_labels.tolist()) <= set(secrets.classes_of(rank, 3).tolist())
        # Each class of images has one label, so that a network can learn it.
        renamed = secrets.names[whole.train_labels[shown]]
        pairs = set(zip(renamed.tolist(), one.train_labels[::3].tolist(), strict=True))
        assert len(pairs) == len(set(renamed.tolist()))


@pytest.mark.parametrize(
    "ranks, batch", [(2, 64), (2, 5000), (8, 1024), (8, 2048), (16, 1024), (64, 256)]
)
def test_a_probe_has_at_least_one_short_step_for_large_batches(secrets, ranks, batch):
    """Many scripts compute the steps of an epoch as images // (images in a batch * ranks)."""
    images = ranks * len(hidden_data.probe_images(secrets, ranks, batch, SHORT_EPOCH))
    assert 1 <= images // (batch * ranks) <= SHORT_EPOCH


def test_many_ranks_get_fewer_images(secrets, whole, tmp_path, monkeypatch):
    """The folders of all ranks must fit on a disk."""
    monkeypatch.setattr(hidden_data, "MOST_BYTES", 4 * 1000 * 3073)
    apart, together = hidden_data.for_probe(whole, secrets, 3, 64, tmp_path)
    for folder in (*apart, together):
        assert len(load_cifar10(folder).train_images) == 1000
