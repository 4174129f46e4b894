"""Reading CIFAR-10 and Fashion-MNIST: against bytes laid out by hand, and every way to fail."""

import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hvdlab.data import DataError, load_cifar10, load_fashion_mnist

BINS = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
BIN_BYTES = 10_000 * 3073
IDX = {
    "train-images-idx3-ubyte": (60_000, 28, 28),
    "train-labels-idx1-ubyte": (60_000,),
    "t10k-images-idx3-ubyte": (10_000, 28, 28),
    "t10k-labels-idx1-ubyte": (10_000,),
}


@pytest.fixture(autouse=True)
def no_data_elsewhere(monkeypatch, tmp_path):
    """Point the search order at empty places, whatever this machine has; the environment is activated."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.delenv("HVDLAB_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def zeros(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)  # a sparse file: no time, no disk


def record(label: int, seed: int) -> bytes:
    """One CIFAR record of random pixels, byte by byte as the official page describes it."""
    return bytes([label]) + np.random.default_rng(seed).bytes(3072)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory) -> Path:
    """A folder with zeros everywhere but in the first and the last record of each file."""
    folder = tmp_path_factory.mktemp("cifar") / "cifar-10-batches-bin"
    folder.mkdir()
    for i, name in enumerate(BINS):
        zeros(folder / name, BIN_BYTES)
        with (folder / name).open("r+b") as file:
            file.write(record(label=i + 1, seed=i))
            file.seek(BIN_BYTES - 3073)
            file.write(record(label=9 - i, seed=100 + i))
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    return folder


@pytest.fixture(scope="module")
def cifar_archive(cifar) -> Path:
    path = cifar.parent / "archive" / "cifar-10-binary.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.add(cifar, arcname="cifar-10-batches-bin")
        add_member(tar, "cifar-10-batches-bin/readme.html", b"<p>hello")
    return path


def add_member(tar, name, content=b"", **fields) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    tar.addfile(info, io.BytesIO(content))


def assert_is_the_hand_made_cifar(data) -> None:
    assert data.train_images.shape == (50_000, 32, 32, 3)
    assert data.test_images.shape == (10_000, 32, 32, 3)
    assert data.train_labels.shape == (50_000,) and data.test_labels.shape == (10_000,)
    assert {array.dtype for array in data[:4]} == {np.dtype(np.uint8)}
    assert data.train_images.flags.c_contiguous
    assert data.class_names == tuple("abcdefghij") and data.synthetic is False

    images = np.concatenate([data.train_images, data.test_images])
    labels = np.concatenate([data.train_labels, data.test_labels])
    for i in range(6):
        for where, label, seed in ((0, i + 1, i), (9_999, 9 - i, 100 + i)):
            n, pixels = 10_000 * i + where, record(label, seed)[1:]
            assert labels[n] == label
            for channel, row, column in ((0, 0, 0), (0, 0, 31), (1, 5, 7), (2, 31, 0), (2, 31, 31)):
                by_hand = pixels[channel * 1024 + row * 32 + column]
                assert images[n, row, column, channel] == by_hand
            assert sorted(images[n].ravel()) == sorted(pixels)
    assert not images[1:9_999].any()


@pytest.mark.parametrize("at", ["parent", "folder", "archive", "folder of the archive"])
def test_cifar10_record_layout(cifar, cifar_archive, at):
    place = {
        "parent": cifar.parent,
        "folder": cifar,
        "archive": cifar_archive,
        "folder of the archive": cifar_archive.parent,
    }[at]
    data = load_cifar10(place)
    assert_is_the_hand_made_cifar(data)
    assert data.folder == (cifar_archive if "archive" in at else cifar)


def test_reading_an_archive_writes_nothing(cifar_archive):
    before = sorted(cifar_archive.parent.iterdir())
    load_cifar10(cifar_archive)
    assert sorted(cifar_archive.parent.iterdir()) == before


def test_search_order(cifar, tmp_path, monkeypatch):
    cache = tmp_path / "home/.cache/hvdlab"
    cache.mkdir(parents=True)
    (cache / "cifar-10-batches-bin").symlink_to(cifar)
    assert load_cifar10().folder == cache / "cifar-10-batches-bin"

    monkeypatch.setenv("HVDLAB_DATA", str(cifar.parent))
    assert load_cifar10().folder == cifar

    (tmp_path / "without").mkdir()
    monkeypatch.setenv("HVDLAB_DATA", str(tmp_path / "without"))  # then the next place
    assert load_cifar10().folder == cache / "cifar-10-batches-bin"

    monkeypatch.setenv("HVDLAB_DATA", str(tmp_path / "nowhere"))  # a mistake: no other place
    with pytest.raises(DataError) as error:
        load_cifar10()
    assert str(error.value) == (
        f"No cifar10 data in {tmp_path}/nowhere (no such file or directory): run `hvdlab data "
        "cifar10` to download it or `hvdlab data cifar10 --synthetic` to make a synthetic data set."
    )
    assert load_cifar10(cifar).folder == cifar  # a named folder goes first


def test_nothing_found_names_all_places(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"/empty \(nothing of it there\): run `hvdlab data cifar1"):
        load_cifar10(tmp_path / "empty")
    with pytest.raises(DataError, match=r"home/.cache/hvdlab \(no such file or directory\): run"):
        load_cifar10()


def test_in_a_notebook_the_sentence_stands_alone(tmp_path):
    pytest.importorskip("IPython")
    cell = "from hvdlab.data import load_fashion_mnist\nload_fashion_mnist('/nowhere')"
    program = (
        f"from IPython.core.interactiveshell import InteractiveShell as S\nS().run_cell({cell!r})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    with pytest.raises(DataError) as missing:
        load_fashion_mnist("/nowhere")
    assert answer.stdout.strip() == str(missing.value)


def test_the_command_is_named_with_its_folder_where_it_is_not_found(tmp_path, monkeypatch):
    """As in a terminal that `make lab` has opened."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "an environment" / "python"))
    (tmp_path / "an environment").mkdir()
    assert "run `hvdlab data cifar10` to" in message(load_cifar10, tmp_path)  # it is nowhere
    (tmp_path / "an environment" / "hvdlab").touch()
    text = message(load_cifar10, tmp_path)
    assert f"run `'{tmp_path}/an environment/hvdlab' data cifar10` to download it or `'" in text


