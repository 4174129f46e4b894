"""What Keras 3 and legacy Keras say of an optimizer, a variable, a layer: each in its own way."""

import sys

from hvdlab.check.fingerprints import CHANNELS, LAYERS, number


def facts(optimizer, watch) -> dict:
    """Number, rate and momentum of an optimizer, and whether Horovod has wrapped it."""
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer  # of a LossScaleOptimizer
    ours = hasattr(type(inner), "_horovod") or hasattr(type(inner), "_allreduce")
    return {
        "optimizer": getattr(inner, "_hvdlab_number", None),
        "wrapped": ours or watch.tape,
        "rate": _rate(inner),
        "momentum": number(getattr(inner, "momentum", 0)) or 0.0,
    }


def _rate(optimizer) -> float | None:
    try:
        rate = optimizer.learning_rate
        return float(array(rate(optimizer.iterations) if callable(rate) else rate))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def array(value):
    """What a variable or tensor holds, of either Keras and any backend; not copied where it need not."""
    value = getattr(value, "value", value) if hasattr(value, "_value") else value  # Keras 3
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(
        value, "handle"
    ):  # a variable of TensorFlow: its own methods take three times as long
        read = sys.modules["tensorflow"].raw_ops.ReadVariableOp
        value = read(resource=value.handle, dtype=value.dtype)
    return value.__array__() if hasattr(value, "numpy") else value


def norm(value) -> float:
    """The norm of a variable: replicas agree in it to the last digit."""
    flat = array(value).ravel()
    if flat.dtype.itemsize < 4:  # float16, bfloat16
        flat = flat.astype("float32")
    return float(flat @ flat) ** 0.5


def statistics(model) -> list[dict]:
    found = []
    for layer in model._flatten_layers():
        if len(found) < LAYERS and hasattr(layer, "moving_mean"):
            found.append({
                "mean": array(layer.moving_mean)[:CHANNELS].tolist(),
                "variance": array(layer.moving_variance)[:CHANNELS].tolist(),
                "filled": 1 - layer.momentum ** max(1, _rounds(model)),
            })  # fmt: skip
    return found


def _rounds(model) -> int:
    return int(array(model.optimizer.iterations))
