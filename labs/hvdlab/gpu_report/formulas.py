"""Optimizers, schedules, ghost batch norm and noise on the device, compared with `hvdlab.reference`.

The reference is NumPy in float64. In float64 the device must agree to 1e-12. float32 and bfloat16 have the
limits that their rounding allows; bfloat16 makes a single step, on weights that it can represent.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hvdlab import reference
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, name, set_precision
from hvdlab.noise_scale import NoiseScale
from hvdlab.schedules import cosine_decay, gradual_warmup, one_cycle, polynomial_decay, step_decay
from hvdlab.torch import LAMB, LARS, NovoGrad
from hvdlab.torch.noise import GradientNoise, LossWeights, squared_norm
from hvdlab.torch.normalization import GhostBatchNorm2d
from hvdlab.torch.schedules import Schedule

SHAPES = ((16, 8, 3, 3), (32, 16), (16,), (7, 5))
STEPS, TOTAL = 8, 12
LIMITS = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2}
EXPECTED = "hvdlab.reference (NumPy)"
SCHEDULES = {
    "warmup and cosine decay": gradual_warmup(cosine_decay(0.1, TOTAL), 3, start=0.01),
    "polynomial decay": polynomial_decay(0.1, TOTAL),
    "step decay": step_decay(0.1, [3, 6], 0.1),
    "one cycle": one_cycle(0.1, TOTAL, 0.4, 0.004, 0.0),
}


@dataclass(frozen=True)
class Case:
    """An optimizer, the function that is its formula, and how that one keeps its state."""

    make: Callable
    update: Callable  # (w, g, state, t, rate, adapt) -> w; changes `state`


def _lars(**options) -> Case:
    def update(w, g, state, t, rate, adapt):
        velocity = state.setdefault("velocity", np.zeros_like(w))
        w, state["velocity"] = reference.lars(w, g, velocity, rate, adapt=adapt, **options)
        return w

    return Case(lambda ps: LARS(ps, **options), update)


def _lamb(**options) -> Case:
    def update(w, g, state, t, rate, adapt):
        m, v = state.setdefault("mv", (np.zeros_like(w), np.zeros_like(w)))
        w, *moments = reference.lamb(w, g, m, v, t, rate, adapt=adapt, **options)
        state["mv"] = tuple(moments)
        return w

    return Case(lambda ps: LAMB(ps, **options), update)


def _novograd(**options) -> Case:
    def update(w, g, state, t, rate, adapt):
        m, v = state.setdefault("mv", (np.zeros_like(w), 0.0))
        w, *moments = reference.novograd(w, g, m, v, rate, adapt=adapt, **options)
        state["mv"] = tuple(moments)
        return w

    return Case(lambda ps: NovoGrad(ps, **options), update)


OPTIMIZERS = {
    "LARS": _lars(weight_decay=0.03, trust_coefficient=0.1),
    "LARS, paper's form": _lars(weight_decay=0.03, trust_coefficient=0.1, momentum_form="paper"),
    "LARS, Nesterov": _lars(weight_decay=0.03, trust_coefficient=0.1, nesterov=True),
    "LARC": _lars(weight_decay=0.03, trust_coefficient=0.02, clip=True),
    "LAMB": _lamb(weight_decay=0.03),
    "LAMB, clipped norms": _lamb(weight_decay=0.03, clip=(0.5, 3.0)),
    "NovoGrad": _novograd(weight_decay=0.03),
    "NovoGrad, averaged gradients": _novograd(weight_decay=0.03, grad_averaging=True, eps=0.1),
}


def main(findings: Findings) -> None:
    where = device()
    set_precision("float32")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for title, case in OPTIMIZERS.items():
            optimizer(findings, where, title, case, dtype)
        for channels_last in (False, True):
            ghost_batch_norm(findings, where, dtype, channels_last)
        gradient_noise(findings, where, dtype)
        norms(findings, where, dtype)
    for title, schedule in SCHEDULES.items():
        rates(findings, where, title, schedule)


def check(findings, where, what, dtype, got, expected, note="") -> None:
    """Compare arrays; differences count relative to the largest expected value."""
    kind = str(dtype).removeprefix("torch.")
    differences = []
    for ours, theirs in zip(got, expected, strict=True):
        ours = (
            ours.detach().double().cpu().numpy()
            if isinstance(ours, torch.Tensor)
            else np.array(ours)
        )
        differences.append((np.abs(ours - theirs) / max(1.0, np.abs(theirs).max())).ravel())
    findings.check(
        "", what, name(where), kind, np.concatenate(differences), LIMITS[kind], EXPECTED, note
    )


def arrays(seed: int, dtype) -> list[np.ndarray]:
    """Normal numbers of the given shapes, rounded to `dtype`, in float64."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=s)).to(dtype).double().numpy() for s in SHAPES]


