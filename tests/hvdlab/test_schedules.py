"""Learning rates and update counts compared with values computed by hand and in the papers."""

import doctest
import math

import pytest

from hvdlab import schedules as module
from hvdlab.data.batches import steps
from hvdlab.schedules import (
    batch_growth,
    constant,
    cosine_decay,
    gradual_warmup,
    linear_scaling,
    momentum_correction,
    one_cycle,
    polynomial_decay,
    square_root_scaling,
    step_decay,
    updates,
)

CIFAR10 = 50000
MILESTONES = [60, 120, 160]


def rates(schedule, n):
    return [schedule(step) for step in range(n)]


def approx(values):
    return pytest.approx(values, rel=1e-12, abs=1e-15)


def test_docstring_examples():
    assert doctest.testmod(module).failed == 0


def test_learning_rate_scaling():
    assert linear_scaling(0.1, 8192 / 256) == approx(3.2)  # Goyal et al., table 1
    assert square_root_scaling(0.1, 2048 / 128) == approx(0.4)
    assert type(linear_scaling(1, 8)) is type(square_root_scaling(1, 4)) is float


# --- the learning rate over a run -----------------------------------------------------------------

S = math.sqrt(0.5)  # cos(pi / 4)

# Values at steps 0, 1, 2, ...; each list goes beyond the end of its schedule.
EXPECTED = {
    "constant": (constant(3), [3.0] * 4),
    "steps": (step_decay(1.0, [2, 5], 0.1), [1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
    "line": (polynomial_decay(1.0, 4, power=1, end=0.2), [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
    "square": (polynomial_decay(16.0, 4), [16, 9, 4, 1, 0, 0, 0]),
    "cosine": (
        cosine_decay(1.0, 4, end=0.5),
        [1, 0.75 + 0.25 * S, 0.75, 0.75 - 0.25 * S, 0.5, 0.5],
    ),
    "triangle": (
        one_cycle(1.0, 10, 0.4, start=0.1, end=0.0),
        [0.1, 0.4, 0.7, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0, 0],
    ),
    "wave": (
        one_cycle(1.0, 9, 5 / 9, start=0.2, end=0.4, shape="cosine"),
        [0.2, 0.6 - 0.4 * S, 0.6, 0.6 + 0.4 * S, 1, 0.7 + 0.3 * S, 0.7, 0.7 - 0.3 * S, 0.4, 0.4],
    ),
    "warmup": (gradual_warmup(constant(0.8), 4, start=0.2), [0.35, 0.5, 0.65, 0.8, 0.8]),
    "no warmup": (gradual_warmup(constant(0.8), 0, start=0.2), [0.8, 0.8]),
    # The decay counts the warmup's steps too. The linear warmup ends at the decay's value of its last step.
    "warmup, decay": (
        gradual_warmup(polynomial_decay(1.0, 5, power=1), 2, start=0.0),
        [0.4, 0.8, 0.6, 0.4, 0.2, 0],
    ),
}


@pytest.mark.parametrize("schedule, expected", EXPECTED.values(), ids=EXPECTED)
def test_schedules_by_hand(schedule, expected):
    found = rates(schedule, len(expected))
    assert found == approx(expected)
    assert {type(rate) for rate in found} == {float}


def test_decays_accept_epochs_with_a_fraction():
    by_epoch, by_step = step_decay(0.1, [30, 60, 80], 0.1), step_decay(0.1, [300, 600, 800], 0.1)
    assert [by_epoch(step / 10) for step in range(900)] == rates(by_step, 900)
    for make in (polynomial_decay, cosine_decay):
        assert [make(0.1, 90)(step / 10) for step in range(999)] == approx(
            rates(make(0.1, 900), 999)
        )


@pytest.mark.parametrize("size", [2, 8, 256])
def test_gradual_warmup_equals_horovods_callback(size):
    full_rate, warmup_epochs, steps_per_epoch = 3.2, 5, 7
    warmup_steps = warmup_epochs * steps_per_epoch

    def horovod(step):  # horovod/_keras/callbacks.py, LearningRateWarmupCallback
        epoch = (step + 1) / steps_per_epoch
        return full_rate / size * (epoch * (size - 1) / warmup_epochs + 1)

    schedule = gradual_warmup(constant(full_rate), warmup_steps, start=full_rate / size)
    assert rates(schedule, warmup_steps) == approx([horovod(step) for step in range(warmup_steps)])
    assert schedule(warmup_steps - 1) == full_rate  # exactly, at the last batch of the warmup


def test_momentum_correction_equals_momentum_without_the_learning_rate():
    schedule = gradual_warmup(step_decay(0.2, [25, 35], 0.1), 10, start=0.02)
    gradient = math.sin  # of 1 - cos(w)
    ends = {}
    for form in ("outside", "corrected", "inside"):
        w, velocity, old_rate = 2.0, 0.0, schedule(0)
        for rate in rates(schedule, 45):
            if form == "outside":
                velocity = 0.9 * velocity + gradient(w)
                w -= rate * velocity
            else:
                momentum = momentum_correction(0.9, rate, old_rate) if form == "corrected" else 0.9
                velocity = momentum * velocity + rate * gradient(w)
                w -= velocity
            old_rate = rate
        ends[form] = w
    assert ends["corrected"] == pytest.approx(ends["outside"], rel=1e-12)
    assert abs(ends["inside"] - ends["outside"]) > 0.01


# --- the batch size over a run --------------------------------------------------------------------


def batch_sizes(batch_size, max_batch_size, epochs=200):
    plan = batch_growth(epochs, MILESTONES, 5, batch_size, max_batch_size, learning_rate=0.1)
    return [batch_size for batch_size, _ in plan]


def test_the_batch_size_grows_before_the_learning_rate_falls():
    plan = batch_growth(200, MILESTONES, 5, 128, max_batch_size=640, learning_rate=0.5)
    expected = [(128, 0.5)] * 60 + [(640, 0.5)] * 60 + [(640, 0.1)] * 40 + [(640, 0.02)] * 40
    assert [size for size, _ in plan] == [size for size, _ in expected]
    assert [rate for _, rate in plan] == approx([rate for _, rate in expected])


@pytest.mark.parametrize("largest", [128, 129, 640, 1000, 3200, 5120, 16000, 50000])
def test_a_growing_batch_has_the_noise_of_a_falling_learning_rate(largest):
    """Smith et al., equation 3: the noise is proportional to learning rate / batch size."""
    decay = step_decay(0.1, MILESTONES, 1 / 5)
    plan = batch_growth(200, MILESTONES, 5, 128, largest, learning_rate=0.1)
    assert [rate / size for size, rate in plan] == approx([decay(e) / 128 for e in range(200)])
    assert max(size for size, _ in plan) == min(largest, 16000)


# Smith et al., sections 5.1 and 5.2, WRN-16-4: their rounded counts, and exact counts by hand.
PAPER = {
    "decaying learning rate": (
        [128] * 200,
        (200 * 391, 200 * 390),
        (78200, 78000),
        lambda n: round(n, -4) == 80_000,
    ),
    "increasing batch size": (
        batch_sizes(128, 16000),
        (60 * 391 + 60 * 79 + 40 * 16 + 40 * 4, 60 * 390 + 60 * 78 + 40 * 15 + 40 * 3),
        (29000, 28800),
        lambda n: round(n, -3) == 29_000,
    ),
    "increased initial learning rate": (
        batch_sizes(640, 5120),
        (60 * 79 + 60 * 16 + 80 * 10, 60 * 78 + 60 * 15 + 80 * 9),
        (6500, 6300),
        lambda n: 6_000 < n <= 6_500,
    ),
    "increased momentum coefficient": (
        batch_sizes(3200, 5120),
        (60 * 16 + 140 * 10, 60 * 15 + 140 * 9),
        (2360, 2160),
        lambda n: n < 2_500,
    ),
}


@pytest.mark.parametrize("sizes, by_hand, total, as_in_paper", PAPER.values(), ids=PAPER)
def test_update_counts_of_the_paper(sizes, by_hand, total, as_in_paper):
    counts = updates(CIFAR10, sizes), updates(CIFAR10, sizes, drop_last=True)
    assert counts == by_hand == total
    assert all(map(as_in_paper, counts))
    assert counts[1] <= sum(CIFAR10 / size for size in sizes) <= counts[0]


def test_decay_at_128_has_78125_updates_if_batches_cross_epochs():
    assert updates(CIFAR10 * 200, [128]) == 78125 == CIFAR10 * 200 / 128


@pytest.mark.parametrize("size", [1, 4, 7])
def test_update_counts_equal_the_steps_of_the_ranks(size):
    sizes = [size * local for local in (3, 32, 1000)]
    by_rank = sum(steps(CIFAR10, size, local) for local in (3, 32, 1000))
    assert updates(CIFAR10, sizes) == by_rank


# --- bad arguments --------------------------------------------------------------------------------

GROWTH = dict(epochs=4, milestones=[2], factor=5, batch_size=8, max_batch_size=40, learning_rate=1)
CYCLE = dict(peak=1.0, total_steps=10, rise_fraction=0.3, start=0.1, end=0.0)
DECAY = dict(rate=1.0, total_steps=10)
STEPS = dict(rate=1.0, milestones=[1], factor=0.1)
LINE = "milestones must be a list of increasing numbers of at least 0. Received: milestones="

BAD = [
    (linear_scaling, dict(learning_rate=0, factor=1), "learning_rate must be a number above 0"),
    (linear_scaling, dict(learning_rate=1, factor="2"), "a number above 0. Received: factor='2'"),
    (square_root_scaling, dict(learning_rate=1, factor=-1), "Received: factor=-1"),
    (square_root_scaling, dict(learning_rate=math.nan, factor=1), "Received: learning_rate=nan"),
    (constant, dict(rate=True), "Received: rate=True"),
    (constant, dict(rate=math.inf), "rate must be a number above 0. Received: rate=inf"),
    (step_decay, {**STEPS, "rate": -1}, "rate must be a number above 0. Received: rate=-1"),
    (step_decay, {**STEPS, "milestones": [3, 2]}, LINE + r"\[3, 2\]"),
    (step_decay, {**STEPS, "milestones": [2, 2]}, LINE + r"\[2, 2\]"),
    (step_decay, {**STEPS, "milestones": [-1, 2]}, LINE + r"\[-1, 2\]"),
    (step_decay, {**STEPS, "milestones": ["1"]}, LINE + r"\['1'\]"),
    (step_decay, {**STEPS, "milestones": 30}, LINE + "30"),
    (
        step_decay,
        {**STEPS, "factor": 5},
        "factor must be a number above 0 to 1. Received: factor=5",
    ),
    (step_decay, {**STEPS, "factor": 0}, "Received: factor=0"),
    (polynomial_decay, {**DECAY, "rate": 0}, "Received: rate=0"),
    (polynomial_decay, {**DECAY, "total_steps": 0}, "Received: total_steps=0"),
    (polynomial_decay, {**DECAY, "power": 0}, "power must be a number above 0"),
    (polynomial_decay, {**DECAY, "end": -1}, "end must be a number of at least 0"),
    (cosine_decay, {**DECAY, "rate": None}, "Received: rate=None"),
    (cosine_decay, {**DECAY, "total_steps": -5}, "Received: total_steps=-5"),
    (cosine_decay, {**DECAY, "end": -1}, "Received: end=-1"),
    (one_cycle, {**CYCLE, "peak": 0}, "Received: peak=0"),
    (one_cycle, {**CYCLE, "total_steps": 10.0}, "total_steps must be a whole number of at least 1"),
    (one_cycle, {**CYCLE, "rise_fraction": 0}, "Received: rise_fraction=0"),
    (one_cycle, {**CYCLE, "rise_fraction": 1}, "Received: rise_fraction=1"),
    (one_cycle, {**CYCLE, "start": -1}, "Received: start=-1"),
    (one_cycle, {**CYCLE, "end": -1}, "Received: end=-1"),
    (
        one_cycle,
        {**CYCLE, "shape": "cos"},
        "shape must be 'linear' or 'cosine'. Received: shape='cos'",
    ),
    (gradual_warmup, dict(schedule=0.1, warmup_steps=5, start=0), "Received: schedule=0.1"),
    (gradual_warmup, dict(schedule=abs, warmup_steps=-1, start=0), "Received: warmup_steps=-1"),
    (gradual_warmup, dict(schedule=abs, warmup_steps=2.5, start=0), "Received: warmup_steps=2.5"),
    (gradual_warmup, dict(schedule=abs, warmup_steps=5, start=-1), "Received: start=-1"),
    (momentum_correction, dict(momentum=1, new_rate=1, old_rate=1), "from 0 to below 1"),
    (momentum_correction, dict(momentum=0.9, new_rate=-1, old_rate=1), "Received: new_rate=-1"),
    (momentum_correction, dict(momentum=0.9, new_rate=1, old_rate=0), "Received: old_rate=0"),
    (batch_growth, {**GROWTH, "epochs": 0}, "Received: epochs=0"),
    (batch_growth, {**GROWTH, "milestones": [1, 1]}, LINE),
    (batch_growth, {**GROWTH, "factor": 1}, "factor must be a whole number of at least 2"),
    (batch_growth, {**GROWTH, "factor": 0.2}, "Received: factor=0.2"),
    (batch_growth, {**GROWTH, "batch_size": 0}, "Received: batch_size=0"),
    (batch_growth, {**GROWTH, "max_batch_size": 7}, "at least 8. Received: max_batch_size=7"),
    (batch_growth, {**GROWTH, "learning_rate": 0}, "Received: learning_rate=0"),
    (updates, dict(examples=0, batch_sizes=[1]), "Received: examples=0"),
    (updates, dict(examples=10, batch_sizes=5), "one per epoch. Received: batch_sizes=5"),
    (updates, dict(examples=10, batch_sizes=[5, 0]), r"Received: batch_sizes=\[5, 0\]"),
]


@pytest.mark.parametrize("function, arguments, text", BAD)
def test_names_bad_arguments(function, arguments, text):
    with pytest.raises(ValueError, match=text):
        function(**arguments)


@pytest.mark.parametrize(
    "total_steps, expected",
    [(4, [1, 2 / 3, 1 / 3, 0]), (2, [2 / 3, 0]), (1, [0])],  # the peak is at step 0, -0.5 and -0.75
)
def test_one_cycle_of_few_updates_only_falls(total_steps, expected):
    """A script has few updates if it accumulates gradients and there are few images."""
    schedule = one_cycle(1.0, total_steps, 0.25, start=0.1, end=0.0)
    assert [schedule(step) for step in range(total_steps)] == pytest.approx(expected)
