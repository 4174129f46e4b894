"""LARS, LAMB and NovoGrad in PyTorch equal `hvdlab.reference`, and broken versions do not."""

import dataclasses
import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
from hvdlab.torch import LAMB, LARS, NovoGrad  # noqa: E402
from hvdlab.torch.optimizers.layerwise import norms  # noqa: E402

CLASSES = {"lars": LARS, "lamb": LAMB, "novograd": NovoGrad}

# name of the reference, options of both, and those that only the reference needs to be told
CASES = {
    "lars": ("lars", dict(weight_decay=0.03)),
    "lars-paper": ("lars", dict(weight_decay=0.03, momentum_form="paper")),
    "lars-nesterov": ("lars", dict(weight_decay=0.03, nesterov=True)),
    "lars-paper-nesterov": ("lars", dict(momentum_form="paper", nesterov=True, eps=0.01)),
    "lars-no-momentum": ("lars", dict(weight_decay=0.03, momentum=0.0)),
    "larc": ("lars", dict(weight_decay=0.03, clip=True, trust_coefficient=0.02)),
    "larc-paper": (
        "lars",
        dict(weight_decay=0.03, clip=True, trust_coefficient=0.2, momentum_form="paper"),
    ),
    "lars-all": ("lars", dict(weight_decay=0.03, trust_coefficient=0.1, exclude_1d=False)),
    "lamb": ("lamb", dict(weight_decay=0.03)),
    "lamb-eps": ("lamb", dict(weight_decay=0.03, eps=0.1)),
    "lamb-no-correction": ("lamb", dict(weight_decay=0.03, bias_correction=False)),
    "lamb-clip": ("lamb", dict(weight_decay=0.03, clip=(0.5, 3.0))),
    "lamb-all": ("lamb", dict(weight_decay=0.03, exclude_1d=False)),
    "novograd": ("novograd", dict(weight_decay=0.03)),
    "novograd-no-momentum": ("novograd", dict(weight_decay=0.03, betas=(0.0, 0.5))),
    "novograd-averaging": ("novograd", dict(weight_decay=0.03, grad_averaging=True, eps=0.1)),
    "novograd-all": ("novograd", dict(weight_decay=0.03, exclude_1d=False)),
}