def optimizer(findings, where, title: str, case: Case, dtype) -> None:
    """A trajectory under a schedule; in bfloat16 one step."""
    steps = 1 if dtype == torch.bfloat16 else STEPS
    schedule = SCHEDULES["warmup and cosine decay"]
    weights = arrays(0, dtype)
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype, device=where)) for w in weights]
    ours = case.make(params)
    scheduler = Schedule(ours, schedule)
    states: list[dict] = [{} for _ in weights]
    for step in range(steps):
        gradients = arrays(1 + step, dtype)
        for p, g in zip(params, gradients, strict=True):
            p.grad = torch.tensor(g, dtype=dtype, device=where)
        ours.step()
        scheduler.step()
        weights = [
            case.update(w, g, state, step + 1, schedule(step), w.ndim > 1)
            for w, g, state in zip(weights, gradients, states, strict=True)
        ]
    check(findings, where, f"{title}, {steps} steps", dtype, params, weights)


def ghost_batch_norm(findings, where, dtype, channels_last: bool) -> None:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(1.0, 2.0, (22, 6, 5, 4))).to(dtype)
    layer = GhostBatchNorm2d(6, 8).to(where, dtype)
    expected, mean, variance = reference.ghost_batch_norm(
        np.moveaxis(x.double().numpy(), 1, -1),
        np.ones(6),
        np.zeros(6),
        np.zeros(6),
        np.ones(6),
        8,
        0.1,
        1e-5,
    )
    x = x.to(where, memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    got = [layer(x).detach().movedim(1, -1), layer.running_mean, layer.running_var]
    form = "channels-last" if channels_last else "contiguous"
    check(findings, where, f"ghost batch norm, {form}", dtype, got, [expected, mean, variance])


def gradient_noise(findings, where, dtype) -> None:
    """The same key gives the same noise; its mean and variance are those of N(0, eta)."""
    n, eta = 200_000, 0.25
    drawn = []
    for _ in range(2):
        p = torch.nn.Parameter(torch.zeros(n, device=where, dtype=dtype))
        p.grad = torch.zeros_like(p)
        GradientNoise([p], eta=eta, seed=5).add_()
        drawn.append(p.grad.double().cpu())
    kind = str(dtype)[6:]
    again = (drawn[0] - drawn[1]).abs().numpy()
    findings.check(
        "", "gradient noise, drawn twice", name(where), kind, again, 0.0, "itself: the seed decides"
    )
    five_sigma = 5 / math.sqrt(n)  # of the mean, relative; sqrt(2) of that of the variance
    moments = [
        abs(drawn[0].mean().item()) / math.sqrt(eta),
        abs(drawn[0].var().item() / eta - 1) / math.sqrt(2),
    ]
    findings.check(
        "", "gradient noise, mean and variance", name(where), kind, moments, five_sigma, "N(0, eta)"
    )


def norms(findings, where, dtype) -> None:
    """squared_norm on the device, and the noise scale that follows from it."""
    gradients = arrays(7, dtype)
    params = [
        torch.nn.Parameter(torch.zeros(g.shape, device=where, dtype=dtype)) for g in gradients
    ]
    for p, g in zip(params, gradients, strict=True):
        p.grad = torch.tensor(g, dtype=dtype, device=where)
    ours, theirs = float(squared_norm(params)), sum(float(np.square(g).sum()) for g in gradients)
    scales = [NoiseScale(32, 128).update(3 * norm, norm) for norm in (ours, theirs)]
    check(findings, where, "squared norm of the gradient", dtype, [ours / theirs], [np.array(1.0)])
    check(findings, where, "gradient noise scale", dtype, [scales[0] / scales[1]], [np.array(1.0)])
    losses = torch.zeros(50_000, device=where, dtype=dtype)
    weights = LossWeights(0.5, seed=1)(losses).double()
    off = [
        abs(weights.mean().item() - 1) / 0.5,
        abs(weights.var().item() / 0.25 - 1) / math.sqrt(2),
    ]
    limit = max(5 / math.sqrt(len(losses)), LIMITS[str(dtype)[6:]])
    findings.check(
        "",
        "loss weights, mean and variance",
        name(where),
        str(dtype)[6:],
        off,
        limit,
        "N(1, std^2)",
    )


def rates(findings, where, title: str, schedule) -> None:
    """The learning rate that an optimizer on the device really has in each step."""
    p = torch.nn.Parameter(torch.zeros(1, device=where, dtype=torch.float64))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scheduler = Schedule(optimizer, schedule)
    moved = []
    for _ in range(TOTAL):
        before = p.item()
        p.grad = torch.ones_like(p)
        optimizer.step()
        scheduler.step()
        moved.append(before - p.item())
    expected = [np.array([schedule(step) for step in range(TOTAL)])]
    check(findings, where, f"learning rate, {title}", torch.float64, [np.array(moved)], expected)


if __name__ == "__main__":
    start(main)
