"""Wide residual networks: the same function in both frameworks, and the sizes of the paper."""

import numpy as np
import pytest

from hvdlab.assessment_networks import (
    ASSESSMENT_NET,
    given_network,
    network_weights,
    wide_resnet_weights,
)
from hvdlab.record import WEIGHTS, is_statistic

torch = pytest.importorskip("torch")
keras_models = pytest.importorskip("hvdlab.keras.models")
from hvdlab.torch import models as torch_models  # noqa: E402
from hvdlab.torch.wide_resnet import WideResNet  # noqa: E402

SMALL = "wrn-16-2"  # has blocks with and without a convolution in the shortcut


def random_arrays(network: str) -> dict[str, np.ndarray]:
    """Return weights with the scale of He et al., and batch-norm statistics that are neither 0 nor 1."""
    rng = np.random.default_rng(0)
    arrays = {}
    for name, shape in network_weights(network).items():
        scale = np.sqrt(2 / np.prod(shape[1:])) if len(shape) > 1 else 0.3
        arrays[name] = rng.normal(0, scale, shape).astype(np.float32)
        if name.endswith("running_var"):
            arrays[name] = np.abs(arrays[name]) + 0.5
    return arrays


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (4, 32, 32, 3), np.uint8)


def convolution(x, kernel, stride):
    """Return the cross-correlation of (n, h, w, in) with (out, in, k, k), with zero padding (k - 1) / 2."""
    out, _, size, _ = kernel.shape
    edge = size // 2
    x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    side = (x.shape[1] - size) // stride + 1
    result = np.zeros((len(x), side, side, out))
    for i in range(size):
        for j in range(size):
            part = x[:, i : i + stride * side : stride, j : j + stride * side : stride]
            result += part @ kernel[:, :, i, j].T
    return result


def logits_by_definition(arrays, images):
    """Return the logits of the network, computed by NumPy in float64, with stored statistics."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}

    def activate(x, name):
        x = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
        return np.maximum(x * w[f"{name}.weight"] + w[f"{name}.bias"], 0)

    x = (images / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    x = convolution(x, w["conv1.weight"], 1)
    for group in (1, 2, 3):
        for block in (1, 2):
            name = f"group{group}.block{block}"
            stride = 2 if block == 1 and group > 1 else 1
            a = activate(x, f"{name}.norm1")
            y = activate(convolution(a, w[f"{name}.conv1.weight"], stride), f"{name}.norm2")
            y = convolution(y, w[f"{name}.conv2.weight"], 1)
            shortcut = w.get(f"{name}.shortcut.weight")
            x = y + (x if shortcut is None else convolution(a, shortcut, stride))
    x = activate(x, "norm").mean(axis=(1, 2))
    return x @ w["linear.weight"].T + w["linear.bias"]


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_both_frameworks_compute_the_network(framework, images):
    arrays = random_arrays(SMALL)
    if framework == "torch":
        with torch.inference_mode():
            model = torch_models.from_arrays(arrays, SMALL).eval()
            logits = model(torch.from_numpy(images)).numpy()
    else:
        logits = keras_models.from_arrays(arrays, network=SMALL).predict(images, verbose=0)
    assert logits.dtype == np.float32
    wanted = logits_by_definition(arrays, images)
    assert np.std(wanted) > 0.1
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


# WRN-40-2 and WRN-28-10: 2.2 M and 36.5 M in the paper's table 5; the digits are those of the authors'
# network with the bias of its linear layer.
@pytest.mark.parametrize(
    "depth, width, parameters",
    [(40, 2, 2_243_546), (28, 10, 36_479_194), (16, 10, None), (10, 1, None)],
)
def test_number_of_parameters(depth, width, parameters):
    blocks, k = (depth - 4) // 6, width
    # sums over the groups of 16 k, 32 k and 64 k channels c, blocks of 18 c^2 + 4 c less what the first
    # block's narrower input saves
    by_formula = 3 * 9 * 16 + 2 * 64 * k + 10 * (64 * k + 1)
    for before, c in ((16, 16 * k), (16 * k, 32 * k), (32 * k, 64 * k)):
        by_formula += blocks * (18 * c * c + 4 * c) - (c - before) * (9 * c + 2)
        by_formula += before * c if before != c else 0
    assert parameters in (None, by_formula)
    shapes = wide_resnet_weights(depth, width)
    listed = sum(int(np.prod(s)) for name, s in shapes.items() if not is_statistic(name))
    assert listed == by_formula
    with torch.device("meta"):
        model = WideResNet(depth, width)
    state = {n: tuple(t.shape) for n, t in model.state_dict().items() if "num_batches" not in n}
    assert state == shapes
    assert sum(p.numel() for p in model.parameters()) == by_formula


def test_the_default_network_has_17_million_parameters():
    with torch.device("meta"):
        assert 17.0e6 < sum(p.numel() for p in WideResNet().parameters()) < 17.2e6


@pytest.mark.parametrize("models", [torch_models, keras_models], ids=["torch", "keras"])
def test_reads_back_the_weights_that_were_set(models):
    arrays, network = random_arrays("wrn-10-1"), {"network": "wrn-10-1"}
    model = models.from_arrays(arrays, **network)
    back = models.to_arrays(model, **network) if models is keras_models else models.to_arrays(model)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(back[name], array)
    del arrays["group2.block1.norm2.bias"]
    with pytest.raises(ValueError, match=r"Missing: \['group2.block1.norm2.bias'\]"):
        models.from_arrays(arrays, **network)


def test_both_frameworks_train_with_batch_statistics(images):
    """In training mode both frameworks agree, and update the statistics with the same momentum of 0.1."""
    arrays = random_arrays("wrn-10-1")
    torch_model = torch_models.from_arrays(arrays, "wrn-10-1").train()
    keras_model = keras_models.from_arrays(arrays, network="wrn-10-1")
    logits = torch_model(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(keras_model(images, training=True), logits, rtol=1e-3, atol=1e-3)
    after_torch = torch_models.to_arrays(torch_model)
    after_keras = keras_models.to_arrays(keras_model, "wrn-10-1")
    for name in arrays:
        if name.endswith("running_mean"):
            assert not np.allclose(after_torch[name], arrays[name])
            np.testing.assert_allclose(after_keras[name], after_torch[name], rtol=1e-3, atol=1e-4)


def test_an_environment_variable_names_the_network(monkeypatch):
    monkeypatch.delenv("HVDLAB_NETWORK", raising=False)
    assert given_network() == ASSESSMENT_NET and network_weights(ASSESSMENT_NET) == WEIGHTS
    assert type(torch_models.assessment_network()) is torch_models.AssessmentNet
    assert keras_models.assessment_network().name == "assessment_net"
    monkeypatch.setenv("HVDLAB_NETWORK", "wrn-10-1")
    assert type(torch_models.assessment_network()) is WideResNet
    assert keras_models.assessment_network().name == "wrn-10-1"


@pytest.mark.parametrize(
    "name", ["resnet", "wrn-16", "wrn-15-1", "wrn-4-1", "wrn-10-0", "wrn-10-1x"]
)
def test_refuses_an_unknown_network_name(name):
    with pytest.raises(ValueError, match="^(network|depth|width): expected "):
        network_weights(name)
