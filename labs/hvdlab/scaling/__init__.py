"""Predict the speed of N ranks with a cost model of all-reduce and of a training step.

`hvdlab.scaling.memory` predicts the memory of each GPU, `hvdlab.scaling.pipeline` the schedule of a pipeline,
`hvdlab.scaling.training_cost` the GPU hours and days of a training, and `hvdlab.scaling.transformer` counts
parameters and the KV cache.
"""

from hvdlab.scaling.all_reduce import ALGORITHMS, Cluster, Link, calibrate, hierarchical, ring, tree
from hvdlab.scaling.cost_model import (
    Forecast,
    Network,
    exchange,
    first_below,
    forecast,
    step,
    step_compute,
)

__all__ = [
    "ALGORITHMS",
    "Cluster",
    "Forecast",
    "Link",
    "Network",
    "calibrate",
    "exchange",
    "first_below",
    "forecast",
    "hierarchical",
    "ring",
    "step",
    "step_compute",
    "tree",
]
