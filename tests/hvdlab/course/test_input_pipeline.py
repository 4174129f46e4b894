"""Image files, shards and the augmentation of one image, compared with arrays written down by hand."""

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs Pillow, which matplotlib installs: run `make setup`")

from hvdlab.course import input_pipeline as pipeline  # noqa: E402

IMAGES = np.random.default_rng(0).integers(256, size=(7, 8, 8, 3)).astype(np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9, 2])


def test_files_and_shards_keep_pixels_labels_and_order(tmp_path):
    paths = pipeline.write_images(IMAGES, LABELS, tmp_path / "png")
    assert [pipeline.label_of(path) for path in paths] == LABELS.tolist()
    for path, image in zip(paths, IMAGES, strict=True):
        assert np.array_equal(pipeline.decode(path.read_bytes()), image)
    shards = pipeline.write_shards(paths, tmp_path / "tar", 3)
    read = [file for shard in shards for file in pipeline.read_shard(shard)]
    assert [pipeline.number_of(name) for name, _ in read] == list(range(7))
    assert [data for _, data in read] == [path.read_bytes() for path in paths]


def test_augmentation_of_one_image():
    image = np.arange(6 * 6, dtype=np.uint8).reshape(6, 6, 1).repeat(3, axis=2)
    same = pipeline.augment_image(image, False, pipeline.PAD, pipeline.PAD)
    assert np.array_equal(same, image)
    mirrored = pipeline.augment_image(image, True, pipeline.PAD, pipeline.PAD)
    assert mirrored[0, :, 0].tolist() == [5, 4, 3, 2, 1, 0]
    moved = pipeline.augment_image(image, False, pipeline.PAD + 1, pipeline.PAD - 2)
    assert moved[0, :, 0].tolist() == [8, 7, 6, 7, 8, 9]  # one row up, two columns to the right
    assert moved[5, :, 0].tolist() == [26, 25, 24, 25, 26, 27]  # row 4 again, by reflection


def test_drawn_windows_cover_all_places():
    flipped, top, left = pipeline.draw(np.random.default_rng(1), 2000)
    assert set(top) == set(left) == set(range(2 * pipeline.PAD + 1))
    assert 900 < flipped.sum() < 1100


def test_formats_are_all_read(tmp_path):
    rows = pipeline.file_formats(IMAGES, LABELS, tmp_path, 6)
    assert [(row["format"], row["files"]) for row in rows] == [
        ("png", 6),
        ("jpg", 6),
        ("tar", 4),
        ("npy", 1),
    ]
    assert rows[-1]["bytes per image"] == 8 * 8 * 3 + 128 / 6  # 128 bytes of header


def test_stages_are_timed_separately(monkeypatch):
    clock = iter([0, 1e-6, 10e-6, 14e-6, 20e-6, 23e-6, 30e-6, 36e-6])  # begin and end of each call
    monkeypatch.setattr(pipeline.time, "perf_counter", lambda: next(clock))
    stages = {"double": lambda x: 2 * x, "add": lambda x: x + 1}
    results, microseconds = pipeline.stage_times(stages, [1, 5])
    assert results == [3, 11]
    assert microseconds == pytest.approx({"double": 2.0, "add": 5.0})
