"""The assessment network computes the same function of its weights in both frameworks."""

import types

import numpy as np
import pytest

from hvdlab.record import WEIGHTS, is_statistic

torch = pytest.importorskip("torch")
keras_models = pytest.importorskip("hvdlab.keras.models")
from hvdlab.torch import models as torch_models  # noqa: E402


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Return random weights, with batch-norm statistics that are neither 0 nor 1."""
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    for name in arrays:
        if name.endswith("running_var"):
            arrays[name] = np.abs(arrays[name]) + 0.5
    return arrays


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (8, 32, 32, 3), np.uint8)


def convolution(x, kernel, stride, padding):
    """Return the cross-correlation of (n, h, w, in) with (out, in, kh, kw), by its definition."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    out, _, kh, kw = kernel.shape
    height = (x.shape[1] - kh) // stride + 1
    width = (x.shape[2] - kw) // stride + 1
    result = np.zeros((len(x), height, width, out))
    for i in range(kh):
        for j in range(kw):
            part = x[:, i : i + stride * height : stride, j : j + stride * width : stride]
            result += part @ kernel[:, :, i, j].T
    return result


def logits_by_definition(arrays, images):
    """Return the logits of the network, computed by NumPy in float64, with stored statistics."""
    w = {name: array.astype(np.float64) for name, array in arrays.items()}

    def norm(x, name):
        x = (x - w[f"{name}.running_mean"]) / np.sqrt(w[f"{name}.running_var"] + 1e-5)
        return np.maximum(x * w[f"{name}.weight"] + w[f"{name}.bias"], 0)

    def pool(x):
        n, h, v, c = x.shape
        return x.reshape(n, h // 2, 2, v // 2, 2, c).max(axis=(2, 4))

    x = (images / 255 - [0.4914, 0.4822, 0.4465]) / [0.2470, 0.2435, 0.2616]
    x = np.maximum(convolution(x, w["conv1.weight"], 2, 1) + w["conv1.bias"], 0)
    x = norm(pool(convolution(x, w["conv2.weight"], 1, 1)), "norm2")
    x = norm(pool(convolution(x, w["conv3.weight"], 1, 1)), "norm3")
    x = norm(convolution(x, w["conv4.weight"], 1, 1), "norm4")
    return (x.max(axis=(1, 2)) @ w["linear.weight"].T + w["linear.bias"]) / 4


def test_torch_computes_the_network(arrays, images):
    model = torch_models.from_arrays(arrays).eval()
    with torch.inference_mode():
        logits = model(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(logits, logits_by_definition(arrays, images), rtol=1e-4, atol=1e-4)


def test_keras_computes_the_network(arrays, images):
    logits = keras_models.from_arrays(arrays).predict(images, verbose=0)
    np.testing.assert_allclose(logits, logits_by_definition(arrays, images), rtol=1e-4, atol=1e-4)


def test_number_of_parameters_agrees_with_the_docstring():
    trainable = sum(p.numel() for p in torch_models.AssessmentNet().parameters())
    assert trainable == 392_106
    assert sum(int(np.prod(v.shape)) for v in keras_models.AssessmentNet().trainable_variables) == (
        trainable
    )
    assert trainable == sum(
        int(np.prod(shape)) for name, shape in WEIGHTS.items() if not is_statistic(name)
    )


@pytest.mark.parametrize("models", [torch_models, keras_models], ids=["torch", "keras"])
def test_reads_back_the_weights_that_were_set(models, arrays):
    back = models.to_arrays(models.from_arrays(arrays))
    assert back.keys() == WEIGHTS.keys()
    for name, shape in WEIGHTS.items():
        assert back[name].shape == shape and back[name].dtype == np.float32
        np.testing.assert_array_equal(back[name], arrays[name])


def test_training_does_not_change_the_arrays():
    model = torch_models.AssessmentNet()
    before = torch_models.to_arrays(model)["linear.bias"]
    wanted = before.copy()
    model.linear.bias.data += 1
    np.testing.assert_array_equal(before, wanted)


@pytest.mark.parametrize("models", [torch_models, keras_models], ids=["torch", "keras"])
def test_names_a_missing_weight(models, arrays):
    short = {name: array for name, array in arrays.items() if name != "norm3.bias"}
    with pytest.raises(ValueError, match=r"Missing: \['norm3.bias'\]"):
        models.from_arrays(short)


def test_both_frameworks_train_with_batch_statistics(arrays, images):
    """In training mode both frameworks agree, and update the statistics with the same momentum of 0.1."""
    torch_model = torch_models.from_arrays(arrays).train()
    keras_model = keras_models.from_arrays(arrays)
    logits = torch_model(torch.from_numpy(images)).detach().numpy()
    np.testing.assert_allclose(keras_model(images, training=True), logits, rtol=1e-3, atol=1e-3)
    after_torch = torch_models.to_arrays(torch_model)
    after_keras = keras_models.to_arrays(keras_model)
    for name in WEIGHTS:
        if name.endswith("running_mean"):
            assert not np.allclose(after_torch[name], arrays[name])
            np.testing.assert_allclose(after_keras[name], after_torch[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("generation, fast", [(7, False), (8, True)])  # Turing, Ampere
def test_uses_float32_on_a_gpu_that_emulates_bfloat16(generation, fast, monkeypatch):
    properties = types.SimpleNamespace(major=generation)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    with torch_models.autocast("cuda"):
        assert torch.is_autocast_enabled("cuda") == fast
