"""Ghost batch norm against NumPy, torch's own layer in a loop over ghosts, and finite differences."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from hvdlab import reference  # noqa: E402
from hvdlab.torch.normalization import GhostBatchNorm1d, GhostBatchNorm2d, convert  # noqa: E402

CHANNELS, GHOST_SIZE = 3, 4
SHAPES = [(8, 3), (10, 3), (9, 3, 5), (12, 3, 5), (8, 3, 4, 2), (10, 3, 4, 2), (5, 3, 2, 2)]
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
GHOST = {2: GhostBatchNorm1d, 3: GhostBatchNorm1d, 4: GhostBatchNorm2d}


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * 2 + 1


def with_weights(layer, seed=7):
    with torch.no_grad():
        for offset, parameter in enumerate(layer.parameters()):
            parameter.copy_(random(*parameter.shape, seed=seed + offset))
    return layer


def ghost_layer(dimensions, ghost_size=GHOST_SIZE, **options):
    return with_weights(
        GHOST[dimensions](CHANNELS, ghost_size, **{"dtype": torch.float64, **options})
    )


def plain_layer(dimensions, **options):
    return with_weights(PLAIN[dimensions](CHANNELS, **{"dtype": torch.float64, **options}))


def gradients(layer, x, dy):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(layer(x), [x, *layer.parameters()], dy)


def equal(actual, expected, tolerance=0.0):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0])
def test_training_equals_the_reference_step_by_step(shape, momentum):
    layer = ghost_layer(len(shape), momentum=momentum, eps=1e-3)
    mean, var = np.zeros(CHANNELS), np.ones(CHANNELS)
    for step in range(3):
        x = random(*shape, seed=step)
        expected, mean, var = reference.ghost_batch_norm(
            np.moveaxis(x.numpy(), 1, -1),
            layer.weight.detach().numpy(),
            layer.bias.detach().numpy(),
            mean,
            var,
            GHOST_SIZE,
            momentum,
            1e-3,
        )
        actual = layer(x)
        assert actual.shape == x.shape
        np.testing.assert_allclose(
            np.moveaxis(actual.detach().numpy(), 1, -1), expected, rtol=1e-12, atol=1e-12
        )
        np.testing.assert_allclose(layer.running_mean.numpy(), mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(layer.running_var.numpy(), var, rtol=1e-12, atol=1e-12)
    assert layer.num_batches_tracked == 3 * -(-shape[0] // GHOST_SIZE)


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 4, 2)])
@pytest.mark.parametrize("ghost_size", [6, 100])
def test_a_ghost_of_the_whole_batch_is_the_plain_layer(shape, ghost_size):
    x, dy = random(*shape), random(*shape, seed=1)
    ghost, plain = ghost_layer(len(shape), ghost_size), plain_layer(len(shape))
    equal(gradients(ghost, x, dy), gradients(plain, x, dy))
    equal(ghost(x), plain(x))
    equal(ghost.state_dict(), plain.state_dict())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_gradients_equal_a_loop_over_ghosts(shape, affine):
    class Loop(PLAIN[len(shape)]):
        def forward(self, x):
            ghosts = x.split(GHOST_SIZE)
            return torch.cat(
                [F.batch_norm(g, None, None, self.weight, self.bias, True) for g in ghosts]
            )

    if (shape[0] % GHOST_SIZE or 2) * int(np.prod(shape[2:])) == 1:
        pytest.skip("torch refuses a ghost of one value")
    loop = with_weights(Loop(CHANNELS, affine=affine, dtype=torch.float64))
    x, dy = random(*shape), random(*shape, seed=1)
    layer = ghost_layer(len(shape), affine=affine)
    equal(gradients(layer, x, dy), gradients(loop, x, dy), 1e-10)


@pytest.mark.parametrize("shape", [(4, 3), (5, 3, 2), (5, 3, 2, 2)])
def test_gradients_equal_finite_differences(shape):
    layer = ghost_layer(len(shape), ghost_size=2, track_running_stats=False)

    def function(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, x)

    inputs = [random(*shape), *layer.parameters()]
    assert torch.autograd.gradcheck(function, [i.detach().requires_grad_() for i in inputs])


def test_one_process_with_two_ghosts_equals_two_with_plain_batch_norm():
    x, dy = random(8, CHANNELS, 4, 2), random(8, CHANNELS, 4, 2, seed=1)
    # The loss averages over the batch: a half's gradients are those of its own average.
    halves = [
        gradients(plain_layer(4), half, half_dy / 4)
        for half, half_dy in zip(x.split(4), dy.split(4), strict=True)
    ]
    dx, *dparameters = gradients(ghost_layer(4), x, dy / 8)
    equal(dx, torch.cat([half[0] for half in halves]) / 2, 1e-12)
    for actual, first, second in zip(dparameters, halves[0][1:], halves[1][1:], strict=True):
        equal(actual, (first + second) / 2, 1e-12)


@pytest.mark.parametrize("shape", [(10, 3), (10, 3, 4, 2)])
@pytest.mark.parametrize("track", [True, False])
def test_evaluation_is_the_plain_layers(shape, track):
    ghost = ghost_layer(len(shape), track_running_stats=track)
    plain = plain_layer(len(shape), track_running_stats=track)
    ghost(random(*shape))
    plain.load_state_dict(ghost.state_dict(), strict=True)
    x, dy = random(*shape, seed=2), random(*shape, seed=1)
    equal(ghost.eval()(x), plain.eval()(x))
    equal(gradients(ghost, x, dy), gradients(plain, x, dy))
    equal(ghost.state_dict(), plain.state_dict())


def test_weights_load_both_ways():
    plain, ghost = plain_layer(4), ghost_layer(4)
    plain(random(6, CHANNELS, 2, 2))
    ghost.load_state_dict(plain.state_dict(), strict=True)
    equal(ghost.state_dict(), plain.state_dict())
    ghost(random(6, CHANNELS, 2, 2, seed=1))
    assert ghost.num_batches_tracked == 3
    plain.load_state_dict(ghost.state_dict(), strict=True)
    equal(plain.state_dict(), ghost.state_dict())


def test_without_momentum_every_ghost_weighs_the_same():
    layer = ghost_layer(4, momentum=None)
    batches = [random(10, CHANNELS, 4, 2), random(8, CHANNELS, 4, 2, seed=1)]
    batches.append(random(3, CHANNELS, 4, 2, seed=2))  # the plain layer's turn
    for x in batches:
        layer(x)
    ghosts = [ghost for x in batches for ghost in x.split(GHOST_SIZE)]
    equal(layer.running_mean, torch.stack([g.mean((0, 2, 3)) for g in ghosts]).mean(0), 1e-12)
    equal(layer.running_var, torch.stack([g.var((0, 2, 3)) for g in ghosts]).mean(0), 1e-12)


@pytest.mark.parametrize("batch", [8, 10])
def test_channels_last_stays_channels_last(batch):
    x, dy = random(batch, CHANNELS, 4, 2), random(batch, CHANNELS, 4, 2, seed=1)
    expected = gradients(ghost_layer(4), x, dy)
    x, dy = (t.to(memory_format=torch.channels_last) for t in (x, dy))
    layer = ghost_layer(4)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    actual = gradients(layer, x, dy)
    assert actual[0].is_contiguous(memory_format=torch.channels_last)
    equal(actual, expected, 1e-12)
    equal(layer(x), ghost_layer(4)(x.contiguous()), 1e-12)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_large_mean_costs_no_more_digits_than_in_the_plain_layer(memory_format):
    # E[x^2] - mean^2 would lose all but one digit here.
    x = (random(16, CHANNELS, 8, 8) + 1000).float().to(memory_format=memory_format)
    layer = GhostBatchNorm2d(CHANNELS, 8, momentum=1.0)
    exact = GhostBatchNorm2d(CHANNELS, 8, momentum=1.0, dtype=torch.float64)
    torch.testing.assert_close(layer(x).double(), exact(x.double()), rtol=0, atol=1e-3)
    torch.testing.assert_close(layer.running_var.double(), exact.running_var, rtol=1e-5, atol=0)


def test_bfloat16_under_autocast_is_as_in_the_plain_layer():
    x = random(8, CHANNELS, 4, 2).bfloat16()
    dy = random(8, CHANNELS, 4, 2, seed=1).bfloat16()
    ghost, plain = ghost_layer(4, dtype=torch.float32), plain_layer(4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        halves = [
            gradients(plain, half, half_dy)
            for half, half_dy in zip(x.split(4), dy.split(4), strict=True)
        ]
        actual = gradients(ghost, x, dy)
        torch.testing.assert_close(ghost(x), torch.cat([plain(half) for half in x.split(4)]))
    torch.testing.assert_close(actual[0], torch.cat([half[0] for half in halves]))
    for i in (1, 2):
        torch.testing.assert_close(actual[i], halves[0][i] + halves[1][i])
    # Both have seen the same ghosts in the same order.
    torch.testing.assert_close(ghost.state_dict(), plain.state_dict())


def test_bfloat16_weights_round_only_the_results():
    x = random(8, CHANNELS, 4, 2).bfloat16()
    dy = random(8, CHANNELS, 4, 2, seed=1).bfloat16()
    layer = ghost_layer(4, dtype=torch.bfloat16)
    exact = ghost_layer(4)
    exact.load_state_dict(layer.state_dict())
    rounding = dict(rtol=2**-8, atol=1e-5)
    actual, expected = gradients(layer, x, dy), gradients(exact, x.double(), dy.double())
    for ours, theirs in zip((layer(x), *actual), (exact(x.double()), *expected), strict=True):
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours.double(), theirs, **rounding)


@pytest.mark.parametrize(
    "shape, ghost_size",
    [((9, 3), 4), ((8, 3), 1), ((9, 3, 1), 4), ((9, 3, 1, 1), 4), ((1, 3), 4)],
)
def test_a_ghost_of_one_value_is_refused(shape, ghost_size):
    layer = ghost_layer(len(shape), ghost_size)
    running = layer.running_mean.clone(), layer.running_var.clone()
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        layer(random(*shape))
    equal((layer.running_mean, layer.running_var), running)
    assert layer.eval()(random(*shape)).isfinite().all()


def test_a_ghost_of_one_example_with_many_pixels_has_a_variance():
    layer = ghost_layer(4, ghost_size=1)
    x = random(6, CHANNELS, 4, 2)
    expected = F.instance_norm(x, None, None, layer.weight, layer.bias)
    equal(layer(x), expected, 1e-12)


def test_wrong_dimensions_are_refused_as_in_the_plain_layer():
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        ghost_layer(2)(random(8, CHANNELS, 4, 2))
    with pytest.raises(ValueError, match="expected 4D input"):
        ghost_layer(4)(random(8, CHANNELS))


@pytest.mark.parametrize("ghost_size", [0, -1, 2.0, True, "4", None])
def test_wrong_ghost_sizes_are_refused(ghost_size):
    message = "ghost_size must be an integer of at least 1. Received: ghost_size="
    with pytest.raises(ValueError, match=message):
        GhostBatchNorm1d(3, ghost_size)
    with pytest.raises(ValueError, match=message):
        GhostBatchNorm2d(3, ghost_size)
    with pytest.raises(ValueError, match=message):
        convert(nn.BatchNorm1d(3), ghost_size)


def test_repr_shows_the_ghost_size():
    assert "ghost_size=4" in repr(GhostBatchNorm2d(3, 4))


def test_convert_keeps_weights_and_optimizer():
    shared = nn.BatchNorm1d(4)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.Sequential(nn.BatchNorm2d(4, eps=1e-3, momentum=0.3), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(16, 4),
        shared,
        shared,
    ).double()
    before, parameters = (
        {k: v.clone() for k, v in model.state_dict().items()},
        [*model.parameters()],
    )
    assert convert(model, 2) is model
    assert type(model[1][0]) is GhostBatchNorm2d and type(model[4]) is GhostBatchNorm1d
    assert model[5] is model[4] and model[1][0].ghost_size == 2
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    equal(model.state_dict(), before)

    x = random(6, 4, 2, 2)
    made = with_weights(GhostBatchNorm2d(4, 2, eps=1e-3, momentum=0.3, dtype=torch.float64))
    made.load_state_dict(model[1][0].state_dict())
    equal(model[1][0](x), made(x))
    equal(model[1][0].state_dict(), made.state_dict())

    assert convert(model, 3)[4].ghost_size == 3
    assert type(convert(nn.BatchNorm2d(3), 2)) is GhostBatchNorm2d


def test_convert_refuses_what_it_does_not_know():
    class WithActivation(nn.BatchNorm2d):
        pass

    for layer in (nn.BatchNorm3d(3), nn.SyncBatchNorm(3), nn.LazyBatchNorm2d(), WithActivation(3)):
        model = nn.Sequential(nn.BatchNorm2d(3), layer)
        with pytest.raises(TypeError, match=f"Received: {type(layer).__name__}"):
            convert(model, 2)
        assert type(model[0]) is nn.BatchNorm2d
