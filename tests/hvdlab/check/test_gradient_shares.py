"""The shares of the ranks in a gradient, from sketches that are computed here from whole gradients."""

import numpy as np
import pytest
from check_events import as_run, run

from hvdlab.check import gradient_shares


def of(*used, ranks=2, noise=0.0):
    """Return kind and total of rank 0 where the optimizers use these shares of the gradients."""
    draw = np.random.default_rng(0)
    signs = draw.choice([-1.0, 1.0], (5000, 16))
    gradients = draw.normal(size=(ranks, 5000)) + 0.3  # they have a part in common
    local = gradients @ signs
    made = [
        (np.asarray(shares) @ gradients + noise * draw.normal(size=5000)) @ signs for shares in used
    ]
    events = run(
        steps=1, ranks=ranks,
        gradient=lambda rank, step: {"used": made[rank].tolist(), "local": local[rank].tolist()},
    )  # fmt: skip
    (step,) = gradient_shares.of_optimizer(as_run(events), 0)
    return step[0].kind, round(step[0].total, 3)


@pytest.mark.parametrize(
    "shares, kind, total",
    [
        ([(0.5, 0.5)] * 2, "mean", 1.0),
        ([(1, 1)] * 2, "mean", 2.0),
        ([(0.05, 0.05)] * 2, "mean", 0.1),  # clipped after the average
        ([(1, 0), (0, 1)], "own", 1.0),
        ([(0.3, 0), (0, 0.3)], "own", 0.3),  # clipped, and not averaged
        ([(0.2, 0.5)] * 2, "uneven", 0.7),
    ],
)
def test_a_linear_sketch_keeps_the_shares(shares, kind, total):
    assert of(*shares) == (kind, total)


def test_four_ranks():
    assert of(*[(0.25,) * 4] * 4, ranks=4) == ("mean", 1.0)
    assert of(*[(0.5, 0.5, 0, 0)] * 4, ranks=4)[0] == "uneven"  # a group of two ranks
    assert of(*np.eye(4), ranks=4) == ("own", 1.0)


def test_rounding_is_no_other_thing_and_noise_is():
    assert of(*[(0.5, 0.5)] * 2, noise=1e-3)[0] == "mean"
    assert of(*[(0.5, 0.5)] * 2, noise=1.0)[0] == "unknown"


def test_equal_gradients_cannot_be_told_apart():
    local = [float(n) for n in range(16)]
    events = run(steps=1, gradient=lambda rank, step: {"used": local, "local": local})
    (step,) = gradient_shares.of_optimizer(as_run(events), 0)
    assert {share.kind for share in step} == {"unknown"}
    assert gradient_shares.averages(as_run(events), 0)  # it is wrapped
