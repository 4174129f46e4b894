"""labs/cifar10_fast.py: its functions compared with NumPy, and a training on one rank and on two."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
from hvdlab.gpu_report import data, processes  # noqa: E402

SCRIPT = Path(__file__).parents[3] / "labs" / "cifar10_fast.py"


@pytest.fixture(scope="module")
def fast() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cifar10_fast", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pictures(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), np.uint8)


def test_whitened_patches_have_variance_1_and_no_correlation(fast: ModuleType) -> None:
    images = fast.normalised(pictures(40), torch.device("cpu"))
    images[:, :, 1:] += 3 * images[:, :, :-1]  # neighbours are correlated, as in photographs
    layer = torch.nn.Conv2d(3, 24, 2)
    fast.set_whitening(layer, images)
    with torch.no_grad():
        out = layer(images).double().movedim(1, -1).reshape(-1, 24)
    moments = (out.T @ out / len(out)).numpy()
    np.testing.assert_allclose(
        moments[:12, :12], np.eye(12), atol=0.01
    )  # eps lowers the variance a little
    np.testing.assert_allclose(moments[:12, 12:], -moments[:12, :12])


def test_an_epoch_holds_every_image_shifted_and_every_other_epoch_mirrors_it(
    fast: ModuleType,
) -> None:
    images = fast.normalised(pictures(6), torch.device("cpu"))
    augmented = fast.Augmented(images, seed=3)
    first, order = augmented.epoch(0)
    second, _ = augmented.epoch(1)
    assert sorted(order.tolist()) == list(range(6))
    for original, one, two in zip(images.numpy(), first.numpy(), second.numpy(), strict=True):
        views = {}
        for mirrored in (False, True):
            padded = np.pad(
                original[..., ::-1] if mirrored else original, ((0, 0), (2, 2), (2, 2)), "reflect"
            )
            for y in range(5):
                for x in range(5):
                    views[mirrored, y, x] = padded[:, y : y + 32, x : x + 32]
        (seen,) = {key[0] for key, view in views.items() if np.array_equal(view, one)}
        assert any(
            np.array_equal(view[..., ::-1], two) for key, view in views.items() if key[0] == seen
        )


def test_the_learning_rate_rises_and_falls(fast: ModuleType) -> None:
    rate = fast.learning_rate(2.0, 100)
    rates = [rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.4) and max(rates) == rates[23] == 2.0
    assert rates[100] == pytest.approx(0.14)
    assert rates[:24] == sorted(rates[:24]) and rates[23:] == sorted(rates[23:], reverse=True)


def test_blocks_start_as_the_identity(fast: ModuleType) -> None:
    x = torch.randn(2, 5, 8, 8)
    torch.testing.assert_close(fast.Convolution(5, 9)(x)[:, :5], x)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_it_learns(ranks: int, tmp_path: Path) -> None:
    """The label of an image is its red channel. Guessing would reach an accuracy of 10 %."""
    data.prepare(tmp_path / "data", sample=True)
    arguments = ["--images", "256", "--epochs", "24", "--width", "8", "--json"]
    command = processes.python_command(ranks, str(SCRIPT), *arguments)
    variables = processes.rank_variables(ranks, gpu=False) | {"HVDLAB_DATA": str(tmp_path / "data")}
    ended = processes.run(command, 240, {**variables, "CUDA_VISIBLE_DEVICES": "-1"})
    (found,) = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert found["accuracy"] > 0.3, ended.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["--images", "0"],
        pytest.param(["--epochs", "-1"], marks=pytest.mark.thorough),
        pytest.param(["--width", "x"], marks=pytest.mark.thorough),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2 and "Traceback" not in ended.stderr
