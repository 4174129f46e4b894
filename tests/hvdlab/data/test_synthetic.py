"""The synthetic data sets: official layout, the same bytes everywhere, and classes that can be learned."""

import hashlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from hvdlab.data import DataError, load_cifar10, load_fashion_mnist, synthetic
from hvdlab.data.batches import Batches
from hvdlab.data.files import SYNTHETIC_CLASSES
from hvdlab.data.synthetic import synthetic_cifar10, synthetic_fashion_mnist


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with both synthetic data sets."""
    folder = tmp_path_factory.mktemp("synthetic")
    assert synthetic_cifar10(folder) == folder
    assert synthetic_fashion_mnist(folder) == folder
    yield folder
    shutil.rmtree(folder)  # 240 MB


@pytest.mark.slow
def test_files_and_nothing_else(folder):
    cifar = {path.name: path.stat().st_size for path in (folder / "cifar-10-batches-bin").iterdir()}
    bins = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    assert [cifar.pop(name) for name in bins] == [30_730_000] * 6
    assert sorted(cifar) == ["SYNTHETIC.txt", "batches.meta.txt"]
    fashion = {path.name: path.stat().st_size for path in (folder / "fashion-mnist").iterdir()}
    assert fashion.pop("SYNTHETIC.txt") > 0
    assert fashion == {
        "train-images-idx3-ubyte": 47_040_016,
        "train-labels-idx1-ubyte": 60_008,
        "t10k-images-idx3-ubyte": 7_840_016,
        "t10k-labels-idx1-ubyte": 10_008,
    }
    assert not [path for path in folder.iterdir() if path.name.startswith(".synthetic")]
    marker = (folder / "cifar-10-batches-bin/SYNTHETIC.txt").read_text()
    assert (
        marker.startswith("This is not cifar10 but a synthetic data set")
        and marker.count("\n") == 1
    )


@pytest.mark.parametrize(
    "load, shape, sha256",
    [
        (
            load_cifar10,
            (32, 32, 3),
            "139f6cdd71942add77e74d17e23857e541d06fd179da99b2c1f2bdbab853e1f6",
        ),
        (
            load_fashion_mnist,
            (28, 28, 1),
            "28692da46a36bf53fc7c83da59c0d738609e8b0038bdc3ee4076839dacaae93c",
        ),
    ],
)
def test_loads_as_the_real_set_with_the_same_bytes_everywhere(folder, load, shape, sha256):
    data = load(folder)
    assert data.synthetic is True and data.class_names == SYNTHETIC_CLASSES
    assert data.train_images.shape[1:] == data.test_images.shape[1:] == shape
    n = len(data.train_labels)
    assert np.bincount(data.train_labels).tolist() == [n // 10] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    digest = hashlib.sha256()
    for array in data[:4]:
        digest.update(np.ascontiguousarray(array))
    assert digest.hexdigest() == sha256


def test_train_and_test_share_no_image(folder):
    data = load_cifar10(folder)
    train = {image.tobytes() for image in data.train_images[:, :4]}
    assert len(train) == 50_000
    assert not any(image.tobytes() in train for image in data.test_images[:, :4])


def test_no_op_when_complete(folder, monkeypatch):
    monkeypatch.setattr(synthetic, "_write_cifar10", None)  # calling it would be a TypeError
    assert synthetic_cifar10(folder) == folder


@pytest.fixture
def tiny(monkeypatch):
    """Fashion files with nothing in them but the right sizes: fast to write."""

    def write(folder):
        for name, shape in synthetic.FASHION_SHAPES.items():
            with (folder / name).open("wb") as file:
                file.truncate(4 + 4 * len(shape) + int(np.prod(shape)))

    monkeypatch.setattr(synthetic, "_write_fashion_mnist", write)


def test_an_incomplete_data_set_is_made_again(tmp_path, tiny):
    (tmp_path / "fashion-mnist").mkdir()
    (tmp_path / "fashion-mnist/SYNTHETIC.txt").touch()
    (tmp_path / "fashion-mnist/train-labels-idx1-ubyte").write_bytes(b"cut")
    synthetic_fashion_mnist(tmp_path)
    assert (tmp_path / "fashion-mnist/train-labels-idx1-ubyte").stat().st_size == 60_008


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(folder):
        (folder / "train-labels-idx1-ubyte").touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic, "_write_fashion_mnist", full_disk)
    with pytest.raises(DataError) as error:
        synthetic_fashion_mnist(tmp_path)
    assert f"{tmp_path}/fashion-mnist: No space left on device; give a folder" in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [".fashion_mnist.lock"]


@pytest.mark.parametrize(
    "make, file",
    [
        (synthetic_fashion_mnist, "fashion-mnist/train-images-idx3-ubyte.gz"),
        (synthetic_cifar10, "cifar-10-batches-bin/data_batch_1.bin"),
        (synthetic_cifar10, "cifar-10-binary.tar.gz"),
    ],
)
def test_real_data_is_left_alone(tmp_path, make, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("real")
    with pytest.raises(DataError) as error:
        make(tmp_path)
    assert f"{tmp_path} holds " in str(error.value) and "not synthetic" in str(error.value)
    assert (tmp_path / file).read_text() == "real"


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="Cannot write the synthetic cifar10 to .*/file/"):
        synthetic_cifar10(tmp_path / "file")


def test_two_processes_make_one_data_set(tmp_path):
    """The second process finds a complete data set, and does not replace it."""
    code = (
        "import sys; from pathlib import Path; from hvdlab.data import synthetic\n"
        "def write(folder):\n"
        "    for name, shape in synthetic.FASHION_SHAPES.items():\n"
        "        size = 4 + 4 * len(shape) + synthetic.np.prod(shape)\n"
        "        (folder / name).write_bytes(bytes(size))\n"
        "    print('made', flush=True)\n"
        "synthetic._write_fashion_mnist = write\n"
        "synthetic.synthetic_fashion_mnist(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "made\n"]


# Worth training on -------------------------------------------------------------------------------


def ridge_accuracy(data, n=5_000, test=2_000) -> float:
    """Accuracy of a linear model: ridge regression from pixels to one-hot labels."""
    x = data.train_images[:n].reshape(n, -1) / np.float32(255) - np.float32(0.5)
    unseen = data.test_images[:test].reshape(test, -1) / np.float32(255) - np.float32(0.5)
    one_hot = np.eye(10, dtype=np.float32)[data.train_labels[:n]]
    gram = x.T @ x + 10 * np.eye(x.shape[1], dtype=np.float32)
    weights = np.linalg.solve(gram, x.T @ one_hot)
    return float(((unseen @ weights).argmax(1) == data.test_labels[:test]).mean())


@pytest.mark.slow
@pytest.mark.thorough  # the checksums of both data sets are tested above
@pytest.mark.parametrize("load", [load_cifar10, load_fashion_mnist])
def test_a_linear_model_stays_low_and_a_small_network_learns(folder, load):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    data = load(folder)
    assert ridge_accuracy(data) < 0.6

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers, channels = [], data.train_images.shape[3]
    for width in (16, 32, 64):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))

    def tensor(images):
        return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - 0.5

    source = Batches(data.train_images[:6_000], data.train_labels[:6_000], 64)
    epochs = 5
    optimizer = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, epochs * len(source))
    for epoch in range(epochs):
        for images, labels in source.epoch(epoch):
            loss = nn.functional.cross_entropy(net(tensor(images)), torch.from_numpy(labels))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        predicted = net(tensor(np.array(data.test_images[:2_000]))).argmax(1).numpy()
    torch.set_num_threads(threads)
    assert (predicted == data.test_labels[:2_000]).mean() > 0.9
