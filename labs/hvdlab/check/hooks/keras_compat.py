"""Optimizers, variables and layers of Keras 3 and legacy Keras, which have different interfaces."""

import sys
from typing import Any

from hvdlab.check.fingerprints import CHANNELS, LAYERS, number


def facts(optimizer: Any) -> dict[str, Any]:
    """Return what the events of an optimizer contain.

    Args:
        optimizer: of Keras 3 or legacy Keras.

    Returns:
        "optimizer" (its number), "wrapped" (by Horovod), "rate" (learning rate), "momentum".
    """
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer  # of a LossScaleOptimizer
    wrapped = hasattr(type(inner), "_horovod") or hasattr(type(inner), "_allreduce")
    return {
        "optimizer": getattr(inner, "_hvdlab_number", None),
        "wrapped": wrapped,
        "rate": _rate(inner),
        "rate_line": getattr(inner, "_hvdlab_rate_line", None),
        "momentum": number(getattr(inner, "momentum", 0)) or 0.0,
    }


def _rate(optimizer: Any) -> float | None:
    """Return the learning rate of an optimizer, or None if it cannot be read."""
    try:
        rate = optimizer.learning_rate
        return float(array(rate(optimizer.iterations) if callable(rate) else rate))
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def array(value: Any) -> Any:
    """Return the value of a variable or tensor of either Keras and any backend.

    Returns:
        A NumPy array, which is not copied where that is not necessary; a number unchanged.
    """
    value = getattr(value, "value", value) if hasattr(value, "_value") else value  # Keras 3
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    # The methods of a TensorFlow variable take three times as long.
    if hasattr(value, "handle"):
        read = sys.modules["tensorflow"].raw_ops.ReadVariableOp
        value = read(resource=value.handle, dtype=value.dtype)
    return value.__array__() if hasattr(value, "numpy") else value


def norm(value: Any) -> float:
    """Return the norm of a variable, which is equal on all replicas to the last digit."""
    flat = array(value).ravel()
    if flat.dtype.itemsize < 4:  # float16, bfloat16
        flat = flat.astype("float32")
    return float(flat @ flat) ** 0.5


def statistics(model: Any) -> list[dict]:
    """Return the running statistics of the first LAYERS batch norm layers of a model.

    Returns:
        Per layer "mean" and "variance" of the first CHANNELS channels, and "filled": the fraction of the
        running mean that does not come from its initial value.
    """
    found = []
    for layer in model._flatten_layers():
        if len(found) < LAYERS and hasattr(layer, "moving_mean"):
            updates = max(1, int(array(model.optimizer.iterations)))
            found.append({
                "mean": array(layer.moving_mean)[:CHANNELS].tolist(),
                "variance": array(layer.moving_variance)[:CHANNELS].tolist(),
                "filled": 1 - layer.momentum ** updates,
            })  # fmt: skip
    return found