# What can be wrong with CIFAR-10 -----------------------------------------------------------------


def broken(tmp_path, cifar, name) -> Path:
    """A copy of the folder (by links) without the file `name`, for the test to put its own."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for file in cifar.iterdir():
        if file.name != name:
            (folder / file.name).symlink_to(file)
    return folder


def message(load, folder) -> str:
    with pytest.raises(DataError) as error:
        load(folder)
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    assert " data " in text and "hvdlab" in text  # what to do
    return text


@pytest.mark.parametrize("size, came", [(0, "0"), (BIN_BYTES - 1, "30,729,999"), (1 << 25, "33,5")])
def test_cifar10_wrong_size(tmp_path, cifar, size, came):
    folder = broken(tmp_path, cifar, "data_batch_3.bin")
    zeros(folder / "data_batch_3.bin", size)
    text = message(load_cifar10, folder)
    assert f"{folder}/data_batch_3.bin: expected 30,730,000 bytes, found {came}" in text


def test_cifar10_label_over_nine(tmp_path, cifar):
    folder = broken(tmp_path, cifar, "test_batch.bin")
    zeros(folder / "test_batch.bin", BIN_BYTES)
    with (folder / "test_batch.bin").open("r+b") as file:
        file.seek(3073 * 42)
        file.write(bytes([10]))
    text = message(load_cifar10, folder)
    assert f"{folder}/test_batch.bin: expected labels 0..9, found label 10 in record 42;" in text


def test_cifar10_missing_file(tmp_path, cifar):
    folder = broken(tmp_path, cifar, "data_batch_5.bin")
    text = message(load_cifar10, folder)
    assert f"{folder}/data_batch_5.bin: expected" in text and "No such file" in text


def test_cifar10_directory_in_place_of_a_file(tmp_path, cifar):
    folder = broken(tmp_path, cifar, "data_batch_2.bin")
    (folder / "data_batch_2.bin").mkdir()
    text = message(load_cifar10, folder)
    assert "data_batch_2.bin: expected 30,730,000 bytes, found Is a directory;" in text


@pytest.mark.parametrize(
    "content, came", [(b"a\nb\n", "found 2 names"), (b"\xff\n", "can't decode")]
)
def test_cifar10_class_names(tmp_path, cifar, content, came):
    folder = broken(tmp_path, cifar, "batches.meta.txt")
    (folder / "batches.meta.txt").write_bytes(content)
    text = message(load_cifar10, folder)
    assert "batches.meta.txt: expected ten class names, one a line, found" in text and came in text


@contextmanager
def ordinary_user():
    """Root may read everything, so become nobody for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_no_permission(cifar):
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        folder.chmod(0o755)
        for name in ("data_batch_1.bin", "train-images-idx3-ubyte.gz"):
            (folder / name).touch()
            (folder / name).chmod(0)
        with ordinary_user():
            text = message(load_cifar10, folder)
            assert f"{folder}/data_batch_1.bin: expected" in text and "Permission denied" in text
            text = message(load_fashion_mnist, folder)
            assert f"{folder}/train-images-idx3-ubyte.gz: expected" in text
            assert "found Permission denied" in text
        folder.chmod(0)
        with ordinary_user():
            assert f"{folder}/cifar-10-batches-bin (permission denied)" in message(
                load_cifar10, folder
            )
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


