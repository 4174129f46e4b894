"""Compare optimizers, schedules, ghost batch norm and noise on the device with `hvdlab.reference`.

The reference is NumPy in float64. In float64 the device must agree to 1e-12. The limits of float32 and
bfloat16 follow from their rounding. In bfloat16 the optimizers make a single step, on weights that it can
represent.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from hvdlab import reference
from hvdlab.gpu_report.findings import Findings, start
from hvdlab.gpu_report.measuring import device, dtype_name, name, set_precision
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


# Optimizer -> its formula, and the state with which it starts (from an array of zeros).
FORMULAS: dict[type, tuple[Callable, Callable[[np.ndarray], list]]] = {
    LARS: (reference.lars, lambda zeros: [zeros]),
    LAMB: (reference.lamb, lambda zeros: [zeros, zeros]),
    NovoGrad: (reference.novograd, lambda zeros: [zeros, 0.0]),
}
OPTIMIZERS: dict[str, tuple[type, dict]] = {  # title -> (optimizer, options)
    "LARS": (LARS, {"trust_coefficient": 0.1}),
    "LARS, paper's form": (LARS, {"trust_coefficient": 0.1, "momentum_form": "paper"}),
    "LARS, Nesterov": (LARS, {"trust_coefficient": 0.1, "nesterov": True}),
    "LARC": (LARS, {"trust_coefficient": 0.02, "clip": True}),
    "LAMB": (LAMB, {}),
    "LAMB, clipped norms": (LAMB, {"clip": (0.5, 3.0)}),
    "NovoGrad": (NovoGrad, {}),
    "NovoGrad, averaged gradients": (NovoGrad, {"grad_averaging": True, "eps": 0.1}),
}
WEIGHT_DECAY = 0.03


def main(findings: Findings) -> None:
    """Compare everything in each type."""
    where = device()
    set_precision("float32")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for title in OPTIMIZERS:
            optimizer(findings, where, title, dtype)
        for channels_last in (False, True):
            ghost_batch_norm(findings, where, dtype, channels_last)
        gradient_noise(findings, where, dtype)
        norms(findings, where, dtype)
    for title, schedule in SCHEDULES.items():
        rates(findings, where, title, schedule)


def check(
    findings: Findings,
    where: torch.device,
    what: str,
    dtype: torch.dtype,
    got: Sequence,
    expected: Sequence[np.ndarray],
) -> None:
    """Report differences of arrays, as fractions of the largest expected value (or of 1 if it is less)."""
    differences = []
    for ours, theirs in zip(got, expected, strict=True):
        if isinstance(ours, torch.Tensor):
            ours = ours.detach().double().cpu().numpy()
        differences.append((np.abs(ours - theirs) / max(1.0, np.abs(theirs).max())).ravel())
    kind = dtype_name(dtype)
    together = np.concatenate(differences)
    findings.check("", what, name(where), kind, together, LIMITS[kind], EXPECTED)


def arrays(seed: int, dtype: torch.dtype) -> list[np.ndarray]:
    """Return normal numbers of the shapes SHAPES, rounded to `dtype`, in float64."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.normal(size=s)).to(dtype).double().numpy() for s in SHAPES]


def parameters(
    numbers: Sequence[np.ndarray], dtype: torch.dtype, where: torch.device
) -> list[torch.nn.Parameter]:
    """Return parameters on the device."""
    return [torch.nn.Parameter(torch.tensor(w, dtype=dtype, device=where)) for w in numbers]


def optimizer(findings: Findings, where: torch.device, title: str, dtype: torch.dtype) -> None:
    """Compare the weights after some steps under a schedule; in bfloat16 after one step."""
    kind, options = OPTIMIZERS[title]
    options = {"weight_decay": WEIGHT_DECAY, **options}
    formula, first_state = FORMULAS[kind]
    steps = 1 if dtype == torch.bfloat16 else STEPS
    schedule = SCHEDULES["warmup and cosine decay"]
    weights = arrays(0, dtype)
    states = [first_state(np.zeros_like(w)) for w in weights]
    params = parameters(weights, dtype, where)
    ours = kind(params, **options)
    scheduler = Schedule(ours, schedule)
    for step in range(steps):
        gradients = arrays(1 + step, dtype)
        for p, g in zip(params, gradients, strict=True):
            p.grad = torch.tensor(g, dtype=dtype, device=where)
        ours.step()
        scheduler.step()
        number = (
            [step + 1] if kind is LAMB else []
        )  # its bias correction needs the number of the step
        for i, (w, g) in enumerate(zip(weights, gradients, strict=True)):
            weights[i], *states[i] = formula(
                w, g, *states[i], *number, schedule(step), adapt=w.ndim > 1, **options
            )
    check(findings, where, f"{title}, {steps} steps", dtype, params, weights)


def ghost_batch_norm(
    findings: Findings, where: torch.device, dtype: torch.dtype, channels_last: bool
) -> None:
    """Compare the output and the running statistics of ghost batch norm."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(1.0, 2.0, (22, 6, 5, 4))).to(dtype)
    layer = GhostBatchNorm2d(6, 8).to(where, dtype)
    ones, zeros = np.ones(6), np.zeros(6)
    expected, mean, variance = reference.ghost_batch_norm(
        np.moveaxis(x.double().numpy(), 1, -1), ones, zeros, zeros, ones, 8, 0.1, 1e-5
    )
    x = x.to(where, memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    got = [layer(x).detach().movedim(1, -1), layer.running_mean, layer.running_var]
    form = "channels-last" if channels_last else "contiguous"
    check(findings, where, f"ghost batch norm, {form}", dtype, got, [expected, mean, variance])


def gradient_noise(findings: Findings, where: torch.device, dtype: torch.dtype) -> None:
    """Check that a seed gives the same noise twice, with the mean and the variance of N(0, eta)."""
    n, eta = 200_000, 0.25
    drawn = []
    for _ in range(2):
        p = torch.nn.Parameter(torch.zeros(n, device=where, dtype=dtype))
        p.grad = torch.zeros_like(p)
        GradientNoise([p], eta=eta, seed=5).add_()
        drawn.append(p.grad.double().cpu())
    labels = name(where), dtype_name(dtype)
    again = (drawn[0] - drawn[1]).abs().numpy()
    expected = "itself, because the seed is the same"
    findings.check("", "gradient noise, drawn twice", *labels, again, 0.0, expected)
    # Five standard deviations of the relative mean; those of the relative variance are sqrt(2) as large.
    five_sigma = 5 / math.sqrt(n)
    moments = [
        abs(drawn[0].mean().item()) / math.sqrt(eta),
        abs(drawn[0].var().item() / eta - 1) / math.sqrt(2),
    ]
    what = "gradient noise, mean and variance"
    findings.check("", what, *labels, moments, five_sigma, "N(0, eta)")


def norms(findings: Findings, where: torch.device, dtype: torch.dtype) -> None:
    """Compare squared_norm, the noise scale that follows from it, and the weights of losses."""
    gradients = arrays(7, dtype)
    params = parameters([np.zeros_like(g) for g in gradients], dtype, where)
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
    kind, what = dtype_name(dtype), "loss weights, mean and variance"
    limit = max(5 / math.sqrt(len(losses)), LIMITS[kind])
    findings.check("", what, name(where), kind, off, limit, "N(1, std^2)")


def rates(
    findings: Findings, where: torch.device, title: str, schedule: Callable[[int], float]
) -> None:
    """Compare the learning rate with which an optimizer on the device makes each step."""
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
