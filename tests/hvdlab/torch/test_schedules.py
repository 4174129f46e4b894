"""Schedules against torch's own schedulers; their adapter in an optimizer; momentum correction."""

import io
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.optim import RMSprop  # noqa: E402
from torch.optim import lr_scheduler as oracle  # noqa: E402

from hvdlab.data.batches import Batches  # noqa: E402
from hvdlab.schedules import (  # noqa: E402
    batch_growth,
    constant,
    cosine_decay,
    gradual_warmup,
    one_cycle,
    polynomial_decay,
    step_decay,
    updates,
)
from hvdlab.torch import LAMB, LARS, NovoGrad  # noqa: E402
from hvdlab.torch.schedules import Schedule  # noqa: E402

N = 30


def sgd(lr=0.5, **options):
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=lr, **options)


def rates(optimizer, scheduler, n=N):
    """The learning rates of the first n updates."""
    found = []
    for _ in range(n):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def from_torch(make, **options):
    optimizer = sgd()
    return rates(optimizer, make(optimizer, **options))


# --- the pure functions ---------------------------------------------------------------------------


@pytest.mark.parametrize("shape, strategy", [("linear", "linear"), ("cosine", "cos")])
@pytest.mark.parametrize("fraction", [0.1, 0.3, 0.47, 0.9])
def test_one_cycle(shape, strategy, fraction):
    schedule = one_cycle(0.5, N, fraction, start=0.02, end=0.004, shape=shape)
    factors = dict(div_factor=25, final_div_factor=5, cycle_momentum=False)
    options = dict(max_lr=0.5, total_steps=N, pct_start=fraction, anneal_strategy=strategy)
    expected = from_torch(oracle.OneCycleLR, **options, **factors)
    assert [schedule(step) for step in range(N)] == pytest.approx(expected, rel=1e-12)


ORACLES = {
    "cosine": (
        cosine_decay(0.5, N, end=0.01),
        lambda: from_torch(oracle.CosineAnnealingLR, T_max=N, eta_min=0.01),
    ),
    "polynomial": (
        polynomial_decay(0.5, 20, power=2),
        lambda: from_torch(oracle.PolynomialLR, total_iters=20, power=2),
    ),
    "linear": (
        polynomial_decay(0.5, 20, power=1, end=0.05),
        lambda: from_torch(oracle.LinearLR, start_factor=1, end_factor=0.1, total_iters=20),
    ),
    "steps": (
        step_decay(0.5, [3, 10, 11], 0.2),
        lambda: from_torch(oracle.MultiStepLR, milestones=[3, 10, 11], gamma=0.2),
    ),
    "constant": (constant(0.5), lambda: from_torch(oracle.ConstantLR, factor=1)),
}


@pytest.mark.parametrize("schedule, expected", ORACLES.values(), ids=ORACLES)
def test_decays(schedule, expected):
    found = [schedule(step) for step in range(N)]
    assert found == pytest.approx(expected(), rel=1e-10, abs=1e-15)


def test_warmup_then_decay():
    """torch's line starts one step earlier, with `start` itself, so that the rate after it is full."""
    warmup_steps, milestones = 8, [5, 12]  # milestones after the warmup

    def make(optimizer):
        warmup = oracle.LinearLR(optimizer, start_factor=0.1, total_iters=warmup_steps)
        decay = oracle.MultiStepLR(optimizer, milestones, gamma=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own use of its deprecated step(epoch)
            return oracle.SequentialLR(optimizer, [warmup, decay], milestones=[warmup_steps])

    optimizer = sgd()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = rates(optimizer, make(optimizer))
    schedule = gradual_warmup(
        step_decay(0.5, [warmup_steps + milestone for milestone in milestones], 0.1),
        warmup_steps,
        start=0.05,
    )
    found = [schedule(step) for step in range(N)]
    assert found[:warmup_steps] == pytest.approx(expected[1 : warmup_steps + 1], rel=1e-12)
    assert found[warmup_steps:] == pytest.approx(expected[warmup_steps:], rel=1e-12)


# --- in an optimizer ------------------------------------------------------------------------------

CHANGING = gradual_warmup(step_decay(0.2, [12, 18], 0.1), 6, start=0.02)


def test_every_update_gets_the_rate_of_its_step():
    """Gradient -1 at rate r moves a weight by r: the rate that the update really used."""
    w = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=123.0)
    scheduler = Schedule(optimizer, CHANGING)
    path = [0.0]
    for _ in range(N):
        w.grad = torch.tensor(-1.0, dtype=torch.float64)
        optimizer.step()
        scheduler.step()
        path.append(w.item())
    assert np.diff(path) == pytest.approx([CHANGING(step) for step in range(N)], rel=1e-12)
    assert scheduler.get_last_lr() == [CHANGING(N)]


