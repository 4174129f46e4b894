"""Predict the speed of N ranks with a cost model of all-reduce and of a training step."""

from hvdlab.scaling.cost_model import (
    Cluster,
    Forecast,
    Link,
    Network,
    calibrate,
    exchange,
    forecast,
    hierarchical,
    ring,
    step,
)

__all__ = [
    "Cluster",
    "Forecast",
    "Link",
    "Network",
    "calibrate",
    "exchange",
    "forecast",
    "hierarchical",
    "ring",
    "step",
]