def run(optimizer_class, trajectory, dtype=torch.float64, **options):
    """The final weights as float64 arrays."""
    params = [torch.nn.Parameter(torch.tensor(w, dtype=dtype)) for w in trajectory.weights]
    optimizer = optimizer_class(params, **options)
    for gradients, rate in zip(trajectory.gradients, trajectory.rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for p, g in zip(params, gradients, strict=True):
            p.grad = torch.tensor(g, dtype=dtype)
        given = [p.grad.clone() for p in params]
        optimizer.step()
        for p, g in zip(params, given, strict=True):
            assert torch.equal(p.grad, g), "a step must leave gradients as they are"
    return [p.detach().double().numpy() for p in params]


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_reference(case, fused, trajectory, assert_close):
    name, options = CASES[case]
    if fused and (options.get("nesterov") or case.endswith("no-momentum")):
        pytest.skip("fused SGD has a dampening only with momentum, and without Nesterov's")
    ours = run(CLASSES[name], trajectory, fused=fused, **options)
    assert_close(ours, trajectory.reference(name, **options), f"hvdlab.torch {name}, reference")


@pytest.mark.parametrize("case", CASES)
def test_lists_of_tensors_equal_the_reference(case, trajectory, monkeypatch, assert_close):
    """All tensors at a time, as every device but the CPU takes them; several of each kind."""
    name, options = CASES[case]
    layerwise = inspect.getmodule(LARS.__base__)
    lists = from_source(layerwise, 'device.type == "cpu" and not fused', "False")
    monkeypatch.setattr(CLASSES[name], "step", lists["LayerwiseOptimizer"].step)
    several = dataclasses.replace(
        trajectory,
        weights=[*trajectory.weights, *(2 * w for w in trajectory.weights)],
        gradients=[
            [*gradients, *(-3 * g for g in gradients)] for gradients in trajectory.gradients
        ],
    )
    ours = run(CLASSES[name], several, fused=False, **options)
    assert_close(
        ours, several.reference(name, **options), f"hvdlab.torch {name} in lists, reference"
    )


@pytest.mark.parametrize("case", CASES)
def test_float32_stays_close_to_the_reference(case, trajectory):
    name, options = CASES[case]
    wanted = trajectory.reference(name, **options)
    for fused in (False, None):
        ours = run(CLASSES[name], trajectory, torch.float32, fused=fused, **options)
        for mine, theirs in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_a_step_of_half_floats_is_the_reference_rounded(case, dtype, trajectory):
    """One step: rounded weights that then meet other gradients are no longer the same problem."""
    name, options = CASES[case]
    if name == "lamb" and dtype == torch.float16:
        pytest.skip("squares of gradients underflow in float16, here as in torch's Adam")
    halves = [[torch.tensor(a).to(dtype).double().numpy() for a in arrays]
              for arrays in (trajectory.weights, trajectory.gradients[0])]  # fmt: skip
    one_step = dataclasses.replace(
        trajectory, weights=halves[0], gradients=halves[1:], rates=trajectory.rates[:1]
    )
    wanted, eps = one_step.reference(name, **options), torch.finfo(dtype).eps
    for fused in (False, None):
        ours = run(CLASSES[name], one_step, dtype, fused=fused, **options)
        for mine, theirs in zip(ours, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=eps, atol=eps / 10)


@pytest.mark.parametrize("shape", [(1000, 2500), (512, 512, 3, 3), (1, 5), (7,), (), (5, 0)])
def test_norms_of_float32_tensors_are_correctly_rounded(shape):
    """Torch's norm of a whole tensor of the second shape has a relative error of 4e-5."""
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    wanted = np.sqrt(np.sum(np.square(array, dtype=np.float64)))
    tensor = torch.tensor(array)
    transposed = torch.tensor(array.T.copy()).permute(tuple(range(array.ndim))[::-1])
    expected = pytest.approx([wanted, wanted], rel=2e-7)  # float32 has steps of 1.2e-7
    assert norms([tensor, transposed]).tolist() == expected


# --- mutants: what the comparison above must notice ------------------------------------------------

# (class, path, case that must notice): {what is broken: (a text of the class, what it becomes)}
MUTANTS = {
    (LARS, "foreach", "lars"): {
        "rate inside the velocity": ("alpha=lr if paper else 1)", "alpha=lr)"),
        "decay left out of the step": ('alpha=group["weight_decay"])', "alpha=0)"),
        "joint norm": (
            'g + group["weight_decay"] * w + group["eps"]',
            'norms(torch._foreach_add(grads, params, alpha=group["weight_decay"]))',
        ),
        "a zero tensor stays zero": ("rates, 1)", "rates, 0)"),
    },
    (LARS, "foreach", "lars-paper"): {
        "rate outside the velocity": ("alpha=-1 if paper else -lr)", "alpha=-lr)"),
    },
    (LARS, "foreach", "lars-paper-nesterov"): {"no eps": (' + group["eps"]', "")},
    (LARS, "foreach", "lars-nesterov"): {
        "Nesterov without momentum": ("else -lr * momentum", "else -lr"),
    },
    (LARS, "fused", "lars"): {
        "decay outside the ratio": (
            'g + group["weight_decay"] * w + group["eps"]',
            'g + group["eps"]',
        ),
    },
    (LARS, "fused", "larc"): {"missing clip": (".clamp(max=1)", "")},
    (LARS, "fused", "larc-paper"): {"clip without the rate": ('(rates / group["lr"])', "rates")},
    (LAMB, "foreach", "lamb"): {
        "no bias correction": ("[1 - beta1**n for n in t]", "[1.0 for n in t]"),
        "decay outside the ratio": (
            'torch._foreach_add_(updates, params, alpha=group["weight_decay"])',
            'torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])',
        ),
    },
    (LAMB, "foreach", "lamb-eps"): {
        "eps inside the root": (
            "torch._foreach_sqrt_(roots)",
            'roots = [(r + group["eps"]).sqrt() - group["eps"] for r in roots]',
        ),
    },
    (LAMB, "fused", "lamb"): {
        "no decay in the step": (
            'torch.mul(p, group["weight_decay"], out=update)',
            "update.zero_()",
        ),
    },
    (LAMB, "fused", "lamb-clip"): {
        "missing clip": ('w.clamp(*group["clip"]) if group["clip"] else w', "w"),
    },
    (LAMB, "fused", "lamb-no-correction"): {
        "correction always on": ('if not group["bias_correction"]:', "if False:"),
    },
    (NovoGrad, "fused", "novograd"): {
        "first norm averaged with zero": ("torch.where(old == 0, new, ", "torch.where(old < 0, new, "),
        "decay normalised": ("* denominator if adapt", "if adapt"),
    },
    (NovoGrad, "foreach", "novograd-averaging"): {
        "no averaging": ('1 - beta1 if group["grad_averaging"] else 1)', "1)"),
        "no eps": ('new.sqrt() + group["eps"]', "new.sqrt() + 1e-30"),
    },
}  # fmt: skip


def from_source(module, old, new):
    """Return the names of a module that is executed again with one text of its source replaced."""
    source = inspect.getsource(module)
    assert old in source, f"{module.__name__} no longer contains {old!r}: renew this mutant"
    namespace = {"__name__": module.__name__}
    exec(source.replace(old, new), namespace)
    return namespace


def assert_killed(cls, case, fused, trajectory):
    name, options = CASES[case]
    broken = run(cls, trajectory, fused=fused, **options)
    wanted = trajectory.reference(name, **options)
    error = max(np.abs(b - w).max() for b, w in zip(broken, wanted, strict=True))
    assert not error <= 1e-9  # a thousand times what the comparison allows, or NaN


@pytest.mark.parametrize(
    ("cls", "path", "case", "old", "new"),
    [
        pytest.param(*where, *texts, id=f"{where[0].__name__}: {what}")
        for where, mutants in MUTANTS.items()
        for what, texts in mutants.items()
    ],
)
def test_the_comparison_kills_the_mutant(cls, path, case, old, new, trajectory):
    broken = from_source(inspect.getmodule(cls), old, new)[cls.__name__]
    assert_killed(broken, case, path == "fused", trajectory)


@pytest.mark.parametrize("case", CLASSES)
def test_the_comparison_kills_adapted_vectors(case, trajectory, monkeypatch):
    layerwise = inspect.getmodule(LARS.__base__)
    broken = from_source(layerwise, 'p.ndim > 1 or not group["exclude_1d"]', "True")
    monkeypatch.setattr(CLASSES[case], "step", broken["LayerwiseOptimizer"].step)
    assert_killed(CLASSES[case], case, False, trajectory)
