"""LARS, LAMB and NovoGrad behave as any torch optimizer: state, groups, closures, scaler, refusals."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
from hvdlab.torch import LAMB, LARS, NovoGrad  # noqa: E402

ALL = pytest.mark.parametrize("cls", [LARS, LAMB, NovoGrad])


def problem(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    x = torch.randn(32, 6, dtype=dtype)
    return model.to(dtype), x, x.sum(1, keepdim=True).sin()


def train(model, optimizer, x, y, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training_goes_on_from_a_state_dict_as_if_nothing_had_happened(cls, dtype, tmp_path):
    model, x, y = problem(dtype)
    y = 300 * y  # for gradients whose squared norms float16 does not hold
    optimizer = cls(model.parameters(), lr=0.05)
    train(model, optimizer, x, y, 3)
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "checkpoint.pt")
    train(model, optimizer, x, y, 4)

    resumed, _, _ = problem(dtype, seed=1)
    other = cls(resumed.parameters(), lr=1.0)
    model_state, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed.load_state_dict(model_state)
    other.load_state_dict(state)
    train(resumed, other, x, y, 4)
    assert torch.equal(weights(model), weights(resumed)) and weights(model).isfinite().all()
    assert [{n: v.dtype for n, v in each.items()} for each in other.state.values()] == [
        {n: v.dtype for n, v in each.items()} for each in optimizer.state.values()
    ]


@ALL
def test_it_learns(cls):
    model, x, y = problem()
    rate = {LARS: 5.0, LAMB: 0.01, NovoGrad: 0.01}[cls]
    loss = torch.nn.functional.mse_loss
    before = loss(model(x), y).item()
    train(model, cls(model.parameters(), lr=rate, exclude_1d=False), x, y, 300)
    assert loss(model(x), y).item() < 0.2 * before


@ALL
def test_a_closure_is_called_with_gradients_on_and_its_loss_returned(cls):
    model, x, y = problem()
    optimizer = cls(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    before = weights(model)
    assert optimizer.step(closure).item() > 0
    assert not torch.equal(weights(model), before)


@ALL
def test_groups_override_and_parameters_without_gradient_stay(cls):
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = cls(
        [{"params": [params[0]], "exclude_1d": False, "lr": 0.5}, {"params": params[1:]}],
        lr=0.1,
        weight_decay=0.5,
    )
    for p in params[:2]:
        p.grad = torch.full((3,), 0.25)
    optimizer.step()
    assert torch.equal(params[2], torch.ones(3)) and not optimizer.state[params[2]]
    assert not torch.equal(params[0], params[1])


@ALL
def test_weights_and_gradients_in_different_memory_formats(cls):
    """channels_last gradients of contiguous weights take the path that does not walk over memory."""
    results = []
    for weight_format in (torch.contiguous_format, torch.channels_last):
        for gradient_format in (torch.contiguous_format, torch.channels_last):
            generator = torch.Generator().manual_seed(0)
            w, g = (torch.randn(4, 3, 5, 5, generator=generator) for _ in range(2))
            p = torch.nn.Parameter(w.contiguous(memory_format=weight_format))
            p.grad = g.contiguous(memory_format=gradient_format)
            cls([p], lr=0.1).step()
            results.append(p.detach().contiguous())
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-6)


@ALL
def test_a_model_may_change_its_memory_format_between_two_steps(cls):
    """The state, by itself or from a checkpoint, then lies in memory as the weights did before."""
    results = {}
    for path in ("stays", "converted", "resumed"):
        generator = torch.Generator().manual_seed(0)
        w, *gradients = (torch.randn(4, 3, 5, 5, generator=generator) for _ in range(4))
        p = torch.nn.Parameter(w)
        optimizer = cls([p], lr=0.1)
        for step, gradient in enumerate(gradients):
            if step == 1 and path != "stays":
                p.data = p.data.contiguous(memory_format=torch.channels_last)
            if step == 1 and path == "resumed":
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = cls([p], lr=0.1)
                optimizer.load_state_dict(state)
            p.grad = torch.empty_like(p).copy_(gradient)  # as autograd makes it: in p's format
            optimizer.step()
        results[path] = p.detach().contiguous()
    for path in ("converted", "resumed"):
        torch.testing.assert_close(results[path], results["stays"], rtol=1e-5, atol=1e-6)


@ALL
def test_sparse_gradients_are_refused(cls):
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = cls(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients.*sparse=False"):
        optimizer.step()


@ALL
def test_complex_parameters_are_refused(cls):
    weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    optimizer = cls([weight])
    weight.abs().sum().backward()
    with pytest.raises(RuntimeError, match=r"of shape \(2, 2\) is complex: .*torch.optim.Adam"):
        optimizer.step()


@ALL
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("fused", [False, None])
def test_a_gradient_that_is_not_finite_ends_in_nan_as_in_sgd(cls, value, fused):
    p, q = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    for parameter in (p, q):
        parameter.grad = torch.ones(2, 2)
        parameter.grad[0, 0] = value
    cls([p], lr=0.1, fused=fused).step()
    torch.optim.SGD([q], lr=0.1).step()
    assert not p.isfinite().all() and not q.isfinite().all()


@ALL
def test_grad_scaler_skips_a_step_that_is_not_finite(cls):
    model, x, y = problem()
    optimizer = cls(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    plain = copy.deepcopy(model)
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * factor).backward()
        before = weights(model)
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(weights(model), before) == (factor == float("inf"))
    train(plain, cls(plain.parameters(), lr=0.1), x, y, 1)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("cls", "options", "sentence"),
    [
        (LARS, dict(lr=-1), "lr must be a number of at least 0. Received: lr=-1"),
        (LARS, dict(lr="0.1"), "lr must be a number of at least 0. Received: lr='0.1'"),
        (LARS, dict(momentum=1), "momentum must be a number of at least 0 and below 1"),
        (LARS, dict(weight_decay=float("nan")), "weight_decay must be a number of at least 0"),
        (LARS, dict(trust_coefficient=-1), "trust_coefficient must be"),
        (LARS, dict(eps=-1), "eps must be"),
        (LARS, dict(clip="yes"), "clip must be True or False. Received: clip='yes'"),
        (LARS, dict(momentum_form="goyal"), "momentum_form must be 'torch' or 'paper'"),
        (LARS, dict(fused=True, nesterov=True), "fused=True needs momentum, and not"),
        (LAMB, dict(betas=(0.9, 1.0)), r"betas must be two numbers .* Received: betas=\(0.9, 1.0\)"),
        (LAMB, dict(betas=0.9), "betas must be two numbers"),
        (LAMB, dict(clip=(2, 1)), "clip must be None or"),
        (LAMB, dict(clip=3), "clip must be None or"),
        (NovoGrad, dict(eps=0), "eps must be above 0"),
        (NovoGrad, dict(exclude_1d=None), "exclude_1d must be True or False"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(cls, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        cls([torch.nn.Parameter(torch.zeros(2))], **options)
    optimizer = cls([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(ValueError, match=sentence):  # in a group too, which is then not added
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], **options})
    assert len(optimizer.param_groups) == 1
