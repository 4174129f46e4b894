"""The training of lab 7 computes the same in Keras and in PyTorch."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs PyTorch: run `make setup`")
pytest.importorskip("tensorflow", reason="needs TensorFlow: run `make setup`")

import torch  # noqa: E402

from hvdlab.course import f1_training_keras, f1_training_torch  # noqa: E402

PAIR = [f1_training_keras, f1_training_torch]
RNG = np.random.default_rng(3)
CENTRES = RNG.normal(0, 1, (10, 784))
LABELS = RNG.integers(0, 10, 200).astype("int32")
IMAGES = (CENTRES[LABELS] + RNG.normal(0, 1, (200, 784))).astype("float32")
DATA = IMAGES, LABELS


def make(module, **options):
    options = {
        "hidden_layers": 1,
        "schedule": lambda step: 0.01,
        "steps": 8,
        "norm": "none",
        **options,
    }
    return module.F1Training(seed=1, **options)


def copy_weights(keras_training, torch_training):
    """Give the PyTorch network the weights of the Keras one."""
    weights = [weight.numpy() for weight in keras_training.model.trainable_weights]
    with torch.no_grad():
        for to, array in zip(torch_training.model.parameters(), weights, strict=True):
            axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[array.ndim]
            to.copy_(torch.from_numpy(array.transpose(axes).copy()))


OPTIMIZERS = ["SGD", "Adam", "AdamW", "LARS", "LARC", "LAMB", "NovoGrad", "Muon"]
NORMS = ["none", "batch", "ghost"]


@pytest.mark.parametrize(
    ("optimizer", "norm"),
    [
        pytest.param(
            optimizer,
            norm,
            marks=pytest.mark.thorough if optimizer != "SGD" and norm != "none" else (),
        )
        for optimizer in OPTIMIZERS
        for norm in NORMS
    ],
)
def test_one_update_is_the_same(optimizer, norm):
    pair = [make(module, optimizer=optimizer, norm=norm) for module in PAIR]
    copy_weights(*pair)
    for training in pair:
        training.fit(DATA, DATA, batch_size=200, epochs=1)  # one batch, whatever the order
    matrices = [
        pair[0].model.layers[0].get_weights()[0],
        pair[1].model[0].weight.detach().numpy().T,
    ]
    if optimizer == "Muon" and norm != "ghost":
        # PyTorch orthogonalises in bfloat16, which has three digits. Muon moves a weight by about 0.002.
        assert np.abs(matrices[0] - matrices[1]).mean() < 1.5e-4
    elif optimizer in ("Adam", "AdamW") and norm != "ghost":
        # Keras adds Adam's eps before the bias correction. In the first step it counts 1 / sqrt(0.001) = 32
        # times as much as in PyTorch, which changes steps of 0.01 with small gradients by about 1e-5.
        assert np.median(np.abs(matrices[0] - matrices[1])) < 3e-5
    elif norm != "ghost":  # the ghosts depend on the order of the images
        np.testing.assert_allclose(*matrices, atol=5e-5)
    else:
        assert np.abs(matrices[0] - matrices[1]).mean() < 0.02


def test_the_convolutional_network_is_the_same():
    pair = [make(module, network="CNN", image=(14, 28, 2)) for module in PAIR]
    copy_weights(*pair)
    last = pair[1].model[-1].weight  # its inputs have the channels first, and those of Keras last
    with torch.no_grad():
        last.copy_(last.reshape(10, 2, 4, 64).movedim(3, 1).flatten(1).clone())
    outputs = (
        pair[0].model(IMAGES).numpy(),
        pair[1].model(torch.from_numpy(IMAGES)).detach().numpy(),
    )
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("module", PAIR)
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch"}, {"norm": "ghost", "ghost_size": 16}, {"clip_norm": 5.0},
        {"gradient_noise": 1e-6}, {"loss_weight_std": 0.5}, {"optimizer": "LAMB"},
    ],
)  # fmt: skip
def test_a_few_epochs_learn_ten_groups(module, options):
    rows = make(module, steps=28, **options).fit(DATA, DATA, batch_size=50, epochs=7, every=7)
    assert [row["epoch"] for row in rows] == [7]
    assert rows[0]["test_accuracy"] > 0.9


@pytest.mark.parametrize("module", PAIR)
def test_the_schedule_sets_the_rate_of_each_step(module):
    """With a rate of 0 from the second step on, only the first batch changes the weights."""
    first = make(module, schedule=lambda step: 0.1 if step == 0 else 0.0, steps=4, optimizer="Adam")
    before = _matrix(first).copy()
    first.fit(DATA, DATA, batch_size=50, epochs=1)
    change = np.abs(_matrix(first) - before)
    assert change.max() == pytest.approx(0.1, rel=0.01)  # one step of Adam at 0.1, not four


@pytest.mark.parametrize("module", PAIR)
@pytest.mark.parametrize("optimizer", ["Adam", "Muon"])
def test_a_branch_continues_like_the_run_itself(module, optimizer):
    """With one batch per epoch the order of the images does not matter."""
    run = make(module, optimizer=optimizer, schedule=lambda step: 0.01 * (step + 1))
    run.fit(DATA, DATA, batch_size=200, epochs=2)
    branch = run.branch(lambda step: 0.01 * (step + 1), 8)
    still = run.branch(lambda step: 0.0, 8)
    before = _matrix(run).copy()
    for each in (run, branch, still):
        each.fit(DATA, DATA, batch_size=200, epochs=2)
    np.testing.assert_allclose(_matrix(branch), _matrix(run), atol=1e-5)
    np.testing.assert_array_equal(_matrix(still), before)
    assert np.abs(_matrix(run) - before).max() > 1e-3


def test_norms_of_matrices_and_gradients_agree():
    pair = [make(module, hidden_layers=2) for module in PAIR]
    copy_weights(*pair)
    norms = [training.matrix_norms(IMAGES, LABELS) for training in pair]
    np.testing.assert_allclose(*norms, rtol=1e-3)


def _matrix(training):
    if hasattr(training, "rates"):
        return training.model[0].weight.detach().numpy()
    return training.model.layers[0].get_weights()[0]