# What can be wrong with the archive --------------------------------------------------------------


@pytest.mark.parametrize("evil", ["/etc/passwd", "../up", "cifar-10-batches-bin/../../x"])
def test_archive_that_points_outside_is_refused(tmp_path, evil):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add_member(tar, evil, b"x")
    text = message(load_cifar10, path)
    assert f"{path}: " in text and f"{evil!r}, which points outside the archive" in text


def test_archive_points_outside_after_the_expected_files(tmp_path, cifar):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        tar.add(cifar, arcname="cifar-10-batches-bin")
        add_member(tar, "../late")
    assert "'../late'" in message(load_cifar10, path)


def test_archive_member_of_wrong_size_is_not_read(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add_member(tar, "cifar-10-batches-bin/data_batch_1.bin", b"x" * 99)
    text = message(load_cifar10, path)
    assert "data_batch_1.bin of 99 bytes, not a file of 30,730,000 bytes" in text


def test_archive_with_a_link_for_a_file(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        name = "cifar-10-batches-bin/batches.meta.txt"  # a link's size, 0, is right for it
        add_member(tar, name, type=tarfile.SYMTYPE, linkname="/etc/passwd")
    text = message(load_cifar10, path)
    assert "batches.meta.txt of 0 bytes, not a regular file, not a file of at most 4096" in text


def test_archive_without_a_file(tmp_path):
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        add_member(tar, "cifar-10-batches-bin/batches.meta.txt", b"a\n")
        add_member(tar, "elsewhere/test_batch.bin", b"a\n")
    text = message(load_cifar10, path)
    assert "no data_batch_1.bin, data_batch_2.bin" in text and "test_batch.bin;" in text


@pytest.mark.parametrize("damage", ["not gzip", "cut", "flipped byte", "last checksum", "not tar"])
def test_damaged_archive(tmp_path, cifar_archive, damage):
    good = cifar_archive.read_bytes()
    path = tmp_path / "cifar-10-binary.tar.gz"
    middle = len(good) // 2
    flip = {"flipped byte": middle, "last checksum": len(good) - 6}.get(damage, 0)
    path.write_bytes(
        {
            "not gzip": b"<html>Not found</html>",
            "cut": good[:middle],
            "not tar": gzip.compress(b"hello" * 1000),
        }.get(damage, good[:flip] + bytes([good[flip] ^ 255]) + good[flip + 1 :])
    )
    text = message(load_cifar10, path)
    assert f"{path}: expected a gzipped tar with 7 files in cifar-10-batches-bin, found " in text
    assert f"move {path} away" in text


# Fashion-MNIST -----------------------------------------------------------------------------------


def idx_header(shape) -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(struct.pack(">I", n) for n in shape)


@pytest.fixture(scope="module")
def fashion(tmp_path_factory) -> Path:
    """Zeros, but for the first pixels of the training images and the last labels."""
    folder = tmp_path_factory.mktemp("fashion") / "fashion-mnist"
    folder.mkdir()
    for name, shape in IDX.items():
        header = idx_header(shape)
        zeros(folder / name, len(header) + int(np.prod(shape)))
        with (folder / name).open("r+b") as file:
            file.write(header)
            if "images" in name:
                file.write(bytes(range(1, 57)))  # two rows of 28 pixels
            else:
                file.seek(-3, os.SEEK_END)
                file.write(bytes([7, 8, 9]))
    return folder


@pytest.fixture(scope="module")
def fashion_gz(fashion) -> Path:
    folder = fashion.parent / "zipped"
    folder.mkdir()
    for file in fashion.iterdir():
        (folder / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 1))
    return folder


@pytest.mark.parametrize("at", ["parent", "folder", "zipped"])
def test_fashion_layout(fashion, fashion_gz, at):
    place = {"parent": fashion.parent, "folder": fashion, "zipped": fashion_gz}[at]
    data = load_fashion_mnist(place)
    assert [array.shape for array in data[:4]] == [
        (60_000, 28, 28, 1),
        (60_000,),
        (10_000, 28, 28, 1),
        (10_000,),
    ]
    assert {array.dtype for array in data[:4]} == {np.dtype(np.uint8)}
    for images in (data.train_images, data.test_images):
        assert images[0, 0, :, 0].tolist() == list(range(1, 29))
        assert images[0, 1, :, 0].tolist() == list(range(29, 57))
        assert not images[0, 2:].any() and not images[1:].any()
    for labels in (data.train_labels, data.test_labels):
        assert labels[-4:].tolist() == [0, 7, 8, 9]
    assert data.class_names[0] == "T-shirt/top" and len(data.class_names) == 10
    assert data.folder == (fashion_gz if at == "zipped" else fashion) and data.synthetic is False


def test_plain_fashion_files_are_mapped_not_copied(fashion):
    images, base = load_fashion_mnist(fashion).train_images, None
    assert not images.flags.writeable
    base = images
    while not isinstance(base, np.memmap) and base is not None:
        base = base.base
    assert isinstance(base, np.memmap)


@pytest.mark.parametrize(
    "field, header",
    [
        ("magic", b"\1\0\x08\3" + idx_header((60_000, 28, 28))[4:]),
        ("type", b"\0\0\x0d\3" + idx_header((60_000, 28, 28))[4:]),
        ("dimensions", b"\0\0\x08\2" + idx_header((60_000, 28, 28))[4:]),
        ("shape", idx_header((60_000, 14, 56))),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_fashion_bad_header(tmp_path, fashion, field, header, suffix):
    name = "train-images-idx3-ubyte"
    folder = broken(tmp_path, fashion, name)
    content = header + bytes(60_000 * 784)
    (folder / f"{name}{suffix}").write_bytes(gzip.compress(content, 1) if suffix else content)
    text = message(load_fashion_mnist, folder)
    expected = "47,040,016 bytes with the IDX header 00000803 0000ea60 0000001c 0000001c"
    assert f"{folder}/{name}{suffix}: expected {expected}" in text
    assert f"found the header {header.hex(' ', 4)};" in text


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("change, came", [(-1, "10,007 bytes"), (1, "10,009 bytes")])
def test_fashion_wrong_size(tmp_path, fashion, suffix, change, came):
    name = "t10k-labels-idx1-ubyte"
    folder = broken(tmp_path, fashion, name)
    content = idx_header((10_000,)) + bytes(10_000 + change)
    (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    text = message(load_fashion_mnist, folder)
    assert f"{name}{suffix}: expected 10,008 bytes" in text and f"found {came}" in text


def test_fashion_label_over_nine(tmp_path, fashion):
    folder = broken(tmp_path, fashion, "t10k-labels-idx1-ubyte")
    content = idx_header((10_000,)) + bytes(77) + b"\xff" + bytes(10_000 - 78)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(content)
    text = message(load_fashion_mnist, folder)
    assert "t10k-labels-idx1-ubyte: expected" in text and "labels 0..9" in text
    assert "found label 255 in record 77;" in text


@pytest.mark.parametrize("damage", ["not gzip", "cut", "checksum", "bytes"])
def test_fashion_damaged_gz(tmp_path, fashion, fashion_gz, damage):
    name = "train-labels-idx1-ubyte"
    folder = broken(tmp_path, fashion, name)
    good = gzip.compress(np.random.default_rng(0).integers(0, 9, 60_008, np.uint8).tobytes())
    flip = {"checksum": len(good) - 6, "bytes": len(good) // 2}.get(damage, 0)
    content = {"not gzip": b"hello", "cut": good[:-100]}.get(
        damage, good[:flip] + bytes([good[flip] ^ 255]) + good[flip + 1 :]
    )
    (folder / f"{name}.gz").write_bytes(content)
    text = message(load_fashion_mnist, folder)
    assert f"{folder}/{name}.gz: expected 60,008 bytes" in text
    reasons = {
        "not gzip": ("Not a gzipped file",),
        "cut": ("Compressed file ended",),
        "checksum": ("CRC check failed",),
        "bytes": ("CRC check failed", "while decompressing"),
    }
    assert any(reason in text for reason in reasons[damage])


def test_fashion_missing_file(tmp_path, fashion):
    folder = broken(tmp_path, fashion, "t10k-images-idx3-ubyte")
    text = message(load_fashion_mnist, folder)
    assert f"{folder}/t10k-images-idx3-ubyte.gz: expected" in text and "No such file" in text


def test_fashion_looks_in_a_file(tmp_path):
    (tmp_path / "file").touch()
    text = message(load_fashion_mnist, tmp_path / "file")
    assert f"No fashion_mnist data in {tmp_path}/file (not a directory): run" in text


# The real sets -----------------------------------------------------------------------------------

REAL = os.environ.get("HVDLAB_DATA")  # as it was before no_data_elsewhere
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.mark.data
@pytest.mark.skipif(not REAL, reason="HVDLAB_DATA is not set: no real CIFAR-10 to read")
def test_real_cifar10():
    data = load_cifar10(REAL)
    if data.synthetic:
        pytest.skip("HVDLAB_DATA holds synthetic data, not the real CIFAR-10")
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.class_names[0] == "airplane" and data.class_names[9] == "truck"
    # The published means of the three channels: a wrong order of the planes would mix them.
    means = data.train_images.reshape(-1, 3)[::7].mean(axis=0) / 255
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.003)


@pytest.mark.data
@pytest.mark.skipif(not DEBIAN.is_dir(), reason=f"no {DEBIAN}: apt install dataset-fashion-mnist")
def test_real_fashion_mnist_is_found_without_a_word():
    data = load_fashion_mnist()
    assert data.folder == DEBIAN and data.synthetic is False
    assert np.bincount(data.train_labels).tolist() == [6000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    assert data.train_images.mean() / 255 == pytest.approx(0.2860, abs=0.0005)  # published mean
