"""The network and data that Keras 3 and legacy Keras train, for a comparison. It imports no framework."""

import sys

import numpy as np

BATCH_SIZE, STEPS = 4, 6


def data():
    """Return inputs (48, 5) and targets (48, 3): `STEPS` batches for each of two ranks."""
    rng = np.random.default_rng(0)
    shape = (2 * BATCH_SIZE * STEPS,)
    return rng.normal(size=(*shape, 5)).astype("f4"), rng.normal(size=(*shape, 3)).astype("f4")


def start():
    """Return the weights of a network with layers of 7 and 3 units, for equal starts."""
    rng = np.random.default_rng(1)
    return [rng.normal(0, 0.5, shape).astype("f4") for shape in ((5, 7), (7,), (7, 3), (3,))]


# Name -> optimizer class, its arguments, and those of hvd.DistributedOptimizer ("$name": hvd.name).
MOMENTUM = {"learning_rate": 0.05, "momentum": 0.9}
SETTINGS = {
    "nesterov": ("SGD", {**MOMENTUM, "nesterov": True}, {}),
    "adam": ("Adam", {"learning_rate": 0.01}, {}),
    "global_clipnorm": ("SGD", {**MOMENTUM, "global_clipnorm": 0.1}, {}),
    "clipnorm": ("SGD", {**MOMENTUM, "clipnorm": 0.1}, {}),
    "clipvalue": ("SGD", {**MOMENTUM, "clipvalue": 0.03}, {}),
    "sum": ("SGD", MOMENTUM, {"op": "$Sum"}),
    "fp16": ("SGD", MOMENTUM, {"compression": "$Compression.fp16"}),
    "predivide": ("SGD", MOMENTUM, {"gradient_predivide_factor": 2.0}),
    "sum of passes": ("SGD", MOMENTUM, {"backward_passes_per_step": 3}),
    "mean of passes": (
        "SGD",
        {**MOMENTUM, "global_clipnorm": 0.1},
        {"backward_passes_per_step": 3, "average_aggregated_gradients": True},
    ),
}


def chosen():
    """Return the settings that the command line names, or all of them."""
    return {name: SETTINGS[name] for name in sys.argv[1:] or SETTINGS}


def wrap(hvd, optimizers, name):
    """Return the wrapped optimizer of a setting, from a Horovod and an optimizers module."""
    kind, arguments, options = SETTINGS[name]
    resolved = {}
    for key, value in options.items():
        if isinstance(value, str):
            target = hvd
            for part in value.removeprefix("$").split("."):
                target = getattr(target, part)
            value = target
        resolved[key] = value
    return hvd.DistributedOptimizer(getattr(optimizers, kind)(**arguments), **resolved)