def two_groups(**options):
    weights = [{"params": [torch.nn.Parameter(torch.ones(2))], **options}]
    return torch.optim.SGD([*weights, {"params": [torch.nn.Parameter(torch.ones(2))]}], lr=0.5)


def test_one_function_for_all_groups_or_one_each():
    optimizer = two_groups()
    scheduler = Schedule(optimizer, CHANGING)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [CHANGING(1)] * 2

    optimizer = two_groups(lr=0.1)
    scheduler = Schedule(optimizer, [constant(0.3), CHANGING])
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, CHANGING(1)]


def test_a_rate_that_is_a_tensor_is_changed_in_place():
    rate = torch.tensor(0.5)
    optimizer = sgd(lr=rate, foreach=False)
    scheduler = Schedule(optimizer, CHANGING)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(CHANGING(1), rel=1e-6)


class PaperSGD(torch.optim.Optimizer):
    """v <- momentum v + lr g, w <- w - v, as in most papers; torch.optim.SGD has lr outside."""

    def __init__(self, params, lr, momentum):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                velocity = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                velocity.mul_(group["momentum"]).add_(p.grad, alpha=group["lr"])
                p.sub_(velocity)


def paper_sgd(p):
    return PaperSGD(p, lr=1.0, momentum=0.9)


def torch_sgd(p):
    return torch.optim.SGD(p, lr=1.0, momentum=0.9)


def lars(form, nesterov):
    return lambda p: LARS(
        p, trust_coefficient=0.1, weight_decay=0.01, momentum_form=form, nesterov=nesterov
    )


def parameter():
    values = np.random.default_rng(0).normal(size=(3, 4))
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def train(w, optimizer, scheduler, n=N):
    for _ in range(n):
        optimizer.zero_grad()
        (1 - torch.cos(w)).sum().backward()
        optimizer.step()
        scheduler.step()


def end(make, **options):
    w = parameter()
    optimizer = make([w])
    train(w, optimizer, Schedule(optimizer, CHANGING, **options))
    return w.detach().numpy()


@pytest.mark.parametrize(
    "inside, outside",
    [
        (paper_sgd, torch_sgd),
        (lars("paper", False), lars("torch", False)),
        (lars("paper", True), lars("torch", True)),
    ],
    ids=["SGD", "LARS", "LARS, Nesterov"],
)
def test_momentum_correction_makes_the_rate_inside_equal_the_rate_outside(inside, outside):
    expected = end(outside)
    np.testing.assert_allclose(end(inside, momentum_correction=True), expected, rtol=1e-12)
    assert np.abs(end(inside) - expected).max() > 0.001


def test_each_group_is_corrected_by_a_rate_of_its_own():
    """Two groups with schedules of their own go as two optimizers, of torch, apart."""
    schedules = [lambda step: 0.3 * CHANGING(step), CHANGING]
    expected = []
    for schedule in schedules:
        w = parameter()
        optimizer = torch_sgd([w])
        train(w, optimizer, Schedule(optimizer, schedule))
        expected.append(w.detach().numpy())

    both = [parameter(), parameter()]
    optimizer = paper_sgd([{"params": [w]} for w in both])
    scheduler = Schedule(optimizer, schedules, momentum_correction=True)
    for _ in range(N):
        optimizer.zero_grad()
        sum((1 - torch.cos(w)).sum() for w in both).backward()
        optimizer.step()
        scheduler.step()
    for w, theirs in zip(both, expected, strict=True):
        np.testing.assert_allclose(w.detach().numpy(), theirs, rtol=1e-12)


