"""Noise in torch: moments by Monte Carlo, streams by seed and rank, and replicas."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
from torch import nn  # noqa: E402

from hvdlab.torch.noise import GradientNoise, LossWeights, squared_norm  # noqa: E402


def assert_mean(samples, truth, precision):
    """The mean over axis 0 is `truth` within 4 standard errors, which is within `precision`."""
    standard_error = samples.std(0) / math.sqrt(len(samples))
    assert np.all(4 * standard_error < precision), 4 * standard_error
    assert np.all(abs(samples.mean(0) - truth) < 4 * standard_error), samples.mean(0) - truth


# --- weights of losses -----------------------------------------------------------------------------


def draw(weights, calls=1, batch=64):
    return torch.stack([weights(torch.empty(batch)) for _ in range(calls)]).numpy()


def noisy_gradients(weights, batch, mean, covariance, draws=100_000):
    """Gradients of `draws` batches of examples with g ~ N(mean, covariance): (draws, d)."""
    rng = np.random.default_rng(0)
    g = rng.multivariate_normal(mean, covariance, (draws, batch))
    z = weights(torch.empty(draws * batch, dtype=torch.float64)).numpy().reshape(draws, batch, 1)
    return (z * g).mean(1)


def test_the_gradient_is_the_weighted_mean_of_the_examples_gradients():
    torch.manual_seed(0)
    model, x = nn.Linear(5, 1), torch.randn(16, 5)
    losses = model(x).squeeze(1).square()
    examples = [torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for loss in losses]
    z = LossWeights(0.7, seed=3, rank=1)(losses)
    assert not z.requires_grad and z.shape == (16,)

    (LossWeights(0.7, seed=3, rank=1)(losses) * losses).mean().backward()
    expected = sum(zn * g for zn, g in zip(z, examples, strict=True)) / 16
    torch.testing.assert_close(model.weight.grad, expected)


def test_gradients_of_zero_mean_have_1_plus_std2_times_the_covariance():
    c = np.array([[2.0, 0.6], [0.6, 1.0]])
    gradients = noisy_gradients(LossWeights(1.5), 4, [0, 0], c)
    assert_mean(gradients, 0, precision=0.05)
    products = gradients[:, :, None] * gradients[:, None, :]
    assert_mean(products, (1 + 1.5**2) * c / 4, precision=0.05)


def test_in_general_the_mean_stays_and_adds_std2_times_its_square():
    mean, c = np.array([1.0, -0.5]), np.array([[2.0, 0.6], [0.6, 1.0]])
    gradients = noisy_gradients(LossWeights(1.5), 4, mean, c)
    assert_mean(gradients, mean, precision=0.05)
    around = gradients - mean
    products = around[:, :, None] * around[:, None, :]
    truth = ((1 + 1.5**2) * c + 1.5**2 * np.outer(mean, mean)) / 4
    assert_mean(products, truth, precision=0.1)


def test_a_large_batch_gets_the_noise_of_a_small_one():
    weights = LossWeights(LossWeights.std_for(32, 4))
    assert weights.std**2 == pytest.approx(7)
    gradients = noisy_gradients(weights, 32, [0], [[3.0]], draws=40_000)
    assert_mean(gradients**2, 3 / 4, precision=0.03)
    assert LossWeights.std_for(128, 128) == 0
    assert np.all(draw(LossWeights(0.0)) == 1)


def test_seed_and_rank_give_the_stream_and_nothing_else_does():
    first = draw(LossWeights(1.0, seed=5, rank=2), calls=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    np.testing.assert_array_equal(draw(LossWeights(1.0, seed=5, rank=2), calls=3), first)
    assert torch.equal(torch.get_rng_state(), state)


def test_streams_of_ranks_seeds_and_steps_have_nothing_in_common():
    streams = [draw(LossWeights(1.0, seed, rank), calls=4) for seed in (0, 1) for rank in (0, 1, 2)]
    calls = np.concatenate(streams)  # each row is one call
    assert len(np.unique(calls)) > 0.999 * calls.size
    correlation = np.corrcoef(calls) - np.eye(len(calls))
    assert abs(correlation).max() < 5 / math.sqrt(64)


def test_a_resumed_stream_goes_on():
    whole = draw(LossWeights(1.0, seed=5), calls=4)
    resumed = LossWeights(1.0, seed=5)
    resumed.step = 2
    np.testing.assert_array_equal(draw(resumed, calls=2), whole[2:])


# --- noise on gradients ----------------------------------------------------------------------------


def with_gradients(*values, size=100_000):
    parameters = [nn.Parameter(torch.zeros(size)) for _ in values]
    for p, value in zip(parameters, values, strict=True):
        p.grad = torch.full_like(p, value)
    return parameters


def test_noise_has_mean_0_and_the_annealed_variance():
    p, q = with_gradients(3.0, 3.0)
    noise = GradientNoise([p, q], eta=0.3)
    rows = []
    for t in range(4):
        p.grad.fill_(3.0)
        q.grad.fill_(3.0)
        assert noise.variance == pytest.approx(0.3 / (1 + t) ** 0.55)
        noise.add_()
        added = [(x.grad - 3).double().numpy() for x in (p, q)]
        for values in added:
            assert_mean(values, 0, precision=0.01)
            assert_mean(values**2, 0.3 / (1 + t) ** 0.55, precision=0.01)
        rows += added
    apart = np.corrcoef(rows) - np.eye(8)  # steps and parameters
    assert abs(apart).max() < 5 / math.sqrt(len(p))


def test_parameters_without_a_gradient_are_skipped_and_change_nothing_for_others():
    first, second = with_gradients(0.0, 0.0, size=8)
    GradientNoise([first, second], eta=1).add_()
    alone = with_gradients(0.0, size=8)[0]
    GradientNoise(iter([nn.Parameter(torch.zeros(3)), alone]), eta=1).add_()
    assert torch.equal(alone.grad, second.grad)


def train_replicas(seeds, steps=4):
    """Two replicas with data of their own, their gradients averaged before the noise."""
    models, noises, optimizers = [], [], []
    for seed in seeds:
        torch.manual_seed(0)
        models.append(nn.Linear(4, 3))
        noises.append(GradientNoise(models[-1].parameters(), eta=0.1, seed=seed))
        optimizers.append(torch.optim.SGD(models[-1].parameters(), 0.1, momentum=0.9))
    for _ in range(steps):
        for rank, model in enumerate(models):
            torch.manual_seed(1000 + rank)  # a generator that ranks do not share
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            p.grad = (p.grad + q.grad) / 2
            q.grad = p.grad.clone()
        for noise, optimizer in zip(noises, optimizers, strict=True):
            noise.add_()
            optimizer.step()
    return [nn.utils.parameters_to_vector(m.parameters()).detach() for m in models]


def test_replicas_with_one_seed_stay_equal_and_drift_with_two():
    first, second = train_replicas(seeds=(7, 7))
    assert torch.equal(first, second)
    first, second = train_replicas(seeds=(7, 8))
    assert (first - second).abs().max() > 0.01


def test_resumed_noise_goes_on():
    (p,) = with_gradients(0.0, size=8)
    noise = GradientNoise([p], eta=0.3, seed=4)
    noise.add_()
    state = noise.state_dict()
    p.grad.zero_()
    noise.add_()
    (q,) = with_gradients(0.0, size=8)
    resumed = GradientNoise([q], eta=0.3, seed=4)
    resumed.load_state_dict(state)
    resumed.add_()
    assert torch.equal(p.grad, q.grad)


def test_squared_norm_of_all_gradients():
    p, q, unused = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    p.grad, q.grad = torch.tensor([1.0, -2.0]), torch.tensor([300.0, 400.0])
    assert float(squared_norm([p, q, unused])) == 250_005
    half = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    half.grad = torch.tensor([300.0, 400.0], dtype=torch.float16)  # 250,000 is no float16
    assert float(squared_norm(iter([half]))) == 250_000


@pytest.mark.parametrize(
    "call, named",
    [
        (lambda: LossWeights(-1.0), "std=-1.0"),
        (lambda: LossWeights(math.nan), "std=nan"),
        (lambda: LossWeights(1.0, rank=-1), "rank=-1"),
        (lambda: LossWeights(1.0, seed=-1), "seed=-1"),
        (lambda: LossWeights.std_for(64, 128), "large_batch=64"),
        (lambda: LossWeights.std_for(64, 0), "small_batch=0"),
        (lambda: LossWeights(1.0)(torch.tensor(0.5)), 'reduction="none"'),
        (lambda: LossWeights(1.0)(torch.zeros(4, 1)), "shape=(4, 1)"),
        (lambda: GradientNoise([], eta=1), "parameters"),
        (lambda: GradientNoise([torch.zeros(1)], eta=-1), "eta=-1"),
        (lambda: GradientNoise([torch.zeros(1)], eta=1, gamma=-0.55), "gamma=-0.55"),
        (lambda: squared_norm([nn.Parameter(torch.zeros(1))]), "gradients"),
    ],
)
def test_bad_arguments_are_named(call, named):
    with pytest.raises(ValueError, match="Received: ") as error:
        call()
    assert named in str(error.value) and "\n" not in str(error.value)


@pytest.mark.mpi
def test_two_ranks_add_the_same_noise_and_know_both_norms(run_ranks):
    pytest.importorskip("horovod", reason="needs Horovod: run `make setup`")
    code, output = run_ranks("noise.py")
    assert code == 0, output[-4000:]
