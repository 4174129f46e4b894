"""What Keras 3 and legacy Keras say of an optimizer, a variable, a layer: each in its own way."""

from hvdlab.check.samples import CHANNELS, LAYERS, number


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
    value = getattr(value, "value", value) if hasattr(value, "_value") else value  # Keras 3
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return value.numpy() if hasattr(value, "numpy") else value


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