def test_a_rate_of_zero_forgets_the_velocity():
    w = parameter()
    optimizer = paper_sgd([w])
    scheduler = Schedule(optimizer, lambda step: 0.1 * (step != 3), momentum_correction=True)
    train(w, optimizer, scheduler, 3)
    assert not optimizer.state[w]["momentum_buffer"].any()
    train(w, optimizer, scheduler, 3)
    assert optimizer.state[w]["momentum_buffer"].isfinite().all()


@pytest.mark.parametrize("stop", [4, 12, 13])  # in the warmup, before and after a milestone
def test_a_resumed_run_equals_one_that_never_stopped(stop):
    w = parameter()
    optimizer = paper_sgd([w])
    scheduler = Schedule(optimizer, CHANGING, momentum_correction=True)
    train(w, optimizer, scheduler, stop)
    file = io.BytesIO()
    states = {"w": w.detach(), "optimizer": optimizer.state_dict(), "rate": scheduler.state_dict()}
    torch.save(states, file)
    file.seek(0)
    states = torch.load(file, weights_only=True)  # which refuses functions

    w = torch.nn.Parameter(states["w"])
    optimizer = paper_sgd([w])
    scheduler = Schedule(optimizer, CHANGING, momentum_correction=True)
    optimizer.load_state_dict(states["optimizer"])
    scheduler.load_state_dict(states["rate"])
    train(w, optimizer, scheduler, N - stop)
    np.testing.assert_array_equal(w.detach().numpy(), end(paper_sgd, momentum_correction=True))


def test_last_epoch_continues_a_schedule():
    optimizer = sgd()
    Schedule(optimizer, CHANGING)
    scheduler = Schedule(optimizer, CHANGING, last_epoch=10)
    assert rates(optimizer, scheduler, 5) == [CHANGING(step) for step in range(11, 16)]


def test_a_growing_batch_makes_the_updates_that_it_should():
    images, labels = np.zeros((50, 2, 2, 1), np.uint8), np.arange(50)
    optimizer, used = sgd(), []
    plan = batch_growth(4, [1, 2, 3], 2, batch_size=4, max_batch_size=8, learning_rate=0.1)
    for epoch, (batch_size, rate) in enumerate(plan):
        batches = Batches(images, labels, batch_size // 2, rank=1, size=2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for _ in batches.epoch(epoch):
            optimizer.step()
            used.append(optimizer.param_groups[0]["lr"])
    assert used == [0.1] * 13 + [0.1] * 7 + [0.05] * 7 + [0.025] * 7
    assert len(used) == updates(50, [batch_size for batch_size, _ in plan])


@pytest.mark.parametrize(
    "make, schedule, options, text",
    [
        (sgd, 0.1, {}, "schedule must be a function"),
        (sgd, [0.1], {}, "schedule must be a function"),
        (two_groups, [constant(1)], {}, "for 2 groups"),
        (lambda: two_groups(lr=0.1), constant(1), {}, r"groups with lr=\[0.1, 0.5\]"),
        (sgd, constant(1), {"momentum_correction": True}, "momentum_correction must be False"),
        (
            lambda: LARS([torch.nn.Parameter(torch.ones(2))]),
            constant(1),
            {"momentum_correction": True},
            "optimizer=LARS",
        ),
        *(
            (
                lambda cls=cls: cls([torch.nn.Parameter(torch.ones(2))]),
                constant(1),
                {"momentum_correction": True},
                f"optimizer={cls.__name__}",
            )
            for cls in (RMSprop, torch.optim.Adam, LAMB, NovoGrad, type("Mine", (RMSprop,), {}))
        ),
    ],
)
def test_bad_arguments(make, schedule, options, text):
    with pytest.raises(ValueError, match=text):
        Schedule(make(), schedule, **options)
