"""The networks of the assessment in Keras. `hvdlab.torch.models` has the same networks in PyTorch."""

from functools import partial

import keras
import numpy as np
from keras import layers

from hvdlab import probe_mode
from hvdlab.assessment_networks import (
    ASSESSMENT_NET,
    depth_and_width,
    given_network,
    network_weights,
)
from hvdlab.keras.wide_resnet import WideResNet
from hvdlab.record import PIXEL_MEAN, PIXEL_STD
from hvdlab.system.hardware import cpu_is_fast_at_bfloat16, gpu_compute_capability


def fast_policy() -> str:
    """Return the dtype policy to train with.

    Returns:
        "mixed_bfloat16" if the GPU (from compute capability 8.0 on), or else the processor, computes fast
        in bfloat16; otherwise "float32".
    """
    if probe_mode.COPIES:
        keras.utils.set_random_seed(probe_mode.SEED)  # the caller is about to build a network
        return probe_mode.DTYPE
    gpu = gpu_compute_capability()
    fast = gpu >= (8, 0) if gpu else cpu_is_fast_at_bfloat16()
    return "mixed_bfloat16" if fast else "float32"


def AssessmentNet(dtype: str = "float32") -> keras.Model:
    """Return a convolutional network for 32 x 32 colour images with 392,106 trainable parameters.

    Input: uint8 images (batch, 32, 32, 3) as `hvdlab.data` returns them. Normalisation is part of the
    network, so an evaluation needs nothing but the pixels. Output: float32 logits (batch, 10).

    Args:
        dtype: dtype policy of the layers, such as "mixed_bfloat16" (see `fast_policy`). The variables are
            float32 in any case. Default "float32".
    """
    if probe_mode.COPIES:
        keras.utils.set_random_seed(probe_mode.SEED)
        dtype = probe_mode.DTYPE

    def norm(name: str) -> layers.Layer:
        return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, name=name)

    def conv(filters: int, name: str) -> layers.Layer:
        return layers.Conv2D(filters, 3, padding="same", use_bias=False, dtype=dtype, name=name)

    relu, halve = partial(layers.ReLU, dtype=dtype), partial(layers.MaxPooling2D, dtype=dtype)
    std = np.array(PIXEL_STD)
    images = layers.Input((32, 32, 3), dtype="uint8")
    x = layers.Rescaling((1 / 255 / std).tolist(), (-np.array(PIXEL_MEAN) / std).tolist())(images)
    x = layers.Conv2D(
        32, 4, strides=2, padding="same", activation="relu", dtype=dtype, name="conv1"
    )(x)
    x = relu()(norm("norm2")(halve()(conv(64, "conv2")(x))))
    x = relu()(norm("norm3")(halve()(conv(128, "conv3")(x))))
    x = relu()(norm("norm4")(conv(256, "conv4")(x)))
    x = layers.GlobalMaxPooling2D(dtype=dtype)(x)
    x = layers.Dense(10, dtype=dtype, name="linear")(x)
    # Small logits at the start allow a large learning rate.
    logits = layers.Rescaling(1 / 4, dtype=probe_mode.DTYPE if probe_mode.COPIES else "float32")(x)
    return keras.Model(images, logits, name="assessment_net")


def assessment_network(dtype: str = "float32", name: str | None = None) -> keras.Model:
    """Return the network of the assessment: `AssessmentNet`, or WRN-16-10 in the grader's profile `gpu`.

    Args:
        dtype: dtype policy of the layers, see `fast_policy`. The variables are float32 in any case.
            Default "float32".
        name: "assessment-net" or "wrn-DEPTH-WIDTH". Default: the environment variable HVDLAB_NETWORK,
            which the grader sets from its profile; "assessment-net" if it is not set.

    Raises:
        ValueError: there is no network of that name.
    """
    name = name or given_network()
    if name == ASSESSMENT_NET:
        return AssessmentNet(dtype)
    return WideResNet(*depth_and_width(name), dtype)


# Keras' names of the variables, by the names in `hvdlab.assessment_networks`.
VARIABLES = {
    "weight": "kernel",
    "bias": "bias",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}


def _variable(model: keras.Model, name: str) -> keras.Variable:
    layer, _, kind = name.rpartition(".")
    layer = model.get_layer(layer)
    if isinstance(layer, layers.BatchNormalization):
        return getattr(layer, {"weight": "gamma", "bias": "beta"}.get(kind) or VARIABLES[kind])
    return getattr(layer, VARIABLES[kind])


def _axes(array_dimensions: int, to_keras: bool) -> tuple[int, ...]:
    """Return the order of axes from (out, in, height, width) to (height, width, in, out), or back."""
    if array_dimensions == 4:
        return (2, 3, 1, 0) if to_keras else (3, 2, 0, 1)
    return tuple(reversed(range(array_dimensions)))


def to_arrays(model: keras.Model, network: str = ASSESSMENT_NET) -> dict[str, np.ndarray]:
    """Return the weights and batch-norm statistics of a network as float32 arrays, by name.

    Args:
        model: a network from `assessment_network`.
        network: its name. Default "assessment-net".

    Returns:
        arrays with the names and shapes of `hvdlab.assessment_networks`, which are those of PyTorch.
    """
    arrays = {}
    for name in network_weights(network):
        array = keras.ops.convert_to_numpy(_variable(model, name).value).astype(np.float32)
        arrays[name] = np.ascontiguousarray(array.transpose(_axes(array.ndim, to_keras=False)))
    return arrays


def shapes(model: keras.Model, network: str = ASSESSMENT_NET) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that `to_arrays` returns, without the weights that the model lacks.

    Args:
        model: a model whose layers have the names of a network from `assessment_network`.
        network: name of the network. Default "assessment-net".
    """
    found = {}
    for name in network_weights(network):
        try:
            shape = _variable(model, name).shape
        except AttributeError:  # a layer of another kind, or one without a bias
            continue
        found[name] = tuple(shape[axis] for axis in _axes(len(shape), to_keras=False))
    return found


def from_arrays(
    arrays: dict[str, np.ndarray], dtype: str = "float32", network: str = ASSESSMENT_NET
) -> keras.Model:
    """Return a network with the weights that `to_arrays` returned, here or in `hvdlab.torch.models`.

    Args:
        arrays: weights and batch-norm statistics by name.
        dtype: dtype policy of the layers, see `fast_policy`. Default "float32".
        network: name of the network. Default "assessment-net".

    Raises:
        ValueError: arrays are missing or unexpected; the message names them.
    """
    wanted = network_weights(network).keys()
    if arrays.keys() != wanted:
        raise ValueError(
            f"arrays must hold the weights of {network}. "
            f"Missing: {sorted(wanted - arrays.keys())}. Unexpected: {sorted(arrays.keys() - wanted)}"
        )
    model = assessment_network(dtype, network)
    for name, array in arrays.items():
        _variable(model, name).assign(array.transpose(_axes(array.ndim, to_keras=True)))
    return model
