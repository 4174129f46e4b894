"""The formulas of `hvdlab.reference` compared with independent packages, in float64.

If a package has another variant under the same name, the case names the options that make it equal. Keras'
own LAMB is in tests/hvdlab/keras/test_optimizers.py.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdlab import reference
from hvdlab.bench.optimizers import timm_optimizer

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")


def run_torch(optimizer, trajectory):
    """Return the final weights of an optimizer of another package."""
    torch.set_default_dtype(torch.float64)  # some packages keep norms in the default dtype
    try:
        params = [torch.nn.Parameter(torch.tensor(w)) for w in trajectory.weights]
        optimizer = optimizer(params)
        for gradients, rate in zip(trajectory.gradients, trajectory.rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate
            for p, g in zip(params, gradients, strict=True):
                p.grad = torch.tensor(g)
            optimizer.step()
        return [p.detach().numpy() for p in params]
    finally:
        torch.set_default_dtype(torch.float32)


TIMM = [
    ("lars", "Lars", dict(weight_decay=0.03, eps=1e-8), dict(momentum=0.9, always_adapt=True)),
    ("lars", "Lars", dict(eps=1e-8), dict(momentum=0.9, always_adapt=True)),
    (
        "lars",
        "Lars",
        dict(weight_decay=0.03, eps=1e-8, nesterov=True),
        dict(momentum=0.9, always_adapt=True),
    ),
    (
        "lars",
        "Lars",
        dict(weight_decay=0.03, eps=1e-8, clip=True, trust_coefficient=0.02),
        dict(momentum=0.9, always_adapt=True),
    ),
    ("lamb", "Lamb", dict(weight_decay=0.03), dict(max_grad_norm=None, always_adapt=True)),
    (
        "lamb",
        "Lamb",
        dict(weight_decay=0.03, bias_correction=False),
        dict(max_grad_norm=None, always_adapt=True),
    ),
    ("novograd", "NvNovoGrad", dict(weight_decay=0.03), {}),
    ("novograd", "NvNovoGrad", dict(weight_decay=0.03, grad_averaging=True), {}),
]
RENAMED = {"clip": "trust_clip", "trust_coefficient": "trust_coeff"}


@pytest.mark.parametrize(("name", "theirs", "options", "extra"), TIMM)
def test_timm(name, theirs, options, extra, trajectory, assert_close):
    try:
        optimizer = timm_optimizer(theirs)
    except ImportError as error:
        pytest.skip(str(error))
    same = {RENAMED.get(key, key): value for key, value in options.items()}
    ours = trajectory.reference(name, exclude_1d=False, **options)
    final = run_torch(lambda ps: optimizer(ps, **same, **extra), trajectory)
    assert_close(ours, final, f"reference, timm {theirs}")


@pytest.mark.slow
def test_finds_timm_among_the_installed_packages(tmp_path):
    """A base image may have timm among its packages, without the folder `oracles`."""
    oracles = Path(sys.prefix) / "oracles"
    if not oracles.is_dir():
        pytest.skip(f"needs timm in {oracles}: run `make setup`")
    code = (
        f"import sys; sys.path.append({str(oracles)!r}); sys.prefix = {str(tmp_path)!r}\n"
        "from hvdlab.bench.optimizers import timm_optimizer\n"
        "print(timm_optimizer('Lars').__module__, timm_optimizer('Lamb').__module__)\n"
        "import importlib.util; importlib.util.find_spec('timm')"  # as transformers does
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["timm.optim.lars", "timm.optim.lamb"], run.stderr


@pytest.mark.parametrize(
    ("name", "theirs", "exclude_1d", "options"),
    [
        ("lars", "LARS", True, dict(weight_decay=0.03)),  # excludes vectors like ours
        ("novograd", "NovoGrad", False, dict(weight_decay=0.03)),
    ],
)
def test_pytorch_optimizer(name, theirs, exclude_1d, options, trajectory, assert_close):
    package = pytest.importorskip("pytorch_optimizer", reason="run `make setup`")
    if name == "lars":  # for ||g|| = 0 its learning rate is trust_coefficient / weight_decay, not 1
        trajectory = trajectory.without_zero_gradients()
    ours = trajectory.reference(name, exclude_1d=exclude_1d, **options)
    final = run_torch(lambda params: getattr(package, theirs)(params, **options), trajectory)
    assert_close(ours, final, f"reference, pytorch-optimizer {theirs}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        # it uses the norm of g + weight_decay w, so both agree without weight decay
        ("lars", dict(momentum_form="paper"), dict()),
        ("lars", dict(momentum_form="paper", nesterov=True), dict(nesterov=True)),
        ("lamb", dict(weight_decay=0.03), dict(weight_decay=0.03)),
        (
            "novograd",
            dict(weight_decay=0.03, betas=(0.95, 0.98), eps=1e-6),
            dict(weight_decay=0.03, b1=0.95, b2=0.98),
        ),
    ],
)
def test_optax(name, options, theirs, trajectory, assert_close, monkeypatch):
    # Not in the environment itself, where TensorFlow would import jax whenever it starts.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(sys.prefix) / "oracles")])
    jax = pytest.importorskip("jax", reason="needs optax: run `make setup`")
    optax = pytest.importorskip("optax", reason="needs optax: run `make setup`")
    with jax.enable_x64(True):
        rates = jax.numpy.asarray(trajectory.rates)
        optimizer = getattr(optax, name)(learning_rate=lambda step: rates[step], **theirs)
        weights = [jax.numpy.asarray(w) for w in trajectory.weights]
        state = optimizer.init(weights)
        for gradients in trajectory.gradients:
            gradients = [jax.numpy.asarray(g) for g in gradients]
            updates, state = optimizer.update(gradients, state, weights)
            weights = optax.apply_updates(weights, updates)
        final = [np.asarray(w) for w in weights]
    assert final[0].dtype == np.float64
    ours = trajectory.reference(name, exclude_1d=False, **options)
    assert_close(ours, final, f"reference, optax {name}")


def test_the_trajectory_distinguishes_the_forms_of_momentum(trajectory):
    outside = trajectory.reference("lars", momentum_form="torch")
    inside = trajectory.reference("lars", momentum_form="paper")
    assert np.abs(outside[0] - inside[0]).max() > 1e-5


def test_larc_steps_at_most_as_far_as_sgd():
    """In LARC the learning rate of a tensor is min(local learning rate, global learning rate)."""
    rng = np.random.default_rng(0)
    w, velocity = rng.normal(size=(4, 4)), np.zeros((4, 4))
    for gradient_size, follows_sgd in ((1e-4, True), (1e4, False)):
        g = gradient_size * rng.normal(size=(4, 4))
        new, _ = reference.lars(w, g, velocity, 0.1, clip=True, trust_coefficient=0.02)
        plain = w - 0.1 * g
        assert np.allclose(new, plain, rtol=1e-12) == follows_sgd
        assert reference.norm(new - w) <= reference.norm(plain - w) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["lars", "lamb", "novograd"])
def test_a_tensor_of_zeros_can_change(name, trajectory):
    assert np.abs(trajectory.reference(name)[2]).min() > 0
